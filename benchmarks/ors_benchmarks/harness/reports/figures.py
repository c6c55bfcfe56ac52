"""The rows of a benchmark, the figures they give, and the budgets of those figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Figure", "Measured", "Quotient", "Row"]


@dataclass(frozen=True)
class Row:
    """One kind of measurement."""

    name: str
    #: For ``--help``.
    title: str


@dataclass(frozen=True)
class Figure:
    """One number that a row gives."""

    key: str
    row: str
    title: str
    unit: str
    better: Literal["less", "more"] = "less"
    #: What ours must reach.
    budget: float | None = None
    #: Whether the worst round is held against the budget, and not the median.
    worst: bool = False
    #: Whether the budget is processor time, which a slower machine needs more of.
    processor: bool = False


@dataclass(frozen=True)
class Quotient(Figure):
    """A figure ÷ a figure of the same round, less ``minus``: both have the noise of the same minutes."""

    unit: str = "×"
    #: The keys of both figures; the second is the first where it is empty.
    of: str = ""
    over: str = ""
    #: Whose figure is divided, and whose it is divided by; empty for the candidate's own.
    peer: str = ""
    base: str = ""
    minus: float = 0.0
    #: The candidates that have it.
    candidates: Sequence[str] = ()


@dataclass
class Measured:
    """The figures of one measurement."""

    figures: dict[str, float] = field(default_factory=dict[str, float])
    #: Points (x, y) by the curve's key.
    curves: dict[str, list[tuple[float, float]]] = field(default_factory=dict[str, list[tuple[float, float]]])
    #: Remarks for the report.
    notes: list[str] = field(default_factory=list[str])
