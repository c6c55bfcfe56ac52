"""Results: gathered round by round, written as JSON, read by the table and the charts."""

from __future__ import annotations

import contextlib
import statistics
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from pydantic import BaseModel
from rich.console import Console
from rich.text import Text

from ors_benchmarks.harness.machine import Machine
from ors_benchmarks.harness.reports.figures import Figure, Measured, Quotient

__all__ = ["Gathered", "Point", "Report", "Results", "Summary", "free_path", "write_results"]


class Summary(BaseModel):
    """One figure of one candidate over all rounds."""

    median: float
    low: float
    high: float
    values: list[float]

    @classmethod
    def of(cls, values: Sequence[float]) -> Summary:
        """Summarise at least one value."""
        return cls(median=statistics.median(values), low=min(values), high=max(values), values=list(values))


class Point(BaseModel):
    """A point of a curve: its median and spread over all rounds."""

    x: float
    median: float
    low: float
    high: float


class Results(BaseModel):
    """The results of a run."""

    def write(self, path: Path) -> None:
        """Write them as JSON."""
        path.write_text(self.model_dump_json(indent=1) + "\n")


class Report(Results):
    """A whole run."""

    started: datetime
    #: Seconds it took.
    seconds: float
    #: The options that decide what was measured.
    rounds: int
    window_seconds: float
    rows: list[str]
    machine: Machine
    #: Titles by the candidate's name, in the order of measurement.
    titles: dict[str, str]
    #: Versions of the packages each candidate runs with.
    packages: dict[str, dict[str, str]]
    #: By the figure's key, then by candidate.
    figures: dict[str, dict[str, Summary]]
    #: By the curve's key, then by candidate.
    curves: dict[str, dict[str, list[Point]]]
    #: Failures by candidate, as "row: request: what was wrong", with how often.
    failures: dict[str, dict[str, int]]
    #: Remarks by candidate.
    notes: dict[str, list[str]]


class Gathered:
    """Collects measurements in any order."""

    def __init__(self, figures: Sequence[Figure]) -> None:
        self._quotients = [figure for figure in figures if isinstance(figure, Quotient)]
        #: The figures of the round so far, by candidate.
        self._round: defaultdict[str, dict[str, float]] = defaultdict(dict)
        self._values: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        self._points: defaultdict[str, defaultdict[str, defaultdict[float, list[float]]]] = defaultdict(
            lambda: defaultdict(lambda: defaultdict(list))
        )
        self.failures: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.notes: defaultdict[str, list[str]] = defaultdict(list)

    def add(self, candidate: str, row: str, measured: Measured, failures: Mapping[str, int]) -> None:
        """Add one measurement. Figures of a measurement with failures do not count."""
        for text, count in failures.items():
            self.failures[candidate][f"{row}: {text}"] += count
        for note in measured.notes:
            if note not in self.notes[candidate]:
                self.notes[candidate].append(note)
        if failures:
            return
        self._round[candidate].update(measured.figures)
        for key, value in measured.figures.items():
            self._values[key][candidate].append(value)
        for key, points in measured.curves.items():
            for x, y in points:
                self._points[key][candidate][x].append(y)

    def end_round(self) -> None:
        """Add the quotients of a round."""
        for figure in self._quotients:
            for name in figure.candidates:
                value = self._round[figure.peer or name].get(figure.of)
                divisor = self._round[figure.base or name].get(figure.over or figure.of)
                if value is not None and divisor:
                    self._values[figure.key][name].append(value / divisor - figure.minus)
        self._round.clear()

    def figures(self) -> dict[str, dict[str, Summary]]:
        """Summarise the figures of all rounds."""
        return {
            key: {candidate: Summary.of(values) for candidate, values in candidates.items()}
            for key, candidates in self._values.items()
        }

    def curves(self) -> dict[str, dict[str, list[Point]]]:
        """Summarise the curves, point by point."""
        return {
            key: {
                candidate: [
                    Point(x=x, median=statistics.median(ys), low=min(ys), high=max(ys))
                    for x, ys in sorted(points.items())
                ]
                for candidate, points in candidates.items()
            }
            for key, candidates in self._points.items()
        }


def write_results(
    report: Results, folder: Path, stem: str, draw: Callable[[str], Sequence[Path]] | None, console: Console
) -> bool:
    """Write a report as JSON, and its charts, whose files begin with a stem; nothing is overwritten.

    Returns False where the JSON went to the temporary folder instead, or where the charts cannot be written.
    """
    for target in (folder, Path(tempfile.gettempdir())):
        path = free_path(target, stem)
        try:
            report.write(path)
        except OSError as error:
            console.print(Text(f"The results cannot be written to {path}: {error.strerror}.", style="bold red"))
            with contextlib.suppress(OSError):
                path.unlink()  # half a report
            continue
        console.print(f"written: {path}", soft_wrap=True)
        if target is not folder:
            return False
        try:
            for chart in draw(path.stem) if draw is not None else ():
                console.print(f"written: {chart}", soft_wrap=True)
        except OSError as error:
            console.print(Text(f"The charts cannot be written to {folder}: {error.strerror}.", style="bold red"))
            return False
        return True
    return False


def free_path(folder: Path, stem: str) -> Path:
    """``folder/stem.json``, or the first of ``stem-2``, ``stem-3``, … that does not exist: nothing is overwritten."""
    path, number = folder / f"{stem}.json", 1
    while path.exists():
        number += 1
        path = folder / f"{stem}-{number}.json"
    return path
