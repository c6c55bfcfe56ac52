"""The base of the tables of ``task.toml``, and the types of their values.

Times are in seconds. Values have the type that the format names: ``timeout_sec = "900"`` is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, cast, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

__all__ = ["Seconds", "Size", "Table", "User", "Variables", "unknown_keys"]

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\$?(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?")


class Table(BaseModel):
    """A table: immutable, with types that are not converted. Keys that it does not know are ignored."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")
    #: Older spellings of keys.
    older_keys: ClassVar[frozenset[str]] = frozenset()


def unknown_keys(table: type[Table], data: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield the keys, with their path, that a table and the tables in it do not know."""
    for key, value in data.items():
        field = table.model_fields.get(key)
        if field is None:
            if key not in table.older_keys:
                yield path + key
            continue
        inner = _table_in(field.annotation)
        if inner is None:
            continue
        many = isinstance(value, list)
        for number, each in enumerate(cast("list[Any]", value) if many else [value]):
            if isinstance(each, dict):
                place = f"{path}{key}[{number}]." if many else f"{path}{key}."
                yield from unknown_keys(inner, cast("dict[str, Any]", each), place)


def _table_in(annotation: Any) -> type[Table] | None:
    """Return the table in the type of a field: ``X``, ``X | None``, ``list[X]``, ``list[str | X]``."""
    if isinstance(annotation, type) and issubclass(annotation, Table):
        return annotation
    return next((found for each in get_args(annotation) if (found := _table_in(each)) is not None), None)


def _user(value: str | int) -> str | int:
    if isinstance(value, int):
        if not 0 <= value < 1 << 32:
            raise ValueError("a user's number is between 0 and 4294967295")
    elif _USER.fullmatch(value) is None:
        raise ValueError("a user is a name or a number, with a group after a colon if needed")
    return value


def _variables(values: dict[str, str]) -> dict[str, str]:
    for name, value in values.items():
        if _VARIABLE.fullmatch(name) is None:
            raise ValueError(f"{name!r} is not the name of a variable")
        if "\0" in value:
            raise ValueError(f"the value of {name} has a NUL character")
    return values


Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
#: Megabytes.
Size = Annotated[int, Field(gt=0)]
User = Annotated[str | int, AfterValidator(_user)]
Variables = Annotated[dict[str, str], AfterValidator(_variables)]
