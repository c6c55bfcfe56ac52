"""Derive a profile from reports of this benchmark with a real engine on the machine that is to be emulated.

    python -m ors_benchmarks.rollout.reports.profile_derivation REPORT... --title TEXT --parameters 0.6e9 \\
        --client-seconds 0.0013 --request-share 0.42 > profiles/NAME.json

Each completed round of a report gives two points of the step time, one of the run and one of its replay:

- the run's requests in a step are the episodes at once × the engine's share of an episode's time, and its step is the
  engine's seconds of an episode ÷ its tokens;
- the replay's are the same, where an episode takes (episodes at once × its tokens ÷ tokens a second) and what is not
  the engine's is the run's way to the engine, for a replay has nothing else.

From both the prompts that were computed in a step are taken off: tokens not found in the prefix cache × 2 × parameters
÷ 40 % of the accelerator's peak. How a step grows with its requests is the least squares of the differences within each
report, for the machine was not equally fast in all of them; the level is the mean of all points.

The front-end's processor time of a generation is that of the client's process, less ``--client-seconds``, what the
benchmark's client itself needs for a turn. Its part that does not depend on the number of tokens is
``--request-share``, measured with generations of several lengths where vLLM runs. Everything else of the recorded
machine is not emulated: the processors that the core took from the environments, and what other episodes' tokens make
a request wait on the client's event loop beyond those that are played here.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from ors_benchmarks.rollout.engines.emulated.profile import FrontEnd, Load, Profile
from ors_benchmarks.rollout.reports.report import RolloutReport

__all__ = ["Point", "derive", "points_of"]

#: Of an H100's dense BF16 arithmetic, in operations a second, the part that prompts reach.
_OPERATIONS = 0.4 * 989e12


class Point(NamedTuple):
    """A mean step."""

    requests: float
    seconds: float


def points_of(report: RolloutReport, prefill_token: float) -> list[list[Point]]:
    """Return the points of each completed round: of the run and of its replay."""
    return [[*_pair(report, number, prefill_token)] for number in range(_rounds(report))]


def _rounds(report: RolloutReport) -> int:
    ratio = report.cells[0].ratio
    return 0 if ratio is None else len(ratio.values)


def _pair(report: RolloutReport, number: int, prefill_token: float) -> Iterator[Point]:
    cell = report.cells[0]

    def figure(name: str) -> float:
        return cell.figures[name].values[number]

    tokens = figure("generated_per_second") / figure("episodes_per_second")
    turns = figure("turns_per_second") / figure("episodes_per_second")
    prompt = figure("prompt_per_second") / figure("turns_per_second")
    parts = cell.breakdown
    engine, whole = parts["engine"], sum(parts.values())
    replayed = cell.concurrency * tokens / figure("replayed_per_second")
    hits = ("prefix_hits", engine, whole), ("replayed_prefix_hits", replayed - parts["handover"], replayed)
    for cached, busy, episode in hits:
        requests, step = cell.concurrency * busy / episode, busy / tokens
        # In a step as many requests come as leave.
        prefilled = requests * turns / tokens * prompt * (1 - figure(cached))
        yield Point(requests, step - prefilled * prefill_token)


def derive(
    reports: Sequence[RolloutReport], *, title: str, parameters: float, client_seconds: float, request_share: float
) -> Profile:
    """Return the profile."""
    first = reports[0]
    concurrency = first.cells[0].concurrency
    prefill_token = 2 * parameters / _OPERATIONS
    pairs = [pair for report in reports for pair in points_of(report, prefill_token)]
    moments = [
        ((run.requests - replay.requests) * (run.seconds - replay.seconds), (run.requests - replay.requests) ** 2)
        for run, replay in pairs
    ]
    slope = max(0.0, sum(product for product, _ in moments) / sum(square for _, square in moments))
    points = [point for pair in pairs for point in pair]
    level = fmean(point.seconds for point in points) - slope * fmean(point.requests for point in points)
    front_ends: list[tuple[float, float]] = []
    loads: dict[str, Load] = {}
    for report in reports:
        figures = report.cells[0].figures
        for number in range(_rounds(report)):
            turns = figures["turns_per_second"].values[number]
            spent = figures["client_cpu"].values[number] / turns - client_seconds
            tokens = figures["generated_per_second"].values[number] / turns
            front_ends.append((spent * request_share, spent * (1 - request_share) / tokens))
        waves = max(1, report.options["episodes"] // concurrency)
        environment = str(report.options["env"])
        known = loads.get(environment)
        loads[environment] = Load(
            turns=report.options["turns"],
            tasks=report.options["tasks"],
            waves=waves if known is None else min(waves, known.waves),
        )
    effective = json.loads(first.engine_description["effective"])
    return Profile(
        title=title,
        model=first.model,
        cores=first.machine.cores,
        concurrency=concurrency,
        loads=loads,
        steps=[(0.0, round(level, 5)), (float(concurrency), round(level + slope * concurrency, 5))],
        prefill_token_seconds=round(prefill_token, 9),
        step_tokens=effective["max_num_batched_tokens"],
        block_tokens=16,
        front_end=FrontEnd(
            request_seconds=round(fmean(request for request, _ in front_ends), 6),
            token_seconds=round(fmean(token for _, token in front_ends), 7),
        ),
        derivation=[
            f"ors_benchmarks.rollout.reports.profile_derivation, of {len(pairs)} rounds of {len(reports)} reports",
            f"{parameters:g} parameters",
            f"{client_seconds:g} s a turn are the client's own, {request_share:g} of the rest is a request's",
            *(
                f"step of {point.requests:.0f} requests: {1e3 * point.seconds:.1f} ms ({kind})"
                for pair in pairs
                for point, kind in zip(pair, ("run", "replay"), strict=True)
            ),
        ],
    )


def main() -> None:
    """Print a profile."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reports", type=Path, nargs="+")
    parser.add_argument("--title", required=True)
    parser.add_argument("--parameters", type=float, required=True)
    parser.add_argument("--client-seconds", type=float, required=True)
    parser.add_argument("--request-share", type=float, required=True)
    arguments = vars(parser.parse_args())
    reports = [RolloutReport.model_validate_json(path.read_bytes()) for path in arguments.pop("reports")]
    sys.stdout.write(derive(reports, **arguments).model_dump_json(indent=1) + "\n")


if __name__ == "__main__":
    main()
