"""``ors-server bench sandboxes``: our sandboxes, strict and docker-like, beside the same programs by hand, in one run.

``python -m ors_benchmarks.sandboxes`` is the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from pathlib import Path

import uvloop

from ors_benchmarks.harness.benchmark import Benchmark, Measuring
from ors_benchmarks.harness.candidates import NotHere
from ors_benchmarks.harness.http11 import Failure
from ors_benchmarks.harness.reports.figures import Measured
from ors_benchmarks.harness.reports.results import Report
from ors_benchmarks.harness.reports.table import Layout
from ors_benchmarks.harness.runs import MEASUREMENT_LIMIT, Run
from ors_benchmarks.sandboxes.by_hand import BubblewrapByHand, candidates
from ors_benchmarks.sandboxes.candidates import Candidate, user
from ors_benchmarks.sandboxes.charts import draw
from ors_benchmarks.sandboxes.docker_like import DockerLike, Service
from ors_benchmarks.sandboxes.scenarios import FIGURES, FULL, QUICK, ROWS, SandboxRow, SandboxSize
from ors_server.errors import OrsError

__all__ = ["BENCHMARK", "NothingToMeasure", "main"]

_CANDIDATES = candidates()
_OURS = [candidate.name for candidate in _CANDIDATES if candidate.ours]


class NothingToMeasure(OrsError):
    """None of the candidates works on this machine."""


@contextmanager
def _measuring(
    chosen: Sequence[Candidate], size: SandboxSize, folder: Path, run: Run
) -> Generator[Measuring[SandboxRow, Candidate]]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        stack = AsyncExitStack()
        try:
            present = runner.run(_opened(chosen, stack, run))
            yield Measuring(present, lambda turn: runner.run(_measure(turn.row, turn.candidate, size)))
        finally:
            runner.run(stack.aclose())


async def _opened(chosen: Sequence[Candidate], stack: AsyncExitStack, run: Run) -> Sequence[Candidate]:
    """Open the candidates that work here. Raises ``NothingToMeasure``."""
    present: list[Candidate] = []
    for candidate in chosen:
        try:
            present.append(await stack.enter_async_context(candidate.open()))
        except NotHere as reason:
            run.leave_out(candidate, str(reason))
    if not present:
        raise NothingToMeasure(
            "None of the candidates works on this machine", "`ors-server sandbox doctor` says what to install."
        )
    return present


async def _measure(row: SandboxRow, candidate: Candidate, size: SandboxSize) -> tuple[Measured, dict[str, int]]:
    try:
        async with asyncio.timeout(MEASUREMENT_LIMIT):
            return await row.measure(candidate, size), {}
    except TimeoutError:
        return Measured(), {f"not done after {MEASUREMENT_LIMIT:g} s": 1}
    except Failure as failure:
        return Measured(), {str(failure): 1}


def _layout(report: Report) -> Layout:
    by_hand = BubblewrapByHand
    return Layout(
        ours=[name for name in report.titles if name in _OURS],
        bases={name: {by_hand.name: ""} for name in report.titles},
        legend=f"× is over {by_hand.title}, which has no limits, no lease and no user of its own.",
        # The sandboxes' own processes count as others.
        others_disturb=False,
    )


BENCHMARK = Benchmark(
    name="sandboxes",
    help="""Measure sandboxes: starts, commands, examinations, hundreds at once, every answer verified.

    \b
    Strict ones on each runtime of this machine and docker-like ones, in
    process and through the sandbox service, beside the same programs used
    by hand. It ends with 1 if any answer was wrong or missing, and never because
    something was slow.
    """,
    examples=[
        "ors-server bench sandboxes --quick        in a minute or two",
        "ors-server bench sandboxes                everything, a quarter of an hour",
        "ors-server bench sandboxes --candidates bubblewrap,bwrap --rows cold,crowd",
    ],
    quick_help="One round, fewer starts, at most 100 at once.",
    rows=ROWS,
    candidates=_CANDIDATES,
    figures=FIGURES,
    full=FULL,
    quick=QUICK,
    measuring=_measuring,
    applies=lambda _, row, candidate: row.applies(candidate),
    packages=lambda candidate: {candidate.program: candidate.version(), "user": user()},
    layout=_layout,
    draw=partial(draw, [*_OURS, DockerLike.name, Service.name]),
)
main = BENCHMARK.program()
