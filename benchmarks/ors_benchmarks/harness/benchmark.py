"""A benchmark: rows that its candidates are measured on in turns, with one set of options, one table and one exit code.

A benchmark says what it measures and what its table looks like. This module has the rest: options and ``--help``, the
choice of rows and candidates, the rounds, the results file, the charts. The exit code says whether every answer was
right, and nothing about speed: timings depend on the machine.
"""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Generic

import typer
from rich.console import Console

from ors_benchmarks.harness.commands import RESULTS, Charts, Output, Program, choose, make_folder, new_console, section
from ors_benchmarks.harness.machine import Observer
from ors_benchmarks.harness.processes import no_server_left, raise_file_limit
from ors_benchmarks.harness.reports import charts
from ors_benchmarks.harness.reports.figures import Figure, Measured
from ors_benchmarks.harness.reports.results import Gathered, Report, write_results
from ors_benchmarks.harness.reports.table import Layout, print_report
from ors_benchmarks.harness.runs import AnyCandidate, AnyRow, AnySize, Run, Turn, turns

__all__ = ["Benchmark", "Measuring"]


@dataclass(frozen=True)
class Measuring(Generic[AnyRow, AnyCandidate]):
    """The measurements of a run, while its servers are open."""

    #: The candidates that this machine has.
    candidates: Sequence[AnyCandidate]
    #: Returns figures, and how often each failure happened.
    measure: Callable[[Turn[AnyRow, AnyCandidate]], tuple[Measured, Mapping[str, int]]]
    #: Ends the processes of a round, and adds figures of the whole round.
    end_round: Callable[[Gathered], None] = lambda _: None


@dataclass
class Benchmark(Generic[AnyRow, AnyCandidate, AnySize]):
    """The parts that one benchmark has of its own."""

    #: The command, and the beginning of the results' file names.
    name: str
    #: The text of ``--help`` above the options, and the lines below them.
    help: str
    examples: Sequence[str]
    quick_help: str
    rows: Sequence[AnyRow]
    candidates: Sequence[AnyCandidate]
    figures: Sequence[Figure]
    full: AnySize
    quick: AnySize
    #: Opens what is measured, for a block. The folder takes the servers' logs; the run takes notes.
    measuring: Callable[
        [Sequence[AnyCandidate], AnySize, Path, Run], AbstractContextManager[Measuring[AnyRow, AnyCandidate]]
    ]
    #: Versions of the packages that a candidate runs with.
    packages: Callable[[AnyCandidate], Mapping[str, str]]
    layout: Callable[[Report], Layout]
    #: Whether a row of a candidate is measured in a round.
    applies: Callable[[int, AnyRow, AnyCandidate], bool] = lambda _number, _row, _candidate: True
    #: Makes what a candidate needs, before the run's clock starts.
    prepare: Callable[[AnyCandidate], object] = lambda _: None
    #: Draws charts beside the results, ``draw(report, folder, stem)``, and returns their paths.
    draw: Callable[[Report, Path, str], list[Path]] | None = None
    #: Rows of a short run; empty for all.
    quick_rows: Sequence[str] = ()
    #: The lines of ``--help`` about the candidates, where their titles do not say enough.
    about_candidates: Sequence[str] = ()
    #: Follows "How often each row is measured" in ``--help``.
    about_rounds: str = ""
    advice: Sequence[str] = ()

    def program(self) -> Program:
        """Return the command."""
        parts = (("Rows", self.rows), ("Candidates", self.about_candidates or self.candidates))
        sections = [section(title, entries) for title, entries in parts]
        return Program(self._command(), *sections, section("Examples", self.examples), *self.advice)

    def _command(self) -> Callable[..., None]:
        """Return the function that typer reads the options from: those that this benchmark has."""

        def command(**chosen: Any) -> None:
            self.run(**chosen)

        full = self.full
        rounds = f"How often each row is measured{self.about_rounds}. Default {full.rounds}."
        offered: dict[str, tuple[Any, Any]] = {
            "rounds": (Annotated[int | None, _option("rounds", rounds, min=1)], None)
        }
        if full.seconds:
            text = f"Seconds of each stretch of calls. Default {full.seconds:g}."
            offered["seconds"] = (Annotated[float | None, _option("seconds", text, min=0.1)], None)
        for name, text in (("candidates", "What to measure, in this order"), ("rows", "Rows to measure")):
            option = _option(name, f"{text}. Default: all.", metavar="NAME,...")
            offered[name] = (Annotated[str | None, option], None)
        offered["quick"] = (Annotated[bool, typer.Option("--quick", help=self.quick_help)], False)
        offered["output"] = (Output, RESULTS)
        if self.draw is not None:
            offered["with_charts"] = (Charts, True)
        command.__signature__ = inspect.Signature(  # pyright: ignore[reportFunctionMemberAccess]
            [
                inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
                for name, (annotation, default) in offered.items()
            ]
        )
        command.__annotations__ = {name: annotation for name, (annotation, _) in offered.items()}
        command.__doc__ = self.help
        command.__module__ = f"ors_benchmarks.{self.name}.command"
        return command

    def run(
        self,
        output: Path,
        candidates: str | None = None,
        rows: str | None = None,
        rounds: int | None = None,
        seconds: float | None = None,
        quick: bool = False,
        with_charts: bool = False,
    ) -> None:
        """Measure, print the report, write it and its charts, and raise ``typer.Exit`` with 1 if anything failed."""
        console = new_console()
        size = self.quick if quick else self.full
        size = replace(size, rounds=rounds or size.rounds, seconds=seconds or size.seconds)
        chosen = choose(candidates, self.candidates, "--candidates")
        default = ",".join(self.quick_rows if quick else ())
        chosen_rows = choose(rows or default or None, self.rows, "--rows")
        if with_charts:
            charts.check_available()
        make_folder(output)
        report = self._measure(chosen, chosen_rows, size, console)
        console.print()
        self.show(report, console)
        draw = partial(self.draw, report, output) if self.draw is not None and with_charts else None
        written = write_results(report, output, f"{self.name}-{report.started:%Y-%m-%d}", draw, console)
        if report.failures or not written:
            raise typer.Exit(1)

    def show(self, report: Report, console: Console) -> None:
        """Print the table of a report."""
        print_report(report, self.figures, self.layout(report), console)

    def _measure(
        self, candidates: Sequence[AnyCandidate], rows: Sequence[AnyRow], size: AnySize, console: Console
    ) -> Report:
        for candidate in candidates:
            self.prepare(candidate)
        raise_file_limit()
        with Observer() as observer:
            run = Run(self.figures, console, observer)
            with (
                no_server_left(),
                tempfile.TemporaryDirectory(prefix="ors-bench-") as folder,
                self.measuring(candidates, size, Path(folder), run) as measuring,
            ):
                present, number = measuring.candidates, 1

                def end_round() -> None:
                    measuring.end_round(run.gathered)
                    run.gathered.end_round()

                packages = {candidate.name: self.packages(candidate) for candidate in present}
                for turn in run.each(turns(size.rounds, rows, present, self.applies)):
                    if turn.number != number:
                        end_round()
                        number = turn.number
                    run.add(turn, *measuring.measure(turn))
                end_round()
            return run.report(size, rows, {candidate.name: candidate.title for candidate in present}, packages)


def _option(name: str, text: str, **more: Any) -> Any:
    return typer.Option(f"--{name}", help=text, **more)
