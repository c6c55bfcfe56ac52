"""The model that a run trains: where it comes from, what samples it, and what its report says beside the training.

The rest of a run (episodes, evaluations, training, checkpoints, report) is the same for each of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, ClassVar

from ors_clients.learning.episodes import Episodes
from ors_clients.learning.plan import Plan
from ors_clients.learning.stages import Stages
from ors_clients.rollouts.chat_renderer import ChatRenderer
from ors_clients.samplers.generations import Sampler

__all__ = ["Learner", "RunContext", "say"]


@dataclass(frozen=True)
class RunContext:
    """The parts of a run that its learner uses."""

    plan: Plan
    stages: Stages
    episodes: Episodes
    #: Runs a coroutine on the run's event loop.
    wait: Callable[[Coroutine[Any, Any, Any]], Any]


class Learner(ABC):
    """A model that is trained. Its methods raise ``ConfigurationError`` for what cannot be learnt or loaded."""

    #: The evaluations by name: the stage whose model is played, and the temperature. Those whose names begin with
    #: ``before`` come before the training.
    evaluations: ClassVar[Mapping[str, tuple[str, float]]]

    tokenizer: Any
    renderer: ChatRenderer

    def __init__(self, context: RunContext) -> None:
        self.plan = context.plan
        self.stages = context.stages
        self.episodes = context.episodes
        self.wait = context.wait

    @abstractmethod
    def begin(self) -> None:
        """Make the tokenizer, the renderer and the model before the training, or find them."""

    @abstractmethod
    def load(self) -> Any:
        """Return the model before the training, to be trained."""

    @abstractmethod
    def save(self, model: Any) -> None:
        """Save the trained model as the stage ``model``."""

    @abstractmethod
    def training_sampler(self, model: Any, indices: Sequence[int]) -> Sampler:
        """Return what plays these training tasks with the weights that ``model`` has now."""

    @abstractmethod
    def stage_sampler(self, stage: str, temperature: float) -> Sampler:
        """Return what plays the held-out tasks with the model of a stage."""

    @abstractmethod
    def trainer_settings(self) -> dict[str, Any]:
        """Return the settings of TRL that depend on the model and the machine."""

    def correct_sampling(self) -> bool:
        """Return whether the sampler computes otherwise than the trainer, for which the loss is to be corrected."""
        return False

    def check_played(self) -> None:  # noqa: B027 - most samplers cannot fail
        """Raise ``InfrastructureFailure`` where the sampler can play no more."""

    def check_before(self, tool_calls: int, episodes: int) -> None:  # noqa: B027 - and most can go on
        """Raise ``ConfigurationError`` where the evaluations before the training leave nothing to learn."""

    def end(self) -> None:  # noqa: B027 - nor is there always something to do
        """Do what comes after the training, and before its evaluation."""

    def versions(self) -> dict[str, str]:
        """Return the versions of the packages that decide what comes out."""
        return {name: version(name) for name in ("torch", "transformers", "trl")}

    @abstractmethod
    def report(self, compared: Callable[[str, str], dict[str, Any]]) -> dict[str, Any]:
        """Return this learner's part of the report; ``compared`` compares two evaluations."""


def say(text: str) -> None:
    """Print progress of the command that started this process."""
    print(text, flush=True)  # noqa: T201 - its only output
