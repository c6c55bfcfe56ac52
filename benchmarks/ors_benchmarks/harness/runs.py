"""One run of a benchmark: measurements in their order, shown while they run, collected into a report.

Candidates take turns within each row (A B C D, A B C D, …), so that what disturbs the machine for a minute disturbs all
of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Generic, NamedTuple, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn

from ors_benchmarks.harness.commands import Named
from ors_benchmarks.harness.machine import Observer, describe
from ors_benchmarks.harness.reports.figures import Figure, Measured, Row
from ors_benchmarks.harness.reports.results import Gathered, Report
from ors_benchmarks.harness.reports.table import shown

__all__ = ["MEASUREMENT_LIMIT", "AnyCandidate", "AnyRow", "AnySize", "Run", "Size", "Turn", "new_bar", "turns"]

#: Seconds one measurement may take before it counts as hung.
MEASUREMENT_LIMIT = 600.0


@dataclass(frozen=True, kw_only=True)
class Size:
    """Repetitions of a run."""

    rounds: int
    #: Of each stretch of calls; 0 for a benchmark that has none.
    seconds: float = 0.0


AnyRow = TypeVar("AnyRow", bound=Row)
AnyCandidate = TypeVar("AnyCandidate", bound=Named)
AnySize = TypeVar("AnySize", bound=Size)


class Turn(NamedTuple, Generic[AnyRow, AnyCandidate]):
    """One measurement: a row of a candidate in a round, counted from 1."""

    number: int
    row: AnyRow
    candidate: AnyCandidate


def turns(
    rounds: int,
    rows: Sequence[AnyRow],
    candidates: Sequence[AnyCandidate],
    applies: Callable[[int, AnyRow, AnyCandidate], bool],
) -> list[Turn[AnyRow, AnyCandidate]]:
    """All measurements in their order."""
    return [
        Turn(number, row, candidate)
        for number in range(1, rounds + 1)
        for row in rows
        for candidate in candidates
        if applies(number, row, candidate)
    ]


def new_bar(console: Console, *columns: ProgressColumn) -> Progress:
    """Return a progress bar that is drawn only when asked: drawing costs the load's core."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        *columns,
        TimeElapsedColumn(),
        console=console,
        auto_refresh=False,
        transient=True,
    )


class Run:
    """Show and collect measurements."""

    def __init__(self, figures: Sequence[Figure], console: Console, observer: Observer) -> None:
        #: Counts the run's processor time.
        self.observer = observer
        self.gathered = Gathered(figures)
        self._figures = figures
        self._console = console
        self._started, self._clock = datetime.now(UTC), time.monotonic()
        self._bar = new_bar(console)
        self._task = self._bar.add_task("preparing", total=None)
        self._turn_started = 0.0

    def each(self, measurements: Sequence[Turn[AnyRow, AnyCandidate]]) -> Generator[Turn[AnyRow, AnyCandidate]]:
        """Yield the measurements one by one; the caller takes each and passes what it found to ``add``."""
        self._bar.reset(self._task, total=len(measurements))
        rounds = measurements[-1].number if measurements else 0
        with self._bar:
            for turn in measurements:
                title = f"round {turn.number} of {rounds}: {turn.row.name}, {turn.candidate.title}"
                self._bar.update(self._task, description=title)
                self._bar.refresh()
                self._turn_started = time.monotonic()
                yield turn
                self._bar.advance(self._task)

    def add(self, turn: Turn[AnyRow, AnyCandidate], measured: Measured, failures: Mapping[str, int]) -> None:
        """Collect one measurement and print a line about it."""
        number, row, candidate = turn
        self.gathered.add(candidate.name, row.name, measured, failures)
        if failures:
            text, count = max(failures.items(), key=lambda item: item[1])
            found = f"[red]{sum(failures.values())} failures, {count} of them: {text}[/red]"
        else:
            own = [figure for figure in self._figures if figure.key in measured.figures][:3]
            found = ", ".join(f"{figure.title}: {shown(measured.figures[figure.key])} {figure.unit}" for figure in own)
        seconds = time.monotonic() - self._turn_started
        self._console.print(
            f"[dim]{number}[/dim] {row.name:<9} {candidate.title:<24} {found}  [dim]({seconds:.0f} s)[/dim]",
            soft_wrap=True,
        )

    def leave_out(self, candidate: Named, reason: str) -> None:
        """Note that a candidate is not measured, and print the reason."""
        self._console.print(f"[dim]{candidate.title}: {reason}[/dim]", soft_wrap=True)
        self.gathered.notes[candidate.name].append(f"not measured: {reason}")

    def report(
        self,
        size: Size,
        rows: Sequence[Row],
        titles: Mapping[str, str],
        packages: Mapping[str, Mapping[str, str]],
    ) -> Report:
        """Return the report of all measurements. Call it after the servers ended (``Observer.finish``)."""
        return Report(
            started=self._started.replace(microsecond=0),
            seconds=round(time.monotonic() - self._clock, 1),
            rounds=size.rounds,
            window_seconds=size.seconds,
            rows=[row.name for row in rows],
            machine=self.observer.finish(describe()),
            titles=dict(titles),
            packages={name: dict(versions) for name, versions in packages.items()},
            figures=self.gathered.figures(),
            curves=self.gathered.curves(),
            failures={name: dict(failures) for name, failures in self.gathered.failures.items()},
            notes=dict(self.gathered.notes),
        )
