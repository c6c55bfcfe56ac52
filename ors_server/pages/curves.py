"""Charts as inline SVG, drawn by the server: the rewards of a run over its steps, and the pass rates of its tasks.

A chart is as wide as its page: the drawing is stretched, and its numbers stand beside it, as text of the page.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

__all__ = ["Curve", "Point", "TaskBars", "render_bars", "render_curve"]

#: Units of a drawing, which has no proportions.
_WIDTH, _HEIGHT = 1000, 200
#: Points that are marked each, and bars of a chart, at most.
_MARKED, _BARS = 100, 400


@dataclass(frozen=True, slots=True)
class Point:
    """A point of a curve: the mean of ``count`` rewards, and the share of them that passed."""

    x: float
    mean: float
    passed: float
    count: int


@dataclass(frozen=True, slots=True)
class Curve:
    """Points in the order of x, with its name."""

    points: Sequence[Point]
    x_name: str


@dataclass(frozen=True, slots=True)
class TaskBars:
    """The pass rates of tasks."""

    rates: Sequence[float]


def render_curve(curve: Curve) -> Markup:
    """Return the curve as an element; its numbers are finite."""
    points = [point for point in curve.points if all(map(math.isfinite, (point.x, point.mean, point.passed)))]
    if not points:
        return Markup()
    first, last = points[0].x, points[-1].x
    low = min(0.0, min(point.mean for point in points))
    high = max(1.0 if low == 0 else low + 1e-9, max(point.mean for point in points))

    def x(value: float) -> float:
        return _WIDTH * (0.5 if last == first else (value - first) / (last - first))

    def y(value: float) -> float:
        return (high - value) / (high - low) * _HEIGHT

    drawn: list[str] = []
    for name, values in (("passed", [point.passed for point in points]), ("mean", [point.mean for point in points])):
        line = " ".join(f"{x(point.x):.1f},{y(value):.1f}" for point, value in zip(points, values, strict=True))
        drawn.append(f'<polyline class="{name}" points="{line}"/>')
    if len(points) <= _MARKED:
        # Lines of no length with round ends: circles would be stretched with the drawing.
        drawn += [
            f'<path class="dot" d="M{x(point.x):.1f} {y(point.mean):.1f}h0"><title>'
            f"{escape(curve.x_name)} {_number(point.x)}: mean {point.mean:.3g} of {point.count:,}</title></path>"
            for point in points
        ]
    said = (
        f"mean reward by {curve.x_name}, {len(points)} points, first {points[0].mean:.3g}, last {points[-1].mean:.3g}"
    )
    ends = [f"{curve.x_name} {_number(first)}"]
    if last > first:
        ends += [_number(float(round((first + last) / 2)))] if last - first > 1 else []
        ends.append(_number(last))
    return _chart(said, low, high, drawn, ends)


def render_bars(bars: TaskBars, page: str = "") -> Markup:
    """Return a bar for each task, those that pass most often first; of many tasks, one bar for several.

    ``page`` is the address of the run, whose tasks the numbers below lead to.
    """
    rates = sorted(bars.rates, reverse=True)
    if not rates:
        return Markup()
    count = min(len(rates), _BARS)
    width = _WIDTH / count
    drawn: list[str] = []
    for number in range(count):
        part = rates[number * len(rates) // count : (number + 1) * len(rates) // count]
        rate = math.fsum(part) / len(part)
        height = max(rate * _HEIGHT, 1.0)
        drawn.append(
            f'<rect class="task" x="{number * width:.2f}" y="{_HEIGHT - height:.1f}" width="{width * 0.9:.2f}" '
            f'height="{height:.1f}"/>'
        )
    always, never = sum(rate >= 1 for rate in rates), sum(rate <= 0 for rate in rates)
    sometimes = len(rates) - always - never
    said = f"pass rates of {len(rates):,} tasks: {always:,} pass always, {sometimes:,} sometimes, {never:,} never"
    ends = (("always", always), ("sometimes", sometimes), ("never", never))
    below = [
        Markup('<a href="{}&passing={}#tasks">{} passed {}</a>').format(page, name, f"{count:,}", name)
        for name, count in ends
    ]
    return _chart(said, 0.0, 1.0, drawn, below)


def _chart(said: str, low: float, high: float, drawn: Iterable[str], below: Sequence[str]) -> Markup:
    values = [high - (high - low) * part / 4 for part in range(5)]
    lines = "".join(f'<line class="grid" x1="0" x2="{_WIDTH}" y1="{y}" y2="{y}"/>' for y in range(0, 201, 50))
    beside = "".join(f"<span>{value:.3g}</span>" for value in values)
    under = "".join(f"<span>{escape(text)}</span>" for text in below)
    # Numbers of this module, and names that were escaped.
    return Markup(  # noqa: S704
        f'<div class="chart"><div class="beside" aria-hidden="true">{beside}</div>'
        f'<svg role="img" aria-label="{escape(said)}" viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none">'
        f'{lines}{"".join(drawn)}</svg><div class="below">{under}</div></div>'
    )


def _number(value: float) -> str:
    """Return a whole number as it is, and any other with three digits or more."""
    return f"{value:,.0f}" if value == round(value) or abs(value) >= 100 else f"{value:.3g}"
