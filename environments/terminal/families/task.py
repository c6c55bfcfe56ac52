"""Data of a generated task.

Invariant: a task follows from the name of its family and its seed alone, with the same bytes on every machine and
Python.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ..states.program import State

__all__ = ["Allowance", "GeneratedFile", "GeneratedTask", "Grading"]

#: ``frozen``: graded when every process of the agent has ended. ``live``: graded while its services run.
Grading = Literal["frozen", "live"]


@dataclass(frozen=True)
class GeneratedFile:
    """A file, a directory or a symbolic link that exists before the agent starts. Parent directories are implied."""

    content: bytes = b""
    mode: int = 0o644
    #: Target of the link, as written; None for files and directories.
    link: str | None = None
    directory: bool = False


@dataclass(frozen=True)
class Allowance:
    """A sentence of the prompt that leaves something to the agent: the permissions of new files, a layout."""

    #: ``modes and times``, ``appearing`` or the name of a comparer.
    kind: str
    sentence: str


@dataclass(frozen=True)
class GeneratedTask:
    """One task, with everything to prepare, grade and check it."""

    family: str
    seed: int
    #: Unique among all families: ``csv_join-000017``.
    name: str
    #: Text for the agent; paths are absolute and below /home/user.
    prompt: str
    #: Facts for graders; never shown.
    truth: str
    #: Initial files by absolute path, owned by the user.
    files: Mapping[str, GeneratedFile]
    #: Bash, run once as the user in /home/user when the image is prepared; mostly empty.
    setup: str
    #: pytest source, standard library only: tests that hold before the agent starts.
    initial_tests: str
    #: pytest source, standard library only: tests of the reward that follow the comparison (``state``); often empty.
    final_tests: str
    #: Bash that solves the task.
    oracle: str
    #: Bash that makes a plausible mistake and earns nothing.
    near_miss: str
    grading: Grading = "frozen"
    #: Bash, run as the user at the start of every episode, to start the task's processes; mostly empty.
    start: str = ""
    #: Commands the image must have, apart from bash and the core utilities.
    programs: tuple[str, ...] = ()
    #: The task's directory.
    root: str = ""
    #: The prompt's sentences in their order.
    sentences: tuple[str, ...] = ()
    #: Sentences that state requirements, and those that leave something to the agent.
    demands: tuple[str, ...] = ()
    allowances: tuple[Allowance, ...] = ()
    #: Rules of the comparison with the solution's state.
    state: State = field(default_factory=lambda: State("/"))
