"""The tasks and the sizes of a run: written by the command line, read by the process that trains.

Invariant: no value of a held-out task (a name, a word, a number, a path) occurs in a training task. A value is a word
of few tasks' texts; the words of many are the language of the prompts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from pydantic import TypeAdapter

from ors_clients.errors import ConfigurationError

__all__ = ["FEWEST_HELD_OUT", "FORMAT", "WORD", "Plan", "PlannedTask", "Recipe", "rare_words"]

#: Held-out tasks that an evaluation has, at least.
FEWEST_HELD_OUT = 200
#: Increased by each change after which an older run cannot go on.
FORMAT = 2
#: A word in fewer of the texts is a value.
_RARE = 0.04
#: A word or a number of a text.
WORD = re.compile(r"[A-Za-z]+|[0-9]+")


@dataclass(frozen=True)
class PlannedTask:
    """One task with a solution of one call, which the model never sees outside of the demonstrations."""

    index: int
    kind: str
    tool: str
    arguments: Mapping[str, Any]
    #: The text of the task, and of its solution.
    text: str


@dataclass(frozen=True)
class Recipe:
    """Sizes of a run. Lengths are in tokens.

    Episodes cost more than steps of so small a model, so each batch of episodes is trained on twice, and the rate falls
    to 0: after 3,584 episodes of the family ``first_steps``, models of six seeds solved 0.75 to 0.86 of tasks that are
    neither for training nor held out. Each batch once, at a constant rate, gave 0.71 and 0.72.
    """

    #: Training tasks that are imitated; the others decide when the warm start ends, and are learnt from rewards.
    demonstrations: int = 240
    #: Mean probability of a demonstration that was not trained on, at which the warm start ends.
    warm_until: float = 0.32
    warm_batch: int = 16
    warm_learning_rate: float = 3e-3
    #: Batches of episodes, and steps of the optimizer on each of them.
    steps: int = 56
    iterations: int = 2
    groups: int = 8
    group_size: int = 8
    #: Falls to 0 in the course of the training.
    learning_rate: float = 2e-3
    hidden: int = 64
    layers: int = 2
    max_tokens: int = 48
    max_turns: int = 1
    #: Sessions at the same time.
    concurrency: int = 16


@dataclass(frozen=True)
class Plan:
    """A whole run."""

    name: str
    target: str
    environment: str
    train: Sequence[PlannedTask]
    held_out: Sequence[PlannedTask]
    seed: int = 0
    train_split: str = "train"
    held_out_split: str = "test"
    recipe: Recipe = field(default_factory=Recipe)
    format: int = FORMAT

    def check(self) -> None:
        """Raise ``ConfigurationError`` for too few tasks, and for a value of both splits."""
        if len(self.held_out) < FEWEST_HELD_OUT:
            raise ConfigurationError(
                f"The split {self.held_out_split!r} of {self.environment} has {len(self.held_out)} held-out tasks",
                f"An evaluation needs {FEWEST_HELD_OUT}.",
            )
        if len(self.train) <= self.recipe.demonstrations:
            raise ConfigurationError(
                f"The split {self.train_split!r} of {self.environment} has {len(self.train)} tasks",
                f"A run needs more than {self.recipe.demonstrations}.",
            )
        values = rare_words([task.text for task in self.held_out])
        seen = {word for task in self.train for word in WORD.findall(task.text)}
        if both := sorted(values & seen):
            raise ConfigurationError(
                f"{len(both)} values of held-out tasks occur in training tasks: {', '.join(both[:5])}",
                "Such an evaluation would measure what was memorized.",
            )

    def as_json(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Plan:
        """Return a plan as ``as_json`` wrote it. Raises ``ConfigurationError`` for another format."""
        if value.get("format") != FORMAT:
            raise ConfigurationError("The run was begun by another version, which trains otherwise", "Begin a new run.")
        return TypeAdapter(Plan).validate_python(value)


def rare_words(texts: Sequence[str]) -> set[str]:
    """Return the words and numbers that few of the texts have."""
    counts = Counter(word for text in texts for word in _words(text))
    return {word for word, count in counts.items() if count < _RARE * len(texts)}


def _words(text: str) -> Iterable[str]:
    return set(WORD.findall(text))
