"""The whole benchmark: rounds of cells, each played and replayed, on one engine.

A cell is a server, a client, a number of episodes at once and a think-time. Cells take turns, round after round, so
that what disturbs the machine for a minute disturbs all of them, and each run stands beside its own replay; in every
second round the replay comes first. Whatever stands in the way of one cell is noted and the others go on; whatever
stands in the way of all of them ends the benchmark with the report of what it has.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from ors_clients.rendering import ChatRenderer

from ors_benchmarks.processes import cpu_seconds
from ors_benchmarks.rollout_engines import Engine, EngineTotals, difference
from ors_benchmarks.rollout_figures import Cell, Figures, Gatherer, ServerFacts, timeline_of
from ors_benchmarks.rollout_gpu import GpuMeter
from ors_benchmarks.rollout_places import CLIENTS, ServedElsewhere, StartedServer, bind, peak_mib, place_at
from ors_benchmarks.rollout_recording import EpisodeRecord
from ors_benchmarks.rollout_runs import Run, Workload, play, replay
from ors_server.errors import OrsError

__all__ = ["CellPlan", "Findings", "Plan", "Watcher", "measure", "on_cores"]

#: Episodes that the timeline shows.
TIMELINE = 48


@dataclass(frozen=True)
class CellPlan:
    """One combination."""

    server: StartedServer | ServedElsewhere
    #: One of ``rollout_places.CLIENTS``.
    client: str
    workload: Workload


@dataclass(frozen=True)
class Plan:
    """What to measure."""

    cells: Sequence[CellPlan]
    rounds: int
    #: Episodes played before anything counts.
    warm_up: int
    environment: str | None
    split: str | None
    #: How many tasks are played, from the first on.
    tasks: int


class Watcher:
    """Is told how it goes; does nothing."""

    def begin(self, what: str, episodes: int) -> None:
        """A run begins."""

    def episode(self, record: EpisodeRecord) -> None:
        """One of its episodes is over."""

    def end(self, cell: CellPlan | None, figures: Figures, problem: str | None) -> None:
        """It is over, with its figures, or what kept it from having some."""


@dataclass
class Findings:
    """What was found."""

    cells: list[Cell]
    timeline: list[dict[str, Any]]
    ended_early: str | None = None


async def measure(engine: Engine, renderer: ChatRenderer, plan: Plan, watcher: Watcher, found: Findings) -> None:
    """Measure all cells, into ``found``, which has what was measured also if this is cancelled.

    Raises nothing that a server, an environment or the engine is to blame for.
    """
    gatherers = [
        Gatherer(cell.server.title, CLIENTS[cell.client], cell.workload.concurrency, _think_time(cell))
        for cell in plan.cells
    ]
    gpu = GpuMeter()
    try:
        found.ended_early = await _warm_up(engine, renderer, plan, watcher)
        recorded: dict[int, Run] = {}
        for number in range(plan.rounds):
            if found.ended_early is not None:
                break
            for place, cell in enumerate(plan.cells):
                gatherer = gatherers[place]
                if gatherer.cell.notes:
                    continue  # what failed once is not tried again, round after round
                try:
                    run = await _round(
                        engine, renderer, plan, cell, gatherer, gpu, recorded.get(place), number, watcher
                    )
                except OrsError as error:
                    gatherer.cell.notes.append(str(error))
                    watcher.end(cell, {}, str(error))
                    continue
                recorded[place] = run
                if place == 0:
                    found.timeline = timeline_of(run, TIMELINE)
    finally:
        gpu.close()
        found.cells = [gatherer.finish() for gatherer in gatherers]
    if found.ended_early is None:
        found.ended_early = found.cells[0].notes[0] if found.cells and found.cells[0].notes else None


async def _warm_up(engine: Engine, renderer: ChatRenderer, plan: Plan, watcher: Watcher) -> str | None:
    """Play some episodes that do not count; why nothing can be measured, if none of them comes to anything."""
    if not plan.warm_up:
        return None
    cell = plan.cells[0]
    workload = replace(cell.workload, episodes=plan.warm_up, concurrency=min(plan.warm_up, cell.workload.concurrency))
    watcher.begin("warm-up", workload.episodes)
    try:
        run, _ = await _play(engine, renderer, plan, replace(cell, workload=workload), watcher)
        # A length that the engine refuses is better found now.
        replayed = await replay(engine, run, workload)
    except OrsError as error:
        watcher.end(None, {}, str(error))
        return str(error)
    failures = [episode.failure for episode in run.episodes if episode.failure is not None]
    problem = replayed.gave_up
    if len(failures) == len(run.episodes) and failures:
        problem = f"none of {len(failures)} episodes of the warm-up came to its end: {failures[-1]}"
    watcher.end(None, {}, problem)
    return problem


async def _round(
    engine: Engine,
    renderer: ChatRenderer,
    plan: Plan,
    cell: CellPlan,
    gatherer: Gatherer,
    gpu: GpuMeter,
    last: Run | None,
    number: int,
    watcher: Watcher,
) -> Run:
    name = f"round {number + 1} of {plan.rounds}: {cell.server.title}, {cell.workload.concurrency} at once"
    replayed: Run | None = None
    if number % 2 and last is not None:
        watcher.begin(f"{name}, replay", 0)
        replayed = await _replay(engine, last, cell.workload)
    watcher.begin(name, cell.workload.episodes)
    await engine.forget()
    processes = {"client": os.getpid(), **engine.processes()}
    before, totals = _cpu(processes), await engine.totals()
    run, facts = await _play(engine, renderer, plan, cell, watcher)
    counted, after = difference(totals, await engine.totals()), _cpu(processes)
    more = {"client_cpu": (after["client"] - before["client"]) / run.seconds}
    if len(processes) > 1:
        used = sum(after[process] - before[process] for process in processes if process != "client")
        more["engine_cpu"] = used / run.seconds
    more |= gpu.between(run.started, run.ended)
    _tell(run, counted)
    if replayed is None and run.generated:
        watcher.begin(f"{name}, replay", 0)
        replayed = await _replay(engine, run, cell.workload)
    for process, pid in processes.items():
        mib = peak_mib(pid)
        if mib is not None:
            gatherer.memory(process, mib)
    figures = gatherer.add(run, replayed, facts, more)
    watcher.end(cell, figures, run.gave_up)
    return run


async def _play(
    engine: Engine, renderer: ChatRenderer, plan: Plan, cell: CellPlan, watcher: Watcher
) -> tuple[Run, ServerFacts]:
    async with (
        cell.server.running() as served,
        place_at(served.url, cell.client, environment=plan.environment, split=plan.split, count=plan.tasks) as (
            place,
            tasks,
        ),
    ):
        run = await play(engine, renderer, place, replace(cell.workload, tasks=tasks), watcher.episode)
    if served.died:
        run.gave_up = "the server ended during the run" + ("" if run.gave_up is None else f"; {run.gave_up}")
    return run, served.facts


async def _replay(engine: Engine, recorded: Run, workload: Workload) -> Run:
    await engine.forget()
    return await replay(engine, recorded, workload)


def _tell(run: Run, counted: EngineTotals) -> None:
    """Spread what the engine counted for all generations over them, where they do not tell themselves."""
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
        try:
            found[name] = cpu_seconds(pid)
        except OSError:  # it has died; the run says so in its own way
            found[name] = 0.0
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
