"""The whole benchmark: rounds of cells, each played and replayed, on one engine.

A cell is a server, a client, a number of episodes at once and a think-time. Cells take turns, round after round, so
that what disturbs the machine for a minute disturbs all of them, and each run is followed by its own replay: a ratio is
of the same generations. Whatever stands in the way of one cell is noted and the others go on; whatever stands in the
way of all of them, Ctrl-C among it, ends the benchmark with the report of what it has, a run under way included.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from ors_clients.rollouts.chat_renderer import ChatRenderer

from ors_benchmarks.harness.processes import bind, cpu_seconds
from ors_benchmarks.rollout.engines.base import Engine, EngineFailed, EngineTotals, difference
from ors_benchmarks.rollout.engines.hosted.engine import FRONT_END
from ors_benchmarks.rollout.figures import Cell, Figures, Gatherer, ServerFacts, timeline_of
from ors_benchmarks.rollout.gpu import GpuMeter
from ors_benchmarks.rollout.recording import EpisodeRecord
from ors_benchmarks.rollout.runs import Run, Workload, play, replay
from ors_benchmarks.rollout.servers import (
    CLIENTS,
    NoEnvironment,
    Served,
    ServedElsewhere,
    StartedServer,
    peak_mib,
    played_environment,
)
from ors_server.errors import OrsError

__all__ = ["CellPlan", "Findings", "Plan", "Watcher", "measure", "on_cores"]

#: Episodes that the timeline shows.
TIMELINE = 48


@dataclass(frozen=True)
class CellPlan:
    """One combination."""

    server: StartedServer | ServedElsewhere
    #: One of ``servers.CLIENTS``.
    client: str
    workload: Workload


@dataclass(frozen=True)
class Plan:
    """Cells, rounds and tasks of a benchmark."""

    cells: Sequence[CellPlan]
    rounds: int
    #: Episodes played before anything counts.
    warm_up: int
    environment: str | None
    split: str | None
    #: How many tasks are played, from the first on.
    tasks: int


class Watcher:
    """Observer of the progress; this one does nothing."""

    def begin(self, what: str, episodes: int) -> None:
        """Take the beginning of a run."""

    def episode(self, record: EpisodeRecord) -> None:
        """Take the end of one of its episodes."""

    def end(self, cell: CellPlan | None, figures: Figures, problem: str | None) -> None:
        """Take the end of a run: its figures, or the problem that kept it from having any."""


@dataclass
class Findings:
    """The results so far."""

    cells: list[Cell]
    timeline: list[dict[str, Any]]
    ended_early: str | None = None
    #: Whether the engine's prefix cache was empty before each run and each replay; None before the first.
    cache_emptied: bool | None = None


async def measure(engine: Engine, renderer: ChatRenderer, plan: Plan, watcher: Watcher, found: Findings) -> None:
    """Measure all cells, into ``found``, which keeps the measurements if this is cancelled or raises.

    Failures of a server, an environment or the engine are recorded and not raised.
    """
    gatherers = [
        Gatherer(cell.server.title, CLIENTS[cell.client], cell.workload.concurrency, _think_time(cell))
        for cell in plan.cells
    ]
    gpu = GpuMeter(engine.gpus())
    measurement = _Measurement(engine, renderer, plan, watcher, found, gatherers, gpu)
    try:
        found.ended_early = await measurement.warm_up()
        for number in range(plan.rounds):
            for index, gatherer in enumerate(gatherers):
                # A cell that failed once is not tried again.
                if found.ended_early is None and not gatherer.cell.notes:
                    await measurement.round(index, number)
    finally:
        gpu.close()
        found.cells = [gatherer.finish() for gatherer in gatherers]
    if found.ended_early is None and all(cell.notes for cell in found.cells):
        found.ended_early = found.cells[0].notes[0]


@dataclass
class _Played:
    """A run with its server and CPU times."""

    run: Run = field(default_factory=Run)
    served: Served | None = None
    #: Processor time by process, when the run began and when it ended.
    cpu: list[dict[str, float]] = field(default_factory=list[dict[str, float]])

    @property
    def facts(self) -> ServerFacts:
        """The server's figures."""
        return ServerFacts() if self.served is None else self.served.facts

    def used(self) -> dict[str, float]:
        """Seconds of processor time by process, of those that lived from the beginning to the end."""
        if len(self.cpu) < 2:
            return {}
        before, after = self.cpu
        return {name: after[name] - before[name] for name in before if name in after}


@dataclass
class _Measurement:
    """The state that all rounds share."""

    engine: Engine
    renderer: ChatRenderer
    plan: Plan
    watcher: Watcher
    found: Findings
    gatherers: Sequence[Gatherer]
    gpu: GpuMeter

    async def warm_up(self) -> str | None:
        """Play some episodes that do not count, in the first cell that can be played.

        Returns why nothing can be measured, if none can, or if all of them fail.
        """
        if not self.plan.warm_up:
            return None
        away: dict[tuple[str, str], str] = {}
        for cell, gatherer in zip(self.plan.cells, self.gatherers, strict=True):
            reached = cell.server.title, cell.client
            if reached in away:
                gatherer.cell.notes.append(away[reached])
                continue
            problem: str | None = None
            self.watcher.begin("warm-up", self.plan.warm_up)
            try:
                problem = await self._warm_up(cell)
                return problem
            except EngineFailed as error:
                problem = str(error)
                return problem
            except OrsError as error:
                problem = away[reached] = str(error)
                gatherer.cell.notes.append(problem)
            finally:
                self.watcher.end(None, {}, problem)
        return next(iter(away.values()), None)

    async def _warm_up(self, cell: CellPlan) -> str | None:
        count = self.plan.warm_up
        workload = replace(cell.workload, episodes=count, concurrency=min(count, cell.workload.concurrency))
        played = _Played()
        await self._play(replace(cell, workload=workload), played)
        run = played.run
        if run.gave_up is not None:
            if played.served is not None and played.served.died:
                raise NoEnvironment(run.gave_up, "Its environment may have ended it.")
            return f"the warm-up was {run.gave_up}" if run.gave_up.startswith("not done") else run.gave_up
        failures = [episode.failure for episode in run.episodes if episode.failure is not None]
        if failures and len(failures) == len(run.episodes):
            return f"none of {len(failures)} episodes of the warm-up came to its end: {failures[-1]}"
        # Finds a length that the engine refuses before the first round.
        return (await replay(self.engine, run, workload)).gave_up

    async def round(self, index: int, number: int) -> None:
        """Play a cell and replay it. If it ends early, the episodes played count."""
        cell, gatherer = self.plan.cells[index], self.gatherers[index]
        name = f"round {number + 1} of {self.plan.rounds}: {cell.server.title}, {cell.workload.concurrency} at once"
        self.watcher.begin(name, cell.workload.episodes)
        played, replayed = _Played(), None
        run = played.run
        problem: str | None = None
        try:
            before = await self._forget()
            await self._play(cell, played)
            _spread_totals(run, difference(before, await self.engine.totals()))
            if run.comparable and run.generated:
                self.watcher.begin(f"{name}, replay", 0)
                before = await self._forget()
                replayed = await replay(self.engine, run, cell.workload)
                _spread_totals(replayed, difference(before, await self.engine.totals()))
        except asyncio.CancelledError:
            problem = "it was interrupted"
            raise
        except EngineFailed as error:
            problem = self.found.ended_early = str(error)
        except OrsError as error:
            problem = str(error)
        finally:
            if problem is not None:
                gatherer.cell.notes.append(problem)
            figures = self._gather(gatherer, played, replayed) if run.episodes else {}
            self.watcher.end(cell, figures, problem or run.gave_up)
            if index == 0 and run.episodes:
                self.found.timeline = timeline_of(run, TIMELINE)

    async def _forget(self) -> EngineTotals:
        """Empty the engine's cache; returns its counters."""
        self.found.cache_emptied = await self.engine.forget() and self.found.cache_emptied is not False
        return await self.engine.totals()

    async def _play(self, cell: CellPlan, played: _Played) -> None:
        plan, processes = self.plan, {"client": os.getpid(), **self.engine.processes()}
        async with cell.server.running() as served:
            played.served = served
            if served.process is not None:
                processes["server"] = served.process.pid
            async with played_environment(
                served.url, cell.client, environment=plan.environment, split=plan.split, count=plan.tasks
            ) as (environment, tasks):
                await play(
                    played.run,
                    self.engine,
                    self.renderer,
                    environment,
                    replace(cell.workload, tasks=tasks),
                    progress=self.watcher.episode,
                    edge=lambda: played.cpu.append(_cpu(processes)),
                )
        if served.died:
            also = "" if played.run.gave_up is None else f"; {played.run.gave_up}"
            played.run.gave_up = f"the server ended during the run{also}"

    def _gather(self, gatherer: Gatherer, played: _Played, replayed: Run | None) -> Figures:
        run, used, facts = played.run, played.used(), played.facts
        facts.cpu_seconds = used.get("server")
        more: dict[str, float] = {}
        engines = [used[process] for process in self.engine.processes() if process in used]
        for key, seconds in (
            ("client_cpu", used.get("client")),
            ("engine_cpu", sum(engines) if engines else None),
            ("front_end_cpu", used.get(FRONT_END)),
        ):
            if seconds is not None:
                more[key] = seconds / run.seconds
        more |= self.gpu.between(run.started, run.ended)
        for process, pid in {"client": os.getpid(), **self.engine.processes()}.items():
            mib = peak_mib(pid)
            if mib is not None:
                gatherer.memory(process, mib)
        return gatherer.add(run, replayed, facts, more)


def _spread_totals(run: Run, counted: EngineTotals) -> None:
    """Spread the engine's totals over all generations, if these have no times of their own."""
    turns = [turn for episode in run.episodes for turn in episode.turns]
    if not turns or not counted.requests or counted.queue is None or counted.running is None:
        return
    for turn in turns:
        turn.times.queue = counted.queue / counted.requests
        turn.times.engine = counted.running / counted.requests
        if counted.prompt_tokens and counted.cached_tokens is not None:
            turn.times.cached = round(turn.prompt * counted.cached_tokens / counted.prompt_tokens)


def _cpu(processes: Mapping[str, int]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, pid in processes.items():
        with contextlib.suppress(OSError):  # it has died; the run reports that
            found[name] = cpu_seconds(pid)
    return found


def _think_time(cell: CellPlan) -> float:
    return cell.server.think_time if isinstance(cell.server, StartedServer) else 0.0


@contextmanager
def on_cores(wanted: Sequence[int] | None) -> Generator[Callable[[Sequence[int]], None]]:
    """Keep this process on some cores, and give a function that moves it, with all its threads, to others.

    Processes that are started meanwhile inherit the cores. None leaves everything as it is.
    """
    allowed = os.sched_getaffinity(0)

    def move(cores: Sequence[int]) -> None:
        bind(os.getpid(), cores)

    if wanted is None:
        yield lambda _: None
        return
    move(wanted)
    try:
        yield move
    finally:
        move(sorted(allowed))
