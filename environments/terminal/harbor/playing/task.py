"""A prepared task, ready to be played and judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..folder import HarborTask
from ..record import Record

__all__ = ["PreparedTask"]


@dataclass(frozen=True)
class PreparedTask:
    """A task's folder, its record, and the operator's variables that its templates may use."""

    task: HarborTask
    record: Record
    variables: Mapping[str, str]

    @property
    def name(self) -> str:
        """The task's name; ``id`` on the wire."""
        return self.task.name

    @property
    def prompt(self) -> str:
        """The text for the agent."""
        return self.task.instruction
