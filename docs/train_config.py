"""The page `docs/reference/train-config.md`: every setting of training, from the text of its modules."""

import ast
import inspect
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from verifiers.train import config as source, config_losses, config_policy, config_section, config_sft

HEAD = """\
# Settings of training

What `vf-train` and `vf-sft` read. A file is TOML; several are merged from left to right, tables key by key, lists
replaced whole; `section.name=value` on the command line (or `--section.name value`) goes on top, where the value is
TOML, or else text. `env.0.args.level=2` reaches into a list. `none` unsets what may be unset. An unknown name is an
error that names near misses. `--dry-run` prints every setting.
"""


def train_config_page() -> str:
    """A table for each section, in the order of the source."""
    modules = (source, config_policy, config_losses, config_sft)
    bodies = [node for module in modules for node in ast.parse(inspect.getsource(module)).body]
    classes = [node for node in bodies if isinstance(node, ast.ClassDef)]
    return "\n".join([HEAD, *(_section(getattr(source, node.name), node) for node in classes)])


def _section(model: type[BaseModel], node: ast.ClassDef) -> str:
    rows = []
    for position, item in enumerate(node.body):
        if not isinstance(item, ast.AnnAssign) or not isinstance(item.target, ast.Name):
            continue
        name = item.target.id
        following = node.body[position + 1] if position + 1 < len(node.body) else None
        kind = _kind(ast.unparse(item.annotation))
        rows.append(f"| `{name}` | {kind} | {_default(model, name)} | {_text(following) or _about(model, name)} |")
    meaning = " ".join((inspect.getdoc(model) or "").split())
    head = [f"## {_title(node.name)}\n", f"{meaning}\n", "| name | kind | default | meaning |", "|---|---|---|---|"]
    return "\n".join([*head, *rows, ""])


OWNERS: dict[type[BaseModel], str] = {source.TrainConfig: "", source.ModelConfig: "model.", source.SftConfig: ""}
COMMANDS = {"TrainConfig": "The file of vf-train", "SftConfig": "The file of vf-sft"}


def _title(name: str) -> str:
    """The section of the file that the class stands for."""
    for owner, prefix in OWNERS.items():
        for field, info in owner.model_fields.items():
            if name in str(info.annotation):
                section = f"[[{prefix}{field}]]" if "list" in str(info.annotation) else f"[{prefix}{field}]"
                return section + (" of vf-sft" if owner is source.SftConfig else "")
    return COMMANDS[name]


def _about(model: type[BaseModel], name: str) -> str:
    """What a section is for, where the setting that holds it says nothing more."""
    annotation = model.model_fields[name].annotation
    found = next((one for one in vars(source).values() if _is_section(one) and one.__name__ in str(annotation)), None)
    return f"[{name}]: {(inspect.getdoc(found) or '').split('. ')[0].rstrip('.')}." if found else ""


def _is_section(value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, config_section.Section)


def _kind(annotation: str) -> str:
    names = {
        "PositiveInt": "whole number above 0",
        "PositiveFloat": "number above 0",
        "NonNegative": "number, 0 or more",
        "Share": "0 to 1",
        "Annotated[int, Field(ge=0)]": "whole number, 0 or more",
        "Annotated[float, Field(ge=1, le=100)]": "1 to 100",
        "Annotated[int, Field(ge=1, le=65536)]": "whole number, 1 to 65536",
        "Annotated[int, Field(ge=0, le=65535)]": "whole number, 0 to 65535",
        "Decay": "0 or more, below 1",
        "Seed": "whole number, 0 or more, below 2³²",
        "dict[str, Any]": "table",
        "list[str]": "list of texts",
        "str": "text",
        "bool": "true or false",
        "int": "whole number",
        "float": "number",
        "Path": "folder",
        "list[str] | Literal['all-linear']": "list of texts, or `all-linear`",
        "tuple[Decay, Decay]": "two numbers, 0 or more, below 1",
    }
    optional = annotation.endswith(" | None")
    base = annotation.removesuffix(" | None")
    if base.startswith("Literal["):
        text = ", ".join(f"`{value}`" for value in ast.literal_eval("(" + base[8:-1] + ",)"))
    else:
        text = names.get(base, "tables" if base.startswith("list[") else "table" if "Config" in base else f"`{base}`")
    return f"{text} or none" if optional else text


def _default(model: type[BaseModel], name: str) -> str:
    field = model.model_fields[name]
    value: Any = field.get_default(call_default_factory=True)
    if value is PydanticUndefined or isinstance(value, BaseModel) or value in (None, "", [], {}):
        return "–"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _text(node: ast.stmt | None) -> str:
    """The string below a field."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return " ".join(node.value.value.split())
    return ""
