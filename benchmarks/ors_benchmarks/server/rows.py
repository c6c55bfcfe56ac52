"""The rows of the server benchmark and the figures they give, with their budgets."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from ors_benchmarks.harness.reports.figures import Figure, Measured, Quotient, Row
from ors_benchmarks.server import scenarios
from ors_benchmarks.server.closed_loop import Subject
from ors_benchmarks.server.observed import OBSERVED, UNOBSERVED

__all__ = ["BUDGET_FLOOR", "FIGURES", "QUICK_ROWS", "ROWS", "ServerRow"]


@dataclass(frozen=True)
class ServerRow(Row):
    """A row of the server benchmark."""

    measure: Callable[[Subject], Awaitable[Measured]]
    #: Whether bare uvicorn is measured too.
    floor: bool = False
    #: Measured in every second round only: it takes long on the slower servers.
    heavy: bool = False
    #: The candidates it is for; all but those of ``observed`` where none is named.
    candidates: Sequence[str] = ()
    #: Gets a process of its own, because it changes the process.
    fresh: bool = False


ROWS: Sequence[ServerRow] = (
    ServerRow("calls", "32 sessions calling for a few seconds", scenarios.calls, floor=True),
    ServerRow(
        "connections", "64 and 512 sessions calling, each over its connection", scenarios.connections, floor=True
    ),
    ServerRow(
        "observed",
        "the same with keys, metrics and recording on, and without",
        scenarios.observed_calls,
        candidates=(UNOBSERVED.name, OBSERVED.name, "ors-sdk"),
    ),
    ServerRow("episodes", "episodes of 8 calls, from create_session to delete_session", scenarios.episodes, floor=True),
    ServerRow("latency", "1, 8, 32, 128 and 512 sessions calling at once", scenarios.latency, floor=True),
    ServerRow("output", "calls with 1 MiB of output", scenarios.large_output),
    ServerRow("setup", "256 sessions at once whose set-up takes 1 s", scenarios.set_up),
    ServerRow("slow", "1,000 tools at once that wait 2 s asynchronously", scenarios.slow_tools),
    ServerRow("blocking", "64 tools at once that block their thread for 0.5 s", scenarios.blocking_tools, heavy=True),
    ServerRow("crowd", "2,048 and 4,096 sessions calling at once", scenarios.crowd, floor=True, heavy=True),
    ServerRow("tasks", "get_task on 100,000 tasks rebuilt at each listing", scenarios.get_task, fresh=True),
    ServerRow(
        "sessions", "up to 16,384 sessions alive in one process", scenarios.live_sessions, heavy=True, fresh=True
    ),
)

#: Rows of a short run.
QUICK_ROWS: Sequence[str] = ("calls", "episodes", "latency", "tasks", "output", "setup")

#: Microseconds that bare uvicorn took for a request on the machine the budgets were set on. A machine on which it takes
#: twice as long takes twice as long for everything that is processor time, whatever the server.
BUDGET_FLOOR = 23.0

FIGURES: Sequence[Figure] = (
    Figure("call_cpu", "calls", "CPU per /call, 32 sessions", "µs", budget=80, processor=True),
    Quotient(
        "call_cpu_gain_ors-sdk",
        "calls",
        "CPU per /call, ors-sdk ÷ ours",
        better="more",
        budget=11,
        of="call_cpu",
        peer="ors-sdk",
        candidates=("ours",),
    ),
    Quotient(
        "call_cpu_gain_openreward",
        "calls",
        "CPU per /call, openreward ÷ ours",
        better="more",
        budget=15,
        of="call_cpu",
        peer="openreward",
        candidates=("ours",),
    ),
    Figure("call_instructions", "calls", "instructions per /call, 32 sessions", "k"),
    Quotient(
        "call_instructions_gain_ors-sdk",
        "calls",
        "instructions per /call, ors-sdk ÷ ours",
        better="more",
        of="call_instructions",
        peer="ors-sdk",
        candidates=("ours",),
    ),
    Quotient(
        "call_instructions_gain_openreward",
        "calls",
        "instructions per /call, openreward ÷ ours",
        better="more",
        of="call_instructions",
        peer="openreward",
        candidates=("ours",),
    ),
    Figure("call_rate", "calls", "/call on one core, 32 sessions", "1/s", "more"),
    Figure("connections_cpu_64", "connections", "CPU per /call, 64 connections", "µs"),
    Figure("connections_cpu_512", "connections", "CPU per /call, 512 connections", "µs"),
    Figure("connections_growth", "connections", "… ÷ that at 64", "×"),
    Quotient(
        "connections_growth_floor",
        "connections",
        "… ÷ the growth of bare uvicorn",
        budget=1.15,
        of="connections_growth",
        base="floor",
        candidates=("ours",),
    ),
    Figure("connections_p99", "connections", "/call p99, 512 connections", "ms"),
    Figure("collector_pause_connections", "connections", "longest garbage-collection pause meanwhile", "ms"),
    Figure("collector_p99_connections", "connections", "p99 of these pauses", "ms"),
    Figure("collector_share_connections", "connections", "their share of the time", "%"),
    Figure("observed_cpu", "observed", "CPU per /call, keys, metrics and recording on", "µs"),
    Quotient(
        "observed_cost",
        "observed",
        "CPU per /call, with them ÷ without",
        budget=1.25,
        of="observed_cpu",
        peer=OBSERVED.name,
        candidates=(UNOBSERVED.name,),
    ),
    Quotient(
        "observed_gain_ors-sdk",
        "observed",
        "CPU per /call, ors-sdk ÷ ours with them",
        better="more",
        budget=11,
        of="observed_cpu",
        peer="ors-sdk",
        candidates=(OBSERVED.name,),
    ),
    Figure("observed_instructions", "observed", "instructions per /call, keys, metrics and recording on", "k"),
    Quotient(
        "observed_instructions_cost",
        "observed",
        "instructions per /call, with them ÷ without",
        of="observed_instructions",
        peer=OBSERVED.name,
        candidates=(UNOBSERVED.name,),
    ),
    Figure("episode_cpu", "episodes", "CPU per 8-call episode", "ms", budget=1.5, processor=True),
    Figure("episode_rate", "episodes", "8-call episodes on one core", "1/s", "more"),
    Figure("call_p50_512", "latency", "/call p50, 512 sessions at once", "ms"),
    Figure("call_p99_512", "latency", "/call p99, 512 sessions at once", "ms", budget=80, processor=True),
    Figure("health_p99_512", "latency", "/health p99, 512 sessions at once", "ms", budget=100),
    Figure("ping_p99_512", "latency", "/ping p99, 512 sessions at once", "ms", budget=100),
    Figure("call_p99_4096", "crowd", "/call p99, 4,096 sessions at once", "ms"),
    Figure("health_p99_4096", "crowd", "/health p99, 4,096 sessions at once", "ms", budget=1000),
    Figure("ping_p99_4096", "crowd", "/ping p99, 4,096 sessions at once", "ms", budget=1000),
    Figure("live_sessions", "sessions", "live sessions without an error", "", "more", budget=16_384, worst=True),
    Figure("session_memory", "sessions", "memory per idle session", "KiB", budget=3),
    Figure("task_cpu", "tasks", "CPU per get_task of 100,000 rebuilt tasks", "ms", budget=0.2, processor=True),
    Figure("output_cpu", "output", "CPU per call with 1 MiB of output", "ms", budget=3, processor=True),
    Figure("block_wall", "blocking", "64 blocking tools of 0.5 s, all done", "s", budget=1),
    # Processor time: the p99 is a call that stands behind the 64 which begin, or end, at the same moment.
    Figure("block_others_p99", "blocking", "/call p99 of another session meanwhile", "ms", budget=20, processor=True),
    Figure("slow_wall", "slow", "1,000 asynchronous tools of 2 s, all done", "s"),
    Figure("slow_others_p99", "slow", "/call p99 of another session meanwhile", "ms"),
    Figure("setup_wall", "setup", "256 set-ups of 1 s, all ready", "s"),
    Figure("setup_others_p99", "setup", "/call p99 of another session meanwhile", "ms"),
    Figure("collector_pause", "all", "longest garbage-collection pause", "ms", budget=20, worst=True, processor=True),
)
