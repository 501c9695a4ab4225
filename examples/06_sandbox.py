"""Let a model write and run a program in a sandbox, and score what the program does.

python examples/06_sandbox.py          # Linux, pip install 'verifiers[sandbox]>=1'
"""

import json
from typing import Any

import verifiers as vf

TRIES = {"1 2 3": "6", "10": "10", "": "0"}
"""What the program is given → what it must print. The model's sandbox never holds either."""


class Programs(vf.SandboxEnv):
    """The model has a shell; what it leaves at /workspace/sum.py is tried when it is done."""

    record_columns = (*vf.SandboxEnv.record_columns, "printed")

    async def post_rollout(self, state: vf.State) -> None:
        """Run the program on each input. The sandbox is deleted after this, and before scoring."""
        sandbox = await self.sandbox_client.sandbox(state["sandbox_id"])
        results = [await sandbox.exec(["python3", "sum.py"], stdin=text, timeout=5) for text in TRIES]
        state["printed"] = [result.stdout_text.strip() if result.ok else None for result in results]


def passed(state: vf.State) -> float:
    """The share of the tries that are right."""
    pairs = list(zip(state["printed"], TRIES.values(), strict=True))
    return sum(printed == expected for printed, expected in pairs) / len(pairs)


def load_environment() -> vf.Environment:
    """One task; any argument of SandboxEnv may be added."""
    rows = [{"question": "Write sum.py: it prints the sum of the whole numbers on its standard input."}]
    return Programs(eval_dataset=rows, rubric=vf.Rubric(funcs=[passed]), max_turns=5, memory_gb=0.5)


def bash(command: str) -> dict[str, Any]:
    """A reply that calls the tool, as a model would write it."""
    return {"tool_calls": [{"id": "1", "name": "bash", "arguments": json.dumps({"command": command})}]}


if __name__ == "__main__":
    from verifiers.clients.scripted import ScriptedClient

    program = "import sys; print(sum(map(int, sys.stdin.read().split())))"
    replies = [bash(f"echo '{program}' > sum.py"), bash("echo 4 5 | python3 sum.py"), "Done."]
    output = load_environment().evaluate_sync(ScriptedClient(replies), "scripted")["outputs"][0]
    for message in output["completion"]:
        calls = [tool_call["arguments"] for tool_call in message.get("tool_calls") or []]
        print(f"{message['role']:9}  {' '.join(calls) or message['content']}")
    print(f"reward {output['reward']}, printed {output['printed']}, isolation {output['sandbox_info']['isolation']}")
