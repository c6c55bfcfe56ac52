"""``ors-server bench terminal``: graded episodes of our server, the same by hand, and in podman, in one run.

``python -m ors_benchmarks.terminal`` is the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import uvloop

from ors_benchmarks.harness.benchmark import Benchmark, Measuring
from ors_benchmarks.harness.candidates import NotHere
from ors_benchmarks.harness.control_groups import NoControlGroups
from ors_benchmarks.harness.http11 import Failure
from ors_benchmarks.harness.reports.figures import Measured
from ors_benchmarks.harness.reports.table import Layout
from ors_benchmarks.harness.runs import MEASUREMENT_LIMIT, Run
from ors_benchmarks.terminal.by_hand import by_hand
from ors_benchmarks.terminal.candidates import Candidate, Ours
from ors_benchmarks.terminal.scenarios import FIGURES, FULL, QUICK, QUICK_ROWS, ROWS, Beside, TerminalRow, TerminalSize
from ors_server.errors import OrsError

__all__ = ["BENCHMARK", "NothingToPlay", "main"]


class NothingToPlay(OrsError):
    """None of the candidates works on this machine."""


@contextmanager
def _measuring(
    chosen: Sequence[Candidate], size: TerminalSize, folder: Path, run: Run
) -> Generator[Measuring[TerminalRow, Candidate]]:
    counted = run.observer.counted
    if counted is None:
        raise NoControlGroups("No control group counts processor time for this user", "Run it as root.")
    beside = Beside(size, counted)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        stack = AsyncExitStack()
        try:
            present = runner.run(_opened(chosen, stack, folder, run))
            yield Measuring(present, lambda turn: runner.run(_measure(turn.row, turn.candidate, beside)))
        finally:
            runner.run(stack.aclose())


async def _opened(chosen: Sequence[Candidate], stack: AsyncExitStack, folder: Path, run: Run) -> Sequence[Candidate]:
    """Open the candidates that work here. Raises ``NothingToPlay``."""
    present: list[Candidate] = []
    for candidate in chosen:
        own = folder / candidate.name
        own.mkdir()
        try:
            await stack.enter_async_context(candidate.open(own))
        except (NotHere, Failure) as reason:
            run.leave_out(candidate, str(reason))
        else:
            present.append(candidate)
    if not present:
        raise NothingToPlay(
            "None of the candidates works on this machine", "`ors-server sandbox doctor` says what to install."
        )
    return present


async def _measure(row: TerminalRow, candidate: Candidate, beside: Beside) -> tuple[Measured, dict[str, int]]:
    try:
        async with asyncio.timeout(MEASUREMENT_LIMIT):
            return await row.measure(candidate, beside), {}
    except TimeoutError:
        return Measured(), {f"not done after {MEASUREMENT_LIMIT:g} s": 1}
    except Failure as failure:
        return Measured(), {str(failure): 1}


BENCHMARK = Benchmark(
    name="terminal",
    help="""Measure graded terminal episodes beside the same by hand and in podman, every verdict verified.

    \b
    A sandbox, eight light commands, a solution and tests: through our server
    and client, with bubblewrap used by hand, and with `podman exec`. One of
    eight episodes is not solved. Processor time is that of everything, by
    control group, so it needs root. It ends with 1 if an answer or a verdict
    was wrong or missing, and never because something was slow.
    """,
    examples=[
        "ors-server bench terminal --quick         in two minutes",
        "ors-server bench terminal                 everything, a quarter of an hour",
        "ors-server bench terminal --candidates ours,plain --rows eight,parts --rounds 9",
    ],
    quick_help=f"One round, fewer episodes, only {', '.join(QUICK_ROWS)}.",
    quick_rows=QUICK_ROWS,
    rows=ROWS,
    candidates=(Ours(), *by_hand()),
    figures=FIGURES,
    full=FULL,
    quick=QUICK,
    measuring=_measuring,
    applies=lambda _, row, candidate: row.applies(candidate),
    packages=lambda candidate: dict(candidate.version()),
    layout=lambda report: Layout(
        ours=["ours"],
        bases={name: {"plain": ""} for name in report.titles},
        legend="× is over the floor: the episode by hand, its tests called plainly.",
        # The processes of podman's containers count as others.
        others_disturb="podman" not in report.titles,
    ),
)
main = BENCHMARK.program()
