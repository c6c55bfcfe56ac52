"""The definition of a family of tasks.

Invariant: seed *n* has shape *n* modulo the number of shapes, so consecutive seeds have every shape equally often.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .draft import Draft
from .task import GeneratedTask, Grading

__all__ = ["HELD_OUT_SEEDS", "Family", "Shape"]

#: Seeds of the test split start here; no training split is that long.
HELD_OUT_SEEDS = 500_000

#: A function that writes one kind of task into a draft.
Shape = Callable[[Draft], None]


@dataclass(frozen=True)
class Family:
    """Tasks of one kind in several shapes, the easiest first."""

    name: str
    #: The subject of its tasks, for people.
    summary: str
    shapes: tuple[Shape, ...]
    #: Commands the image must have, bash and the core utilities apart.
    programs: tuple[str, ...] = ()
    grading: Grading = "frozen"
    #: Whether its tasks are among those of all families; else a server has them where its settings name the family.
    by_default: bool = True

    def generate(self, seed: int) -> GeneratedTask:
        """Return the task of a seed. Raises ``ValueError`` for a negative seed."""
        if seed < 0:
            raise ValueError(f"The seed {seed} is negative")
        draft = Draft(self.name, seed)
        self.shapes[seed % len(self.shapes)](draft)
        return draft.task(self.programs, self.grading)
