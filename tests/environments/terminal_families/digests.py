"""Digests of the tasks of every family, which reveal every change of a task.

``python tests/environments/terminal_families/digests.py [FAMILY]...`` records the digests of these families, or of all.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: A file for each family, so that changes of two families never conflict.
FOLDER = Path(__file__).with_name("digests")
#: The first tasks of a family, with every shape several times.
SEEDS = range(12)


def digest_of(generate: Callable[[int], Any]) -> str:
    """Return the digest of all data of a family's first tasks."""
    state = hashlib.sha256()
    for seed in SEEDS:
        task = generate(seed)
        parts = (task.prompt, task.truth, task.setup, task.start, task.initial_tests, task.final_tests, task.oracle)
        for part in (*parts, task.near_miss, repr(sorted(task.files.items()))):
            state.update(part.encode() + b"\0")
    return state.hexdigest()[:32]


def recorded() -> dict[str, str]:
    """Return the recorded digest of each family."""
    return {file.stem: file.read_text().strip() for file in FOLDER.glob("*.txt")}


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[3] / "environments"))
    families = importlib.import_module("terminal.tasks.generation").FAMILIES
    for name in sys.argv[1:] or families:
        (FOLDER / f"{name}.txt").write_text(digest_of(families[name].generate) + "\n")
