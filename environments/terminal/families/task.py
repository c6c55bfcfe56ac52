"""Data of a generated task.

Invariant: a task follows from the name of its family and its seed alone, with the same bytes on every machine and
Python.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from .requirements import Requirement, Way

__all__ = ["GeneratedFile", "GeneratedTask", "Grading"]

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
    #: pytest source, standard library only: the reward.
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
    #: The sentences that state requirements, and false solutions of each.
    requirements: tuple[Requirement, ...] = ()
    #: Ways that earn 1.
    honest: tuple[Way, ...] = ()
