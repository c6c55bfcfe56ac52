"""The reward of a Harbor task: ``reward.json``, else ``reward.txt``, as the verifier has written them.

Invariant: only a finite number is a reward. A file that is missing, empty or anything else is ``NoReward``, which is
never 0 by itself: the caller finds out whose fault it is.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

__all__ = ["JSON_FILE", "MOST_BYTES", "TEXT_FILE", "NoReward", "Reward", "read_reward"]

JSON_FILE = "reward.json"
TEXT_FILE = "reward.txt"
#: Bytes of a reward file. A caller reads at most one more, so a file that is larger is recognised.
MOST_BYTES = 1 << 20
#: The key of the reward among several.
_KEY = "reward"

Cause = Literal["missing", "empty", "too large", "unreadable", "not finite", "ambiguous"]


@dataclass(frozen=True)
class Reward:
    """A reward, and every number that the verifier gave by its key."""

    value: float
    numbers: Mapping[str, float]


@dataclass(frozen=True)
class NoReward:
    """The reason why there is no reward, in one word and in a sentence."""

    cause: Cause
    detail: str


class _NoRewardFound(Exception):
    def __init__(self, cause: Cause, detail: str) -> None:
        self.outcome = NoReward(cause, detail)
        super().__init__(detail)


def read_reward(json_content: bytes | None, text_content: bytes | None, *, key: str = "") -> Reward | NoReward:
    """Return the reward in the contents of ``reward.json`` and ``reward.txt``; None for a file that is missing.

    ``reward.json`` counts where it exists, also if it cannot be read. It has one number, or an object of numbers, of
    which the reward is ``key`` if the caller names one, else ``reward``, else the only one.
    """
    try:
        if json_content is not None:
            return _chosen(_numbers(_checked(json_content, JSON_FILE)), key)
        if text_content is not None:
            value = _finite(_plain_number(_checked(text_content, TEXT_FILE)), TEXT_FILE)
            return _chosen({_KEY: value}, key)
    except _NoRewardFound as error:
        return error.outcome
    return NoReward("missing", f"the verifier has written neither {JSON_FILE} nor {TEXT_FILE}")


def _checked(content: bytes, file: str) -> str:
    if not content.strip():
        raise _NoRewardFound("empty", f"{file} is empty")
    if len(content) > MOST_BYTES:
        raise _NoRewardFound("too large", f"{file} is larger than {MOST_BYTES >> 20} MiB")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _NoRewardFound("unreadable", f"{file} is not UTF-8 text") from error


def _plain_number(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise _NoRewardFound("unreadable", f"{TEXT_FILE} has {text.strip()[:80]!r}, not a number") from error


def _numbers(text: str) -> dict[str, float]:
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _NoRewardFound("unreadable", f"{JSON_FILE} is not JSON: {str(error)[:80]}") from error
    table = cast("dict[str, Any]", found) if isinstance(found, dict) else {_KEY: found}
    if not table:
        raise _NoRewardFound("empty", f"{JSON_FILE} has no number")
    return {key: _finite(value, f"{JSON_FILE}, {key[:80]!r},") for key, value in table.items()}


def _finite(value: Any, place: str) -> float:
    # True and False are 1 and 0, as in Harbor.
    if not isinstance(value, int | float):
        raise _NoRewardFound("unreadable", f"{place} is {str(value)[:80]!r}, not a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise _NoRewardFound("not finite", f"{place} is {number}, not a finite number")
    return number


def _chosen(numbers: dict[str, float], key: str) -> Reward:
    wanted = key or (_KEY if _KEY in numbers or len(numbers) > 1 else next(iter(numbers)))
    if wanted not in numbers:
        names = ", ".join(sorted(numbers)[:20])
        raise _NoRewardFound("ambiguous", f"no number is called {wanted!r}: the verifier gives {names}")
    return Reward(numbers[wanted], numbers)
