"""Promises about the shape of the package: what importing costs, which paths resolve, where things may stand.

The arrows between the folders are import-linter's business (`make contracts`); here is what it cannot see.
"""

import ast
import importlib
import json
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "verifiers"
HEAVY = {"aiohttp", "altair", "anthropic", "cyclopts", "datasets", "mcp", "numpy", "openai", "pandas", "pydantic",
         "ray", "rich", "scipy", "sympy", "textual", "torch", "transformers", "xllamacpp"}  # fmt: skip

# The import paths that published environments use, with the names they take from each.
DEEP_IMPORTS = {
    "verifiers.decorators": "cleanup stop teardown",
    "verifiers.envs.environment": "Environment",
    "verifiers.envs.multiturn_env": "MultiTurnEnv",
    "verifiers.envs.singleturn_env": "SingleTurnEnv",
    "verifiers.envs.stateful_tool_env": "StatefulToolEnv filter_signature",
    "verifiers.envs.tool_env": "ToolEnv",
    "verifiers.envs.env_group": "EnvGroup",
    "verifiers.envs.experimental.mcp_env": "MCPEnv MCPServerConfig",
    "verifiers.envs.mcp_env": "MCPEnv",
    "verifiers.errors": "Error InfraError ModelError SandboxError ToolCallError",
    "verifiers.parsers.maybe_think_parser": "MaybeThinkParser",
    "verifiers.parsers.parser": "Parser",
    "verifiers.parsers.think_parser": "ThinkParser",
    "verifiers.parsers.xml_parser": "XMLParser",
    "verifiers.rubrics.judge_rubric": "JudgeRubric",
    "verifiers.rubrics.math_rubric": "MathRubric",
    "verifiers.rubrics.rubric": "Rubric",
    "verifiers.rubrics.rubric_group": "RubricGroup",
    "verifiers.rubrics.tool_rubric": "ToolRubric",
    "verifiers.types": "ChatMessage ClientConfig EvalConfig Info Message Messages Response RewardFunc RolloutScores "
    "State TrajectoryStep",
    "verifiers.utils.async_utils": "maybe_await",
    "verifiers.utils.client_utils": "setup_client setup_openai_client",
    "verifiers.utils.config_utils": "MissingKeyError ensure_keys",
    "verifiers.utils.data_utils": "BOXED_SYSTEM_PROMPT THINK_BOXED_SYSTEM_PROMPT extract_boxed_answer "
    "extract_hash_answer format_dataset load_example_dataset strip_non_numeric",
    "verifiers.utils.env_utils": "load_environment",
    "verifiers.utils.error_utils": "ErrorChain",
    "verifiers.utils.eval_utils": "load_endpoints quiet_datasets run_evaluation",
    "verifiers.utils.logging_utils": "print_time",
    "verifiers.utils.message_utils": "concat_messages messages_to_printable normalize_messages sanitize_tool_calls",
    "verifiers.utils.path_utils": "write_temp_file",
    "verifiers.utils.response_utils": "parse_response_message parse_response_messages parse_response_tokens",
    "verifiers.utils.thread_utils": "register_executor unregister_executor",
    "verifiers.utils.tool_utils": "convert_func_to_oai_tool convert_func_to_tool_def is_valid_tool_content_parts",
}

# In-function imports of our own modules: v0 methods of Environment that start runs. Nothing else may be added.
UPWARD_DELEGATES = {
    ("verifiers/envs/environment.py", "verifiers.rollouts.engine"),
    ("verifiers/envs/environment.py", "verifiers.evals.run"),
}

# What few runs need and every run would pay for: named here so that it stays rare.
LOADED_LATE = {
    ("verifiers/evals/players.py", "verifiers.evals.workers"),
    # pydantic, while uv installs a lock already; and building a wheel of this package, which few need
    ("verifiers/hub/install.py", "verifiers.rollouts.workers.wheels"),
    ("verifiers/hub/lock.py", "verifiers.hub.schema"),
    ("verifiers/hub/resolve.py", "verifiers.hub.schema"),
    # aiohttp, which sandboxes of this machine do without
    ("verifiers/sandboxes/default.py", "verifiers.sandboxes.docker.provider"),
    ("verifiers/sandboxes/default.py", "verifiers.sandboxes.node.cluster"),
    ("verifiers/sandboxes/default.py", "verifiers.sandboxes.prime.provider"),
}

# A command outside cli/, which holds torch: it says on its first line what is missing, so it can not fail before.
ENGINE_COMMAND = PACKAGE / "train" / "engines" / "serve.py"


def modules_after(code: str) -> set[str]:
    """The top-level modules that a fresh interpreter has loaded after running `code`."""
    script = f"{code}\nimport json, sys\nprint(json.dumps(sorted(n for n in sys.modules if '.' not in n)))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


def package_files() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_import_is_light() -> None:
    """`import verifiers` loads none of the heavy libraries."""
    assert not modules_after("import verifiers") & HEAVY


def test_defining_an_environment_class_is_light() -> None:
    """Naming the classes that an environment module starts from loads no SDK, no data library and no torch."""
    names = "SingleTurnEnv MultiTurnEnv ToolEnv MCPEnv Rubric JudgeRubric XMLParser"
    code = "import verifiers as vf\n" + "\n".join(f"vf.{name}" for name in names.split())
    assert not modules_after(code) & {"datasets", "mcp", "openai", "torch", "scipy", "sympy"}


@pytest.mark.parametrize("command", ["eval", "init", "install", "sandbox", "sandboxd", "sft", "train"])
def test_asking_for_the_version_is_light(command: str) -> None:
    """`vf-* --version` answers without loading an SDK, data library or torch."""
    code = (
        f"import sys\nsys.argv = ['vf-{command}', '--version']\nfrom verifiers.cli.{command} import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass"
    )
    assert not modules_after(code) & {"datasets", "openai", "torch", "scipy", "sympy", "textual", "altair"}


def test_sandboxes_of_this_machine_need_no_http() -> None:
    """The interface of sandboxes and the local provider load no HTTP library: only what reaches other machines does."""
    names = "local.provider pool results sandbox spec"
    code = "\n".join(f"import verifiers.sandboxes.{name}" for name in names.split())
    assert not modules_after(code) & HEAVY


def test_every_public_name_resolves() -> None:
    """Each name in `verifiers.__all__` is there, once, and `dir()` shows it."""
    import verifiers

    assert len(verifiers.__all__) == len(set(verifiers.__all__))
    for name in verifiers.__all__:
        assert getattr(verifiers, name) is not None
        assert name in dir(verifiers)


def test_unknown_names_are_attribute_errors() -> None:
    """A name that never existed raises AttributeError, so `hasattr` and near-miss texts work."""
    import verifiers

    assert not hasattr(verifiers, "NoSuchThing")


@pytest.mark.parametrize("module", sorted(DEEP_IMPORTS))
def test_deep_imports_resolve(module: str) -> None:
    """The import paths of published environments lead to the names they take."""
    loaded = importlib.import_module(module)
    assert [name for name in DEEP_IMPORTS[module].split() if not hasattr(loaded, name)] == []


def test_deep_and_top_level_names_are_the_same_objects() -> None:
    """`verifiers.X` and the X of its module are one object, so isinstance checks agree."""
    import verifiers

    for module, names in DEEP_IMPORTS.items():
        for name in names.split():
            if hasattr(verifiers, name) and name in verifiers.__all__:
                assert getattr(verifiers, name) is getattr(importlib.import_module(module), name)


def test_commands_are_installed() -> None:
    """Each script of pyproject.toml points at a callable."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    for point in entry_points(group="console_scripts"):
        if point.name in scripts:
            assert callable(point.load())
    for target in scripts.values():
        module, function = target.split(":")
        assert callable(getattr(importlib.import_module(module), function))


def test_utils_defines_nothing() -> None:
    """`verifiers/utils` holds import paths: docstring, imports and `__all__`, no code."""
    for path in sorted((PACKAGE / "utils").rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            plain = isinstance(node, ast.Import | ast.ImportFrom) or is_docstring(node) or is_all(node)
            assert plain, f"{name_of(path)}:{node.lineno} defines something"


def is_docstring(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def is_all(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]


def test_folder_modules_are_one_sentence() -> None:
    """A folder's `__init__.py` says what it is and imports nothing; `types` and the root facade are the exceptions."""
    for path in sorted(PACKAGE.rglob("__init__.py")):
        if path.parent not in (PACKAGE, PACKAGE / "types"):
            body = ast.parse(path.read_text()).body
            assert len(body) == 1 and is_docstring(body[0]), name_of(path)


def test_every_module_opens_with_its_purpose() -> None:
    """Each module has a docstring."""
    assert [
        name_of(path) for path in package_files() if not ast.get_docstring(ast.parse(path.read_text()))
    ] == []


def test_imports_inside_functions_are_third_party() -> None:
    """Within functions only third-party weight is imported; upward delegates and what is rarely needed are exceptions.

    Commands load what they run once it is known that they run it, so that `--help` is quick; the facades are lazy.
    """
    found = set()
    for path in package_files():
        commands = path.parent in (PACKAGE / "cli", PACKAGE / "cli" / "hub") or path == ENGINE_COMMAND
        if commands or path in (PACKAGE / "__init__.py", PACKAGE / "types" / "__init__.py"):
            continue
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                found |= {(name_of(path), module) for module in own_imports(function)}
    assert found <= UPWARD_DELEGATES | LOADED_LATE


def own_imports(function: ast.AST) -> set[str]:
    modules = set()
    for node in ast.walk(function):
        if isinstance(node, ast.ImportFrom) and node.module:
            modules.add(node.module)
        elif isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
    return {module for module in modules if module.split(".")[0] == "verifiers"}


def test_broad_excepts_say_which_boundary_they_are() -> None:
    """A broad `except` carries a comment, unless it only tidies up and raises again."""
    silent = []
    for path in package_files():
        lines = path.read_text().splitlines()
        for handler in ast.walk(ast.parse(path.read_text())):
            if not isinstance(handler, ast.ExceptHandler) or not is_broad(handler) or raises_again(handler):
                continue
            if not any("#" in line for line in lines[handler.lineno - 1 : handler.body[0].lineno - 1]):
                silent.append(f"{name_of(path)}:{handler.lineno}")
    assert silent == []


def is_broad(handler: ast.ExceptHandler) -> bool:
    return handler.type is None or ast.unparse(handler.type) in ("Exception", "BaseException")


def raises_again(handler: ast.ExceptHandler) -> bool:
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and last.exc is None


def test_only_the_output_module_prints() -> None:
    """`print` and `sys.stdout` stand in cli/output.py alone; an explicit sample printer of the API is v0's own."""
    allowed = {"verifiers/cli/output.py"}
    for path in package_files():
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        if any(ast.unparse(call.func) == "print" for call in calls):
            assert name_of(path) in allowed, name_of(path)


def test_tests_say_what_they_promise() -> None:
    """Every test has a docstring: one sentence of behaviour."""
    silent = []
    for path in sorted([*(ROOT / "tests").rglob("test_*.py"), *(ROOT / "environments").rglob("test_*.py")]):
        for node in ast.walk(ast.parse(path.read_text())):
            is_test = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith(
                "test_"
            )
            if is_test and not ast.get_docstring(node):
                silent.append(f"{name_of(path)}:{node.lineno}")
    assert silent == []


def test_tests_mirror_the_package() -> None:
    """A folder of tests is named after a folder of the repository that it tests."""
    beside = {"docs", "benchmarks", "conformance", "differential", "end_to_end", "environments", "examples", "faults"}
    beside |= {"hub_server", "scripts", "support"}
    folders = {
        path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and path.name != "__pycache__"
    }
    assert folders - beside <= {path.name for path in PACKAGE.iterdir() if path.is_dir()}


def test_type_checkers_see_every_public_name() -> None:
    """The names under TYPE_CHECKING are those that resolve lazily, each re-exported as itself (PEP 484)."""
    verifiers = importlib.import_module("verifiers")
    tree = ast.parse(Path(verifiers.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.name: (statement.module, alias.asname)
        for statement in block.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    assert seen == {name: (verifiers._HOME[name], name) for name in verifiers.__all__}


TYPED_USER = """
import verifiers as vf

def right(completion: vf.Messages, answer: str) -> float:
    return 1.0

class Talk(vf.MultiTurnEnv):
    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: object) -> vf.Messages:
        return [vf.UserMessage("go on")]

    @vf.stop(priority=1)
    async def done(self, state: vf.State) -> bool:
        return len(state["trajectory"]) > 1

def load_environment() -> vf.Environment:
    return Talk(dataset=[{"question": "q"}], rubric=vf.Rubric(funcs=[right]))
"""


@pytest.mark.slow
def test_an_environment_is_clean_under_a_strict_type_checker(tmp_path: Path) -> None:
    """`mypy --strict` on an author's module has nothing to say about our names."""
    pytest.importorskip("mypy")
    module = tmp_path / "talk.py"
    module.write_text(TYPED_USER)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), str(module)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
