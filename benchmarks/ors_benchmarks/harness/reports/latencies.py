"""Latencies, completed requests and failures that a client saw in one stretch of time.

Latencies are those of all requests *under way* while the meter is open, however late they are answered: counting only
those answered in time would flatter a slow server. Completed requests are those *answered* while it is open, as is the
CPU time they are divided by.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence

from ors_benchmarks.harness.checks import WrongAnswer
from ors_benchmarks.harness.http11 import Failure, Response

__all__ = ["Meter", "percentile"]


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that a share (0 to 1) of the values does not exceed. Raises ``ValueError`` for none."""
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


class Meter:
    """Count requests, from construction on or ``between`` two times."""

    def __init__(self) -> None:
        #: Seconds by kind of request.
        self.latencies: defaultdict[str, list[float]] = defaultdict(list)
        #: Answered requests by kind.
        self.completed: Counter[str] = Counter()
        #: Failures by their text, whenever they happen.
        self.failures: Counter[str] = Counter()
        #: Wrong answers among them; the others are missing.
        self.wrong = 0
        self._opened = -math.inf
        self._closed = math.inf

    def between(self, opened: float, closed: float = math.inf) -> None:
        """Count from one time to another, by ``time.monotonic``; another opening time discards earlier counts."""
        if opened != self._opened:
            self.latencies.clear()
            self.completed.clear()
        self._opened, self._closed = opened, closed

    def answered(self, kind: str, response: Response) -> None:
        """Count a response."""
        ended = response.started + response.seconds
        if ended >= self._opened and response.started < self._closed:
            self.latencies[kind].append(response.seconds)
            if ended < self._closed:
                self.completed[kind] += 1

    def failed(self, kind: str, failure: Failure) -> None:
        """Count a request without a response, or with a wrong one."""
        self.failures[f"{kind}: {failure}"] += 1
        self.wrong += isinstance(failure, WrongAnswer)

    def percentile(self, kind: str, share: float) -> float:
        """Seconds within which this share of the requests was answered. Raises ``ValueError`` if there were none."""
        return percentile(self.latencies[kind], share)
