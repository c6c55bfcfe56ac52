"""A server's responses as values: tasks, tools, prompts and the results of calls.

Reading is tolerant where servers differ (a key more, a key less) and strict where a trainer would go wrong: an answer
whose shape makes no sense is a ``ServerUnavailable``, never a result with holes; a reward is a finite number, and
nothing else is taken for one. ``Task`` and ``ToolResult`` are
frozen: a rollout's record cannot change after the fact.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from ors_clients.errors import ServerUnavailable
from ors_server.protocol import VERDICT, ImageBlock, Message, Split, TerminalToolSpec, TextBlock, ToolSpec

__all__ = [
    "Block",
    "Task",
    "ToolListing",
    "ToolResult",
    "read_blocks",
    "read_messages",
    "read_result",
    "read_splits",
    "read_tools",
    "unexpected_response",
]

Block = TextBlock | ImageBlock


@dataclass(frozen=True, slots=True)
class Task:
    """One task of an environment.

    ``spec`` is what the server gave out, to be sent back as it is. ``index`` is None where it is not known, as for a
    task read from a data set that does not say.
    """

    environment: str
    split: str | None
    index: int | None
    #: Left out of the ``repr``: it may hold the answer.
    spec: Mapping[str, Any] = field(repr=False)
    #: The environment's name in the server's own words, where it said one.
    server_name: str | None = None


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of one call of a tool.

    Either the tool ran (``error`` is None), or it did not and ``error`` is the text that says so: the tool is unknown
    (``reason`` "not_found"), its input invalid ("input_validation"), the episode over ("episode_finished"). Both are
    observations for the model.
    """

    blocks: Sequence[Block] = ()
    #: The step's reward; None where the tool gave none, which is not 0.
    reward: float | None = None
    #: Whether this call ended the episode.
    finished: bool = False
    metadata: Mapping[str, Any] | None = None
    error: str | None = None
    reason: str | None = None

    @property
    def text(self) -> str:
        """The text blocks, a line each; of a call that ran no tool, the error."""
        if self.error is not None:
            return self.error
        return "\n".join([block.text for block in self.blocks if isinstance(block, TextBlock)])

    @property
    def images(self) -> list[ImageBlock]:
        """The image blocks."""
        return [block for block in self.blocks if isinstance(block, ImageBlock)]


@dataclass(frozen=True, slots=True)
class ToolListing:
    """The tools of an environment or a session."""

    tools: list[ToolSpec]
    #: The tool that gets the assistant's plain message, which ends the episode; hidden from the model.
    terminal_tool: TerminalToolSpec | None = None


# --- reading -------------------------------------------------------------------------------------


def read_blocks(value: Any) -> list[Block]:
    """Return the blocks of a prompt or an output. Raises ``ServerUnavailable`` for any other shape."""
    try:
        return [_block(block) for block in value]
    except (KeyError, TypeError, ValueError, AttributeError):
        raise unexpected_response("blocks of text and images") from None


def _block(value: Any) -> Block:
    kind = value["type"]
    if kind == "text":
        return TextBlock(text=value["text"], detail=value.get("detail"))
    if kind == "image":
        return ImageBlock(data=value["data"], mimeType=value["mimeType"], detail=value.get("detail"))
    raise ValueError(kind)


def read_messages(value: Any) -> list[Message]:
    """Return the turns of a prompt. Raises ``ServerUnavailable`` for any other shape."""
    try:
        return [Message.model_validate(message) for message in value]
    except (TypeError, ValueError):
        raise unexpected_response("messages") from None


def read_tools(value: Any) -> ToolListing:
    """Return the answer of ``/tools`` and ``/task_tools``. Raises ``ServerUnavailable``."""
    try:
        terminal = value.get("terminal_tool")
        return ToolListing(
            [
                ToolSpec(
                    name=tool["name"],
                    description=tool.get("description") or "",
                    input_schema=tool.get("input_schema"),
                )
                for tool in value["tools"]
            ],
            None
            if terminal is None
            else TerminalToolSpec(
                name=terminal["name"], arg=terminal.get("arg"), description=terminal.get("description") or ""
            ),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise unexpected_response("a list of tools") from None


def read_splits(value: Any) -> list[Split]:
    """Return the answer of ``/splits``. Raises ``ServerUnavailable``."""
    try:
        return [Split(name=split["name"], type=split["type"]) for split in value]
    except (KeyError, TypeError, ValueError):
        raise unexpected_response("a list of splits") from None


def read_result(value: Any) -> ToolResult:
    """Return the JSON that ``/call`` ends with. Raises ``ServerUnavailable`` for any other shape."""
    try:
        if not isinstance(value["ok"], bool):
            raise TypeError  # "false" is true
        if not value["ok"]:
            return ToolResult(error=str(value["error"]), reason=value.get("reason"))
        output = value["output"]
        return ToolResult(
            [_block(block) for block in output["blocks"]],
            _reward(output.get("reward")),
            output.get("finished") is True,
            _metadata(output.get("metadata")),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        raise unexpected_response("a tool's result") from None


def _metadata(value: Any) -> Mapping[str, Any] | None:
    """Return the metadata without a verdict, which a server of another kind sends: it tells what hidden tests check."""
    if isinstance(value, dict) and VERDICT in value:
        value = {name: each for name, each in cast("dict[str, Any]", value).items() if name != VERDICT}
    return cast("Mapping[str, Any] | None", value)


def _reward(value: Any) -> float | None:
    """Return a step's reward.

    Raises ``TypeError``, ``ValueError`` and ``OverflowError`` unless it is a finite number.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError  # a text or a truth value that happens to convert was not meant as a number
    reward = float(value)
    if not math.isfinite(reward):
        raise ValueError
    return reward


def unexpected_response(expected: str) -> ServerUnavailable:
    """Return the error for a response of another shape; it does not quote the response, which may hold secrets."""
    return ServerUnavailable(
        f"The server's answer is not {expected}", "Is this the address of an ORS server, and not of a page before it?"
    )
