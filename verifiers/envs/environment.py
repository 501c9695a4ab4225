"""`Environment`: a data set, a rubric and a way to play one task.

An environment plays *one* rollout (`rollout`). Playing and saving many is the job of `verifiers.rollouts` and
`verifiers.evals`; `generate`, `evaluate`, `run_rollout` and `run_group` hand over to them. Subclass `MultiTurnEnv`
or `SingleTurnEnv` rather than this class.
"""

from __future__ import annotations

import asyncio
import difflib
import inspect
import json
import logging
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from verifiers.clients.client import Client, as_client
from verifiers.decorators import marked, maybe_await
from verifiers.envs.executors import scale_executors
from verifiers.envs.formatting import PromptFormat, format_dataset, read_few_shot, take
from verifiers.envs.registry import register
from verifiers.envs.turns import add_usage, increment_usage
from verifiers.errors import DatasetError, EnvironmentLoadError, as_error, is_failure
from verifiers.loops import run_to_end
from verifiers.parsers.parser import Parser
from verifiers.rubrics.problems import Problem, nothing_counts
from verifiers.rubrics.rubric import Rubric
from verifiers.rubrics.rubric_group import RubricGroup
from verifiers.tools.schema import to_tool
from verifiers.types import (
    GenerateOutputs,
    MessageType,
    OnRewardError,
    Response,
    RolloutInput,
    RolloutOutput,
    RolloutTiming,
    SamplingArgs,
    State,
    TaskSplit,
    TokenUsage,
    Tool,
    normalize_messages,
    plain_copy,
)

if TYPE_CHECKING:
    from datasets import Dataset

T = TypeVar("T")
logger = logging.getLogger(__name__)


class Environment(ABC):
    """A task collection with rewards.

    dataset, eval_dataset: a `datasets.Dataset`, a list of dicts, a JSONL path, or a function without arguments
        that returns one (called on first use). At least one is needed.
    system_prompt, few_shot: put in front of each `question`; `system_prompt` also in front of a `prompt`.
    rubric: scores rollouts. parser: takes the answer out of a completion; the rubric inherits it.
    sampling_args: defaults of the environment, which arguments of a call replace key by key.
    max_seq_len: tokens; longer evidence is cut and the rollout marked truncated.
    score_rollouts: False leaves every reward at 0.0 and calls no reward function.
    on_reward_error: "unscored" (default), "zero" or "raise".

    Any other keyword becomes an attribute, since published environments rely on it; a near miss of a real one is
    warned about.
    """

    record_columns: tuple[str, ...] = ()
    """Keys of the state that records keep without being asked to: what rewards and metrics read beyond the
    conversation, so that saved runs can be scored again."""

    def __init__(
        self,
        dataset: Any = None,
        eval_dataset: Any = None,
        system_prompt: str | None = None,
        few_shot: list[Any] | None = None,
        parser: Parser | None = None,
        rubric: Rubric | None = None,
        sampling_args: SamplingArgs | None = None,
        message_type: MessageType = "chat",
        tool_defs: list[Any] | None = None,
        max_workers: int = 512,
        env_id: str | None = None,
        env_args: dict[str, Any] | None = None,
        map_kwargs: dict[str, Any] | None = None,
        max_seq_len: int | None = None,
        score_rollouts: bool = True,
        pass_threshold: float = 0.5,
        on_reward_error: OnRewardError | None = None,
        **kwargs: Any,
    ) -> None:
        if dataset is None and eval_dataset is None:
            raise DatasetError("an environment needs a dataset or an eval_dataset", hint="Pass dataset=….")
        _refuse_old_rollout(type(self))
        self.logger = logging.getLogger(f"verifiers.envs.{type(self).__name__}")
        self.message_type: MessageType = message_type
        self.system_prompt = system_prompt
        self.few_shot = few_shot
        self._format = PromptFormat(system_prompt, read_few_shot(few_shot), message_type == "completion")
        self.map_kwargs = dict(map_kwargs or {})
        self.parser = parser if parser is not None else Parser()
        self.rubric = rubric if rubric is not None else Rubric()
        self.sampling_args = merge_sampling_args({"n": 1, "extra_body": {}}, sampling_args)
        tools = kwargs.pop("oai_tools", None) if tool_defs is None else tool_defs
        self.tool_defs: list[Tool] = [to_tool(tool) for tool in tools or []]
        self.max_workers = max_workers
        self.env_id = env_id or ""
        self.env_args = dict(env_args or {})
        self.max_seq_len = max_seq_len
        self.score_rollouts = score_rollouts
        self.pass_threshold = pass_threshold
        self.on_reward_error = on_reward_error
        self._sources: dict[str, Any] = {"train": dataset, "eval": eval_dataset}
        self._formatted: dict[str, Dataset] = {}
        for split, source in self._sources.items():
            if source is not None and not callable(source):
                self._formatted[split] = self._build(split)
        self._mentioned: set[str] = set()
        self._set_extra(kwargs)
        register(self)

    def _set_extra(self, extra: dict[str, Any]) -> None:
        makers = [cls.__init__ for cls in type(self).__mro__ if issubclass(cls, Environment)] if extra else []
        known = {name for maker in makers for name in inspect.signature(maker).parameters} - {"self", "kwargs"}
        for key, value in extra.items():
            near = difflib.get_close_matches(key, sorted(known), n=1, cutoff=0.85)
            if near and key not in known:
                self.logger.warning("%s: unknown keyword %r; did you mean %r?", type(self).__name__, key, near[0])
            setattr(self, key, value)

    # --- data ------------------------------------------------------------------------------------------------

    @property
    def dataset(self) -> Dataset | None:
        """The formatted training rows, None if there are none."""
        return self._split("train")

    @dataset.setter
    def dataset(self, source: Any) -> None:
        self._replace("train", source)

    @property
    def eval_dataset(self) -> Dataset | None:
        """The formatted evaluation rows, None if there are none."""
        return self._split("eval")

    @eval_dataset.setter
    def eval_dataset(self, source: Any) -> None:
        self._replace("eval", source)

    def _replace(self, split: str, source: Any) -> None:
        self._sources[split] = source
        self._formatted.pop(split, None)

    def _split(self, split: str) -> Dataset | None:
        if split not in self._formatted and self._sources[split] is not None:
            self._formatted[split] = self._build(split)
        return self._formatted.get(split)

    def _build(self, split: str) -> Dataset:
        source = self._sources[split]
        return format_dataset(_made(source) if callable(source) else source, self._format, self.map_kwargs)

    def has_split(self, split: TaskSplit) -> bool:
        """Whether there are rows of that split; does not build them."""
        return self._sources[split] is not None

    def build_dataset(self) -> Dataset | None:
        """Build the training rows if they are not built yet."""
        return self.dataset

    def build_eval_dataset(self) -> Dataset | None:
        """Build the evaluation rows if they are not built yet."""
        return self.eval_dataset

    def get_dataset(self, n: int = -1, seed: int | None = None) -> Dataset:
        """The first n training rows (all if n < 1), shuffled with `seed` if one is given."""
        dataset = self.dataset
        if dataset is None:
            raise DatasetError("this environment has no training data", hint="Use get_eval_dataset().")
        return take(dataset, n, seed)

    def get_eval_dataset(self, n: int = -1, seed: int | None = None) -> Dataset:
        """The first n evaluation rows; falls back to the training rows with a warning."""
        dataset = self.eval_dataset
        if dataset is None:
            self.logger.warning("no eval_dataset: evaluating on the training data")
            return self.get_dataset(n, seed)
        return take(dataset, n, seed)

    # --- one rollout -----------------------------------------------------------------------------------------

    @abstractmethod
    async def rollout(
        self, input: RolloutInput, client: Client, model: str, sampling_args: SamplingArgs | None = None
    ) -> State:
        """Play one task to its end and return its state, unscored."""

    async def init_state(
        self, input: Any, client: Any, model: str, sampling_args: SamplingArgs | None = None
    ) -> State:
        """A fresh state for a row: deep copy, `info` decoded, prompt normalised, tools chosen."""
        row = RolloutInput(plain_copy(dict(input)))
        row.setdefault("example_id", 0)
        row["prompt"] = self._read_prompt(row)
        if "info" in row:
            row["info"] = read_info(row["info"], row["example_id"])
        if not row.get("task"):
            row["task"] = self.env_id or "default"
        return State(
            input=row,
            client=as_client(client),
            model=model,
            sampling_args=sampling_args or {},
            is_completed=False,
            is_truncated=False,
            tool_defs=self._tools_of(row),
            trajectory=[],
            trajectory_id=secrets.token_hex(16),
            completion=None,
            reward=None,
            metrics=None,
            error=None,
            final_env_response=None,
            stop_condition=None,
            timing=RolloutTiming(),
            usage=None,
        )

    def _read_prompt(self, row: RolloutInput) -> Any:
        prompt = row.get("prompt")
        if self.message_type == "completion" and isinstance(prompt, str):
            return prompt
        try:
            return normalize_messages(prompt)
        except (TypeError, ValueError) as error:
            raise DatasetError(f"the prompt of row {row['example_id']} is no prompt: {error}", cause=error) from error

    def _tools_of(self, row: RolloutInput) -> list[Tool]:
        info = row.get("info")
        own = (info.get("tool_defs") or info.get("oai_tools")) if isinstance(info, dict) else None
        return [to_tool(tool) for tool in own] if own else list(self.tool_defs)

    async def get_model_response(
        self,
        state: State,
        prompt: Any,
        client: Any = None,
        model: str | None = None,
        tool_defs: list[Tool] | None = None,
        sampling_args: SamplingArgs | None = None,
        **kwargs: Any,
    ) -> Response:
        """Ask the model; what is not given is taken from the state. Counts usage and time on the state."""
        tools = tool_defs if tool_defs is not None else kwargs.pop("oai_tools", None) or state.get("tool_defs")
        kwargs.pop("message_type", None)
        with state["timing"].record("model"):
            response: Response = await as_client(client or state["client"]).get_response(
                prompt=prompt if isinstance(prompt, str) else normalize_messages(prompt),
                model=model or state["model"],
                sampling_args=sampling_args if sampling_args is not None else state.get("sampling_args") or {},
                tools=[to_tool(tool) for tool in tools] if tools else None,
                state=state,
                **kwargs,
            )
        add_usage(state, response)
        return response

    async def is_completed(self, state: State, *args: Any, **kwargs: Any) -> bool:
        """Whether the rollout has ended."""
        return bool(state.get("is_completed"))

    def increment_state_usage(self, state: State, input_tokens: float = 0, output_tokens: float = 0) -> None:
        """Count tokens that the environment spent on its own."""
        increment_usage(state, input_tokens, output_tokens)

    def get_state_usage(self, state: State) -> TokenUsage | None:
        """Tokens counted so far, None if the endpoint reports none."""
        usage: TokenUsage | None = state.get("usage")
        return usage

    # --- rubric and settings ---------------------------------------------------------------------------------

    @property
    def rubric(self) -> Rubric:
        """What scores the rollouts. One that is assigned later inherits the parser too."""
        return self._rubric

    @rubric.setter
    def rubric(self, rubric: Rubric) -> None:
        self._rubric = rubric
        if "parser" in self.__dict__:  # not yet, if a subclass assigns before it calls this constructor
            rubric.bind_parser(self.parser)

    def add_rubric(self, rubric: Rubric) -> None:
        """Score with one more rubric; rewards and metrics are added up."""
        if isinstance(self.rubric, RubricGroup):
            self.rubric.rubrics.append(rubric)
        else:
            self.rubric = RubricGroup([self.rubric, rubric])
        self.rubric.bind_parser(self.parser)

    def check(self) -> list[Problem]:
        """What is likely a mistake of the author, one sentence each: reward functions that no one can call, weights,
        metrics that share a name, a rubric whose parser is not the environment's.

        Parameters of reward functions are compared with the columns of rows that are built already.
        """
        columns = {name for rows in self._formatted.values() for name in rows.column_names}
        problems = self.rubric.check(columns or None)
        if self.score_rollouts and not self.rubric.scores_itself:
            problems += nothing_counts(self.rubric.get_reward_func_names(), self.rubric.get_reward_weights())
        return problems

    def mention_problems(self) -> None:
        """Log what `check` finds as warnings, each once. Called when it is loaded and before it is played."""
        for problem in self.check():
            if problem not in self._mentioned:
                self._mentioned.add(problem)
                self.logger.warning("%s: %s", self.env_id or type(self).__name__, problem)

    @property
    def requires_group_rollouts(self) -> bool:
        """Whether a reward function looks at all rollouts of a task at once."""
        return self.rubric.requires_group

    @property
    def provides_advantages(self) -> bool:
        """Whether the environment computes advantages of its own."""
        return self.rubric.has_advantages or bool(marked(self, "advantage"))

    def set_kwargs(self, **kwargs: Any) -> None:
        """Set attributes after construction, through `set_<name>` where there is one."""
        for key, value in kwargs.items():
            setter: Callable[[Any], Any] | None = getattr(self, f"set_{key}", None)
            if setter is not None:
                setter(value)
            else:
                if not hasattr(self, key):
                    near = difflib.get_close_matches(key, dir(self), n=1)
                    meant = f"; did you mean {near[0]!r}?" if near else ""
                    self.logger.warning("%s has no attribute %r to set%s", type(self).__name__, key, meant)
                setattr(self, key, value)

    def set_concurrency(self, concurrency: int) -> None:
        """How many rollouts `generate` plays at once where the call does not say."""
        self.max_concurrent = concurrency
        scale_executors(concurrency)

    def set_max_seq_len(self, max_seq_len: int | None) -> None:
        """Longest evidence of one turn, in tokens."""
        self.max_seq_len = max_seq_len

    def set_score_rollouts(self, score_rollouts: bool) -> None:
        """Whether reward functions are called."""
        self.score_rollouts = score_rollouts

    @property
    def oai_tools(self) -> list[dict[str, Any]]:
        """`tool_defs` under the name and in the nested form of the 0.1 series, to be handed to an SDK object."""
        return [tool.nested() for tool in self.tool_defs]

    @oai_tools.setter
    def oai_tools(self, tools: list[Any] | None) -> None:
        self.tool_defs = [to_tool(tool) for tool in tools or []]

    async def _teardown(self) -> None:
        """Run the teardown handlers of the environment and its rubric; a failing one is logged."""
        for handler in marked(self, "teardown"):
            try:
                await maybe_await(handler)
            except BaseException as error:  # boundary: one author's handler must not keep the others from running
                if not is_failure(error):
                    raise
                self.logger.exception("teardown handler %s failed", getattr(handler, "__name__", handler))
        await self.rubric.teardown()

    # --- many rollouts: handed over to rollouts and evals -----------------------------------------------------

    async def run_rollout(
        self,
        input: Any,
        client: Any,
        model: str,
        sampling_args: SamplingArgs | None = None,
        max_retries: int = 0,
        state_columns: list[str] | None = None,
        env_client: Any = None,
    ) -> RolloutOutput:
        """Play and score one task. Returns its record."""
        from verifiers.rollouts.engine import play_group

        return (await play_group(self, [input], client, model, sampling_args, max_retries, state_columns))[0]

    async def run_group(
        self,
        group_inputs: list[Any],
        client: Any,
        model: str,
        sampling_args: SamplingArgs | None = None,
        max_retries: int = 0,
        state_columns: list[str] | None = None,
        env_client: Any = None,
    ) -> list[RolloutOutput]:
        """Play and score the rollouts of one task together. Returns their records in order."""
        from verifiers.rollouts.engine import play_group

        return await play_group(self, group_inputs, client, model, sampling_args, max_retries, state_columns)

    async def generate(
        self,
        inputs: Any,
        client: Any,
        model: str,
        sampling_args: SamplingArgs | None = None,
        max_concurrent: int | None = None,
        **options: Any,
    ) -> GenerateOutputs:
        """Play and score rows. See `verifiers.evals.run.GenerateOptions` for the options."""
        from verifiers.evals.run import GenerateOptions, generate

        chosen = GenerateOptions.read(max_concurrent=max_concurrent, **options)
        return await generate(self, inputs, client, model, sampling_args, chosen)

    async def evaluate(
        self,
        client: Any,
        model: str,
        sampling_args: SamplingArgs | None = None,
        num_examples: int = -1,
        rollouts_per_example: int = 1,
        max_concurrent: int | None = None,
        **options: Any,
    ) -> GenerateOutputs:
        """Play the first `num_examples` evaluation tasks (-1: all), each `rollouts_per_example` times."""
        from verifiers.evals.run import GenerateOptions, evaluate

        chosen = GenerateOptions.read(
            num_examples=num_examples,
            rollouts_per_example=rollouts_per_example,
            max_concurrent=max_concurrent,
            **options,
        )
        return await evaluate(self, client, model, sampling_args, chosen)

    def generate_sync(self, inputs: Any, client: Any, model: str, *args: Any, **kwargs: Any) -> GenerateOutputs:
        """`generate` for code that is not async; works inside a running loop too (notebooks)."""
        return _run(self.generate(inputs, client, model, *args, **kwargs))

    def evaluate_sync(self, client: Any, model: str, *args: Any, **kwargs: Any) -> GenerateOutputs:
        """`evaluate` for code that is not async; works inside a running loop too (notebooks)."""
        return _run(self.evaluate(client, model, *args, **kwargs))

    def make_dataset(self, results: GenerateOutputs, columns: Iterable[str] = ()) -> Dataset:
        """A data set of results: prompt, completion, answer, task, reward and each metric, and more columns."""
        from datasets import Dataset

        wanted = ["example_id", "prompt", "completion", "answer", "task", "reward", *columns]
        table = {name: results[name] if name in results else results["metrics"][name] for name in wanted}
        return Dataset.from_dict({**table, **results["metrics"]})


def merge_sampling_args(base: SamplingArgs, changes: SamplingArgs | None) -> SamplingArgs:
    """`base` with `changes` on top; `extra_body` is merged one level deep."""
    merged = {**base, **(changes or {})}
    merged["extra_body"] = {**(base.get("extra_body") or {}), **((changes or {}).get("extra_body") or {})}
    return merged


def sampling_defaults(env: Environment) -> list[SamplingArgs]:
    """The sampling arguments that rollouts begin with: the environment's own, then those of each child of a group."""
    children: Iterable[Environment] = getattr(env, "envs", ())
    return [env.sampling_args, *(arguments for child in children for arguments in sampling_defaults(child))]


def read_info(info: Any, example_id: Any) -> Any:
    """`info` as a dict: decoded if it is JSON text, {} if empty."""
    if info is None or info == "":
        return {}
    if isinstance(info, str):
        try:
            return json.loads(info)
        except ValueError as error:
            raise DatasetError(f"the info of row {example_id} is no JSON: {error}", cause=error) from error
    return info


def _made(source: Callable[[], Any]) -> Any:
    """The data set that an author's function makes."""
    try:
        return source()
    except BaseException as error:  # boundary: code of the environment's author
        if not is_failure(error):
            raise
        typed = as_error(error, EnvironmentLoadError, "the function that makes the data set")
        raise typed from typed.__cause__


def _refuse_old_rollout(cls: type[Environment]) -> None:
    """Tell authors of 0.1.2–0.1.7 environments that override `rollout(client, model, prompt, …)` at load time."""
    parameters = list(inspect.signature(cls.rollout).parameters)
    if len(parameters) > 2 and parameters[1] == "client":
        raise EnvironmentLoadError(
            f"{cls.__name__}.rollout has the signature of verifiers 0.1.2 to 0.1.7: ({', '.join(parameters)})",
            hint="Rewrite it as rollout(self, input, client, model, sampling_args=None) -> State, "
            "or override env_response and a @vf.stop method instead.",
        )


def _run(coroutine: Coroutine[Any, Any, T]) -> T:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return run_to_end(coroutine)
    # A loop runs in this thread (a notebook): a second one needs a thread of its own (verifiers#155).
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(run_to_end, coroutine).result()
