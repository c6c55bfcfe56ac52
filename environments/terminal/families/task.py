"""What a generated task consists of.

Invariant: a task follows from the name of its family and its seed alone, the same bytes on every machine and Python.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from .requirements import Requirement, Way

__all__ = ["GeneratedFile", "GeneratedTask", "Grading"]

#: ``frozen``: graded when every process of the agent has ended. ``live``: its services go on meanwhile.
Grading = Literal["frozen", "live"]


@dataclass(frozen=True)
class GeneratedFile:
    """A file, a directory or a symbolic link that is there before the agent is. Directories above it are implied."""

    content: bytes = b""
    mode: int = 0o644
    #: Where it leads, as it is written; None for what is no link.
    link: str | None = None
    directory: bool = False


@dataclass(frozen=True)
class GeneratedTask:
    """One task with everything to prepare, grade and check it."""

    family: str
    seed: int
    #: Unique among all families: ``csv_join-000017``.
    name: str
    #: What the agent reads; paths are absolute and under /home/user.
    prompt: str
    #: What the graders know; never shown.
    truth: str
    #: Absolute path and what is there, owned by the user.
    files: Mapping[str, GeneratedFile]
    #: Bash, run once as the user in /home/user when the image is prepared; mostly empty.
    setup: str
    #: pytest source, standard library only: holds before the agent.
    initial_tests: str
    #: pytest source, standard library only: the reward.
    final_tests: str
    #: Bash that solves it.
    oracle: str
    #: Bash that makes a plausible mistake and earns nothing.
    near_miss: str
    grading: Grading = "frozen"
    #: Bash, run as the user at the start of every episode: what has to be running; mostly empty.
    start: str = ""
    #: Commands the image must have, bash and the core utilities apart.
    programs: tuple[str, ...] = ()
    #: The directory the task is about.
    root: str = ""
    #: The prompt's sentences in their order.
    sentences: tuple[str, ...] = ()
    #: Those sentences that demand something, and false solutions of each.
    requirements: tuple[Requirement, ...] = ()
    #: Ways that earn 1.
    honest: tuple[Way, ...] = ()
