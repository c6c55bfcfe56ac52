"""Tests of many combinations: the gate runs each value of each parameter, the long tests run every combination.

A test marked ``combinations`` with three runtimes and forty attacks runs forty times in the gate: each attack on one
runtime, and each runtime with some attacks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256

import pytest

__all__ = ["leave_to_long_tests", "not_needed"]


def leave_to_long_tests(items: Iterable[pytest.Item]) -> None:
    """Mark as long what adds no value of a parameter to the tests before it."""
    by_test: defaultdict[tuple[str, str], list[pytest.Function]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec") and _is_of_the_gate(item):
            by_test[str(item.path), item.originalname].append(item)
    for cases in by_test.values():
        values = [_values(case) for case in cases]
        ranks = [sha256(case.nodeid.encode()).digest() for case in cases]
        for index in not_needed(values, ranks):
            cases[index].add_marker(pytest.mark.long)


def _is_of_the_gate(item: pytest.Function) -> bool:
    return item.get_closest_marker("combinations") is not None and item.get_closest_marker("long") is None


def _values(case: pytest.Function) -> frozenset[object]:
    """Return what identifies each value; parameters that vary together are one."""
    together = [_names(mark.args[0]) for mark in case.iter_markers("parametrize")]
    alone = [(name,) for name in case.callspec.params if not any(name in names for names in together)]
    return frozenset((names, *(id(case.callspec.params[name]) for name in names)) for names in (*together, *alone))


def _names(argument: str | Sequence[str]) -> tuple[str, ...]:
    names = argument.split(",") if isinstance(argument, str) else argument
    return tuple(name.strip() for name in names)


def not_needed(values: Sequence[frozenset[object]], ranks: Sequence[bytes]) -> Iterator[int]:
    """Yield the indices of cases that are not needed for each value to be in some case.

    The case with most values that none before it has is taken next; ``ranks`` decide between equals, so that the values
    of one parameter meet different ones of another.
    """
    left = set(range(len(values)))
    covered: set[object] = set()
    while left:
        best = max(left, key=lambda index: (len(values[index] - covered), ranks[index]))
        if values[best] <= covered:
            break
        covered |= values[best]
        left.remove(best)
    yield from sorted(left)
