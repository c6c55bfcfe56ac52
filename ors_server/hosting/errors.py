"""Errors of environments and of what is asked of them."""

from __future__ import annotations

from collections.abc import Sequence

from ors_server.errors import DefinitionError, InfrastructureFailure, OrsError, RequestError

__all__ = [
    "EnvironmentFailed",
    "InvalidIndex",
    "InvalidIndexRange",
    "InvalidSplit",
    "InvalidTask",
    "InvalidToolset",
    "NoEnvironments",
    "TargetError",
    "TaskListsDiffer",
    "TasksNotListable",
    "UnknownEnvironment",
]


class NoEnvironments(DefinitionError):
    """A server has no environment."""


class TargetError(OrsError):
    """A target on the command line does not load."""


class InvalidSplit(RequestError):
    """The environment has no split of this name."""

    def __init__(self, split: str, known: Sequence[str]) -> None:
        super().__init__("Invalid split", f"{split!r} is none of {', '.join(known)}")


class InvalidIndex(RequestError):
    """A task index outside the split."""

    def __init__(self, index: int, split: str, count: int | None = None) -> None:
        size = "" if count is None else f", which has {count} tasks"
        super().__init__("Invalid index", f"{index} is outside split {split!r}{size}; indices count from 0")


class InvalidIndexRange(RequestError):
    """A range of task indices that the environment cannot serve."""

    def __init__(self, split: str) -> None:
        super().__init__("Invalid index range", f"the environment has no such tasks in split {split!r}")


class InvalidTask(RequestError):
    """A client sent a task that this server did not give out."""


class TasksNotListable(RequestError):
    """``list_tasks`` of the environment raised ``NotImplementedError``: it has tasks by index only."""

    def __init__(self) -> None:
        super().__init__(
            "list_tasks is not supported for this environment. Use the index-based API (num_tasks + get_task) instead."
        )


class InvalidToolset(RequestError):
    """``/create`` names a session toolset that the session cannot have."""


class UnknownEnvironment(RequestError):
    """No environment of this name is hosted here."""

    status = 404

    def __init__(self, name: str, known: Sequence[str], reason: str = "") -> None:
        remedy = reason or f"This server hosts: {', '.join(known)}"
        super().__init__(f"unknown environment {name!r}", remedy)


class EnvironmentFailed(OrsError):
    """The author's code raised outside a tool call; ``cause`` is the part that the client may see."""


class TaskListsDiffer(InfrastructureFailure):
    """A worker lists other tasks for a split than the workers of its server that listed it first."""

    def __init__(self, environment: str, split: str) -> None:
        super().__init__(
            f"The workers of this server have different lists of tasks for split {split!r} of {environment!r}",
            "list_tasks must return the same tasks in the same order in every process: sort them, and use no chance "
            "and no time. After an update of the environment: `ors-server drain --all`.",
        )
