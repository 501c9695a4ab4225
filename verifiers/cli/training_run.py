"""What sessions of `vf-train` and `vf-sft` share: leading or following torchrun's processes, telling a loop's end."""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel

from verifiers.cli.output import Output, log_file
from verifiers.cli.training_end import Ending, write_curve
from verifiers.cli.training_record import RunRecord
from verifiers.errors import Error, ExitCode
from verifiers.loops import run_to_end
from verifiers.train.run_folder import LOG, RunFolder


class Outcome(Protocol):
    """How a loop ended: after which step, and whether it was stopped before its last one."""

    @property
    def step(self) -> int: ...
    @property
    def stopped(self) -> bool: ...


Ended = TypeVar("Ended", bound=Outcome)


def follow(learner: Any, ranks: Any) -> ExitCode:
    """Do what the first process asks for, to the end of the run."""
    learner.follow()
    ranks.leave()  # threads of gloo that outlive the interpreter abort it: a run that is done would have failed
    return ExitCode.OK


def lead(
    work: Coroutine[Any, Any, ExitCode], learner: Any, ranks: Any, folder: RunFolder, begins: BaseModel | None
) -> ExitCode:
    """Work on the run while nobody else does, and let the followers go. begins: the settings of a run that begins."""
    try:
        with folder.held(new=begins), log_file(folder / LOG):
            code = run_to_end(work)
    finally:
        work.close()
        learner.close()
    ranks.leave()
    return code


@dataclass(frozen=True, slots=True)
class Teller:
    """Tells of the end of a run's loop, and how it is continued."""

    command: str
    folder: RunFolder
    output: Output

    @property
    def goes_on(self) -> str:
        """The command that continues the run."""
        return shlex.join([self.command, "--resume", str(self.folder.path)])

    async def driven(self, running: Awaitable[Ended], loop: Any, record: RunRecord) -> Ended:
        """Wait for the loop, and note how it ended."""
        try:
            outcome = await running
        except BaseException as error:
            record.ended(loop.step, type(error).__name__)
            if isinstance(error, Error) and loop.step:
                self.output.hint(f"continue from the last checkpoint: {self.goes_on}")
            raise
        record.ended(outcome.step, "stopped" if outcome.stopped else "finished")
        return outcome

    def stopped(self, outcome: Outcome, steps: int, ending: Ending, title: str) -> ExitCode:
        """The run was interrupted after one of its `steps`."""
        write_curve(ending, title, self.folder)
        self.output.note(f"stopped after step {outcome.step} of {steps}")
        self.output.hint(f"continue with: {self.goes_on}")
        return ExitCode.INTERRUPTED
