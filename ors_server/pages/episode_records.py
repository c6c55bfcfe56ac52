"""One call of an episode as a page shows it, read from the events of its result."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Any

from ors_server.rollouts.verdicts import Verdict, read_verdict

__all__ = ["EpisodeCall", "read_frames"]


@dataclass(eq=False)
class EpisodeCall:
    """A call of the playground."""

    task_id: str
    tool: str
    input: dict[str, Any]
    started: float = field(default_factory=time.time)
    done: bool = False
    #: Blocks of the output; a text block for an error.
    blocks: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    error: str = ""
    reward: float | None = None
    finished: bool = False
    metadata: dict[str, Any] | None = None
    seconds: float | None = None
    #: What the grader found, which is in no result; not for every visitor.
    verdict: Verdict | None = None
    characters: int = 0

    def take(self, result: dict[str, Any] | str, seconds: float, verdict: object = None) -> None:
        """Take the result: what ``/call`` returns, or the text of an error; and the verdict that came with it."""
        self.verdict = read_verdict(verdict)
        self.done, self.seconds = True, seconds
        if isinstance(result, str):
            self.error = result
        elif result["ok"]:
            output = result["output"]
            self.blocks, self.metadata = output["blocks"], output["metadata"]
            self.reward, self.finished = output["reward"], output["finished"]
        else:
            self.error = result["error"]
        self.characters = len(self.text) + sum(len(block.get("data", "")) for block in self.blocks)
        if self.verdict is not None:
            self.characters += len(json.dumps(self.verdict.as_json()))

    @property
    def text(self) -> str:
        """The text of its output, or of its error."""
        if self.error:
            return self.error
        return "\n".join(block["text"] for block in self.blocks if block["type"] == "text")

    @property
    def images(self) -> list[dict[str, Any]]:
        """The pictures of its output."""
        return [block for block in self.blocks if block["type"] == "image"]


def read_frames(frames: bytes) -> dict[str, Any] | str:
    """Return the result in the events of a call, or the text of its ``error`` event."""
    parts: list[str] = []
    for event in frames.decode().split("\r\n\r\n"):
        name, *lines = event.split("\r\n")
        data = "\n".join(line.removeprefix("data: ") for line in lines)
        if name == "event: error":
            return data
        if name in ("event: chunk", "event: end"):
            parts.append(data)
    return json.loads("".join(parts))
