"""`ToolEnv`: the model calls Python functions until it answers without a call.

    def add(a: int, b: int) -> int:
        \"\"\"Add two numbers.\"\"\"
        return a + b

    env = vf.ToolEnv(tools=[add], dataset=rows, rubric=rubric)

Tools are stateless functions, sync or async. A tool that fails is shown to the model as a tool message, so that it
can try again; exception types in `stop_errors` end the rollout instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, ClassVar

from verifiers.decorators import accepted, function_name, maybe_await, stop
from verifiers.envs.multiturn_env import MultiTurnEnv
from verifiers.errors import ToolCallError, ToolError, ToolParseError
from verifiers.rubrics.calls import all_of
from verifiers.rubrics.rubric import Rubric
from verifiers.rubrics.rubric_group import RubricGroup
from verifiers.rubrics.tool_rubric import ToolRubric
from verifiers.tools.call import call, parse_arguments, unknown_tool
from verifiers.tools.schema import tool_from_function
from verifiers.types import Messages, State, Tool, ToolCall, ToolMessage

TOOL_SECONDS = 120.0
"""Default deadline of one tool call."""


class ToolEnv(MultiTurnEnv):
    """Tools without state of their own.

    tools: functions; name, description and schema come from their signature, hints and docstring.
    max_turns: model calls at most.
    error_formatter: exception → the text that the model is shown.
    stop_errors: exception types that end the rollout, as ToolParseError or ToolCallError from the original.
    tool_timeout: seconds for one call; the model is told of a call that takes longer. None: no limit.

    Metrics, weight 0: `total_tool_calls`, and `<tool>_calls` for each tool.
    """

    _ending_errors: ClassVar[tuple[type[Exception], ...]] = ()
    """Errors of tools that end the rollout as they are: no model could mend them, another attempt might."""

    def __init__(
        self,
        tools: list[Callable[..., Any]] | None = None,
        max_turns: int = 10,
        error_formatter: Callable[[Exception], str] = str,
        stop_errors: list[type[Exception]] | None = None,
        tool_timeout: float | None = TOOL_SECONDS,
        **kwargs: Any,
    ) -> None:
        super().__init__(max_turns=max_turns, **kwargs)
        self.tool_timeout = tool_timeout
        self.error_formatter = error_formatter
        self.stop_errors = tuple(stop_errors or ())
        self.tools: list[Callable[..., Any]] = []
        self.tool_map: dict[str, Callable[..., Any]] = {}
        own = _tool_rubric_of(self.rubric)
        self.tool_rubric = ToolRubric() if own is None else own
        if own is None:
            self.add_rubric(self.tool_rubric)
        for tool in tools or []:
            self.add_tool(tool)

    def add_tool(self, tool: Callable[..., Any]) -> None:
        """Offer one more tool."""
        self._offer(tool, tool_from_function(tool))

    def _offer(self, tool: Callable[..., Any], definition: Tool) -> None:
        self.tools.append(tool)
        self.tool_map[definition["name"]] = tool
        self.tool_defs.append(definition)
        self.tool_rubric.add_tool(tool)

    def remove_tool(self, tool: Callable[..., Any]) -> None:
        """Withdraw a tool."""
        name = function_name(tool)
        self.tools.remove(tool)
        self.tool_map.pop(name, None)
        self.tool_defs = [definition for definition in self.tool_defs if definition["name"] != name]
        self.tool_rubric.remove_tool(tool)

    @stop
    def no_tools_called(self, state: State) -> bool:
        """The model answered without calling a tool."""
        if not state["trajectory"]:
            return False
        completion = state["trajectory"][-1]["completion"]
        last = completion[-1] if completion and not isinstance(completion, str) else None
        return last is None or (last["role"] == "assistant" and not last["tool_calls"])

    async def call_tool(
        self, tool_name: str, tool_args: dict[str, Any], tool_call_id: str, **kwargs: Any
    ) -> ToolMessage:
        """Run one tool and return its message. `kwargs` holds `state`; override to see or change calls."""
        definition = next((tool for tool in self.tool_defs if tool["name"] == tool_name), None)
        result = await call(self.tool_map[tool_name], tool_args, tool=definition)
        return ToolMessage(content=result, tool_call_id=tool_call_id)

    async def env_response(self, messages: Messages, state: State, **kwargs: Any) -> Messages:
        """One tool message for each call of the last message, in the order of the calls."""
        calls = messages[-1]["tool_calls"] if not isinstance(messages, str) else None
        return await self._answer(calls or [], messages, state)

    async def _answer(self, calls: list[ToolCall], messages: Messages, state: State) -> list[ToolMessage]:
        """Run the calls in order; neighbours that are all marked parallel overlap."""
        answers: list[ToolMessage] = []
        for batch in self._batches(calls):
            answers += await all_of([self._answer_one(item, messages, state) for item in batch])
        return answers

    def _batches(self, calls: list[ToolCall]) -> list[list[ToolCall]]:
        batches: list[list[ToolCall]] = []
        previous_parallel = False
        for item in calls:
            parallel = bool(getattr(self.tool_map.get(item["name"]), "parallel", False))
            if parallel and previous_parallel:
                batches[-1].append(item)
            else:
                batches.append([item])
            previous_parallel = parallel
        return batches

    async def _answer_one(self, item: ToolCall, messages: Messages, state: State) -> ToolMessage:
        wrap: type[ToolError] = ToolParseError
        try:
            if item["name"] not in self.tool_map:
                raise unknown_tool(item["name"], self.tool_map)
            arguments = parse_arguments(
                item["arguments"], self._definition(item["name"], state), self.tool_map
            )
            wrap = ToolCallError
            arguments = await self._complete_arguments(item["name"], arguments, messages, state)
            async with asyncio.timeout(self.tool_timeout):
                extra = accepted(self.call_tool, {"state": state})
                answer = await maybe_await(self.call_tool, item["name"], arguments, item["id"], **extra)
            return answer if isinstance(answer, ToolMessage) else ToolMessage(**answer)
        except self._ending_errors:
            raise
        except SystemExit as raised:  # boundary: a tool must not end the program
            error: Exception = ToolCallError(
                f"the tool '{item['name']}' tried to end the program", cause=raised
            )
        except Exception as raised:  # boundary: the model is told what went wrong and may try again
            error = raised
        cause = error.__cause__ if isinstance(error, ToolError) and error.__cause__ else error
        if self.stop_errors and isinstance(cause, self.stop_errors):
            raise wrap(f"{item['name']}: {cause}", cause=cause) from cause
        return ToolMessage(content=self._explain(item["name"], error), tool_call_id=item["id"])

    def _explain(self, name: str, error: Exception) -> str:
        if isinstance(error, TimeoutError) and not str(error):
            return f"The tool '{name}' did not finish within {self.tool_timeout:g} seconds."
        text = self.error_formatter(error)
        if self.error_formatter is str and (not text or isinstance(error, KeyError)):
            # A KeyError prints as one quoted word and an empty exception as nothing: name the type then.
            return f"{type(error).__name__}: {text}"
        return text

    def _definition(self, name: str, state: State) -> Tool:
        offered: list[Tool] = state.get("tool_defs") or self.tool_defs
        return next((tool for tool in offered if tool["name"] == name), Tool(name))

    async def _complete_arguments(
        self, name: str, arguments: dict[str, Any], messages: Messages, state: State
    ) -> dict[str, Any]:
        """The arguments that the tool is called with; environments with state add theirs."""
        return arguments


def _tool_rubric_of(rubric: Rubric) -> ToolRubric | None:
    """The tool rubric that an author gave, as environments of the first releases do: a second one would count twice."""
    rubrics = rubric.rubrics if isinstance(rubric, RubricGroup) else [rubric]
    return next((item for item in rubrics if isinstance(item, ToolRubric)), None)
