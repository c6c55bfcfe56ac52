"""The rows of the benchmark of terminal episodes, and the figures of the rows.

Processor time is that of everything, the player's too, from a machine at rest until it is at rest again: what a server
prepares for the next episodes counts, and what it has prepared before does not.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from ors_benchmarks.harness.control_groups import ProcessorTime
from ors_benchmarks.harness.http11 import Failure
from ors_benchmarks.harness.reports.figures import Figure, Measured, Quotient, Row
from ors_benchmarks.harness.reports.latencies import percentile
from ors_benchmarks.harness.runs import Size
from ors_benchmarks.terminal.candidates import Candidate, Ours, Stage

__all__ = ["FIGURES", "FULL", "QUICK", "QUICK_ROWS", "ROWS", "TerminalRow", "TerminalSize"]

AT_ONCE = (1, 8, 64)
#: One of so many episodes is not solved.
_UNSOLVED = 8
#: The machine is at rest when it has used less than this share of a core for so many seconds.
_REST, _RESTING = 0.02, 0.5
_PATIENCE = 30.0


@dataclass(frozen=True, kw_only=True)
class TerminalSize(Size):
    """Repetitions of a round."""

    #: Episodes at one, at eight and at 64 at once.
    episodes: Sequence[int]
    #: Sessions of the burst for each core.
    burst: int


FULL = TerminalSize(rounds=3, episodes=(16, 64, 192), burst=256)
QUICK = TerminalSize(rounds=1, episodes=(8, 32, 64), burst=32)
QUICK_ROWS = ("one", "eight", "burst")


@dataclass(frozen=True)
class Beside:
    """Arguments of a scenario besides the candidate."""

    size: TerminalSize
    counted: ProcessorTime


@dataclass(frozen=True)
class TerminalRow(Row):
    """A row of the benchmark of terminal episodes."""

    measure: Callable[[Candidate, Beside], Awaitable[Measured]]
    applies: Callable[[Candidate], bool] = lambda _: True


@dataclass(frozen=True)
class _Played:
    """Episodes that were played: seconds of processor time of all, by process, and on the clock."""

    count: int
    cpu: float
    parts: dict[str, float]
    wall: float
    #: Seconds until the first command could run, of each.
    waited: Sequence[float]


async def _play(
    candidate: Candidate, counted: ProcessorTime, count: int, at_once: int, stage: Stage = Stage.GRADED
) -> _Played:
    """Play episodes. Raises ``Failure`` if one of them failed, once all have ended."""
    seconds_so_far = partial(counted.seconds, beside=candidate.beside)
    await _until_at_rest(seconds_so_far)
    numbers = iter(range(count))
    waited: list[float] = []
    failures: list[Failure] = []

    async def player() -> None:
        for number in numbers:
            try:
                waited.append(await candidate.play(number % _UNSOLVED != _UNSOLVED - 1, stage))
            except Failure as failure:
                failures.append(failure)

    def used() -> dict[str, float]:
        return {"all": seconds_so_far(), "player": time.process_time(), **candidate.processes()}

    before, begun = used(), time.perf_counter()
    await asyncio.gather(*(player() for _ in range(min(at_once, count))))
    wall = time.perf_counter() - begun
    await _until_at_rest(seconds_so_far)
    # A process that has been replaced meanwhile has used less than the one before it.
    parts = {name: max(0.0, seconds - before.get(name, 0.0)) for name, seconds in used().items()}
    if failures:
        raise Failure(f"{len(failures)} of {count} episodes failed, the first: {failures[0]}")
    return _Played(count, parts.pop("all"), parts, wall, waited)


async def _until_at_rest(seconds: Callable[[], float]) -> None:
    end = time.monotonic() + _PATIENCE
    before = seconds()
    while time.monotonic() < end:
        await asyncio.sleep(_RESTING)
        now = seconds()
        if now - before < _REST * _RESTING:
            return
        before = now


async def at_once(candidate: Candidate, beside: Beside, *, place: int) -> Measured:
    """Play graded episodes, so many at once."""
    number = AT_ONCE[place]
    count = max(min(number, 8), beside.size.episodes[place] // candidate.fewer)
    played = await _play(candidate, beside.counted, count, number)
    each = played.cpu / count
    figures = {f"cpu_{number}": each * 1e3, f"rate_{number}": 60 / each}
    rest = each
    for name, seconds in played.parts.items():
        figures[f"{name}_{number}"] = seconds / count * 1e3
        rest -= seconds / count
    figures[f"sandboxes_{number}"] = rest * 1e3
    return Measured(figures)


async def parts(candidate: Candidate, beside: Beside) -> Measured:
    """Play episodes that end early, and whole ones, eight at once: the differences are the parts of an episode."""
    count = max(8, beside.size.episodes[1] // candidate.fewer)
    found: dict[str, float] = {}
    before = 0.0
    for stage in Stage:
        each = (await _play(candidate, beside.counted, count, 8, stage)).cpu / count * 1e3
        found[f"{stage.name.lower()}_cpu"] = each - before
        before = each
    return Measured(found)


async def burst(candidate: Candidate, beside: Beside) -> Measured:
    """Begin all episodes at the same moment; by hand there are never more than 64 at once."""
    count = beside.size.burst * (os.cpu_count() or 1)
    played = await _play(candidate, beside.counted, count, count if isinstance(candidate, Ours) else AT_ONCE[-1])
    return Measured(
        {
            "burst": count,
            "burst_wall": played.wall,
            "burst_cpu": played.cpu / count * 1e3,
            "burst_prompt_p50": percentile(played.waited, 0.5),
        }
    )


def _is_few(candidate: Candidate) -> bool:
    return not candidate.few


ROWS: Sequence[TerminalRow] = (
    TerminalRow("one", "graded episodes, one at a time", partial(at_once, place=0)),
    TerminalRow("eight", "the same, eight at once", partial(at_once, place=1)),
    TerminalRow("many", "the same, 64 at once", partial(at_once, place=2), applies=_is_few),
    TerminalRow("parts", "start, commands and grading, eight at once", parts, applies=_is_few),
    TerminalRow(
        "burst",
        "256 episodes a core that begin at once",
        burst,
        applies=lambda candidate: candidate.name in ("ours", "plain"),
    ),
)


def _figures_at(row: str, number: int, budget: float | None, podman: float | None) -> list[Figure]:
    named = f"{number} at once"
    return [
        Figure(f"rate_{number}", row, f"graded episodes a core-minute, {named}", "", "more"),
        Figure(f"cpu_{number}", row, f"processor time of a graded episode, {named}", "ms"),
        Quotient(
            f"floor_{number}", row, "… ÷ by hand", budget=budget, of=f"cpu_{number}", base="plain", candidates=("ours",)
        ),
        *(
            Quotient(
                f"{peer}_{number}", row, f"… of {title} ÷ ours",
                better="more", budget=podman if peer == "podman" else None, of=f"cpu_{number}", peer=peer,
                candidates=("ours",),
            )
            for peer, title in (("pytest", "pytest by hand"), ("podman", "podman exec"))
        ),
        *(
            Figure(f"{part}_{number}", row, f"… of {title}", "ms")
            for part, title in (
                ("server", "the server"), ("launcher", "the launcher"),
                ("player", "the player"), ("sandboxes", "sandboxes, commands and graders"),
            )
        ),
    ]  # fmt: skip


FIGURES: Sequence[Figure] = (
    *_figures_at("one", 1, None, None),
    *_figures_at("eight", 8, 1.25, 14.0),
    *_figures_at("many", 64, 1.25, None),
    Figure("started_cpu", "parts", "processor time of start, prompt and end", "ms"),
    Figure("commanded_cpu", "parts", "processor time of eight commands and the solution", "ms"),
    Figure("graded_cpu", "parts", "processor time of grading", "ms"),
    Figure("burst", "burst", "episodes that begin at once, all with the right verdict", "", "more"),
    Figure("burst_wall", "burst", "… the last is graded after", "s"),
    Figure("burst_prompt_p50", "burst", "… the first command could run after, p50", "s"),
    Figure("burst_cpu", "burst", "… processor time of one", "ms"),
)
