"""Texts from outside: lone surrogates replaced, and long texts shortened."""

from __future__ import annotations

from typing import Any, cast

__all__ = ["replace_surrogates", "shorten", "without_surrogates"]


def replace_surrogates(text: str) -> str:
    """Replace each lone surrogate by U+FFFD, and join the halves of a pair: no file and no tokenizer takes either."""
    return text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def without_surrogates(value: Any, deepest: int | None = None) -> Any:
    """Copy a JSON value with ``replace_surrogates`` applied to all its strings.

    Raises ``RecursionError`` for lists and objects that are nested over ``deepest`` levels deep.
    """
    if isinstance(value, str):
        return replace_surrogates(value)
    if isinstance(value, list | dict):
        if deepest is not None:
            if deepest == 0:
                raise RecursionError
            deepest -= 1
        if isinstance(value, list):
            return [without_surrogates(item, deepest) for item in cast("list[Any]", value)]
        items = cast("dict[str, Any]", value).items()
        return {replace_surrogates(name): without_surrogates(item, deepest) for name, item in items}
    return value


def shorten(text: str, limit: int) -> str:
    """Leave out the middle of a text that is longer than ``limit`` characters, and say how much was left out."""
    left_out = len(text) - limit
    if left_out <= 0:
        return text
    head = (limit + 1) // 2
    return f"{text[:head]}\n[… {left_out} characters left out …]\n{text[head + left_out :]}"
