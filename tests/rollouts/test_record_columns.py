"""Keys of the state that an environment wants on its records."""

import verifiers as vf
from verifiers.clients.scripted import ScriptedClient


class Keeping(vf.SingleTurnEnv):
    record_columns = ("seen", "absent")

    async def setup_state(self, state):
        state["seen"] = [1]


def play(env, **options):
    client = ScriptedClient(lambda *_, **__: "ok")
    return env.evaluate_sync(client, "m", **options)["outputs"]


def test_they_are_on_the_records_without_being_asked_for():
    """What the state has of them is saved; what it has not is left out; columns that are asked for come on top."""
    env = Keeping(dataset=[{"question": "q", "answer": "a"}], rubric=vf.Rubric())
    (record,) = play(env, state_columns=["answer"])
    assert record["seen"] == [1] and "absent" not in record and record["answer"] == "a"


def test_a_group_keeps_those_of_its_children():
    """Each child's rollouts have its own."""
    children = [
        cls(dataset=[{"question": "q", "answer": "a"}], rubric=vf.Rubric()) for cls in (Keeping, vf.SingleTurnEnv)
    ]
    first, second = play(vf.EnvGroup(children))
    assert first["seen"] == [1] and "seen" not in second
