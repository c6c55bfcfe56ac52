"""The figures of a run and its replay: rates, latencies, and where an episode's time went.

An episode's time is divided without overlap and without remainder. Generation is divided by what the engine says of
itself: waiting to be scheduled, computing, and the rest, which is the way to the engine and back. Requests to the
environment are divided by what the environment says of itself: its own code, and the rest, which is HTTP. Of that, the
server's part is its process's processor time beyond that of the environment's code, the client's part the processor
time that its requests took on its event loop, and the rest is waiting: for a processor, for either event loop, for the
kernel. What is left is the client's own work, the waiting of its event loop included.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from ors_benchmarks.harness.reports.latencies import percentile
from ors_benchmarks.harness.reports.results import Summary
from ors_benchmarks.rollout.recording import EpisodeRecord, Span, SpanKind
from ors_benchmarks.rollout.runs import CUT_OFF, NotSteered, Run

__all__ = [
    "PARTS",
    "Cell",
    "Figures",
    "Gatherer",
    "Quantiles",
    "ServerFacts",
    "breakdown_of",
    "busy_seconds",
    "figures_of",
    "timeline_of",
]

#: The spans of requests to the environment.
REQUESTS: tuple[SpanKind, ...] = ("open", "prompt", "tools", "call", "close")
#: The parts of an episode's time, in the order of the breakdown, with what they are called.
PARTS = {
    "engine": "engine",
    "queue": "engine's queue",
    "handover": "way to the engine",
    "environment": "environment",
    "http": "HTTP",  # of reports before it was parted
    "http_server": "HTTP: server",
    "http_client": "HTTP: client",
    "http_waiting": "HTTP: waiting",
    "client": "client",
}
#: Latencies by what they are of, in the order of an episode.
LATENCIES: dict[str, tuple[SpanKind, ...]] = {
    "session open": ("open",),
    "prompt": ("prompt", "tools"),
    "generation": ("generate",),
    "tool call": ("call",),
    "close": ("close",),
}

#: Figures of one run by key.
Figures = dict[str, float]


class ServerFacts(BaseModel):
    """The server's side of a run; empty for a server that was not started here."""

    #: Seconds that the environment's own methods took, all sessions together.
    environment_seconds: float | None = None
    #: Of these, of methods that run while a session is opened and while it is closed.
    environment_opening: float = 0.0
    environment_closing: float = 0.0
    #: Processor time that they took of the server's process.
    environment_cpu: float = 0.0
    cpu_seconds: float | None = None
    peak_mib: float | None = None


class Quantiles(BaseModel):
    """A distribution, in milliseconds."""

    count: int
    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Quantiles:
        """Of at least one value."""
        p50, p95, p99 = (percentile(seconds, share) * 1e3 for share in (0.5, 0.95, 0.99))
        return cls(count=len(seconds), p50=round(p50, 3), p95=round(p95, 3), p99=round(p99, 3))


class Cell(BaseModel):
    """One combination of server, client, concurrency and think-time, over all rounds."""

    server: str
    client: str
    concurrency: int
    #: Seconds that each tool takes longer.
    think_time: float
    #: Throughput with the environment ÷ throughput of the same generations without: of each round. None where no round
    #: could be replayed.
    ratio: Summary | None = None
    figures: dict[str, Summary] = {}
    latencies: dict[str, Quantiles] = {}
    #: Mean seconds of an episode by part; without ``environment`` where the server does not tell, and without ``queue``
    #: where the engine does not.
    breakdown: dict[str, float] = {}
    #: Episodes by how they ended, and failures of the infrastructure among them by type and text.
    outcomes: dict[str, int] = {}
    failures: dict[str, int] = {}
    #: Wrong calls, by the message the model got.
    problems: dict[str, int] = {}
    #: Calls in which the tool raised, by what it said: the environment's failures, not the model's.
    environment_errors: dict[str, int] = {}
    #: Highest memory in RAM by process, in MiB.
    memory_mib: dict[str, float] = {}
    notes: list[str] = []

    @property
    def infrastructure_failures(self) -> int:
        """Episodes that ended without an outcome of their own."""
        return sum(self.failures.values())


def busy_seconds(spans: Iterable[Span]) -> float:
    """Seconds in which at least one of the spans was open."""
    total, until = 0.0, float("-inf")
    for span in sorted(spans, key=lambda span: span.started):
        if span.ended > until:
            total += span.ended - max(span.started, until)
            until = span.ended
    return total


def figures_of(run: Run, replayed: Run | None, server: ServerFacts) -> Figures:
    """Return the figures of one run; without a usable replay those that need one are left out."""
    seconds, episodes = run.seconds, run.episodes
    turns = sum(len(episode.turns) for episode in episodes)
    wall = sum(episode.ended - episode.started for episode in episodes)
    figures: Figures = {
        "seconds": seconds,
        "episodes_per_second": sum(episode.outcome != CUT_OFF for episode in episodes) / seconds,
        "turns_per_second": turns / seconds,
        "generated_per_second": run.generated / seconds,
        "prompt_per_second": sum(episode.prompt for episode in episodes) / seconds,
        "engine_busy": busy_seconds(_generations(episodes)) / seconds,
    }
    if wall:
        # Every moment of an episode that its engine does not work on it is one that an environment costs.
        figures["environment_share"] = sum(episode.seconds(*REQUESTS) for episode in episodes) / wall
    for name, of in (("prefix_hits", run), ("replayed_prefix_hits", replayed)):
        hits = None if of is None else _prefix_hits(of)
        if hits is not None:
            figures[name] = hits
    if server.cpu_seconds is not None:
        figures["server_cpu"] = server.cpu_seconds / seconds
    if replayed is not None and replayed.gave_up is None and run.comparable and replayed.generated and run.generated:
        figures["replayed_per_second"] = replayed.generated / replayed.seconds
        figures["ratio"] = figures["generated_per_second"] / figures["replayed_per_second"]
    return figures


def _prefix_hits(run: Run) -> float | None:
    cached = [turn.times.cached for episode in run.episodes for turn in episode.turns]
    prompt = sum(episode.prompt for episode in run.episodes)
    return sum(count or 0 for count in cached) / prompt if prompt and None not in cached else None


def breakdown_of(episodes: Sequence[EpisodeRecord], server: ServerFacts) -> dict[str, float]:
    """Mean seconds of an episode by part."""
    count = len(episodes)
    wall = sum(episode.ended - episode.started for episode in episodes)
    generation = sum(episode.seconds("generate") for episode in episodes)
    requests = sum(episode.seconds(*REQUESTS) for episode in episodes)
    parts: dict[str, float] = {}
    turns = [turn for episode in episodes for turn in episode.turns]
    if turns and all(turn.times.engine is not None and turn.times.queue is not None for turn in turns):
        parts["engine"] = sum(turn.times.engine or 0.0 for turn in turns)
        parts["queue"] = sum(turn.times.queue or 0.0 for turn in turns)
        # A generation that failed has a span and no turn: it is counted here.
        parts["handover"] = max(0.0, generation - parts["engine"] - parts["queue"])
    else:
        parts["engine"] = generation
    if server.environment_seconds is not None:
        # Work of an environment before its episode began, or after it has ended, is not part of the episode.
        opening, closing = server.environment_opening, server.environment_closing
        waited: dict[tuple[SpanKind, ...], float] = {
            ("open", "prompt", "tools"): opening,
            ("call",): server.environment_seconds - opening - closing,
            ("close",): closing,
        }
        parts["environment"] = sum(
            min(seconds, sum(episode.seconds(*kinds) for episode in episodes)) for kinds, seconds in waited.items()
        )
    left = requests - parts.get("environment", 0.0)
    if server.cpu_seconds is not None:
        parts["http_server"] = min(left, max(0.0, server.cpu_seconds - server.environment_cpu))
        left -= parts["http_server"]
    parts["http_client"] = min(left, sum(episode.request_cpu for episode in episodes))
    parts["http_waiting"] = left - parts["http_client"]
    parts["client"] = max(0.0, wall - generation - requests)
    return {part: seconds / count for part, seconds in parts.items()}


class Gatherer:
    """Collect the rounds of one cell, in any order."""

    def __init__(self, server: str, client: str, concurrency: int, think_time: float) -> None:
        self.cell = Cell(server=server, client=client, concurrency=concurrency, think_time=think_time)
        self._values: dict[str, list[float]] = {}
        self._spans: dict[str, list[float]] = {}
        self._breakdowns: list[dict[str, float]] = []

    def add(self, run: Run, replayed: Run | None, server: ServerFacts, more: Mapping[str, float]) -> Figures:
        """Add one round; ``more`` are further figures. Returns the round's figures."""
        cell = self.cell
        for episode in run.episodes:
            cell.outcomes[episode.outcome] = cell.outcomes.get(episode.outcome, 0) + 1
            if episode.failure is not None:
                text = f"{type(episode.failure).__name__}: {episode.failure}"
                cell.failures[text] = cell.failures.get(text, 0) + 1
        for problem, count in Counter(text for episode in run.episodes for text in episode.problems).items():
            cell.problems[problem] = cell.problems.get(problem, 0) + count
        for error, count in Counter(text for episode in run.episodes for text in episode.environment_errors).items():
            cell.environment_errors[error] = cell.environment_errors.get(error, 0) + count
        if any(isinstance(episode.failure, NotSteered) for episode in run.episodes):
            cell.notes.append("turns were not held to their calls, so this run has no ratio")
        for gave_up in (run.gave_up, None if replayed is None else replayed.gave_up):
            if gave_up is not None:
                cell.notes.append(gave_up)
        if server.peak_mib is not None:
            self.memory("server", server.peak_mib)
        if not run.seconds or not any(episode.turns for episode in run.episodes):
            return {}
        figures = {**figures_of(run, replayed, server), **more}
        for key, value in figures.items():
            self._values.setdefault(key, []).append(value)
        for name, kinds in LATENCIES.items():
            for episode in run.episodes:
                spans = [span.seconds for span in episode.spans if span.kind in kinds]
                # The tools are asked for with the prompt: together they are one wait.
                self._spans.setdefault(name, []).extend([sum(spans)] if name == "prompt" and spans else spans)
        self._breakdowns.append(breakdown_of(run.episodes, server))
        return figures

    def memory(self, process: str, mib: float) -> None:
        """Add a process's memory; the highest value stays."""
        self.cell.memory_mib[process] = round(max(mib, self.cell.memory_mib.get(process, 0.0)), 1)

    def finish(self) -> Cell:
        """Return the cell."""
        values = {key: Summary.of(found) for key, found in self._values.items()}
        self.cell.ratio = values.pop("ratio", None)
        self.cell.figures = values
        self.cell.latencies = {name: Quantiles.of(found) for name, found in self._spans.items() if found}
        parts = {part for breakdown in self._breakdowns for part in breakdown}
        self.cell.breakdown = {
            part: sum(breakdown.get(part, 0.0) for breakdown in self._breakdowns) / len(self._breakdowns)
            for part in PARTS
            if part in parts
        }
        return self.cell


def _generations(episodes: Iterable[EpisodeRecord]) -> list[Span]:
    return [span for episode in episodes for span in episode.spans if span.kind == "generate"]


def timeline_of(run: Run, count: int) -> list[dict[str, Any]]:
    """Return the first episodes of a run as ``{"started", "ended", "spans": [[kind, start, end], …]}``, in seconds."""
    return [
        {
            "started": round(episode.started - run.started, 4),
            "ended": round(episode.ended - run.started, 4),
            "spans": [
                [span.kind, round(span.started - run.started, 4), round(span.ended - run.started, 4)]
                for span in episode.spans
            ],
        }
        for episode in run.episodes[:count]
    ]
