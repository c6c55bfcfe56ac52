"""Sums and means of rewards in SQL that stay finite: clients may send any finite number."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from typing import Any, cast

from sqlalchemy import Double, Float, func
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.functions import FunctionElement

__all__ = ["bounded_sum", "bounded_total", "safe_mean"]

_MOST = sys.float_info.max
#: A power of two, by which a number is divided without loss.
_SCALE = 2.0**40


class bounded_sum(FunctionElement[float]):  # noqa: N801 - a function of SQL
    """The sum of a column, NULL of no values; at most the largest finite number, or PostgreSQL would refuse it."""

    type = cast("Any", Double())
    inherit_cache = True
    name = "bounded_sum"


@compiles(bounded_sum, "sqlite")
def _in_sqlite(element: Any, compiler: Any, **options: Any) -> str:
    summed = compiler.process(element.clauses, **options)
    return f"min(max(sum({summed}), {-_MOST!r}), {_MOST!r})"


@compiles(bounded_sum, "postgresql")
def _in_postgresql(element: Any, compiler: Any, **options: Any) -> str:
    summed = compiler.process(element.clauses, **options)
    total = f"least(greatest(sum(CAST({summed} AS numeric)), {-_MOST!r}), {_MOST!r})"
    # least and greatest ignore a NULL, which is the sum of nothing.
    return f"CASE WHEN count({summed}) > 0 THEN CAST({total} AS double precision) END"


def safe_mean(column: ColumnElement[Any]) -> ColumnElement[float]:
    """Return the mean of a column; its sum may be larger than any finite number."""
    return func.avg(column / _SCALE, type_=Float) * _SCALE


def bounded_total(values: Iterable[float]) -> float:
    """Sum finite numbers exactly, up to the largest finite number."""
    listed = list(values)
    try:
        return math.fsum(listed)
    except OverflowError:
        scaled = math.fsum(value / _SCALE for value in listed)
        return math.copysign(_MOST, scaled) if abs(scaled) >= _MOST / _SCALE else scaled * _SCALE
