"""The renderer over a tokenizer of this process: what it remembers of conversations."""

from typing import Any

from verifiers.clients.local import TokenizerRenderer


class Tokenizer:
    """Writes down what it was asked for."""

    def __init__(self) -> None:
        self.rendered = 0

    def apply_chat_template(self, messages: Any, **options: Any) -> str:
        """A text that holds all of it."""
        self.rendered += 1
        return repr((messages, sorted(options.items())))

    def encode(self, text: str, **_: Any) -> list[int]:
        """Its bytes."""
        return list(text.encode())


async def test_a_conversation_is_rendered_once() -> None:
    """Members of a group share the text and ids of their prompt; other messages, tools and arguments have their own."""
    tokenizer = Tokenizer()
    renderer = TokenizerRenderer(tokenizer, 64)
    first = await renderer.render([{"role": "user", "content": "hello"}], None, {})
    again = await renderer.render([{"role": "user", "content": "hello"}], None, {})
    assert again == first and tokenizer.rendered == 1
    asked: list[tuple[Any, Any, Any]] = [
        ([{"role": "user", "content": "hello!"}], None, {}),
        ([{"role": "user", "content": "hello"}], [{"type": "function"}], {}),
        ([{"role": "user", "content": "hello"}], None, {"chat_template_kwargs": {"thinking": False}}),
    ]
    texts = {(await renderer.render(*one)).text for one in asked} | {first.text}
    assert len(texts) == 4


async def test_what_is_no_json_is_rendered_each_time() -> None:
    """Arguments of any kind reach the template."""
    tokenizer = Tokenizer()
    renderer = TokenizerRenderer(tokenizer)
    for _ in range(2):
        await renderer.render([{"role": "user", "content": "hello"}], None, {"now": object})
    assert tokenizer.rendered == 2
