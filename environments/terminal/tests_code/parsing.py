"""Parser of Python text, one call at a time.

In Python 3.11 ``ast.parse`` counts its depth in one place for all threads, so two calls at once can end with a
``SystemError``. Environments are made in threads, and a server starts many at once.
"""

from __future__ import annotations

import ast
import threading

__all__ = ["parse"]

_turn = threading.Lock()


def parse(text: str) -> ast.Module:
    """Parse a module. Raises what ``ast.parse`` raises."""
    with _turn:
        return ast.parse(text)
