"""The tasks and the sizes of a run: written by the command line, read by the process that trains.

Invariant: no value of a tiny model's held-out task (a name, a word, a number, a path) occurs in a training task. A
value is a word of few tasks' texts; the words of many are the language of the prompts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from pydantic import TypeAdapter

from ors_clients.errors import ConfigurationError

__all__ = [
    "FEWEST_HELD_OUT",
    "FORMAT",
    "TINY_RECIPE",
    "WORD",
    "Plan",
    "PlannedTask",
    "Recipe",
    "TinySizes",
    "rare_words",
]

#: Held-out tasks that the evaluation of a tiny model has, at least.
FEWEST_HELD_OUT = 200
#: Increased by each change after which an older run cannot go on.
FORMAT = 3
#: A word in fewer of the texts is a value.
_RARE = 0.04
#: A word or a number of a text.
WORD = re.compile(r"[A-Za-z]+|[0-9]+")


@dataclass(frozen=True)
class PlannedTask:
    """One task; that of a tiny model with a solution of one call, which it sees in demonstrations only."""

    index: int
    kind: str
    tool: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    #: The text of the task, and of its solution.
    text: str = ""


@dataclass(frozen=True)
class Recipe:
    """Sizes of a training. Lengths are in tokens."""

    #: Batches of episodes, and steps of the optimizer on each of them.
    steps: int = 100
    iterations: int = 1
    #: Tasks of a batch, and episodes of each.
    groups: int = 8
    group_size: int = 8
    #: Falls to 0 in the course of the training.
    learning_rate: float = 1e-6
    #: Of one turn.
    max_tokens: int = 512
    max_turns: int = 16
    #: Of prompt and response of an episode together.
    context: int = 4096
    #: Sessions at the same time.
    concurrency: int = 16
    #: The reward from which on a task is solved.
    success_at: float = 1.0
    #: Episodes of each held-out task in a sampled evaluation.
    held_out_samples: int = 1

    @property
    def episodes(self) -> int:
        """Episodes of a batch."""
        return self.groups * self.group_size


@dataclass(frozen=True)
class TinySizes:
    """Sizes of a tiny model and of its warm start."""

    #: Training tasks that are imitated; the others decide when the warm start ends, and are learnt from rewards.
    demonstrations: int = 240
    #: Mean probability of a demonstration that was not trained on, at which the warm start ends.
    warm_until: float = 0.32
    warm_batch: int = 16
    warm_learning_rate: float = 3e-3
    hidden: int = 64
    layers: int = 2


#: For a tiny model. Episodes cost more than steps of so small a model, so each batch of episodes is trained on twice,
#: and the rate falls to 0: after 3,584 episodes of the family ``first_steps``, models of six seeds solved 0.75 to 0.86
#: of tasks that are neither for training nor held out. Each batch once, at a constant rate, gave 0.71 and 0.72.
TINY_RECIPE = Recipe(steps=56, iterations=2, learning_rate=2e-3, max_tokens=48, max_turns=1)


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
    #: None where the model is a checkpoint.
    tiny: TinySizes | None = None
    #: A folder, or a name on the hub; None for a tiny model.
    model: str | None = None
    #: What a checkpoint is trained on: ``cuda`` or ``cpu``.
    device: str = "cuda"
    format: int = FORMAT

    @property
    def tool_calls(self) -> str:
        """The form of the model's calls."""
        return "auto" if self.tiny is None else "hermes"

    def check_tiny(self) -> None:
        """Raise ``ConfigurationError`` for too few tasks for a tiny model, and for a value of both splits."""
        needed = 0 if self.tiny is None else self.tiny.demonstrations
        if len(self.held_out) < FEWEST_HELD_OUT:
            raise ConfigurationError(
                f"The split {self.held_out_split!r} of {self.environment} has {len(self.held_out)} held-out tasks",
                f"An evaluation needs {FEWEST_HELD_OUT}.",
            )
        if len(self.train) <= needed:
            raise ConfigurationError(
                f"The split {self.train_split!r} of {self.environment} has {len(self.train)} tasks",
                f"A run needs more than {needed}.",
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
