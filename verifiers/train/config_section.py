"""What the sections of a training configuration are made of: one strict model, and the kinds of numbers in it."""

from __future__ import annotations

from collections.abc import Iterator
from types import NoneType
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

NonNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Decay = Annotated[float, Field(ge=0, lt=1)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
"""What every generator of random numbers takes."""
MOST = 2**31 - 1
"""No setting that counts is larger: libraries hold some of them in 32 bits."""

NONE = "none"
"""Stands for "not set" in files and overrides, where a setting may be unset: TOML has no null."""


def _kinds(annotation: Any) -> Iterator[Any]:
    """The types that an annotation is made of."""
    yield annotation
    for part in get_args(annotation):
        yield from _kinds(part)


class Section(BaseModel):
    """What all sections share: unknown keys are refused, and nothing changes afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _as_written(cls, value: Any, info: ValidationInfo) -> Any:
        """`none` where a setting may be unset, and one text or table where there may be several. `true` is no number,
        and no number is beyond what the libraries below can hold. A ValueError says what the value has to be."""
        annotation = cls.model_fields[info.field_name].annotation if info.field_name is not None else None
        if value == NONE and NoneType in get_args(annotation):
            return None
        kinds = set(_kinds(annotation))
        if isinstance(value, bool) and kinds & {int, float} and bool not in kinds:
            raise ValueError("a number")
        if isinstance(value, int) and int in kinds and value > MOST and info.field_name != "seed":
            raise ValueError(f"at most {MOST}")
        return [value] if get_origin(annotation) is list and isinstance(value, str | dict) else value
