"""Samples of parametrised tests: the gate runs a share of them, the long tests the rest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

__all__ = ["sample"]


def sample(items: Iterable[Any], share: int) -> list[Any]:
    """Return parameters of which every ``share``-th is run by the gate, the first among them."""
    long = pytest.mark.long
    return [pytest.param(item, marks=long) if number % share else item for number, item in enumerate(items)]
