"""Every error of the package, in one tree.

    Error
    ├── ModelError                      the model's endpoint did not give a usable reply
    │   ├── InvalidModelResponseError       a reply that breaks the protocol
    │   │   └── EmptyModelResponseError     no text, refusal, reasoning or tool call
    │   ├── EndpointUnavailableError        nobody answers at that address
    │   ├── RateLimitError                  429 after the last retry
    │   ├── ModelTimeoutError               no answer within the client's time-out
    │   ├── AuthenticationError             401 or 403; ends the run
    │   └── ModelNotFoundError              the endpoint has no such model; ends the run
    ├── LimitError                      a limit of the run, the rollout or the model was reached
    │   ├── OverlongPromptError             the prompt does not fit the model's context
    │   └── SpentError                      the rollout has spent what it may
    ├── ToolError
    │   ├── ToolParseError                  the arguments of a tool call cannot be read
    │   ├── ToolCallError                   the tool raised
    │   ├── CommandTimeoutError             a command in a sandbox ran out of its time
    │   └── SandboxPathError                a path in a sandbox is not what was asked for
    │       └── SandboxFileNotFoundError
    ├── InfraError                      something between us and the model or the sandbox broke
    │   ├── TunnelError
    │   ├── WorkerDiedError                 a worker process ended or hung
    │   ├── ProtocolError                   a worker sent something that is no message
    │   ├── EngineError                     the engine that samples for training failed
    │   ├── ToolServerError                 a server of tools, or the connection to it, ended
    │   │   └── ToolServerStartError            it never answered; ends the run
    │   └── SandboxError
    │       ├── SandboxCreationError
    │       │   └── SandboxUnsupportedError         asked for what the provider cannot give; ends the run
    │       ├── SandboxNotReadyError
    │       ├── SandboxBusyError                no room now; `retry_after`
    │       ├── SandboxUnreachableError         no way to it at present; it may live
    │       ├── SandboxDiedError                it is gone for good
    │       ├── PythonWorkerNotReadyError       the Python of a PythonEnv did not start
    │       ├── PythonWorkerDeadError           it ended while no code was running
    │       ├── PythonWorkerRequestError        it did not do what it was asked
    │       └── BrowserSandboxError
    ├── EnvironmentCodeError            an environment's own code raised
    ├── InvalidTaskError                an environment declares that a task is unfit
    ├── RewardError                     a reward function raised or returned something that is no number
    │   └── UnsavedStateError               scoring a saved rollout again needs state that was not saved
    ├── GraderError                     a grader could not reach a verdict (time-out, unreadable gold, crash)
    ├── JudgeError                      the judge model gave no verdict
    ├── EvidenceError                   token evidence that contradicts itself, or a row that would
    │   └── InexactEvidenceError            token ids or logprobs that are not the engine's own
    ├── TrainingError                   a training run can not go on: its trainer broke, or nothing trains it
    │   ├── NothingToTrainError             groups give nothing to train on, batch after batch
    │   └── TrainingDivergedError           gradients that are not finite, again and again
    └── UserError                       the caller can mend this
        ├── EnvironmentNotFoundError, EnvironmentLoadError, EnvironmentArgumentError, UpstreamApiError,
        │   EnvironmentInstallError
        ├── DatasetError, DataUnavailableError
        ├── MissingKeyError, MissingExtraError
        ├── ConfigError
        │   └── SandboxSettingsError        no sandbox can be made with it; ends the run
        ├── ClusterError                a Ray cluster is not there, or has no room
        ├── HubError                    the registry
        │   ├── HubDeniedError              no token, or one that does not allow it
        │   ├── HubNotFoundError            no such owner, project or version
        │   ├── HubRefusedError             it would not do it, and says why
        │   └── HubUnavailableError         it does not answer now
        └── StoreError, ResumeError

A failure of a rollout is stored on its record (`error_record`) and its reward is None: a failure is never a
number. Class attributes say how each class is treated:

- `kind`: the word that records and tables count it under;
- `retryable`: whether running the rollout again can help;
- `fatal`: whether every further rollout would fail alike, so that the run ends at once;
- `attribution`: who can mend it ("provider", "author", "user" or "us");
- `exit_code`: what a command returns when this error ends it;
- `hint`: what to do next; an instance may be given a better one.

To add a class: put it below the nearest parent, add it to the drawing, override only what differs, and give a
hint that names an action. Errors pickle, since they cross process borders.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, ClassVar, Literal

from verifiers.error_text import ErrorChain, place_of, text_of  # noqa: F401 - v0 has ErrorChain here

Attribution = Literal["provider", "author", "user", "us"]


class ExitCode(IntEnum):
    """What the commands return. One list for all of them."""

    OK = 0
    """Done."""
    FAILED = 1
    """The thing asked for failed: not found, a threshold missed, every rollout failed."""
    USAGE = 2
    """The command line or a configuration file is wrong."""
    DENIED = 3
    """Not allowed, or no key."""
    UNAVAILABLE = 4
    """A remote side does not answer; trying again makes sense."""
    PARTIAL = 5
    """Some rollouts failed, were not scored or were not played (a limit of the run); the results are saved."""
    INTERRUPTED = 130
    """Ctrl-C."""


class Error(Exception):
    """Root of all errors. `hint` says what to do next."""

    kind: ClassVar[str] = "internal"
    retryable: ClassVar[bool] = False
    fatal: ClassVar[bool] = False
    attribution: ClassVar[Attribution] = "us"
    exit_code: ClassVar[ExitCode] = ExitCode.FAILED
    hint: str = "Run again with --verbose for the traceback."

    def __init__(self, *args: object, hint: str | None = None, cause: BaseException | None = None) -> None:
        super().__init__(*args)
        if hint is not None:
            self.hint = hint
        if self.hint is not Error.hint:
            self.add_note(f"hint: {self.hint}")  # a script's traceback ends with it; commands show it by themselves
        if cause is not None:
            self.__cause__ = cause

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions lose attributes and their cause when pickled; both must survive the way out of a worker.
        state = {**self.__dict__, "__cause__": self.__cause__}
        return (_restore, (type(self), self.args, state))


def _restore(cls: type[Error], args: tuple[object, ...], state: dict[str, Any]) -> Error:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__cause__ = state.pop("__cause__")
    error.__dict__.update(state)
    return error


# --- the model's endpoint -------------------------------------------------------------------------------------


class ModelError(Error):
    """The endpoint refused the request or broke while answering it."""

    kind = "model"
    attribution = "provider"
    hint = "Read the endpoint's message above; check the model's name and the sampling arguments."


class InvalidModelResponseError(ModelError):
    """The reply is not what the protocol promises: no JSON, no choice, or more than one."""

    retryable = True
    hint = "Check that the endpoint speaks the OpenAI chat protocol (its base URL usually ends in /v1)."


class EmptyModelResponseError(InvalidModelResponseError):
    """A reply without text, refusal, reasoning or tool call."""

    hint = "Raise the token limit (-t): a reasoning model may have spent it all before its first word."


class EndpointUnavailableError(ModelError):
    """Nothing answers at the endpoint's address, or the connection broke in every attempt."""

    retryable = True
    exit_code = ExitCode.UNAVAILABLE
    hint = "Check the base URL (-b) and that the server is running; -m local needs no server."


class RateLimitError(ModelError):
    """The endpoint answered 429 until the last retry. `retry_after` is in seconds, None if not told."""

    retryable = True
    exit_code = ExitCode.UNAVAILABLE
    hint = "Lower the concurrency (-c) or raise the number of retries."

    def __init__(self, *args: object, retry_after: float | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.retry_after = retry_after


class ModelTimeoutError(ModelError):
    """The endpoint did not answer within the client's time-out."""

    retryable = True
    exit_code = ExitCode.UNAVAILABLE
    hint = "Lower the concurrency (-c) or the token limit (-t), or raise the client's time-out."


class AuthenticationError(ModelError):
    """The endpoint answered 401 or 403. Every further request would be refused too."""

    fatal = True
    exit_code = ExitCode.DENIED
    hint = "Set the variable that holds the key (-k NAME), or use -m local, which needs none."


class ModelNotFoundError(ModelError):
    """The endpoint does not serve that model."""

    fatal = True
    hint = "Check the model's name (-m) against the endpoint's list of models."


# --- limits ---------------------------------------------------------------------------------------------------


class LimitError(Error):
    """A limit ended the rollout before it could be scored."""

    kind = "limit"
    attribution = "user"
    hint = "Raise the limit, or shorten what the environment sends."


class OverlongPromptError(LimitError):
    """The prompt does not fit the model's context."""

    hint = "Use a model with a longer context, or shorten the prompt."


class SpentError(LimitError):
    """A model call of a rollout whose limit of tokens, turns, cost or time is used up."""

    hint = "Raise --rollout-limit, or leave it out."


# --- tools and infrastructure ---------------------------------------------------------------------------------


class ToolError(Error):
    """A tool call failed in a way the environment lists in `stop_errors`."""

    kind = "tool"
    attribution = "author"
    hint = "See the cause; errors outside `stop_errors` are shown to the model instead."


class ToolParseError(ToolError):
    """The arguments of a tool call are not what the tool's schema asks for."""


class ToolCallError(ToolError):
    """The tool raised."""


class CommandTimeoutError(ToolError, TimeoutError):
    """A command in a sandbox ran longer than its time and was killed. `stdout` and `stderr` are what it printed.

    Raised by the methods of `sandbox_client` that environments call; the tools of `SandboxEnv` tell the model.
    """

    hint = "Give the command a longer `timeout`, or have it do less."

    def __init__(
        self, sandbox_id: str, command: str, timeout: float, stdout: str = "", stderr: str = "", **kwargs: Any
    ) -> None:
        super().__init__(f"command timed out after {timeout:g}s in sandbox {sandbox_id}: {command:.200}", **kwargs)
        self.sandbox_id = sandbox_id
        self.command = command
        self.timeout = timeout
        self.stdout = stdout
        self.stderr = stderr


class SandboxPathError(ToolError):
    """A path in a sandbox is not what was asked for: a directory, a special file, no permission, no space left."""

    hint = "See the message: the path is inside the sandbox."


class SandboxFileNotFoundError(SandboxPathError, FileNotFoundError):
    """There is no such file in the sandbox."""


class InfraError(Error):
    """Something between the rollout and its model or sandbox broke."""

    kind = "infrastructure"
    retryable = True
    hint = "Run again with --resume: finished rollouts are kept."


class TunnelError(InfraError):
    """A tunnel to the rollout could not be opened or broke."""


class WorkerDiedError(InfraError):
    """A worker is gone: it crashed, was killed, ran out of memory, or hung. `said` is the end of what it wrote."""

    hint = "See what the worker said last and the run's log; --resume continues a run that this ended."

    def __init__(self, *args: object, said: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.said = said


class ProtocolError(InfraError):
    """The other end of a connection to a worker sent something that is no message."""

    retryable = False
    hint = "Both ends must run the same version of verifiers."


class EngineError(InfraError):
    """The engine that samples for training failed; whatever it was generating ended with it."""

    hint = "See the cause. Out of memory: lower sampler.max_batch or sampler.max_context."


class ToolServerError(InfraError):
    """A server of tools (MCP) ended, or the connection to it."""

    hint = "Let failed rollouts be tried again (--max-retries), or mend the server: its error output is in the log."


class ToolServerStartError(ToolServerError):
    """A server of tools did not start or answer. No rollout could be played without it."""

    retryable = False
    fatal = True
    attribution = "user"
    hint = "Run the server's command by hand, or ask its address; `connect_timeout` sets how long it is waited for."


class SandboxError(InfraError):
    """A sandbox did not do what was asked."""

    kind = "sandbox"


class SandboxCreationError(SandboxError):
    """A sandbox could not be created."""


class SandboxUnsupportedError(SandboxCreationError):
    """What a specification asks for cannot be given here; the message names it and what was found."""

    retryable = False
    fatal = True
    attribution = "user"
    exit_code = ExitCode.USAGE
    hint = "vf-sandbox doctor shows what works here and how to get the rest."


class SandboxNotReadyError(SandboxError):
    """A sandbox was created but did not become ready in time."""


class SandboxBusyError(SandboxError):
    """The provider has no room for it now. `retry_after` is in seconds, None if not told."""

    hint = "Lower the concurrency (-c), or add nodes."

    def __init__(self, *args: object, retry_after: float | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.retry_after = retry_after


class SandboxUnreachableError(SandboxError):
    """The connection to a sandbox or its node broke, or nothing answers in time. The sandbox may live."""

    exit_code = ExitCode.UNAVAILABLE
    hint = "Check that the node runs and can be reached."


class SandboxDiedError(SandboxError):
    """A sandbox is gone for good, or its own first process is: whatever ran in it has ended."""

    hint = "Let failed rollouts be tried again (--max-retries); the log tells what ended it, where that is known."


class PythonWorkerNotReadyError(SandboxError):
    """The persistent Python of a `PythonEnv` did not start in time."""

    hint = "Raise max_startup_wait_seconds, or see the cause."


class PythonWorkerDeadError(SandboxError):
    """The persistent Python of a `PythonEnv` ended while no code of the model was running in it."""

    hint = "Let failed rollouts be tried again (--max-retries); a larger memory_gb helps if memory ran out."


class PythonWorkerRequestError(SandboxError):
    """The persistent Python of a `PythonEnv` did not do what it was asked; see the cause."""

    hint = "Let failed rollouts be tried again (--max-retries)."


class BrowserSandboxError(SandboxError):
    """A sandboxed browser failed."""


# --- code of environments, rewards, graders, judges -----------------------------------------------------------


class EnvironmentCodeError(Error):
    """Code of the environment raised; the original exception is the cause."""

    kind = "environment"
    attribution = "author"
    hint = "See the cause and its traceback in the run's log: the environment's own code raised."


class InvalidTaskError(Error):
    """For environments to raise: this task can not be played or scored by anybody, so it counts for nothing.

    Its rollout has the outcome `invalid_task`, is in no mean, and training asks for the task never again.
    """

    kind = "invalid_task"
    attribution: ClassVar[Attribution] = "author"
    hint = "Take the task out of the data set."


class RewardError(Error):
    """A reward function raised, timed out, or returned something that is no finite number."""

    kind = "reward"
    attribution: ClassVar[Attribution] = "author"
    hint = "Mend the reward function; --on-reward-error zero counts such rollouts as 0 instead."


class UnsavedStateError(RewardError):
    """A saved rollout cannot be scored again: a reward function reads state keys that its record does not hold."""

    attribution = "user"

    def __init__(self, keys: Sequence[str] | str) -> None:
        self.keys = [keys] if isinstance(keys, str) else list(keys)
        names = ", ".join(repr(key) for key in self.keys)
        super().__init__(
            f"the record does not hold the state's {names}, which the rubric reads",
            hint=f"Save it when the rollouts are played: -C {','.join(self.keys)} (state_columns).",
        )


class GraderError(Error):
    """A grader reached no verdict: its time ran out, the gold answer is unreadable, or its worker died."""

    kind = "grader"
    hint = "A bad gold answer is mended in the data set; a time-out by a larger limit."


class JudgeError(Error):
    """The judge model gave no usable verdict. An outage of the judge is no score."""

    kind = "judge"
    retryable = True
    attribution = "provider"
    hint = "Check the judge's endpoint, key and model name."


# --- token evidence ----------------------------------------------------------------------------------------------


class EvidenceError(Error):
    """The token evidence of a rollout contradicts itself, or a training row breaks a guarantee."""

    kind = "evidence"
    attribution: ClassVar[Attribution] = "provider"
    hint = "Leave the rollout out of training; if many are affected, check the endpoint's version and options."


class InexactEvidenceError(EvidenceError):
    """Token ids or logprobs are missing, or are not the engine's own, so training on them would be wrong."""

    attribution = "user"
    hint = "Use the client type openai_chat_completions_token, or an endpoint that reports token ids and logprobs."


class TrainingError(Error):
    """A training run can not go on: the trainer raised, or too many groups gave nothing to train on."""

    kind = "training"
    attribution: ClassVar[Attribution] = "user"
    hint = "Mend what the message names, and go on from the last checkpoint with --resume."


class NothingToTrainError(TrainingError):
    """What was sampled gave nothing to train on, batch after batch. What was trained before is good."""

    kind = "nothing_to_train"
    hint = "See what became of the groups (groups/… in metrics.jsonl), and play the environment with vf-eval."


class TrainingDivergedError(TrainingError):
    """Gradients were not finite several updates in a row; the weights are those before."""

    kind = "diverged"
    hint = "Go on from the last checkpoint with a lower trainer.lr; float16 weights overflow where bfloat16 do not."


# --- what a caller can mend -----------------------------------------------------------------------------------


class UserError(Error):
    """The caller can mend this; the message says how."""

    kind = "usage"
    attribution: ClassVar[Attribution] = "user"
    hint = "See the message."


class EnvironmentNotFoundError(UserError, ValueError):
    """No environment of that name is in the folder or installed."""

    hint = "Install it, or name the folder that holds it with --env-dir-path."


class EnvironmentLoadError(UserError, RuntimeError):
    """The environment's module was found but did not load."""

    attribution = "author"
    hint = "The environment's own code raised while loading; vf-eval --verbose shows the traceback."


class EnvironmentInstallError(UserError):
    """The virtual environment of an isolated environment could not be made."""

    hint = "See what uv says above: a package that is not found, pins that contradict each other, or no network."


class EnvironmentArgumentError(UserError, RuntimeError):
    """`load_environment` does not take these arguments."""

    exit_code = ExitCode.USAGE
    hint = "Pass arguments that load_environment accepts (-a)."


class UpstreamApiError(UserError, RuntimeError, AttributeError):
    """The environment was written for the upstream package's newer API, which is not provided here.

    It is an AttributeError too, because names of the root module resolve lazily (PEP 562).
    """

    hint = "Run it with the upstream package in an environment of its own, or port it to load_environment."


NEWER_API = frozenset(
    ("Agent", "AgentConfig", "Env", "EnvConfig", "Episode", "Harness", "HarnessConfig", "Runtime", "Task")
    + ("TaskConfig", "TaskData", "Taskset", "TasksetConfig", "Toolset", "Topology", "Trace", "User", "v1")
)
"""Names that environments for the upstream package's newer API import from its root."""


class DatasetError(UserError, ValueError):
    """The data set has no usable prompts."""

    attribution = "author"
    hint = "Give each row a `prompt` (a list of messages) or a `question` (text)."


class DataUnavailableError(UserError):
    """A data set can be had neither from VF_DATA_DIR nor from its hub."""

    exit_code = ExitCode.UNAVAILABLE
    hint = "Set VF_DATA_DIR to a folder that holds the data set, or connect to the hub it is loaded from."


class MissingKeyError(UserError, ValueError):
    """Environment variables that must hold a key are unset or empty; `keys` lists them. Ends a run: no rollout
    could be played or judged without them."""

    fatal = True
    exit_code = ExitCode.DENIED

    def __init__(self, keys: Sequence[str] | str, *, hint: str | None = None) -> None:
        self.keys = [keys] if isinstance(keys, str) else list(keys)
        names = ", ".join(self.keys)
        super().__init__(
            f"missing required environment variable{'s' if len(self.keys) > 1 else ''}: {names}",
            hint=hint or f"Set it before running: export {self.keys[0] if self.keys else 'NAME'}=…",
        )


def install_line(extra: str) -> str:
    """The command that installs an extra of this package; releases before 1 are another project's."""
    return f"pip install 'verifiers[{extra}]>=1'"


class MissingExtraError(UserError, AttributeError):
    """An optional part of the package is not installed.

    It is an AttributeError too, because names of the root module resolve lazily (PEP 562).
    """

    def __init__(self, extra: str, feature: str) -> None:
        super().__init__(
            f"{feature} needs the extra '{extra}', which is not installed",
            hint=f"Install it: {install_line(extra)}",
        )
        self.extra = extra
        self.feature = feature


class ConfigError(UserError, ValueError):
    """A setting, flag or configuration file is wrong."""

    exit_code = ExitCode.USAGE
    hint = "Correct the setting named above; --help lists them all."


class SandboxSettingsError(ConfigError):
    """A setting with which no sandbox can be made: the name of a provider, the address of a node, its token.

    Ends a run: every further rollout would fail alike.
    """

    fatal = True


class ClusterError(UserError):
    """A Ray cluster can not be reached, or has no place for a worker."""

    exit_code = ExitCode.UNAVAILABLE
    hint = "Check the address, and that Ray and Python are the same there; RAY_AUTH_MODE=token if it asks for a token."


class HubError(UserError):
    """A hub did not do what was asked. `code` is the hub's own word for it, `docs` the page that explains it."""

    code: str = "hub"
    docs: str | None = None
    hint = "Check the hub's URL and the id."


class HubDeniedError(HubError):
    """The hub wants a token, or the token does not allow this."""

    exit_code = ExitCode.DENIED
    hint = "Log in (hub login); hub whoami shows what the token allows."


class HubNotFoundError(HubError):
    """The hub has no such owner, project, version or file, or the token may not see it."""

    hint = "hub search finds projects; hub versions OWNER/NAME lists a project's."


class HubRefusedError(HubError):
    """The hub refused, and says why."""

    hint = "See the hub's message."


class HubDigestError(HubError):
    """Bytes from a hub, or an installed environment, are not those that were promised."""

    hint = "Nothing of it is used. Try again; if it stays so, tell the hub's operator."


class HubUnavailableError(HubError):
    """The hub does not answer, is overloaded, or read-only."""

    code = "hub-unavailable"
    exit_code = ExitCode.UNAVAILABLE
    hint = "Check the URL (--hub-url) and that the hub is running; try again later."


class StoreError(UserError):
    """A run directory cannot be written or read."""

    hint = "Check the path, its permissions and the free space."


class ResumeError(UserError):
    """A saved run differs from what is asked for."""

    hint = "Start a new run without --resume, or pass --force to continue anyway."


# --- the boundary to other people's code ---------------------------------------------------------------------


def is_failure(error: BaseException) -> bool:
    """Whether what someone's code raised is a failure of that code, rather than this task or process being stopped.

    Exiting is a failure: code of an environment must not end the run. So is a cancellation that nobody asked this
    task for: asyncio would end the task without a word, and its rollout would be lost.
    """
    if isinstance(error, Exception | SystemExit):
        return True
    import asyncio  # here, because `import verifiers` would pay for it

    if not isinstance(error, asyncio.CancelledError):
        return not isinstance(error, KeyboardInterrupt | GeneratorExit)
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no loop runs in this thread
        return True
    return task is None or task.cancelling() == 0


def as_error(error: BaseException, wrap: type[Error], context: str = "") -> Error:
    """The boundary between the framework and other people's code: typed errors pass, others are wrapped.

    `context` names the code that raised, e.g. "env_response". The original exception becomes the cause.
    """
    if isinstance(error, Error):
        return error
    text = text_of(error)
    what = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if wrap.attribution == "author":
        what += place_of(error)
    return wrap(f"{context} raised {what}" if context else what, cause=error)
