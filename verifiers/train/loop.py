"""The training loop: sampling and training at once, with weights that change while rollouts are under way.

    loop = AsyncLoop(
        [EnvironmentSource("math", source, source.task_ids)], sampler, learner, algorithm, config.loop,
        sampling={"temperature": 1.0, "max_tokens": 512}, observers=[print],
    )
    await loop.run()

One event loop asks for groups as `pacing` allows, takes them in, and hands weights to the sampler; the learner's
methods run in one thread beside it. A batch is cut when enough groups are ready, whatever is still in flight. After a
step the sampler is paused, given the new weights, and resumed: rollouts go on in the middle of a reply, and their
tokens say which version sampled them. `max_lag=0` is the same code: nothing is asked for while a batch is trained.

Sources, sampler and learner belong to the caller, who closes them. What each figure of a report means is in
docs/guides/training-loop.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from verifiers.clients.sampler import Sampler
from verifiers.errors import Error, NothingToTrainError, StoreError, TrainingError
from verifiers.loops import shielded
from verifiers.rollouts.interpreter import tuned_interpreter
from verifiers.train.advantages import Rae
from verifiers.train.buffer import Batch
from verifiers.train.checkpoint import UNREADABLE, Checkpoints, RunState, unreadable
from verifiers.train.config import LoopConfig
from verifiers.train.evaluation import Evaluation
from verifiers.train.evidence import Checks
from verifiers.train.flow import EnvironmentSource, GroupFlow
from verifiers.train.groups import Algorithm
from verifiers.train.learner import Learner, Weights
from verifiers.train.learner_calls import Blocking, LearnerCalls
from verifiers.train.report import Observer, StepReport, tell
from verifiers.train.turn import Waits
from verifiers.types import SamplingArgs

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoopResult:
    """How a run ended: after which step, at which policy version, and whether `stop` ended it early. mastered: why it
    has reached its end before its last step, the model having learned all there is; empty otherwise."""

    step: int
    version: int
    stopped: bool
    mastered: str = ""


class AsyncLoop:
    """See the module.

    sampling: arguments of every request; they stand in the rows. checks: what token evidence is held against.
    blocking: how the learner is called, a thread of its own if None. checkpoints, evaluation: see
    `verifiers.train.checkpoint` and `verifiers.train.evaluation`.
    """

    def __init__(
        self,
        sources: Sequence[EnvironmentSource],
        sampler: Sampler,
        learner: Learner,
        algorithm: Algorithm,
        config: LoopConfig,
        *,
        sampling: SamplingArgs | None = None,
        checks: Checks | None = None,
        observers: Sequence[Observer] = (),
        evaluation: Evaluation | None = None,
        checkpoints: Checkpoints | None = None,
        blocking: Blocking | None = None,
    ) -> None:
        self.config = config
        self.step = 0
        self.version = learner.version
        self._sampler = sampler
        self._learner = learner
        self._observers = list(observers)
        self._baselines = algorithm.baselines if isinstance(algorithm, Rae) else {}
        self._calls = LearnerCalls(learner, blocking)
        self._evaluation = evaluation
        self._checkpoints = checkpoints
        self.flow = GroupFlow(sources, algorithm, config, dict(sampling or {}), self._on_arrival, checks)
        self.flow.sampler_version = sampler.info().version
        self._changed = asyncio.Event()
        self._stopping = self._training = False
        self._untrained = 0
        self._update: asyncio.Task[None] | None = None
        self._evaluating: asyncio.Task[None] | None = None
        self._due: tuple[int, int] | None = None
        self._saved = 0

    async def run(self) -> LoopResult:
        """Train until `config.steps` turns are done.

        Or until there is nothing left to learn. Raises what ended the run, if something did: an error of the sampler,
        what makes every further group of a source fail, TrainingError when the learner raises, NothingToTrainError when
        too much gave nothing to train on. A cancelled run lets the present step end first.
        """
        self._waits = Waits(asyncio.get_running_loop().time)
        self._waits.mark("trainer", True)
        failure: BaseException | None = None
        try:
            with tuned_interpreter():  # between two plays, too: each change back has the whole batch looked through
                await self._run()
        except BaseExceptionGroup as group:
            failure = _first(group)
        except BaseException as error:  # a cancellation, or the interpreter's end
            failure = error
        try:
            await self._save_last(failure)
        finally:
            self._calls.close()
        if failure is not None:
            raise failure from failure.__cause__
        early = self.step < self.config.steps
        mastered = self.flow.buffer.mastered if early else ""
        return LoopResult(self.step, self.version, early and not mastered, mastered)

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            if self.version != self.flow.sampler_version:
                # Of a run that goes on: what the weights before would sample is too old to be trained.
                await self._replace(await self._calls.weights())
            beside = self.flow.start(tasks)
            await self._train()
            for task in beside:
                task.cancel()

    def observe(self, observer: Observer) -> None:
        """Tell this one, too, from now on."""
        self._observers.append(observer)

    def doing(self) -> str:
        """What goes on now, in words: between two reports minutes may pass."""
        work = [f"step {self.step + 1} is being trained"] if self._training else []
        work += ["an evaluation"] if self._evaluating is not None else []
        return ", ".join([*work, self.flow.told()])

    def stop(self) -> None:
        """End the run after the present step, in order."""
        self._stopping = True
        self._changed.set()

    @property
    def _ending(self) -> bool:
        """Whether no further step is to be begun."""
        return self._stopping or bool(self.flow.buffer.mastered)

    # --- training ---------------------------------------------------------------------------------------------

    async def _train(self) -> None:
        self._mark_evaluation()  # of the base model; or again of a checkpoint's, whose evaluation may have been cut off
        while self.step < self.config.steps:
            batch = await self._next_batch()
            if batch is None:
                break
            # From here on, not when the turn begins: a group that arrives in between asks for what remains.
            self._training = True
            # To its end whatever happens, so that learner, buffer and step say the same when the run stops.
            await shielded(self._turn_on(batch))
        if self.flow.buffer.mastered:
            self._mark_evaluation(last=True)
        await self._publish()
        while self._update is not None or self._evaluating is not None:
            await self._change()
            await self._publish()

    async def _next_batch(self) -> Batch | None:
        """Wait for a batch. None: the run is to stop."""
        while not self._ending:
            await self._publish()
            batch = self.flow.cut(self.version)
            if batch is not None:
                return batch
            self._ask()
            await self._change()
        return None

    async def _turn_on(self, batch: Batch) -> None:
        """One turn: a step of the learner, while groups are asked for and come in."""
        before = self.version
        self._ask()
        self._waits.mark("trainer", False)
        try:
            figures = await self._calls.step(batch.rows, self.step + 1)
        finally:
            self._waits.mark("trainer", True)
            self._training = False
        self.step, self.version = self.step + 1, self._learner.version
        self._mark_evaluation()
        self._report(batch, self.version != before, figures)
        await self._save_if_due()
        self._untrained = 0 if self.version != before else self._untrained + 1
        if self._untrained >= self.config.max_empty_batches:
            raise NothingToTrainError(
                f"{self._untrained} batches in a row had no token to train on after masking",
                hint="Look at the figures of the masks (loss/…): the settings of the loss drop everything.",
            )

    def _report(self, batch: Batch, trained: bool, figures: dict[str, float]) -> None:
        seconds, waits = self._waits.take()
        told = {**self.flow.take_figures(), **batch.figures(), **waits, **figures}
        self._tell(StepReport(self.step, self.version, trained, seconds, told))

    def _tell(self, report: StepReport) -> None:
        if failed := tell(self._observers, report):
            self.flow.turn.counts["observers/failed"] += failed

    # --- weights ----------------------------------------------------------------------------------------------

    async def _publish(self) -> None:
        """Begin to hand the newest weights to the sampler, unless it has them, is just being given some, or is needed
        as it is by an evaluation.

        Only the training task calls the learner, so this never waits behind a step, and weights stay valid until the
        sampler has them: the next are asked for afterwards.
        """
        self._evaluate()
        if self._update is None and self._evaluating is None and self.version != self.flow.sampler_version:
            weights = await self._calls.weights()
            self._update = self._tasks.create_task(self._replace(weights))

    async def _replace(self, weights: Weights) -> None:
        self._waits.mark("update", True)
        try:
            await self._sampler.pause()
            try:
                await self._sampler.update_weights(weights, weights.version)
            finally:
                await self._sampler.resume()
        except Error:
            raise
        except Exception as error:  # boundary: an engine's own code
            raise TrainingError(
                f"the sampler did not take version {weights.version}: {type(error).__name__}: {error}",
                hint="Mend the sampler, and go on from the last checkpoint with --resume.",
            ) from error
        self._waits.mark("update", False)
        await self.flow.set_version(weights.version)
        self._update = None
        self._evaluate()
        self._signal()

    # --- evaluation -------------------------------------------------------------------------------------------

    def _mark_evaluation(self, *, last: bool = False) -> None:
        """last: this step turned out to be the last; an evaluation that was due after it anyway has been marked."""
        if self._evaluation is None:
            return
        if self._evaluation.is_due(self.step, self.config.steps) is not last:
            if self._due is not None:
                self.flow.turn.counts["eval/skipped"] += 1
            self._due = (self.step, self.version)

    def _evaluate(self) -> None:
        """Begin the evaluation that is due, once the sampler has the policy of that step."""
        if self._due is None or self._update is not None or self._evaluating is not None:
            return
        step, version = self._due
        if self.flow.sampler_version >= version:
            self._due = None
            self._evaluating = self._tasks.create_task(self._run_evaluation(step))
            self._mark_sampler()

    async def _run_evaluation(self, step: int) -> None:
        assert self._evaluation is not None
        began = asyncio.get_running_loop().time()
        version = self.flow.sampler_version
        figures = await self._evaluation.run(version)
        seconds = asyncio.get_running_loop().time() - began
        self._tell(StepReport(step, version, False, seconds, figures))
        self._evaluating = None
        self._mark_sampler()
        self._signal()

    # --- checkpoints ------------------------------------------------------------------------------------------

    async def resume(self) -> int | None:
        """Go on from the newest complete checkpoint, before `run`. Returns its step, None if there is none.

        ResumeError if it can not be read, or is of another run.
        """
        found = self._checkpoints.latest() if self._checkpoints is not None else None
        if found is None or self._checkpoints is None:
            return None
        state = await self._calls.run(self._checkpoints.load, found, self._learner)
        try:
            self.flow.restore(state.curriculum, state.buffer)
            self._baselines.update(state.baselines)
        except UNREADABLE as error:
            raise unreadable(found, error) from error
        self.step = self._saved = state.step
        self.version = self._learner.version
        return state.step

    async def _save(self) -> None:
        """Write a checkpoint of this step, unless there is one. StoreError leaves the ones before it as they are."""
        if self._checkpoints is None or self._saved == self.step:
            return
        refs = {one.name: asdict(one.ref) for one in self.flow.sources}
        state = RunState(self.step, self.version, *self.flow.snapshot(), refs, dict(self._baselines))
        await self._calls.run(self._checkpoints.save, state, self._learner)
        self._saved = self.step
        self.flow.turn.counts["checkpoints/saved"] += 1

    async def _save_if_due(self) -> None:
        """One that can not be written is counted and explained, and training goes on: the next may succeed."""
        if self._checkpoints is None or self.step % self._checkpoints.every:
            return
        try:
            await self._save()
        except StoreError as error:
            self.flow.turn.counts["checkpoints/failed"] += 1
            logger.error("%s (%s)", error, error.hint)

    async def _save_last(self, failure: BaseException | None) -> None:
        """Keep what was trained, however the run ended, unless the learner itself broke."""
        if self._calls.broken:
            return
        try:
            await shielded(self._save())
        except (StoreError, TrainingError) as error:
            if failure is None:
                raise
            logger.error("%s (%s)", error, error.hint)

    # --- groups -----------------------------------------------------------------------------------------------

    def _ask(self) -> None:
        """Ask for as many groups as pacing allows, and as the remaining steps will train."""
        ahead = self.version + self._training - self.flow.sampler_version
        batches = 0 if self._ending else self.config.steps - self.step - self._training
        self.flow.ask(behind=max(0, ahead), batches=batches)
        self._mark_sampler()

    def _mark_sampler(self) -> None:
        self._waits.mark("sampler", not self.flow.buffer.in_flight and self._evaluating is None)

    def _on_arrival(self) -> None:
        self._ask()
        self._signal()

    # --- waiting ----------------------------------------------------------------------------------------------

    def _signal(self) -> None:
        self._changed.set()

    async def _change(self) -> None:
        """Until something has arrived, or the sampler has new weights."""
        await self._changed.wait()
        self._changed.clear()


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
