"""Two toy environments, a model that learns them by GRPO in some forty updates, and an engine of it that lies."""

import itertools
from dataclasses import replace
from typing import Any

import verifiers as vf
from tests.support.tiny_model import tiny_model, tiny_tokenizer

TEMPLATE = """\
{%- for message in messages %}<|im_start|>{{ message.role[0] }}{{ message.content or '' }}<|im_end|>{% endfor %}
{%- if add_generation_prompt %}<|im_start|>a{% endif %}"""
"""Short, since a token is a byte."""

LENGTH = 2


def toy_tokenizer() -> Any:
    """Of bytes."""
    return tiny_tokenizer(TEMPLATE)


def toy_model(seed: int = 0, **changes: Any) -> Any:
    """With weights that are wide enough for a random model to hear its prompt."""
    return tiny_model(seed=seed, initializer_range=0.15, **changes)


class Liar:
    """An engine of the toy model every fourth reply of which holds an id that the model does not have."""

    def __init__(self) -> None:
        from verifiers.train.engines.torch_engine import TorchEngine

        self.engine = TorchEngine(toy_model())
        self._numbers = itertools.count()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    async def generate(self, token_ids: list[int], params: Any) -> Any:
        """What the engine sampled, or the lie."""
        honest = await self.engine.generate(token_ids, params)
        lies = next(self._numbers) % 4 == 0
        return replace(honest, tokens=[259, *honest.tokens[1:]]) if lies else honest


def share(reply: str, wanted: str) -> float:
    """How much of three characters is of the wanted kind: capitals, or small letters."""
    kind = str.isupper if wanted == "A" else str.islower
    return sum(character.isascii() and kind(character) for character in reply[:LENGTH]) / LENGTH


def single_turn() -> vf.SingleTurnEnv:
    """The prompt names a kind; the reply is to be of it."""

    def of_kind(completion: Any, answer: str) -> float:
        return share(completion[-1]["content"] or "", answer)

    rows = [{"question": kind, "answer": kind} for kind in "Aa"]
    return vf.SingleTurnEnv(dataset=rows, eval_dataset=rows, rubric=vf.Rubric([of_kind]))


class Turns(vf.MultiTurnEnv):
    """Two turns; the second asks for the other kind than the first."""

    async def env_response(self, messages: Any, state: vf.State, **_: Any) -> Any:
        """The next question."""
        return [vf.UserMessage(state["answer"][len(state["trajectory"])])]


class Forgetful(Turns):
    """The second turn is asked without the first, so that each begins a row."""

    async def get_prompt_messages(self, state: vf.State) -> Any:
        """The present question alone."""
        turn = len(state["trajectory"])
        return [vf.UserMessage(state["answer"][turn])]


def multi_turn(kind: type[Turns] = Turns) -> Turns:
    """Asked for one kind, and then for the other."""

    def of_kinds(state: vf.State, answer: str) -> float:
        replies = [step["completion"][-1]["content"] or "" for step in state["trajectory"]]
        return sum(map(share, replies, answer)) / len(answer)

    rows = [{"question": pair[0], "answer": pair} for pair in ("Aa", "aA")]
    return kind(dataset=rows, rubric=vf.Rubric([of_kinds]), max_turns=2)
