"""Digests of the tasks of every family, so that a change of them does not go unnoticed.

``python tests/environments/terminal_families/digests.py [FAMILY]...`` writes those of these families anew, or all.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: A file for each family, so that changes of two families never meet in one.
FOLDER = Path(__file__).with_name("digests")
#: The first tasks of a family, every shape several times.
SEEDS = range(12)


def digest_of(generate: Callable[[int], Any]) -> str:
    """The digest of everything the first tasks of a family consist of."""
    state = hashlib.sha256()
    for seed in SEEDS:
        task = generate(seed)
        parts = (task.prompt, task.truth, task.setup, task.start, task.initial_tests, task.final_tests, task.oracle)
        for part in (*parts, task.near_miss, repr(sorted(task.files.items()))):
            state.update(part.encode() + b"\0")
    return state.hexdigest()[:32]


def recorded() -> dict[str, str]:
    """What was written down for each family."""
    return {file.stem: file.read_text().strip() for file in FOLDER.glob("*.txt")}


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[3] / "environments"))
    families = importlib.import_module("terminal.generation").FAMILIES
    for name in sys.argv[1:] or families:
        (FOLDER / f"{name}.txt").write_text(digest_of(families[name].generate) + "\n")
