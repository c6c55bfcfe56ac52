"""Counts that the hot path increments: plain numbers and preallocated buckets, without locks or hashed labels.

They belong to one event loop. A scrape reads them (``exposition``). What ends often is noted, and counted many at a
time: that takes a fraction of the time that each would take in the event loop, which has other code in its caches.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from ors_server.telemetry.definitions import (
    CALL_ENVIRONMENT_SECONDS,
    CALL_SECONDS,
    CALL_SERVER_SECONDS,
    CALLS,
    OTHER,
    REQUEST_SECONDS,
    REQUESTS,
    SANDBOX_START_FAILURES,
    SANDBOX_START_SECONDS,
    SESSIONS_CREATED,
    SESSIONS_ENDED,
    SETUP_FAILURES,
    SETUP_SECONDS,
    Metric,
)

__all__ = ["OUTCOMES", "EnvironmentCounts", "Histogram", "RouteCounts", "Sample", "SandboxCounts", "ToolCounts"]

#: Upper bounds of buckets in seconds: of what lasts up to an hour, and of what the server itself takes.
LONG = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
SHORT = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0)

OUTCOMES = ("ok", "refused", "error", "infrastructure", "timeout", "cancelled")
_ENDS = ("deleted", "expired", "lost", "stopped", "unbuilt")
#: Tools of one environment that have series of their own.
_MOST_TOOLS = 200
#: Values of ended requests, or calls of one tool, that are counted together.
_TOGETHER = 384


class Histogram:
    """Observations in buckets."""

    __slots__ = ("bounds", "buckets", "sum")

    def __init__(self, bounds: tuple[float, ...] = LONG) -> None:
        self.bounds = bounds
        #: Observations up to each bound and above the one before it; the last are those above every bound.
        self.buckets = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        """Count an observation."""
        self.buckets[bisect_left(self.bounds, seconds)] += 1
        self.sum += seconds

    def observe_all(self, seconds: list[float]) -> None:
        """Count observations; their list is sorted."""
        seconds.sort()
        below = 0
        for number, bound in enumerate(self.bounds):
            upto = bisect_right(seconds, bound, below)
            self.buckets[number] += upto - below
            below = upto
        self.buckets[-1] += len(seconds) - below
        self.sum += sum(seconds)

    @property
    def count(self) -> int:
        """The number of observations."""
        return sum(self.buckets)


class Sample(NamedTuple):
    """One series: the values of its labels, and its number or histogram."""

    metric: Metric
    labels: tuple[str, ...]
    value: float | Histogram


class RouteCounts:
    """The requests of one route."""

    __slots__ = ("_codes", "_ended", "_seconds", "active")

    def __init__(self) -> None:
        self.active = 0
        self._codes: Counter[int] = Counter()
        self._seconds = Histogram((0.0005, *LONG))
        #: Status and seconds of each request that has ended and is not counted yet.
        self._ended: list[Any] = []

    def end(self, code: int, seconds: float) -> None:
        """Note a request that has ended."""
        self.active -= 1
        ended = self._ended
        ended += (code, seconds)
        if len(ended) >= _TOGETHER:
            self._count()

    def add(self, code: int) -> None:
        """Count a request that was refused at once."""
        self._codes[code] += 1

    def samples(self, route: str) -> list[Sample]:
        """Return its series; none before its first request."""
        self._count()
        if not self._codes:
            return []
        counted = [Sample(REQUESTS, (route, str(code)), count) for code, count in sorted(self._codes.items())]
        return [*counted, Sample(REQUEST_SECONDS, (route,), self._seconds)]

    def _count(self) -> None:
        if not self._ended:
            return
        ended, self._ended = self._ended, []
        self._codes.update(ended[::2])
        self._seconds.observe_all(ended[1::2])


class ToolCounts:
    """The calls of one tool."""

    __slots__ = ("ended", "inside", "outcomes", "seconds")

    def __init__(self) -> None:
        self.outcomes = Counter(dict.fromkeys(OUTCOMES, 0))
        self.seconds = Histogram()
        #: Time in the author's code.
        self.inside = Histogram()
        #: Outcome, seconds and seconds in the author's code of each call that has ended and is not counted yet.
        self.ended: list[Any] = []

    def count(self, server: Histogram) -> None:
        """Count the calls that have ended; ``server`` takes the time that was not the author's."""
        if not self.ended:
            return
        ended, self.ended = self.ended, []
        seconds: list[float] = ended[1::3]
        inside: list[float] = ended[2::3]
        # The clocks of a thread and of the loop are read one after the other.
        server.observe_all([whole - part if whole > part else 0.0 for whole, part in zip(seconds, inside, strict=True)])
        self.outcomes.update(ended[::3])
        self.seconds.observe_all(seconds)
        self.inside.observe_all(inside)


class EnvironmentCounts:
    """The sessions and calls of one environment; ``tools`` are the names that its calls may have."""

    __slots__ = ("_known", "_tools", "created", "ended", "name", "server", "setup", "setup_failures")

    def __init__(self, name: str, tools: Collection[str]) -> None:
        self.name = name
        self._known = set(tools)
        self.created = 0
        self.ended: dict[str, int] = dict.fromkeys(_ENDS, 0)
        self.setup = Histogram()
        self.setup_failures = {"environment": 0, "infrastructure": 0}
        self.server = Histogram(SHORT)
        self._tools: dict[str, ToolCounts] = {}

    def learn(self, tools: Collection[str]) -> None:
        """Take more names that calls may have: those of a session's toolset."""
        self._known.update(tools)

    def end_call(self, tool: str, outcome: str, seconds: float, inside: float) -> None:
        """Note a call that has ended; ``inside`` are the seconds of ``seconds`` that were the author's."""
        counts = self._tools.get(tool) or self._add(tool)
        ended = counts.ended
        ended += (outcome, seconds, inside)
        if len(ended) >= _TOGETHER:
            counts.count(self.server)

    def _add(self, tool: str) -> ToolCounts:
        name = tool if tool in self._known and len(self._tools) < _MOST_TOOLS else OTHER
        return self._tools.setdefault(name, ToolCounts())

    @property
    def tools(self) -> Mapping[str, ToolCounts]:
        """The tools that were called, with all of their calls counted."""
        for counts in self._tools.values():
            counts.count(self.server)
        return self._tools

    def samples(self) -> list[Sample]:
        """Return its series."""
        name = self.name
        found = [Sample(SESSIONS_CREATED, (name,), self.created)]
        found += [Sample(SESSIONS_ENDED, (name, reason), count) for reason, count in self.ended.items()]
        found += [Sample(SETUP_FAILURES, (name, reason), count) for reason, count in self.setup_failures.items()]
        found.append(Sample(SETUP_SECONDS, (name,), self.setup))
        for tool, counts in self.tools.items():
            found += [Sample(CALLS, (name, tool, outcome), count) for outcome, count in counts.outcomes.items()]
            found.append(Sample(CALL_SECONDS, (name, tool), counts.seconds))
            found.append(Sample(CALL_ENVIRONMENT_SECONDS, (name, tool), counts.inside))
        found.append(Sample(CALL_SERVER_SECONDS, (name,), self.server))
        return found


class SandboxCounts:
    """The starts of sandboxes of one service."""

    __slots__ = ("failures", "starts")

    def __init__(self) -> None:
        self.starts = {"warm": Histogram(), "cold": Histogram(), "container": Histogram()}
        self.failures = {"no_room": 0, "failed": 0}

    def samples(self) -> list[Sample]:
        """Return its series."""
        started = [Sample(SANDBOX_START_SECONDS, (start,), histogram) for start, histogram in self.starts.items()]
        return [
            *started,
            *(Sample(SANDBOX_START_FAILURES, (reason,), count) for reason, count in self.failures.items()),
        ]
