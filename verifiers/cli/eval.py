"""`vf-eval`: play evaluation tasks of environments against a model, show how it goes, save everything.

The flags are v0's, with their letters and meanings, and some of ours. This file says what they are; how they combine
with files and variables is `verifiers.evals.config`, playing is `verifiers.evals.run`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from cyclopts import App, Group, Parameter

from verifiers.cli.frame import framed, package_version, parsed, start
from verifiers.cli.output import Output
from verifiers.errors import ConfigError, ExitCode
from verifiers.hub.ids import is_hub_id

if TYPE_CHECKING:
    from verifiers.evals.config import Prepare
    from verifiers.evals.lookup import FoundEnvironment

TASKS = Group("What is played", sort_key=1)
MODEL = Group("Which model", sort_key=2)
ROLLOUTS = Group("How rollouts are played", sort_key=3)
SAVING = Group("What is saved", sort_key=4)
SHOWING = Group("What is shown", sort_key=5)

NEWEST = "newest"
"""What a bare --resume stands for."""

NO_SETTINGS = ("json", "dry_run", "force", "save_every", "max_concurrent_scoring", "rescore", "hub_url") + (
    ("export_sft", "sft_min_reward", "sft_best")
)
"""Flags that say nothing of the evaluation itself."""


def _flag(letter: str | None, group: Group, text: str, **more: Any) -> Parameter:
    return Parameter(alias=letter, group=group, help=text, negative="", show_default=False, **more)


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class EvalFlags:
    """What was given on the command line; None is not given. Names are those of the settings."""

    # what is played
    env_args: Annotated[str | None, _flag("-a", TASKS, "Arguments of load_environment, a JSON object.")] = (
        None
    )
    env_dir_path: Annotated[
        str | None, _flag(None, TASKS, "Folder of local environments [./environments].")
    ] = None
    hub_url: Annotated[
        str | None, _flag(None, TASKS, "Hub of ids with an owner [VF_HUB_URL, or the settings].")
    ] = None
    num_examples: Annotated[int | None, _flag("-n", TASKS, "Tasks to play, -1 for all [5].")] = None
    rollouts_per_example: Annotated[int | None, _flag("-r", TASKS, "Rollouts of each task [3].")] = None
    shuffle: Annotated[bool | None, _flag(None, TASKS, "Shuffle the tasks before choosing.")] = None
    shuffle_seed: Annotated[int | None, _flag(None, TASKS, "Seed of the shuffle [0].")] = None
    extra_env_kwargs: Annotated[
        str | None, _flag("-x", TASKS, "Attributes to set on the loaded environment, a JSON object.")
    ] = None
    # which model
    model: Annotated[
        str | None,
        _flag("-m", MODEL, "Model or endpoint id; local[:PATH] is the embedded model: a GGUF file, or a folder."),
    ] = None
    api_base_url: Annotated[
        str | None, _flag("-b", MODEL, "Base URL of the endpoint, usually ending in /v1.")
    ] = None
    api_key_var: Annotated[
        str | None, _flag("-k", MODEL, "Variable that holds the key [OPENAI_API_KEY].")
    ] = None
    provider: Annotated[
        str | None, _flag("-p", MODEL, "Provider by name, such as openai, openrouter, vllm.")
    ] = None
    endpoints_path: Annotated[
        str | None, _flag("-e", MODEL, "Endpoint registry [./configs/endpoints.toml].")
    ] = None
    api_client_type: Annotated[
        str | None,
        _flag(
            None,
            MODEL,
            "Dialect: openai_chat_completions (or …_token, asked in token ids), openai_completions, "
            "anthropic_messages.",
        ),
    ] = None
    price: Annotated[
        str | None,
        _flag(None, MODEL, "US dollars for a million tokens: input=0.40,output=1.60[,cached_input=0.10]."),
    ] = None
    header: Annotated[list[str] | None, _flag(None, MODEL, "Extra header 'Name: Value'; repeatable.")] = None
    header_from_state: Annotated[
        list[str] | None, _flag(None, MODEL, "Header 'Name: key' with the value of a state key; repeatable.")
    ] = None
    max_tokens: Annotated[int | None, _flag("-t", MODEL, "Token limit of a reply.")] = None
    temperature: Annotated[float | None, _flag("-T", MODEL, "Sampling temperature.")] = None
    sampling_args: Annotated[
        str | None, _flag("-S", MODEL, "Sampling arguments, a JSON object; wins over -t and -T.")
    ] = None
    seed: Annotated[int | None, _flag(None, MODEL, "Send sampling seeds derived from this one.")] = None
    # how rollouts are played
    max_concurrent: Annotated[
        int | None, _flag("-c", ROLLOUTS, "Rollouts in flight, -1 for no limit [32].")
    ] = None
    max_retries: Annotated[
        int | None,
        _flag(None, ROLLOUTS, "Further attempts of a failed rollout [3]; 0: its requests have none either."),
    ] = None
    timeout: Annotated[float | None, _flag(None, ROLLOUTS, "Seconds that a rollout may take.")] = None
    rollout_limit: Annotated[
        str | None,
        _flag(None, ROLLOUTS, "Truncate a rollout after so much: tokens=20000,turns=8,cost=0.10,seconds=600."),
    ] = None
    run_limit: Annotated[
        str | None, _flag(None, ROLLOUTS, "Start no further rollout after so much, as in cost=5.")
    ] = None
    on_reward_error: Annotated[
        Literal["unscored", "zero", "raise"] | None,
        _flag(None, ROLLOUTS, "What a raising reward function does: unscored (default), zero or raise."),
    ] = None
    cache: Annotated[
        bool | None, _flag(None, ROLLOUTS, "Keep the model's replies, and take those that are kept.")
    ] = None
    cache_dir: Annotated[
        str | None, _flag(None, ROLLOUTS, "Folder of the replies, with --cache [~/.cache/verifiers].")
    ] = None
    independent_scoring: Annotated[
        bool | None, _flag("-i", ROLLOUTS, "Score each rollout by itself, not by group.")
    ] = None
    num_workers: Annotated[
        str | None, _flag("-w", ROLLOUTS, "Processes that load the environment and play; auto is this one [auto].")
    ] = None
    isolated: Annotated[
        bool | None, _flag(None, ROLLOUTS, "Play in a virtual environment of its own, made once by uv.")
    ] = None
    ray: Annotated[
        str | None,
        _flag(None, ROLLOUTS, "Play on a Ray cluster: auto, HOST:PORT or ray://HOST:PORT; alone, one started here."),
    ] = None
    ray_options: Annotated[
        str | None, _flag(None, ROLLOUTS, "What each worker gets there, a JSON object: num_cpus, runtime_env, …")
    ] = None
    disable_env_server: Annotated[bool | None, _flag(None, ROLLOUTS, "Accepted for v0.", show=False)] = None
    no_interleave_scoring: Annotated[bool | None, _flag("-N", ROLLOUTS, "Accepted for v0.", show=False)] = (
        None
    )
    max_concurrent_generation: Annotated[int | None, _flag(None, ROLLOUTS, "Old name of -c.", show=False)] = (
        None
    )
    max_concurrent_scoring: Annotated[int | None, _flag(None, ROLLOUTS, "Accepted for v0.", show=False)] = (
        None
    )
    save_every: Annotated[int | None, _flag(None, SAVING, "Accepted for v0.", show=False)] = None
    # what is saved
    output_dir: Annotated[str | None, _flag("-o", SAVING, "Folder instead of `outputs`.")] = None
    no_save: Annotated[bool | None, _flag(None, SAVING, "Save nothing.")] = None
    save_results: Annotated[
        bool | None, _flag("-s", SAVING, "Accepted for v0: runs are saved.", show=False)
    ] = None
    state_columns: Annotated[str | None, _flag("-C", SAVING, "State keys to save, as in a,b.")] = None
    resume: Annotated[
        str | None, _flag("-R", SAVING, "Continue a run: the newest unfinished one, or --resume PATH.")
    ] = None
    rescore: Annotated[
        str | None, _flag(None, SAVING, "Score the rollouts of this run again, with the rubric as it is now.")
    ] = None
    force: Annotated[bool | None, _flag(None, SAVING, "Resume although settings differ.")] = None
    export_sft: Annotated[
        str | None, _flag(None, SAVING, "Write good rollouts as conversations to learn from: FILE.jsonl[.gz].")
    ] = None
    sft_min_reward: Annotated[float | None, _flag(None, SAVING, "Reward that they have at least.")] = None
    sft_best: Annotated[int | None, _flag(None, SAVING, "The best so many of each task only.")] = None
    save_to_hf_hub: Annotated[
        bool | None, _flag("-H", SAVING, "Upload the records to the Hugging Face hub.")
    ] = None
    hf_hub_dataset_name: Annotated[str | None, _flag("-D", SAVING, "Name of that data set.")] = None
    # what is shown
    verbose: Annotated[bool | None, _flag("-v", SHOWING, "Show tracebacks and the whole log.")] = None
    json: Annotated[
        bool | None, _flag(None, SHOWING, "One JSON object a line on stdout, the last a summary.")
    ] = None
    dry_run: Annotated[
        bool | None, _flag(None, SHOWING, "Print every setting with its origin; play nothing.")
    ] = None
    abbreviated_summary: Annotated[
        bool | None, _flag("-A", SHOWING, "Only scores and counts at the end.")
    ] = None
    disable_tui: Annotated[bool | None, _flag("-d", SHOWING, "Plain lines instead of a live display.")] = None
    fullscreen: Annotated[bool | None, _flag("-f", SHOWING, "Live display on the whole screen.")] = None
    heartbeat_url: Annotated[str | None, _flag(None, SHOWING, "URL to request every 30 s while running.")] = (
        None
    )

    def given(self) -> dict[str, Any]:
        """The flags that were given."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


class Request(NamedTuple):
    """A parsed command line."""

    environments: tuple[str, ...]
    flags: EvalFlags


app = App(
    name="vf-eval",
    suppress_keyboard_interrupt=False,  # run_command answers for it
    help=(
        "Evaluate a model on environments: play tasks, score them, save every rollout.\n\n"
        "  vf-eval arithmetic -m local          the embedded model, no key needed\n"
        "  vf-eval gsm8k -m MODEL -b URL -n 20  any OpenAI-compatible endpoint\n"
        "  vf-eval alice/demo@0.1.0 -m MODEL    a release of a hub, installed if missing\n"
        "  vf-eval nightly.toml                 several evaluations from a file\n"
        "  vf-eval --resume PATH                continue an interrupted run\n"
        "  vf-eval --rescore PATH               score a run again with the rubric as it is\n"
        "  vf-eval PATH --export-sft FILE       rollouts of a run as examples to learn from"
    ),
    help_format="plaintext",
    version_format="plaintext",
    usage="Usage: vf-eval ENVIRONMENT_OR_TOML... [OPTIONS]",
    version=package_version,
    version_flags=["--version"],
)


@app.default
def parse(
    *environments: Annotated[
        str, Parameter(help="Name of an environment, its hub id or folder, or a TOML file of evaluations.")
    ],
    flags: EvalFlags = EvalFlags(),  # frozen, and cyclopts wants a default instance
) -> Request:
    return Request(environments, flags)


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point `vf-eval`. Ends the process with one of the exit codes of `verifiers.errors.ExitCode`."""
    start(run, arguments)


def run(arguments: list[str]) -> int:
    """Run the command and return its exit code."""
    return framed(arguments, lambda output: _command(arguments, output))


def _command(arguments: list[str], output: Output) -> ExitCode:
    request = request_of(arguments)
    if request is None:  # --help and --version have been answered
        return ExitCode.OK
    flags = request.flags
    output.verbose = bool(flags.verbose)
    if flags.disable_tui and flags.fullscreen:
        raise ConfigError("--disable-tui and --fullscreen exclude each other", hint="Give one of them.")
    if flags.no_save and flags.resume is not None:
        raise ConfigError("--no-save and --resume contradict each other", hint="A run is continued where it is saved.")
    # Bars of other libraries would run through the display.
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    from verifiers.cli.session import dry_run, evaluate  # loads pydantic and the engine
    from verifiers.evals.config import resolve

    if flags.export_sft is not None or flags.sft_min_reward is not None or flags.sft_best is not None:
        from verifiers.cli import export

        export.check(flags)
        if runs := export.only_runs(request.environments, flags):
            return export.export(runs, flags, output)
    settings, prepare = _settings(flags, output), _preparer(flags, output)
    if flags.rescore is not None:
        from verifiers.cli.rescore import run as run_rescoring

        return run_rescoring(request.environments, settings, flags, arguments, output, prepare)
    evaluations = resolve(_targets(request), settings, prepare)
    if len(evaluations) > 1 and isinstance(settings.get("resume"), str):
        raise ConfigError(
            "--resume PATH continues one run, and several are asked for", hint="Leave out the path."
        )
    if flags.dry_run:
        return dry_run(evaluations, output)
    return evaluate(evaluations, flags, arguments, output)


def _preparer(flags: EvalFlags, output: Output) -> Prepare:
    """What gets environments from the hub. It is loaded for an id with an owner only."""

    def prepare(env_id: str, isolated: bool) -> FoundEnvironment | None:
        if not is_hub_id(env_id):
            return None
        from verifiers.hub.prepare import Preparer

        preparer = Preparer(flags.hub_url, bool(flags.dry_run), output.confirm, output.note, output.warning)
        return preparer(env_id, isolated)

    return prepare


def request_of(arguments: list[str]) -> Request | None:
    request = parsed(app, _with_bare_flags(arguments), "vf-eval --help lists the options.")
    return request if isinstance(request, Request) else None


def _with_bare_flags(arguments: Sequence[str]) -> list[str]:
    """`--resume` and `--ray` alone get a value: theirs is optional, which the parser does not know."""
    # Ray's own commands, and jobs on a cluster, name it in that variable.
    alone = {"--resume": NEWEST, "-R": NEWEST, "--ray": os.environ.get("RAY_ADDRESS") or "local"}
    bare: list[str] = []
    for argument in reversed(arguments):
        if argument in alone and (not bare or bare[0].startswith("-")):
            bare.insert(0, alone[argument])
        bare.insert(0, argument)
    return bare


def _targets(request: Request) -> list[str]:
    """What to evaluate. With --resume PATH the run itself knows."""
    if request.environments:
        return list(request.environments)
    path = request.flags.resume
    if path not in (None, NEWEST) and (Path(path) / "config.toml").is_file():
        return [str(Path(path) / "config.toml")]
    if path == NEWEST:
        raise ConfigError(
            "--resume alone continues the newest unfinished run of an environment, and none was named",
            hint="Name it, and the model: vf-eval my-env -m MODEL --resume. Or the run: vf-eval --resume RUN.",
        )
    if path is not None:
        raise ConfigError(
            f"{path} holds no run to continue: there is no config.toml",
            hint="Give the folder of a run, as vf-eval prints it; an environment is named before --resume.",
        )
    raise ConfigError("no environment was named", hint="Name one, as in: vf-eval arithmetic -m local")


def _settings(flags: EvalFlags, output: Output) -> dict[str, Any]:
    """The flags as settings: JSON texts parsed, old names translated, what is only shown left out."""
    from verifiers.evals.values import amounts, json_table, parse_text

    given = flags.given()
    for name in NO_SETTINGS:
        given.pop(name, None)
    for name, letter in (("env_args", "-a"), ("extra_env_kwargs", "-x"), ("sampling_args", "-S")):
        if name in given:
            given[name] = json_table(given[name], f"{letter}/--{name.replace('_', '-')}")
    if "ray_options" in given:
        given["ray_options"] = json_table(given["ray_options"], "--ray-options")
    if (limit := given.pop("max_concurrent_generation", None)) is not None:
        output.note("--max-concurrent-generation is now called --max-concurrent (-c)")
        given.setdefault("max_concurrent", limit)
    for name in ("state_columns", "num_workers"):
        if name in given:
            given[name] = parse_text(name, given[name], f"--{name.replace('_', '-')}")
    for name in ("rollout_limit", "run_limit", "price"):
        if name in given:
            given[name] = amounts(name, given[name], f"--{name.replace('_', '-')}")
    if given.pop("no_save", False):
        given["save_results"] = False
    if "resume" in given:
        given["resume"] = True if given["resume"] == NEWEST else given["resume"]
    return given


if __name__ == "__main__":
    main()
