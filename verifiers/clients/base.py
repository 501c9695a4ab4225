"""The contract of a client: messages and sampling arguments in, a `Response` out.

A client speaks one dialect. What differs between dialects are six hooks; `get_response` calls them in order and
turns whatever goes wrong into a typed error. A client of one's own overrides the hooks:

    class Mine(Client):
        def setup_client(self, config): ...               # the provider's SDK object, made when first asked for
        async def to_native_prompt(self, messages): ...   # -> (prompt, further keywords for get_native_response)
        async def to_native_tool(self, tool): ...
        async def get_native_response(self, prompt, model, sampling_args, tools=None, **kwargs): ...
        async def raise_from_native_response(self, response): ...
        async def from_native_response(self, response): ...  # -> Response

No transport is in here: see `verifiers.clients.transport`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from verifiers.clients.native_chat import NativeChat
from verifiers.errors import Error, ModelError, SpentError
from verifiers.scopes import Scope, current_scope
from verifiers.types import Message, Messages, Response, SamplingArgs, Tool, Usage, normalize_messages

if TYPE_CHECKING:
    from verifiers.types import ClientConfig


class Client:
    """A client made from a `ClientConfig` or around a provider's SDK object, which is then used as it is."""

    def __init__(self, client_or_config: Any = None) -> None:
        is_config = is_client_config(client_or_config)
        self._config: ClientConfig | None = client_or_config if is_config else None
        self._sdk: Any = None if is_config else client_or_config
        self.retried: Counter[str] = Counter()
        """Requests that were tried again, by what went wrong: "rate limit", "server error", "broken connection"."""

    @property
    def config(self) -> ClientConfig | None:
        """The configuration this client was made from, None around an SDK object."""
        return self._config

    @property
    def client(self) -> Any:
        """The SDK object: the one given, otherwise one with the same URL and key, made when first asked for."""
        if self._sdk is None and self._config is not None:
            self._sdk = self.setup_client(self._config)
        return self._sdk

    @property
    def chat(self) -> Any:
        """`.chat` of the SDK object, for code that was written for it; takes messages and tools of ours too."""
        return NativeChat(self.client.chat)

    @property
    def completions(self) -> Any:
        """`.completions` of the SDK object."""
        return self.client.completions

    def read_prompt(self, prompt: Any) -> Any:
        """What the caller gave as messages. Overridden by dialects that take more than messages."""
        return as_messages(prompt)

    # --- hooks ------------------------------------------------------------------------------------------------

    def setup_client(self, config: ClientConfig) -> Any:
        """Make the provider's SDK object."""
        raise NotImplementedError(f"{type(self).__name__} has no SDK object")

    async def to_native_prompt(self, messages: list[Message]) -> tuple[Any, dict[str, Any]]:
        """The prompt as the endpoint wants it, and further keywords for `get_native_response`."""
        raise NotImplementedError

    async def to_native_tool(self, tool: Tool) -> Any:
        """A tool as the endpoint wants it."""
        raise NotImplementedError

    async def get_native_response(
        self,
        prompt: Any,
        model: str,
        sampling_args: SamplingArgs,
        tools: list[Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Ask the endpoint. `kwargs` may hold `state` (of the rollout) and `extra_headers`."""
        raise NotImplementedError

    async def raise_from_native_response(self, response: Any) -> None:
        """Raise a ModelError if the reply is not usable."""
        raise NotImplementedError

    async def from_native_response(self, response: Any) -> Response:
        """The reply as a `Response`."""
        raise NotImplementedError

    # --- the call ---------------------------------------------------------------------------------------------

    async def get_response(
        self,
        prompt: Messages | Sequence[Any],
        model: str,
        sampling_args: SamplingArgs | None = None,
        tools: Sequence[Tool] | None = None,
        **kwargs: Any,
    ) -> Response:
        """Ask the model for one reply.

        `state`, a keyword, is the rollout's state: the headers of `extra_headers_from_state` come from it. Raises
        errors of the package only: those of `ModelError`'s branch, OverlongPromptError, or UserErrors for arguments
        that no endpoint takes.
        """
        refuse_if_spent()
        scope = current_scope.get()
        try:
            headers = self._headers_from_state(kwargs.get("state"))
            if headers:
                kwargs["extra_headers"] = {**headers, **(kwargs.get("extra_headers") or {})}
            native_prompt, extra = await self.to_native_prompt(self.read_prompt(prompt))
            native_tools = [await self.to_native_tool(tool) for tool in tools] if tools else None
            native = await self.get_native_response(
                native_prompt, model, sampling_args or {}, native_tools, **{**extra, **kwargs}
            )
            try:
                await self.raise_from_native_response(native)
                response = await self.from_native_response(native)
            except Exception:
                if scope is not None:  # a reply that is of no use was paid for all the same
                    self._charge(scope, self.usage_of(native))
                raise
            if scope is not None:
                self._charge(scope, response.get("usage"))
            if sampling_args and sampling_args != (kwargs.get("state") or {}).get("sampling_args"):
                response["sampling_args"] = dict(sampling_args)  # the reply can not be judged by the rollout's
            return response
        except Error:
            raise
        except Exception as error:  # the boundary to SDKs and to clients of others
            raise self.as_model_error(error, model) from error

    def as_model_error(self, error: Exception, model: str) -> Error:
        """The typed error for an exception of an SDK or of a hook."""
        return ModelError(f"{type(error).__name__}: {error} (model {model})")

    async def close(self) -> None:
        """Release connections, those of the SDK object included."""

    def usage_of(self, native: Any) -> Usage | None:
        """What a reply that is of no use took, as far as its dialect tells."""
        return None

    def _charge(self, scope: Scope, usage: Usage | None) -> None:
        """Count a reply on the rollout. Its cost is what the endpoint says, otherwise what the price says."""
        if usage is None:
            scope.charge(0, 0, None)
            return
        price = self._config.price if self._config is not None else None
        cost = usage.get("cost")
        if cost is None and price is not None:
            cost = price.of(usage["prompt_tokens"], usage["completion_tokens"], usage.get("cached_tokens") or 0)
        scope.charge(usage["prompt_tokens"], usage["completion_tokens"], cost)

    def _headers_from_state(self, state: Mapping[str, Any] | None) -> dict[str, str]:
        if not state or self._config is None:
            return {}
        named = self._config.extra_headers_from_state
        return {name: str(state[key]) for name, key in named.items() if state.get(key) is not None}


def refuse_if_spent() -> None:
    """Raise SpentError if the rollout that asks has used up what it may. A judge is not refused."""
    scope = current_scope.get()
    if scope is not None and scope.phase == "generation" and (name := scope.reached()) is not None:
        raise SpentError(f"the rollout has reached its limit of {name}")


def is_client_config(obj: Any) -> bool:
    """Whether `obj` is a `ClientConfig`. Asked by name: importing the models would load pydantic."""
    return any(
        cls.__name__ == "ClientConfig" and cls.__module__ == "verifiers.types.config"
        for cls in type(obj).__mro__
    )


def as_messages(prompt: Any) -> list[Message]:
    """The prompt as messages; a list of messages passes as it is."""
    if isinstance(prompt, list) and all(isinstance(message, Message) for message in prompt):
        return prompt
    return normalize_messages(prompt)
