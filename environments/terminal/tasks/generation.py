"""Tasks from a family's name and a seed: the built-in source of the terminal environment.

Invariant: ``generate`` gives the same bytes for the same name and seed on every machine and Python, and no two families
share a name.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ..families import FAMILIES as _ALL
from ..families.family import Family
from ..families.task import GeneratedFile, GeneratedTask, Grading

__all__ = [
    "FAMILIES",
    "Family",
    "GeneratedFile",
    "GeneratedTask",
    "Grading",
    "families_table",
    "generate",
]

#: Every family by its name.
FAMILIES: Mapping[str, Family] = MappingProxyType({family.name: family for family in _ALL})


def generate(family: str, seed: int) -> GeneratedTask:
    """Generate the task of a family and a seed.

    Raises ``KeyError`` for an unknown family and ``ValueError`` for a negative seed.
    """
    return FAMILIES[family].generate(seed)


def families_table() -> str:
    """Return the table of families in docs/terminal_tasks.md."""
    lines = ["| family | shapes | programs | grading | what its tasks are about |", "|---|---|---|---|---|"]
    for family in FAMILIES.values():
        programs = ", ".join(f"`{program}`" for program in family.programs) or "–"
        lines.append(f"| `{family.name}` | {len(family.shapes)} | {programs} | {family.grading} | {family.summary} |")
    return "\n".join(lines) + "\n"
