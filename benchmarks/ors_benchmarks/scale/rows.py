"""The rows of the benchmark and the figures they give, with their budgets. Most are quotients within one round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ors_benchmarks.harness.figures import Figure, Row
from ors_benchmarks.scale import scenarios
from ors_benchmarks.scale.scenarios import Scenario

__all__ = ["FIGURES", "ROWS", "Quotient", "ScaleRow", "quotients"]


@dataclass(frozen=True)
class ScaleRow(Row):
    """A row of the benchmark."""

    measure: Scenario
    candidates: Sequence[str]
    workers: int = 2
    #: Whether it needs servers that nothing was measured on, and whether it leaves servers for nothing else.
    fresh: bool = False
    spoils: bool = False


@dataclass(frozen=True)
class Quotient(Figure):
    """A figure of candidates ÷ a figure of the same round, less ``minus``."""

    of: str = ""
    over: str = ""
    #: Whose figure it is divided by; "" for the candidate's own.
    base: str = ""
    minus: float = 0.0
    candidates: Sequence[str] = ("gateway", "nginx", "haproxy")


_FRONTS = ("gateway", "gateway-tcp", "nginx", "haproxy", "direct")

ROWS: Sequence[ScaleRow] = (
    ScaleRow("streams", "many event streams open at once", scenarios.streams, ("gateway", "direct"), fresh=True),
    ScaleRow("calls", "32 sessions calling for a few seconds", scenarios.calls, (*_FRONTS, "floor")),
    ScaleRow("one", "one session calling", scenarios.one, _FRONTS),
    ScaleRow("many", "64 sessions calling at once", scenarios.many, _FRONTS),
    ScaleRow("pings", "32 sessions kept alive by pings", scenarios.pings, ("gateway", "direct")),
    ScaleRow("episodes", "episodes without a call", scenarios.episodes, ("gateway", "direct")),
    ScaleRow("output", "calls with 1 MiB of output", scenarios.output, _FRONTS),
    ScaleRow(
        "burn", "8 sessions whose tool burns 10 ms of Python, on all cores", scenarios.burn, ("gateway", "direct")
    ),
    ScaleRow("stopped", "a worker is stopped with SIGSTOP, and goes on", scenarios.stopped, ("gateway",)),
    ScaleRow("killed", "a worker is killed", scenarios.killed, ("gateway",), spoils=True),
    ScaleRow("spread", "10,000 sessions over 4 workers", scenarios.spread, ("gateway",), 4, fresh=True, spoils=True),
)

FIGURES: Sequence[Figure] = (
    Figure("call_front", "calls", "CPU per /call, gateway or proxy", "µs"),
    Figure("call_worker", "calls", "CPU per /call, worker", "µs"),
    Quotient(
        "front_floor",
        "calls",
        "gateway or proxy ÷ bare uvicorn",
        "×",
        "less",
        0.70,
        of="call_front",
        over="call_worker",
        base="floor",
    ),
    Quotient(
        "front_floor_tcp",
        "calls",
        "… with workers on TCP",
        "×",
        "less",
        0.80,
        of="call_front",
        over="call_worker",
        base="floor",
        candidates=("gateway-tcp",),
    ),
    Quotient(
        "front_nginx",
        "calls",
        "gateway ÷ nginx",
        "×",
        "less",
        1.2,
        of="call_front",
        over="call_front",
        base="nginx",
        candidates=("gateway", "gateway-tcp", "haproxy"),
    ),
    Quotient(
        "worker_direct",
        "calls",
        "worker ÷ one worker alone",
        "×",
        "less",
        1.0,
        of="call_worker",
        over="call_worker",
        base="direct",
    ),
    Quotient(
        "worker_direct_tcp",
        "calls",
        "… with workers on TCP",
        "×",
        "less",
        1.1,
        of="call_worker",
        over="call_worker",
        base="direct",
        candidates=("gateway-tcp",),
    ),
    Figure("p50_1", "one", "/call p50, 1 session", "ms"),
    Quotient(
        "added_1",
        "one",
        "p50 added ÷ p50 of one worker alone",
        "×",
        "less",
        0.35,
        of="p50_1",
        over="p50_1",
        base="direct",
        minus=1.0,
        candidates=_FRONTS[:-1],
    ),
    Figure("p50_64", "many", "/call p50, 64 sessions", "ms"),
    Quotient(
        "p50_64_direct",
        "many",
        "p50 ÷ one worker alone, front on its own core",
        "×",
        "less",
        1.5,
        of="p50_64_alone",
        over="p50_64",
        base="direct",
        candidates=_FRONTS[:-1],
    ),
    Figure("cpu_64", "many", "CPU per /call, all processes", "µs"),
    Quotient(
        "cpu_64_direct",
        "many",
        "CPU ÷ one worker alone",
        "×",
        "less",
        1.5,
        of="cpu_64",
        over="cpu_64",
        base="direct",
        candidates=_FRONTS[:-1],
    ),
    Figure("ping_front", "pings", "CPU per /ping, gateway", "µs"),
    Figure("ping_worker", "pings", "CPU per /ping, worker", "µs"),
    Figure("episode_front", "episodes", "CPU to create, prompt and end, gateway", "µs"),
    Figure("episode_worker", "episodes", "CPU to create, prompt and end, worker", "µs"),
    Figure("output_front", "output", "CPU per 1 MiB of output, gateway or proxy", "ms"),
    Figure("output_worker", "output", "CPU per 1 MiB of output, worker", "ms"),
    Quotient(
        "output_front_worker",
        "output",
        "gateway or proxy ÷ worker",
        "×",
        "less",
        0.35,
        of="output_front",
        over="output_worker",
        candidates=_FRONTS[:-1],
    ),
    Quotient(
        "output_front_nginx",
        "output",
        "gateway ÷ nginx",
        "×",
        "less",
        0.6,
        of="output_front",
        over="output_front",
        base="nginx",
        candidates=("gateway", "gateway-tcp", "haproxy"),
    ),
    Figure("stream_front", "streams", "memory per open event stream, gateway", "KiB", "less", 6),
    Figure("stream_worker", "streams", "memory per open event stream, worker", "KiB", "less", 12),
    Figure("burn_rate", "burn", "10 ms burns on all cores", "1/s", "more"),
    Figure("burn_allowed", "burn", "two bare interpreters ÷ one, then", "×", "more"),
    Quotient(
        "burn_gain",
        "burn",
        "2 workers ÷ 1 worker",
        "×",
        "more",
        1.6,
        of="burn_rate",
        over="burn_rate",
        base="direct",
        candidates=("gateway",),
    ),
    Figure("burn_cpu", "burn", "CPU per burn, worker", "ms"),
    Quotient(
        "burn_cpu_direct",
        "burn",
        "CPU per burn ÷ one worker alone",
        "×",
        "less",
        1.03,
        of="burn_cpu",
        over="burn_cpu",
        base="direct",
        candidates=("gateway",),
    ),
    Figure("fullest", "spread", "fullest of 4 workers ÷ mean", "×", "less", 1.05),
    Figure("killed", "killed", "worker killed: its sessions answer 410 after", "ms", "less", 100),
    Figure("killed_in_flight", "killed", "worker killed: its call under way ends after", "ms", "less", 100),
    Figure("stopped", "stopped", "worker stopped: its sessions answer 410 after", "s", "less", 11),
)


def quotients(figures: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Return the quotients of a round by candidate; ``figures`` are its figures by candidate."""
    found: dict[str, dict[str, float]] = {}
    for figure in FIGURES:
        if not isinstance(figure, Quotient):
            continue
        for name in figure.candidates:
            value = figures.get(name, {}).get(figure.of)
            divisor = figures.get(figure.base or name, {}).get(figure.over)
            if value is not None and divisor:
                found.setdefault(name, {})[figure.key] = value / divisor - figure.minus
    return found
