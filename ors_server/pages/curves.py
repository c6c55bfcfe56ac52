"""A curve as inline SVG, drawn by the server: the mean reward, and the share of rollouts that passed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

__all__ = ["Curve", "Point", "render_curve"]

_WIDTH, _HEIGHT = 720, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 12, 50


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


def render_curve(curve: Curve) -> Markup:
    """Return the curve as an SVG element; its numbers are finite."""
    points = [point for point in curve.points if all(map(math.isfinite, (point.x, point.mean, point.passed)))]
    if not points:
        return Markup()
    first, last = points[0].x, points[-1].x
    low = min(0.0, min(point.mean for point in points))
    high = max(1.0 if low == 0 else low + 1e-9, max(point.mean for point in points))

    def x(value: float) -> float:
        share = 0.5 if last == first else (value - first) / (last - first)
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return _TOP + (high - value) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)

    parts = [
        f'<svg class="curve" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="mean reward by {escape(curve.x_name)}, {len(points)} points, '
        f'first {points[0].mean:.3g}, last {points[-1].mean:.3g}">'
    ]
    for share in range(5):
        value = low + (high - low) * share / 4
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>'
        )
        parts.append(f'<text class="axis" x="{_LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{value:.3g}</text>')
    ticks = {first, last, float(round((first + last) / 2))} if last - first > 1 else {first, last}
    for value in sorted(ticks):
        anchor = "start" if value == first and last > first else "end" if value == last and last > first else "middle"
        parts.append(
            f'<text class="axis" x="{x(value):.1f}" y="{_HEIGHT - 28}" text-anchor="{anchor}">{_number(value)}</text>'
        )
    parts.append(f'<text class="axis name" x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 4}" text-anchor="end">')
    parts.append(f"{escape(curve.x_name)}</text>")
    line = " ".join(f"{x(point.x):.1f},{y(point.passed):.1f}" for point in points)
    parts.append(f'<polyline class="passed" points="{line}"/>')
    line = " ".join(f"{x(point.x):.1f},{y(point.mean):.1f}" for point in points)
    parts.append(f'<polyline class="mean" points="{line}"/>')
    if len(points) <= 60:
        parts += [
            f'<circle class="dot" cx="{x(point.x):.1f}" cy="{y(point.mean):.1f}" r="3"><title>'
            f"{escape(curve.x_name)} {_number(point.x)}: mean {point.mean:.3g} of {point.count:,}</title></circle>"
            for point in points
        ]
    parts.append("</svg>")
    # Numbers of this module, and names that were escaped.
    return Markup("".join(parts))  # noqa: S704


def _number(value: float) -> str:
    """Return a whole number as it is, and any other with three digits or more."""
    return f"{value:,.0f}" if value == round(value) or abs(value) >= 100 else f"{value:.3g}"
