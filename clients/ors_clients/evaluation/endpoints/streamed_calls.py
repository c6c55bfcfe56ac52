"""The tool calls of a streamed completion, put together from their pieces.

A piece has the ``index`` of its call. Some endpoints send each call whole instead, without an index or all with the
same one (Gemini's), and tell calls apart by id, or not at all. vLLM before 0.9 sent another id with each piece of one
call. So an index decides, then an id, and a piece with neither continues the last call; but a second name begins
another call if the one before is whole. A piece that could belong to two calls is refused: a wrong guess would be a
mistake of the model in the report.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from ors_clients.evaluation.endpoints.message_fields import arguments_text, id_text, string

__all__ = ["StreamedCalls"]


@dataclass
class _Call:
    place: int
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list[str])

    def is_whole(self) -> bool:
        """Return whether its arguments are a JSON object."""
        try:
            return isinstance(json.loads("".join(self.arguments)), dict)
        except (ValueError, RecursionError):
            return False


class StreamedCalls:
    """Calls whose pieces arrive one after the other."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}
        self._by_id: dict[str, _Call] = {}

    def add(self, piece: dict[str, Any]) -> None:
        """Take a piece. Raises ``ValueError``, ``TypeError`` and ``AttributeError`` for one that cannot be placed."""
        function: dict[str, Any] = piece.get("function") or {}
        index, own_id, name = piece.get("index"), id_text(piece.get("id")), string(function.get("name"))
        if index is not None and (not isinstance(index, int) or isinstance(index, bool)):
            raise TypeError("an index that is not a whole number")
        arguments = arguments_text(function.get("arguments"))
        call = self._call(index, own_id, name, arguments)
        if call.arguments and isinstance(function.get("arguments"), dict | list):
            raise ValueError("arguments that are whole, after a part of them")
        call.id, call.name = call.id or own_id, call.name or name
        if own_id:
            self._by_id.setdefault(own_id, call)
        if arguments:
            call.arguments.append(arguments)

    def _call(self, index: int | None, own_id: str, name: str, arguments: str) -> _Call:
        """Return the call that a piece belongs to."""
        if index is not None:
            found = self._by_index.get(index)
        elif own_id:
            found = self._by_id.get(own_id)
        else:
            found = self._calls[-1] if self._calls else None
        placed = index is not None or bool(own_id)
        if found is None:
            if not placed and not name:
                raise ValueError("a piece of no call")
            return self._begin(index)
        if not (name and found.name):
            return found
        if own_id and own_id != found.id:
            if found.is_whole():
                return self._begin(index)
            raise ValueError("a call that begins within another")
        if name != found.name and not found.is_whole():
            raise ValueError("a call that begins within another")
        if placed and name == found.name and not (arguments.strip() and found.is_whole()):
            return found  # the name, or the whole head, stands in each piece
        if own_id or not found.is_whole():
            raise ValueError("a call that is sent twice, or begins within another")
        return self._begin(index)

    def _begin(self, index: int | None) -> _Call:
        call = _Call(len(self._calls) if index is None else index)
        self._calls.append(call)
        if index is not None:
            self._by_index[index] = call
        return call

    def whole(self) -> list[dict[str, Any]]:
        """Return the calls in the order of their indices, as an answer without streaming has them."""
        return [
            {"id": call.id, "function": {"name": call.name or None, "arguments": "".join(call.arguments)}}
            for call in sorted(self._calls, key=lambda call: call.place)
        ]
