"""One call of `vf-train`: settings read, everything built, the run driven, Ctrl-C answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from verifiers.cli.output import Output
from verifiers.errors import ExitCode
from verifiers.hub.ids import is_hub_id
from verifiers.train.config import TrainConfig
from verifiers.train.config_files import load_config, to_file
from verifiers.train.environments import Prepare, find, loaded
from verifiers.train.plan import batch_figures, counted, parameters

if TYPE_CHECKING:
    from verifiers.cli.train import TrainFlags
    from verifiers.evals.lookup import FoundEnvironment


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line says: files, `section.name=value`, and flags."""

    files: Sequence[str]
    settings: Sequence[str]
    flags: TrainFlags


def train(asked: Asked, output: Output) -> ExitCode:
    """Train. Returns the exit code; errors that end the command come out."""
    flags = asked.flags
    settings = [*asked.settings, *([f"output={flags.output}"] if flags.output else [])]
    config = load_config(asked.files, settings)
    return dry_run(config, flags, output)


def preparer(flags: TrainFlags, output: Output) -> Prepare:
    """What gets environments from the hub. It is loaded for an id with an owner only."""

    def prepare(env_id: str, isolated: bool) -> FoundEnvironment | None:
        if not is_hub_id(env_id):
            return None
        from verifiers.hub.prepare import Preparer

        return Preparer(flags.hub_url, flags.dry_run, output.confirm, output.note, output.warning)(env_id, isolated)

    return prepare


def dry_run(config: TrainConfig, flags: TrainFlags, output: Output) -> ExitCode:
    """Print every setting as a file, with what would be run as comments before it. Environments are loaded."""
    prepare = preparer(flags, output)
    environments = [described(one, prepare, flags.env_dir_path) for one in config.env]
    figures = batch_figures(config)
    size = parameters(config.model.path)
    plan = {"environments": environments, "parameters": size, **figures}
    output.event({"event": "plan", **plan, "config": config.model_dump(mode="json")})
    lines = [f"model: {config.model.path}" + (f", {counted(size)} parameters" if size else "")]
    for one in environments:
        version = " ".join(filter(None, (one["version"], (one["digest"] or "")[:19])))
        tasks = f", {one['tasks']} tasks" if one["tasks"] is not None else ", in an environment of its own"
        lines.append(f"environment: {one['name']} {version}{tasks}")
    lines.append(
        f"{figures['steps']} steps of {config.loop.groups_per_batch} groups × {config.loop.group_size} rollouts "
        f"= {figures['rollouts']} rollouts, at most {counted(figures['tokens_per_batch'])} sampled tokens a step"
    )
    lag = f"at most {figures['ahead']} versions ahead" if figures["ahead"] else "in turn with training"
    lines.append(f"sampled {lag}, by {config.sampler.kind}")
    output.result("\n".join(f"# {line}" for line in lines) + "\n")
    output.result(to_file(config))
    return ExitCode.OK


def described(config: Any, prepare: Prepare, env_dir: str) -> dict[str, Any]:
    """An environment for the plan: name, version, digest, and how many tasks it has, None if isolated."""
    found = find(config, prepare, env_dir)
    if config.isolated:
        return {"name": found.env_id, "version": found.version, "digest": None, "tasks": None}
    tasks = loaded(config, found)
    return {"name": tasks.ref.name, "version": tasks.ref.version, "digest": tasks.ref.digest, "tasks": len(tasks.rows)}
