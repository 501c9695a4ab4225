"""`MultiTurnEnv`: the turn loop, its stop conditions and hooks.

    class Guess(vf.MultiTurnEnv):
        async def env_response(self, messages, state):
            return [vf.UserMessage("higher")]

        @vf.stop
        async def found(self, state):
            # Asked before the first turn too.
            return bool(state["trajectory"]) and state["answer"] in state["completion"][-1]["content"]

Order of one rollout: `setup_state`; then, turn by turn, the stop conditions, the environment's reply to the last
turn, the model; then the cleanup handlers. So `env_response` never runs after the last allowed turn, and what it
decides is seen by the stop conditions one model turn later, unless it sets `state["final_env_response"]`. Scoring
comes after cleanup and is not done here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Sequence
from typing import Any, Self

from verifiers.decorators import accepted, cleanup, function_name, marked, maybe_await, stop
from verifiers.envs.environment import Environment
from verifiers.envs.lifecycle import adopt, before_deadline, boundary, end_if_spent, run_cleanup, run_setup
from verifiers.envs.turns import make_step
from verifiers.errors import EnvironmentCodeError
from verifiers.rubrics.rubric import Rubric
from verifiers.types import (
    Messages,
    Response,
    SamplingArgs,
    State,
    TrajectoryStep,
    concat_messages,
    conversation_after,
    message_text,
    normalize_messages,
)
from verifiers.types.timing import now


class Flag(int):
    """A truth value that may be awaited or not: overrides of `is_completed` of all eras call
    `self.max_turns_reached(state)` and `super().is_completed(messages, state)` either way."""

    def __await__(self) -> Generator[Any, None, Self]:
        yield from ()
        return self


FLAGS = Flag(False), Flag(True)
"""By their truth, ready made: five conditions are asked before and after every turn."""

REPLIES = (
    "Is a `return` missing? A reply is a list of messages such as {\"role\": \"user\", \"content\": \"…\"}, or a text; "
    'state["final_env_response"] ends the rollout.'
)


class MultiTurnMonitorRubric(Rubric):
    """Reports the number of turns."""

    def __init__(self) -> None:
        super().__init__()
        self.add_metric(self.num_turns)
        if type(self) is MultiTurnMonitorRubric:
            self.reward_timeout = None  # what only counts needs no time limit

    async def num_turns(self, state: State) -> float:
        return float(len(state["trajectory"]))


class MultiTurnEnv(Environment):
    """An environment whose rollouts have several turns.

    max_turns: model calls at most; below 1 there is no limit.
    timeout_seconds: for setup and turns together, without waits for rate limits; a rollout that runs out of it is
        scored as it stands.
    """

    cleanup_seconds: float | None = None
    """Deadline of each cleanup handler; None is `CLEANUP_SECONDS`, which a cancelled rollout has in any case."""

    def __init__(self, max_turns: int = -1, timeout_seconds: float | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.max_turns = max_turns
        self.timeout_seconds = timeout_seconds
        self.max_total_completion_tokens = kwargs.get("max_total_completion_tokens", -1)
        self.add_rubric(MultiTurnMonitorRubric())
        self._stops_with_messages = _takes_messages(type(self))
        cls = type(self)
        self._renders_itself = (
            cls.render_state is MultiTurnEnv.render_state and cls.render_completion is MultiTurnEnv.render_completion
        )

    def set_max_total_completion_tokens(self, limit: int) -> None:
        """Stop a rollout once its model has written that many tokens; below 1 there is no limit."""
        self.max_total_completion_tokens = limit

    # --- hooks -----------------------------------------------------------------------------------------------

    async def setup_state(self, state: State) -> State | None:
        """Prepare a rollout. May change `state["prompt"]`."""
        return state

    async def env_response(self, messages: Messages, state: State, **kwargs: Any) -> Any:
        """The environment's reply to the conversation so far: messages, one message, a str, or any of these
        together with a state, as `(messages, state)`. [] says nothing; None is an error unless the rollout has
        ended, such as by `state["final_env_response"]`."""
        raise NotImplementedError(f"{type(self).__name__} has no env_response")

    async def get_prompt_messages(self, state: State) -> Messages:
        """The next prompt: the task's, or the last turn with the environment's reply to it."""
        if not state["trajectory"]:
            prompt: Messages = state["prompt"]
            return prompt
        conversation = _conversation(state)
        reply = await self._reply(conversation, state)
        if isinstance(conversation, str):
            return conversation + "".join(map(message_text, reply))
        return [*conversation, *reply]

    async def add_model_response(self, state: State, prompt_messages: Messages, response: Response) -> None:
        """Record a response as one turn."""
        step = make_step(state, prompt_messages, response, self.max_seq_len)
        await maybe_await(self.add_trajectory_step, state, step)

    async def add_trajectory_step(self, state: State, trajectory_step: TrajectoryStep) -> None:
        """Append a turn. Override it to set its reward or extras."""
        state["trajectory"].append(trajectory_step)

    async def render_completion(self, state: State) -> None:
        """Set `state["completion"]`: everything after the initial prompt, and the final environment reply."""
        completion = conversation_after(state["prompt"], state["trajectory"])
        final = state.get("final_env_response")
        if final is not None and isinstance(completion, str):
            completion += final if isinstance(final, str) else "".join(map(message_text, final))
        elif final is not None:
            completion = [*completion, *normalize_messages(final)]
        state["completion"] = completion

    # --- stop conditions -------------------------------------------------------------------------------------

    @stop(priority=100)
    def has_error(self, state: State, *_: Any, **__: Any) -> Flag:
        """An error was recorded."""
        return FLAGS[state.get("error") is not None]

    @stop
    def has_final_env_response(self, state: State, *_: Any, **__: Any) -> Flag:
        """The environment said that its reply is the last."""
        return FLAGS[state.get("final_env_response") is not None]

    @stop
    def max_total_completion_tokens_reached(self, state: State, *_: Any, **__: Any) -> Flag:
        """The model wrote as many tokens as it may."""
        usage = state.get("usage")
        limit = self.max_total_completion_tokens
        return FLAGS[usage is not None and 0 < limit <= usage["output_tokens"]]

    @stop
    def max_turns_reached(self, state: State, *_: Any, **__: Any) -> Flag:
        """There were as many turns as there may be."""
        return FLAGS[0 < self.max_turns <= len(state["trajectory"])]

    @stop
    def prompt_too_long(self, state: State, *_: Any, **__: Any) -> Flag:
        """The prompt no longer fits the model's context."""
        return FLAGS[bool(state.get("prompt_too_long"))]

    def is_completed(self, state: Any, *args: Any, **kwargs: Any) -> Any:
        """Whether the rollout has ended; awaitable.

        Called with `(state)` it checks the stop conditions. With `(messages, state)`, as overrides of the first
        releases call it, it checks the limits only.
        """
        if isinstance(state, State):
            return self._check_stops(state)
        current = args[0] if args else kwargs["state"]
        return Flag(self.max_turns_reached(current) or self.prompt_too_long(current))

    async def _check_stops(self, state: State, conditions: Sequence[Callable[..., Any]] | None = None) -> bool:
        for condition in marked(self, "stop") if conditions is None else conditions:
            if getattr(condition, "__module__", None) == __name__:  # ours need no more than the state
                ended = condition(state)
            else:
                ended = await maybe_await(condition, **accepted(condition, self._candidates(state)))
            if ended:
                _end(state, function_name(condition))
                return True
        return bool(state.get("is_completed")) or end_if_spent(state)

    # --- one rollout -----------------------------------------------------------------------------------------

    async def rollout(
        self, input: Any, client: Any, model: str, sampling_args: SamplingArgs | None = None
    ) -> State:
        """Play one task: setup, turns, cleanup. The state is unscored; a failure is in `state["error"]`."""
        state = await self.init_state(input, client, model, sampling_args)
        patience = None
        try:
            await before_deadline(state, self.timeout_seconds, self._set_up_and_play(state))
            patience = self.cleanup_seconds
        finally:
            handlers = marked(self, "cleanup")
            if handlers == [self.render_state] and self._renders_itself:
                await self.render_state(state)  # nothing in it waits, so there is nothing to shield
            else:
                await run_cleanup(state, handlers, self._candidates(state), patience)
        return state

    async def _set_up_and_play(self, state: State) -> None:
        if getattr(self.setup_state, "__func__", None) is MultiTurnEnv.setup_state:
            with state["timing"].record("setup"):  # ours does nothing, so nothing in it can fail or last
                pass
        else:
            await run_setup(state, self.setup_state)
        with boundary(state, f"{type(self).__name__}.rollout"):
            await self._play(state)

    @cleanup(priority=100)
    async def render_state(self, state: State) -> None:
        """Close the rollout: end of generation, stop condition, completion. Runs before other handlers."""
        state["timing"].generation.end = now()
        if not state.get("stop_condition"):
            # The loop was left by an error or a limit: the condition that holds names the end.
            for name in ("has_error", "prompt_too_long", "max_turns_reached"):
                if getattr(self, name)(state):
                    _end(state, name)
                    break
        _end(state, state.get("stop_condition"))
        with boundary(state, "render_completion"):
            await maybe_await(self.render_completion, state)

    async def _play(self, state: State) -> None:
        conditions = marked(self, "stop")
        while not await self._has_ended(state, conditions):
            prompt = await self._next_prompt(state)
            if state.get("final_env_response") is not None:
                continue
            if self._stops_with_messages and await self._ended_by_reply(prompt, state):
                return
            response = await maybe_await(self.get_model_response, state, prompt)
            await maybe_await(self.add_model_response, state, prompt, response)

    async def _next_prompt(self, state: State) -> Messages:
        context_hook = getattr(self, "get_context_messages", None)
        if context_hook is None:
            prompt: Messages = await maybe_await(self.get_prompt_messages, state)
            return prompt
        # The hook of 0.1.7 gives the context so far; the environment's reply comes on top.
        context = normalize_messages(await maybe_await(context_hook, state))
        return [*context, *await self._reply(_conversation(state), state)] if state["trajectory"] else context

    async def _has_ended(self, state: State, conditions: Sequence[Callable[..., Any]]) -> bool:
        if getattr(self.is_completed, "__func__", None) is MultiTurnEnv.is_completed:
            ended = await self._check_stops(state, conditions)
        elif not self._stops_with_messages:
            ended = bool(await maybe_await(self.is_completed, state))
        else:
            ended = await self._check_stops(state, conditions)
            if not ended and state["trajectory"]:
                ended = bool(await maybe_await(self.is_completed, _conversation(state), state))
        if ended and not state.get("stop_condition"):  # an override of `is_completed` names no condition
            _end(state, "is_completed")
        return ended

    async def _ended_by_reply(self, prompt: Messages, state: State) -> bool:
        """The first releases also asked between the environment's reply and the model call."""
        if not await maybe_await(self.is_completed, prompt, state):
            return False
        if state["trajectory"]:
            last = state["trajectory"][-1]
            state["final_env_response"] = list(prompt[len(last["prompt"]) + len(last["completion"]) :])
        _end(state, "is_completed")
        return True

    async def _reply(self, conversation: Any, state: State) -> list[Any]:
        with state["timing"].record("env"):
            reply = await maybe_await(self.env_response, conversation, state)
        if isinstance(reply, tuple):
            reply, returned = reply
            adopt(state, returned)
        if reply is None:
            return _refuse_silence(state)
        try:
            return normalize_messages(reply, "completion" if isinstance(conversation, str) else "chat")
        except (TypeError, ValueError) as error:
            raise EnvironmentCodeError(
                f"env_response returned what is no message: {error}", hint=REPLIES, cause=error
            ) from error

    def _candidates(self, state: State) -> dict[str, Any]:
        return {"state": state, "task": state.get("task"), "env": self, "resources": state.get("resources")}


def _conversation(state: State) -> Any:
    """The last prompt and its completion: messages, or one text in completion mode."""
    last = state["trajectory"][-1]
    if isinstance(last["prompt"], str):
        return last["prompt"] + last["completion"]
    return concat_messages([last["prompt"], last["completion"]])


def _refuse_silence(state: State) -> list[Any]:
    """No messages, where the reply is not read any more. Else a `return` was forgotten: the model would be asked again
    with nothing said, and what it earns would look like its own."""
    if state.get("final_env_response") is not None or state.get("is_completed") or state.get("error") is not None:
        return []
    raise EnvironmentCodeError(
        "env_response returned None: return a list of messages, or [] to say nothing", hint=REPLIES
    )


def _end(state: State, condition: str | None) -> None:
    dict.update(state, is_completed=True, stop_condition=condition)
    truncated_turn = any(step["is_truncated"] for step in state["trajectory"])
    state["is_truncated"] = bool(state.get("is_truncated")) or truncated_turn


def _takes_messages(cls: type[MultiTurnEnv]) -> bool:
    """Whether `is_completed` is overridden in the form `(messages, state, …)` of the first releases."""
    if cls.is_completed is MultiTurnEnv.is_completed:
        return False
    parameters = list(inspect.signature(cls.is_completed).parameters.values())[1:]
    positional = [
        parameter
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    return len(positional) >= 2
