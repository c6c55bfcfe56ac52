"""``ors-server bench harbor``: trials inside Harbor's runner, our containers beside podman's, and Harbor's own share.

``python -m ors_benchmarks.harbor`` is the same. Each measurement is two jobs of Harbor, of one trial and of many: their
difference is what the other trials cost, without the start of a job.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ors_benchmarks.harbor.candidates import CANDIDATES, Candidate, Opened, harbor, play, write_task
from ors_benchmarks.harness.benchmark import Benchmark, Measuring
from ors_benchmarks.harness.candidates import NotHere, packages
from ors_benchmarks.harness.control_groups import processor_time
from ors_benchmarks.harness.debian import debian_root
from ors_benchmarks.harness.http11 import Failure
from ors_benchmarks.harness.reports.figures import Figure, Measured, Quotient, Row
from ors_benchmarks.harness.reports.table import Layout
from ors_benchmarks.harness.runs import Run, Size
from ors_server.errors import OrsError

__all__ = ["BENCHMARK", "FIGURES", "main"]

_AT_ONCE = 2


@dataclass(frozen=True, kw_only=True)
class HarborSize(Size):
    """Repetitions of a run."""

    #: Trials of the larger job, less one.
    trials: int


ROWS: Sequence[Row] = (Row("trial", f"a trial of Harbor's oracle, {_AT_ONCE} at once, without a network"),)
FIGURES: Sequence[Figure] = (
    Figure("trial_cpu", "trial", "processor time of a trial", "ms"),
    Figure("trial_wall", "trial", f"time of a trial, {_AT_ONCE} at once", "ms"),
    Quotient(
        "trial_podman", "trial", "podman ÷ ours, processor time", better="more", budget=5.0, of="trial_cpu",
        peer="podman", candidates=("ours",),
    ),
    Quotient("trial_floor", "trial", "processor time over Harbor's own", of="trial_cpu", base="floor"),
    Figure("start_cpu", "trial", "processor time of a job of one trial", "ms"),
)  # fmt: skip


@contextmanager
def _measuring(
    chosen: Sequence[Candidate], size: HarborSize, folder: Path, run: Run
) -> Generator[Measuring[Row, Candidate]]:
    task = write_task(folder / "tasks")
    root = debian_root(folder)
    opened: dict[str, Opened] = {}
    with contextlib.ExitStack() as stack:
        for candidate in chosen:
            own = folder / candidate.name
            own.mkdir()
            stack.callback(candidate.close)
            try:
                opened[candidate.name] = candidate.open(root, own)
                _job(opened[candidate.name], task, 1)  # the first, which is not counted
            except (NotHere, Failure) as reason:
                opened.pop(candidate.name, None)
                run.leave_out(candidate, str(reason))
        present = [candidate for candidate in chosen if candidate.name in opened]
        if not present:
            raise OrsError("None of the candidates works on this machine", "The lines above say why.")
        yield Measuring(present, lambda turn: _measure(opened[turn.candidate.name], task, size.trials))


def _measure(opened: Opened, task: Path, trials: int) -> tuple[Measured, Mapping[str, int]]:
    try:
        cpu, wall = _job(opened, task, 1)
        more_cpu, more_wall = _job(opened, task, 1 + trials)
    except Failure as failure:
        return Measured(), {str(failure): 1}
    each = {"trial_cpu": more_cpu - cpu, "trial_wall": more_wall - wall}
    return Measured({key: value / trials * 1e3 for key, value in each.items()} | {"start_cpu": cpu * 1e3}), {}


def _job(opened: Opened, task: Path, trials: int) -> tuple[float, float]:
    """Play one job; return its processor time and its time in seconds. Raises ``Failure``."""
    with tempfile.TemporaryDirectory(prefix="ors-bench-") as folder, processor_time() as counted:
        started = time.monotonic()
        play(opened, task, trials, _AT_ONCE, counted, Path(folder))
        return counted.seconds(beside=True), time.monotonic() - started


BENCHMARK = Benchmark(
    name="harbor",
    help="""Measure trials inside Harbor's runner: our containers beside podman's, every reward verified.

    \b
    The same task of the same image, without a network, solved by Harbor's
    oracle. Processor time is that of everything, by control group, so it
    needs root and a machine on which no other containers start. It ends with
    1 if a trial was not rewarded, and never because something was slow.
    """,
    examples=[
        "ors-server bench harbor --quick           a few minutes, once pip has run",
        "ors-server bench harbor                   60 trials a side, half an hour",
    ],
    quick_help="One round of 4 trials a side.",
    rows=ROWS,
    candidates=CANDIDATES,
    figures=FIGURES,
    full=HarborSize(rounds=3, trials=20),
    quick=HarborSize(rounds=1, trials=4),
    measuring=_measuring,
    prepare=lambda _: harbor(),
    packages=lambda candidate: {**packages(str(harbor())), **candidate.version()},
    layout=lambda report: Layout(
        ours=["ours"],
        bases={name: {"floor": ""} for name in report.titles},
        legend="× is over Harbor itself: an environment that runs nothing.",
        # The containers' own processes count as others.
        others_disturb=False,
    ),
)
main = BENCHMARK.program()
