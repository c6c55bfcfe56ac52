"""Encode values as compact JSON in UTF-8.

Invariants: no value is changed silently, and no result is lost because of one value. What JSON cannot hold is replaced:
lone surrogates by U+FFFD; objects of other types and floats that are not finite by their ``repr``, with a warning in
the log. A reward that is not finite is an error, because null would be read as "no reward" (protocol 0.1).
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Mapping
from typing import Any, cast

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, SchemaSerializer, from_json, to_json

from ors_server.protocol import TextBlock
from ors_server.wire.texts import replace_surrogates

__all__ = ["NonFiniteReward", "encode", "encode_tool_error", "encode_tool_output", "scrub"]

logger = logging.getLogger("ors_server.encoding")

_ENCODING_ERRORS = (PydanticSerializationError, ValueError, TypeError, RecursionError)


class NonFiniteReward(ValueError):
    """A tool returned a reward that is NaN, infinite or not a number; the message names the tool."""

    def __init__(self, tool: str, reward: object) -> None:
        # An object of another type may print anything, and clients get this text in every `return_errors` mode.
        shown = str(reward) if type(reward) is float else f"of type {type(reward).__name__}"
        super().__init__(f"Tool {tool!r} returned the reward {shown}; a reward must be a finite number or None")


def encode(value: Any) -> bytes:
    """Encode models, lists, mappings and plain values."""
    try:
        data = to_json(value)
        if _suspicious(data) and _has_non_finite(value):
            raise ValueError("not finite")
        return data
    except _ENCODING_ERRORS:
        return to_json(scrub(value))


def encode_tool_output(tool: str, output: Any) -> bytes:
    """Encode a successful ``RunToolOutput``; ``output`` is a ``ToolOutput`` of this package or of either SDK.

    Only the four fields of ``ToolOutput`` are sent, not those that an author's subclass adds or changes. Raises
    ``NonFiniteReward``.
    """
    reward = output.reward
    if reward is not None and not _is_finite(reward):
        raise NonFiniteReward(tool, reward)
    metadata = output.metadata
    try:
        if metadata is None and _is_plain(output):
            plain = {"blocks": output.blocks, "metadata": None, "reward": reward, "finished": output.finished}
            return b'{"ok":true,"output":' + to_json(plain) + b"}"
        # Pydantic would silently write floats that are not finite as null.
        if type(output.finished) is bool and not (
            (metadata is not None and _lossy(metadata))
            or any(block.detail is not None and _lossy(block.detail) for block in output.blocks)
        ):
            body: bytes = _serializer(output.__class__).to_json(output, warnings=False)
            return b'{"ok":true,"output":' + body + b"}"
    except _ENCODING_ERRORS:
        pass
    fields = _serializer(output.__class__).to_python(output, warnings=False)
    plain = {
        "blocks": scrub(fields["blocks"], f"{tool}.blocks"),
        "metadata": None if metadata is None else scrub(metadata, f"{tool}.metadata"),
        "reward": None if reward is None else float(reward),
        "finished": bool(output.finished),
    }
    return b'{"ok":true,"output":' + to_json(plain) + b"}"


def _is_plain(output: Any) -> bool:
    """Return whether the fields, each by its own type, are encoded as by the ``ToolOutput`` that holds them.

    Pydantic walks a field that is a sequence in Python, which takes twice as long.
    """
    if type(output.finished) is not bool or not (output.reward is None or type(output.reward) is float):
        return False
    blocks = output.blocks
    if type(blocks) is not list:
        return False
    for block in cast("list[Any]", blocks):
        if type(block) is not TextBlock or block.detail is not None:
            return False
        if type(block.text) is not str or block.type != "text":
            return False
    return True


@functools.cache
def _serializer(cls: type[Any]) -> SchemaSerializer:
    """Return the serializer of the ``ToolOutput`` that a class is or derives from."""
    base: Any = next(base for base in cls.__mro__ if base.__name__ == "ToolOutput")
    return base.__pydantic_serializer__


def _is_finite(reward: Any) -> bool:
    try:
        return math.isfinite(reward)
    except (TypeError, ValueError, OverflowError):
        return False


def encode_tool_error(error: str, reason: str | None) -> bytes:
    """Encode a failed ``RunToolOutput``."""
    return encode({"ok": False, "error": error, "reason": reason})


def _suspicious(data: bytes) -> bool:
    """Return whether the data may hold plain floats that are not finite: they are written as these two words."""
    # ``find`` and not ``in``, which costs as much as the encoding: it first tries the word as a number.
    return data.find(b"NaN") >= 0 or data.find(b"Infinity") >= 0


def _lossy(value: Any) -> bool:
    return _suspicious(to_json(value)) and _has_non_finite(value)


def _has_non_finite(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, Mapping):
        return any(_has_non_finite(item) for item in cast("Mapping[Any, Any]", value).values())
    if isinstance(value, (list, tuple)):
        return any(_has_non_finite(item) for item in cast("list[Any]", value))
    return False


def scrub(value: Any, path: str = "value", depth: int = 0) -> Any:
    """Return a copy of ``value`` that JSON can hold."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, str):
        return replace_surrogates(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else _as_repr(value, path)
    if depth < 100:
        if isinstance(value, BaseModel):
            fields = type(value).model_fields
            return {name: scrub(getattr(value, name), f"{path}.{name}", depth + 1) for name in fields}
        if isinstance(value, Mapping):
            items = cast("Mapping[Any, Any]", value).items()
            return {scrub(str(key), path): scrub(item, f"{path}.{key}", depth + 1) for key, item in items}
        if isinstance(value, (list, tuple)):
            return [scrub(item, f"{path}[]", depth + 1) for item in cast("list[Any]", value)]
        try:
            return scrub(from_json(to_json(value)), path, depth + 1)
        except _ENCODING_ERRORS:
            pass
    return _as_repr(value, path)


def _as_repr(value: Any, path: str) -> str:
    logger.warning("not JSON, sent as its repr", extra={"path": path, "type": type(value).__name__})
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - an author's __repr__ may raise anything; the client must still get the result
        text = f"<{type(value).__name__}>"
    return replace_surrogates(text)
