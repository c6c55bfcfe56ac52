"""The one form in which readers see a figure: on pages, in a terminal and in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from ors_server.rollouts.reports.estimators import SMALLEST_P

__all__ = ["STATISTICS", "mean", "number", "p_value", "percent", "seconds", "share", "span", "verdict_of"]

#: Beside every difference.
STATISTICS = (
    "In brackets: intervals of 95 %. The unit is the task: a run's difference is that of its tasks, by a two-sided"
    " sign-flip permutation test, significant where p < 0.05."
)


def percent(value: float) -> str:
    """Return a share in percent, with one decimal place."""
    return f"{_rounded(100 * Decimal(repr(float(value))), 1)} %"


def share(value: float | None, interval: Sequence[float] | None = None) -> str:
    """Return a share with its interval; a dash for none."""
    return "-" if value is None else percent(value) + span(interval, percent)


def mean(value: float | None) -> str:
    """Return a mean with three decimal places, which are those of ``percent``; a dash for none."""
    if value is None:
        return "-"
    if value and not 0.0005 <= abs(value) < 1e9:
        return number(value)
    return _rounded(Decimal(repr(float(value))), 3)


def number(value: float | None) -> str:
    """Return a number with four digits; a dash for none."""
    return "-" if value is None else f"{value:.4g}"


def span(interval: Sequence[float] | None, shown: Callable[[float], str]) -> str:
    """Return an interval behind a value, each end as ``shown`` writes it; empty for none."""
    return "" if interval is None else f" [{shown(interval[0])}, {shown(interval[1])}]"


def p_value(p: float) -> str:
    """Return a p value. The test draws flips where it cannot take all, and knows none between 0 and its least."""
    for limit in (0.0001, 0.0002):
        if p < limit and (limit == 0.0001 or p <= SMALLEST_P):
            return f"p < {limit}"
    return f"p = {p:.{4 if p < 0.1 else 3}f}"


def verdict_of(found: Mapping[str, Any]) -> str:
    """Return the p value of a difference, and what it says."""
    return f"{p_value(found['p'])}: {'significant' if found['significant'] else 'not significant'}"


def seconds(value: float) -> str:
    """Return seconds with three digits, and all those before the point."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.3f}".rstrip("0").rstrip(".")


def _rounded(value: Decimal, places: int) -> str:
    # A half is rounded up, as readers do: 45.25 % and 0.4525 have the same digits then.
    return f"{value.quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP):,}"
