"""What is wrong with a configuration, in one error: which setting, of which file, its value, what it has to be."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import date
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from verifiers.errors import ConfigError
from verifiers.settings import near_misses

Place = tuple[str | int, ...]
"""Keys and indices that lead to a setting."""

_MISSING = {
    "model": "Name the model to train: model.path=FOLDER.",
    "env": "Name an environment to learn from: env=NAME, or [[env]] with its `id` in a file.",
}


def explained(error: ValidationError, origin: Callable[[Place], str], model: type[BaseModel]) -> ConfigError:
    """One error for all mistakes, with what to do about each. origin: where a value came from, "" for defaults."""
    told = dict(_problem(problem, origin, model) for problem in error.errors())
    hints = dict.fromkeys(filter(None, told.values()))
    return ConfigError(
        "; ".join(told), hint=" ".join(hints) or "docs/reference/train-config.md lists the settings.", cause=error
    )


def _problem(problem: Mapping[str, Any], origin: Callable[[Place], str], model: type[BaseModel]) -> tuple[str, str]:
    place: Place = tuple(problem["loc"])
    came_from = origin(place)
    where = f" in {came_from}" if came_from and not came_from.startswith("the override") else ""
    if problem["type"] == "extra_forbidden":
        return _unknown(place, where, model)
    annotation, name = _setting_at(model, place)
    cause = problem.get("ctx", {}).get("error")
    if isinstance(cause, ConfigError):
        return f"{name + ': ' if name else ''}{cause}", cause.hint
    if problem["type"] == "missing":
        return f"{name} is missing", _MISSING.get(name, f"Set it: {name}=…")
    wanted = _wanted(annotation)
    if isinstance(cause, ValueError) and str(cause).startswith("at most") and " to " not in wanted:
        wanted = f"{wanted}, {cause}"
    return f"{name}{where} is {_written(problem['input'])}, and has to be {wanted}", ""


def _unknown(place: Place, where: str, model: type[BaseModel]) -> tuple[str, str]:
    known = _names_at(model, place[:-1])
    sections = [*_sections_with(model, str(place[-1]))]
    hint = (
        near_misses(str(place[-1]), known)
        or (sections and f"Did you mean {' or '.join(f'{one}.{place[-1]}' for one in sections)}?")
        or f"Known settings there: {', '.join(sorted(known))}."
    )
    return f"unknown setting {'.'.join(map(str, place))!r}{where}", hint


def _written(value: Any) -> str:
    """As it would be written in TOML, as far as the two differ in sight."""
    return str(value).lower() if isinstance(value, bool | date) else repr(value)


# --- what a setting has to be ---------------------------------------------------------------------------------

_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", Path: "a path"}


def _wanted(annotation: Any) -> str:
    """What fits an annotation, in words: "a whole number from 1 to 65536 or none"."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return f"{_wanted(parts[0])}{_bounds(parts[1:])}"
    if origin in (Union, UnionType):
        kinds = [_wanted(part) for part in parts if part is not NoneType]
        return " or ".join([*kinds, *(["none"] if NoneType in parts else [])])
    if origin is Literal:
        return f"{', '.join(map(str, parts[:-1]))} or {parts[-1]}" if len(parts) > 1 else str(parts[0])
    if origin is list:
        return f"a list, each {_wanted(parts[0])}"
    if origin is tuple:
        return f"a list of {len(parts)}, each {_wanted(parts[0])}"
    return _KINDS.get(annotation, "a table")


def _bounds(constraints: tuple[Any, ...]) -> str:
    """" from 0 to 1", " above 0", " of 0 or more, below 1": pydantic's constraints, which may be within a FieldInfo."""
    flat = [part for one in constraints for part in (one.metadata if isinstance(one, FieldInfo) else [one])]
    found = {name: getattr(one, name) for one in flat for name in ("gt", "ge", "lt", "le") if hasattr(one, name)}
    if {"ge", "le"} <= found.keys():
        return f" from {found['ge']} to {found['le']}"
    words = {"gt": " above {}", "ge": " of {} or more", "lt": " below {}", "le": " of at most {}"}
    return ",".join(words[name].format(value) for name, value in found.items())


def _setting_at(model: type[BaseModel], place: Place) -> tuple[Any, str]:
    """The annotation of a setting, with its bounds, and its name: a place also has the tags of pydantic's unions."""
    annotation: Any = model
    names: list[str] = []
    for part in place:
        section = _section_in(annotation)
        if isinstance(part, int):
            parts = [one for one in _parts(annotation) if get_origin(one) in (list, tuple)]
            inner = get_args(parts[0]) if parts else ()
            annotation = inner[min(part, len(inner) - 1)] if inner else Any
            names.append(str(part))
        elif section is not None and part in section.model_fields:
            field = section.model_fields[part]
            annotation = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
            names.append(part)
    return annotation, ".".join(names)


def _parts(annotation: Any) -> Iterator[Any]:
    yield annotation
    if get_origin(annotation) in (Union, UnionType, Annotated):
        for part in get_args(annotation):
            yield from _parts(part)


# --- names ----------------------------------------------------------------------------------------------------


def _names_at(model: type[BaseModel], place: Place) -> list[str]:
    """The settings of the section at a place."""
    for part in place:
        if isinstance(part, int):
            continue
        field = model.model_fields.get(part)
        found = _section_in(field.annotation) if field is not None else None
        if found is None:  # the tag of a union, which pydantic puts into places
            continue
        model = found
    return list(model.model_fields)


def _sections_with(model: type[BaseModel], name: str) -> Iterator[str]:
    """The sections of the file that have a setting of that name."""
    for section, field in model.model_fields.items():
        found = _section_in(field.annotation)
        if found is not None and name in found.model_fields and section != "env":
            yield section


def _section_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_section_in, get_args(annotation))), None)
