"""Encode records, which are classes of ``NamedTuple``, as JSON objects, and check them when they are decoded.

The processes that read them start without site-packages and in milliseconds: defining a ``NamedTuple`` takes 0.1 ms,
importing ``dataclasses`` 9 ms and defining a dataclass 2.6 ms.

Invariant: a decoded record has every field of its class, and no other.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar, cast

__all__ = ["InvalidRecord", "from_json", "to_json"]

R = TypeVar("R", bound=NamedTuple)


class InvalidRecord(ValueError):
    """Fields that are not those of the record's class."""


def to_json(record: NamedTuple) -> dict[str, Any]:
    """Return the fields of a record and of the records in it, for ``json.dumps``."""
    return {name: _encoded(value) for name, value in zip(record._fields, record, strict=True)}


def _encoded(value: Any) -> Any:
    if isinstance(value, tuple):  # no field is a tuple that is not a record
        return to_json(cast("NamedTuple", value))
    if isinstance(value, list):
        items = cast("list[Any]", value)
        return [to_json(item) for item in items] if items and isinstance(items[0], tuple) else items
    return value


def from_json(kind: type[R], fields: Any) -> R:
    """Make a record of decoded fields. Raises ``InvalidRecord``, which names missing and unknown fields.

    The classes of records in it are found in the annotations, so the module of ``kind`` must not postpone their
    evaluation (``from __future__ import annotations``).
    """
    if not isinstance(fields, dict):
        raise InvalidRecord(f"{kind.__name__} is not an object")
    values = cast("dict[str, Any]", fields)
    if values.keys() != set(kind._fields):
        missing = [name for name in kind._fields if name not in values]
        unknown = [name for name in values if name not in kind._fields]
        found = [f"lacks {', '.join(missing)}"] * bool(missing) + [f"has unknown {', '.join(unknown)}"] * bool(unknown)
        raise InvalidRecord(f"{kind.__name__} {' and '.join(found)}")
    if kind not in _inner:
        _inner[kind] = _inner_records(kind)
    for name, inner in _inner[kind].items():
        value = values[name]
        if isinstance(value, list):
            values[name] = [from_json(inner, item) for item in cast("list[Any]", value)]
        elif value is not None:
            values[name] = from_json(inner, value)
    return kind._make(values[name] for name in kind._fields)


#: By class: the classes of its fields that are a record, a list of records, or a record or None.
_inner: dict[type, dict[str, Any]] = {}


def _inner_records(kind: type[NamedTuple]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, annotation in kind.__annotations__.items():
        for candidate in (annotation, *getattr(annotation, "__args__", ())):
            if _is_record(candidate):
                found[name] = candidate
    return found


def _is_record(value: Any) -> bool:
    """Return whether a value is a record or a class of records."""
    return hasattr(value, "_fields")
