"""The rows of the benchmark and the figures they give, with their budgets. Most are quotients within one round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ors_benchmarks.harness.reports.figures import Figure, Quotient, Row
from ors_benchmarks.scale import scenarios
from ors_benchmarks.scale.scenarios import Scenario

__all__ = ["FIGURES", "ROWS", "ScaleRow"]


@dataclass(frozen=True)
class ScaleRow(Row):
    """A row of the benchmark."""

    measure: Scenario
    candidates: Sequence[str]
    workers: int = 2
    #: Whether it needs servers that nothing was measured on, and whether it leaves servers for nothing else.
    fresh: bool = False
    spoils: bool = False


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

_GATEWAY, _TCP, _BUT_NGINX = ("gateway",), ("gateway-tcp",), ("gateway", "gateway-tcp", "haproxy")


def _quotient(
    key: str,
    row: str,
    title: str,
    budget: float,
    of: str,
    over: str,
    base: str = "",
    candidates: Sequence[str] = ("gateway", "nginx", "haproxy"),
    *,
    better: Literal["less", "more"] = "less",
    minus: float = 0.0,
) -> Quotient:
    return Quotient(
        key, row, title, "×", better, budget, of=of, over=over, base=base, minus=minus, candidates=candidates
    )


FIGURES: Sequence[Figure] = (
    Figure("call_front", "calls", "CPU per /call, gateway or proxy", "µs"),
    Figure("call_worker", "calls", "CPU per /call, worker", "µs"),
    _quotient("front_floor", "calls", "gateway or proxy ÷ bare uvicorn", 0.70, "call_front", "call_worker", "floor"),
    _quotient("front_floor_tcp", "calls", "… with workers on TCP", 0.80, "call_front", "call_worker", "floor", _TCP),
    _quotient("front_nginx", "calls", "gateway ÷ nginx", 1.2, "call_front", "call_front", "nginx", _BUT_NGINX),
    _quotient("worker_direct", "calls", "worker ÷ one worker alone", 1.0, "call_worker", "call_worker", "direct"),
    _quotient("worker_direct_tcp", "calls", "… with workers on TCP", 1.1, "call_worker", "call_worker", "direct", _TCP),
    Figure("p50_1", "one", "/call p50, 1 session", "ms"),
    _quotient(
        "added_1",
        "one",
        "p50 added ÷ p50 of one worker alone",
        0.35,
        "p50_1",
        "p50_1",
        "direct",
        _FRONTS[:-1],
        minus=1.0,
    ),
    Figure("p50_64", "many", "/call p50, 64 sessions", "ms"),
    _quotient(
        "p50_64_direct",
        "many",
        "p50 ÷ one worker alone, front on its own core",
        1.5,
        "p50_64_alone",
        "p50_64",
        "direct",
        _FRONTS[:-1],
    ),
    Figure("cpu_64", "many", "CPU per /call, all processes", "µs"),
    _quotient("cpu_64_direct", "many", "CPU ÷ one worker alone", 1.5, "cpu_64", "cpu_64", "direct", _FRONTS[:-1]),
    Figure("ping_front", "pings", "CPU per /ping, gateway", "µs"),
    Figure("ping_worker", "pings", "CPU per /ping, worker", "µs"),
    Figure("episode_front", "episodes", "CPU to create, prompt and end, gateway", "µs"),
    Figure("episode_worker", "episodes", "CPU to create, prompt and end, worker", "µs"),
    Figure("output_front", "output", "CPU per 1 MiB of output, gateway or proxy", "ms"),
    Figure("output_worker", "output", "CPU per 1 MiB of output, worker", "ms"),
    _quotient(
        "output_front_worker",
        "output",
        "gateway or proxy ÷ worker",
        0.35,
        "output_front",
        "output_worker",
        "",
        _FRONTS[:-1],
    ),
    _quotient(
        "output_front_nginx", "output", "gateway ÷ nginx", 0.6, "output_front", "output_front", "nginx", _BUT_NGINX
    ),
    Figure("stream_front", "streams", "memory per open event stream, gateway", "KiB", "less", 6),
    Figure("stream_worker", "streams", "memory per open event stream, worker", "KiB", "less", 12),
    Figure("burn_rate", "burn", "10 ms burns on all cores", "1/s", "more"),
    Figure("burn_allowed", "burn", "two bare interpreters ÷ one, then", "×", "more"),
    _quotient(
        "burn_gain", "burn", "2 workers ÷ 1 worker", 1.6, "burn_rate", "burn_rate", "direct", _GATEWAY, better="more"
    ),
    Figure("burn_cpu", "burn", "CPU per burn, worker", "ms"),
    _quotient(
        "burn_cpu_direct", "burn", "CPU per burn ÷ one worker alone", 1.03, "burn_cpu", "burn_cpu", "direct", _GATEWAY
    ),
    Figure("fullest", "spread", "fullest of 4 workers ÷ mean", "×", "less", 1.05),
    Figure("killed", "killed", "worker killed: its sessions answer 410 after", "ms", "less", 100),
    Figure("killed_in_flight", "killed", "worker killed: its call under way ends after", "ms", "less", 100),
    Figure("stopped", "stopped", "worker stopped: its sessions answer 410 after", "s", "less", 11),
)
