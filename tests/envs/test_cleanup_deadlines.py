"""How long cleanup handlers may take: as their environment says, and less once the rollout is cancelled."""

import asyncio

import pytest

import verifiers as vf
from verifiers.clients.scripted import ScriptedClient
from verifiers.envs import lifecycle


class Lasting(vf.MultiTurnEnv):
    """Its cleanup begins, and ends when it is let."""

    cleanup_seconds = 3600.0

    def __init__(self):
        super().__init__(dataset=[{"question": "q", "answer": "a"}], rubric=vf.Rubric(), max_turns=1)
        self.began = asyncio.Event()
        self.let = asyncio.Event()
        self.states = []

    @vf.cleanup
    async def keep(self, state):
        self.states.append(state)
        self.began.set()
        await self.let.wait()
        state["kept"] = True

    def play(self):
        """One rollout, as a task."""
        row = dict(self.get_dataset()[0])
        return asyncio.create_task(self.rollout(row, ScriptedClient(lambda *_, **__: "ok"), "m", {}))


@pytest.fixture(autouse=True)
def brief(monkeypatch):
    """Handlers have a moment unless their environment gives them more."""
    monkeypatch.setattr(lifecycle, "CLEANUP_SECONDS", 0.05)


async def test_an_environment_may_give_its_handlers_longer():
    """A handler that lasts longer than the general deadline ends as it would."""
    env = Lasting()
    playing = env.play()
    await env.began.wait()
    await asyncio.sleep(0.1)
    env.let.set()
    state = await playing
    assert state["kept"] and not state.get("cleanup_errors")


async def test_a_rollout_cancelled_in_cleanup_does_not_take_all_that_time():
    """Once nobody waits for the rollout, its handlers have the general deadline from then on."""
    env = Lasting()
    playing = env.play()
    await env.began.wait()
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert env.states[0]["cleanup_errors"][0]["handler"] == "keep" and "kept" not in env.states[0]


async def test_a_rollout_cancelled_before_has_the_general_deadline():
    """Cleanup after a cancelled rollout has no more time than that of any environment."""

    class Slow(Lasting):
        async def setup_state(self, state):
            self.began.set()
            await asyncio.Event().wait()

    env = Slow()
    playing = env.play()
    await env.began.wait()
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert env.states[0]["cleanup_errors"][0]["error"]
