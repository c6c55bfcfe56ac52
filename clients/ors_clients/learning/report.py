"""The report of a run: what the held-out tasks say, and beside it what would be earned without reinforcement learning.

Differences, intervals and p values are those of ``eval --compare``, paired by task. Nothing is called an improvement
whose interval contains 0, or whose infrastructure failed.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from ors_clients.evaluation.compare import ComparedRun, compare
from ors_clients.evaluation.journal import read_run
from ors_clients.learning.grpo import LOST
from ors_clients.learning.plan import Plan
from ors_server.rollouts.reports.figures import STATISTICS, percent, share
from ors_server.rollouts.reports.training_sections import difference_text, training_headline

__all__ = ["curve_line", "curve_point", "make_report", "report_lines"]

#: Share of the training's rollouts that may be lost.
_MOST_LOST = 0.05
_BAR = 30
#: Share of groups with equal rewards that is worth a word.
_MOSTLY_EQUAL = 0.5
#: TRL's names of the share of groups with equal rewards, and of the mean difference of the log-probabilities of
#: sampler and trainer.
_EQUAL, _GAP = "frac_reward_zero_std", "sampling/sampling_logp_difference/mean"


def curve_point(plan: Plan, logs: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the report keeps of a training step, from what TRL logged; a mean of nothing is None."""
    episodes = plan.recipe.episodes
    lost = {key.removeprefix(LOST): round(share * episodes) for key, share in logs.items() if key.startswith(LOST)}
    reward = float(logs["reward"])
    point = {
        "step": logs["step"],
        "reward": round(reward, 4) if math.isfinite(reward) else None,
        "lost": lost,
        "seconds": round(float(logs.get("step_time", 0.0)), 2),
        "entropy": round(float(logs.get("entropy", math.nan)), 4),
        # Groups whose rewards are equal: nothing is learnt of them.
        "equal_groups": round(float(logs.get(_EQUAL, 0.0)), 4),
    }
    if _GAP in logs:
        point["logprob_gap"] = round(float(logs[_GAP]), 6)
    return point


def curve_line(point: Mapping[str, Any], steps: int) -> str:
    """Return a step of the curve as a line: it is drawn as it grows, in a pipe too."""
    reward = point["reward"]
    bar = "-" if reward is None else "#" * round(_BAR * max(0.0, min(1.0, reward)))
    shown = "none" if reward is None else f"{reward:.3f}"
    lost = sum(point["lost"].values())
    more = f", {lost} lost" if lost else ""
    return f"step {point['step']:3d} of {steps}  reward {shown}  |{bar:<{_BAR}}|  {point['seconds']:.1f} s{more}"


def make_report(
    plan: Plan,
    *,
    evaluations: Path,
    results: Mapping[str, Mapping[str, Any]],
    training: Mapping[str, Any],
    more: Callable[[Callable[[str, str], dict[str, Any]]], dict[str, Any]],
    versions: Mapping[str, str],
    checkpoint: str,
) -> dict[str, Any]:
    """Return the report of a finished run as JSON values; ``more`` gives the part of the kind of model."""

    def compared(ours: str, other: str) -> dict[str, Any]:
        run, against = (ComparedRun.of(read_run(evaluations / f"{plan.name}-{name}")) for name in (ours, other))
        return compare(run, against)["pass_at_1"]

    curve = training["curve"]
    played = len(curve) * plan.recipe.episodes
    lost: dict[str, int] = {}
    for point in curve:
        for cause, count in point["lost"].items():
            lost[cause] = lost.get(cause, 0) + count
    failed = [f"{name}: {reason}" for name, report in results.items() for reason in report["failed"]]
    if played and sum(lost.values()) / played > _MOST_LOST:
        failed.append(f"{sum(lost.values())} of {played} episodes of the training were lost")
    difference = compared("after-sampled", "before-sampled")
    found = more(compared)
    spent = {**found.get("seconds", {}), "training": training["seconds"]}
    spent["evaluations"] = round(math.fsum(report["seconds"]["whole"] or 0.0 for report in results.values()), 1)
    return {
        "run": plan.name,
        "target": plan.target,
        "environment": plan.environment,
        "seed": plan.seed,
        "verdict": _verdict(difference, failed),
        "failed": failed,
        "difference": difference,
        "over_greedy_before": compared("after-sampled", "before-greedy"),
        "pass_rates": {name: _rates(plan, report) for name, report in results.items()},
        "tasks": {"training": len(plan.train), "held_out": len(plan.held_out)},
        "episodes": {"training": played, "lost": lost},
        "lost_in_evaluations": {name: report["infrastructure"]["lost"] for name, report in results.items()},
        **found,
        "model": {**found["model"], "checkpoint": checkpoint},
        "recipe": {**asdict(plan.recipe), **({} if plan.tiny is None else asdict(plan.tiny))},
        "seconds": {
            **spent,
            "training_steps": round(math.fsum(point["seconds"] for point in curve), 1),
            "together": round(math.fsum(spent.values()), 1),
        },
        "versions": {"python": platform.python_version(), **versions},
        "curve": curve,
    }


def _verdict(difference: Mapping[str, Any], failed: Sequence[str]) -> str:
    if failed:
        return "No result: the infrastructure failed too often."
    low, high = difference["interval"] or (0.0, 0.0)
    if difference["significant"] and low > 0:
        return "The model got better."
    if difference["significant"] and high < 0:
        return "The model got worse."
    return "No improvement is shown: the interval of the difference contains 0."


def _rates(plan: Plan, report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the pass rate of an evaluation, with its interval, and that of each kind of task."""
    kinds: dict[str, list[float]] = {task.kind: [] for task in plan.held_out}
    of = {task.index: task.kind for task in plan.held_out}
    for row in report["per_task"]:
        if row["samples"]:
            kinds[of[row["index"]]].append(row["successes"] / row["samples"])
    [first, *_] = report["pass_at_k"]
    return {
        "all": first["value"],
        "interval": first["interval"],
        "kinds": {kind: round(fmean(rates), 4) if rates else None for kind, rates in kinds.items()},
        "id": report["id"],
    }


def report_lines(report: Mapping[str, Any]) -> list[str]:
    """Return the report for a terminal."""
    rates: Mapping[str, Any] = report["pass_rates"]
    columns = {name: rates[name] for name in ("before-sampled", "after-sampled", "before-greedy", "after-greedy")}
    lines = [f"{report['tasks']['held_out']} held-out tasks, pass rates", ""]
    lines.append(f"{'':12}" + "".join(f"{name.replace('-', ' '):>16}" for name in columns))
    for kind in next(iter(columns.values()))["kinds"]:
        cells = (found["kinds"][kind] for found in columns.values())
        lines.append(f"{kind:12}" + "".join(f"{share(cell):>16}" for cell in cells))
    lines.append(f"{'all':12}" + "".join(f"{share(found['all']):>16}" for found in columns.values()))
    greedy = rates["before-greedy"]["all"]
    lines += [
        "",
        training_headline(report),
        f"Sampled, before to after: {difference_text(report['difference'])}",
        f"Greedy decoding before the training earns {percent(greedy)}, which is only sharper sampling."
        f" Sampled after against it: {difference_text(report['over_greedy_before'])}",
        *_imitation(report),
        STATISTICS,
        *_equal(report["curve"]),
        f"Episodes of the training: {report['episodes']['training']:,}, lost: {_counts(report['episodes']['lost'])}."
        f" Lost in the evaluations and played again: {sum(report['lost_in_evaluations'].values())}.",
        *(f"The numbers do not stand: {reason}" for reason in report["failed"]),
        f"{report['model']['weights']:,} weights; the checkpoint is in {report['model']['checkpoint']}",
    ]
    return lines


def _imitation(report: Mapping[str, Any]) -> list[str]:
    """Return what imitation alone earns, where there are demonstrations."""
    if "over_supervised" not in report:
        return []
    return [
        f"The training against further supervised steps: {difference_text(report['over_supervised'])}",
        f"The same call in every task earns {percent(report['constant'])}, the tasks' own solutions"
        f" {percent(report['oracle'])}.",
    ]


def _equal(curve: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return how much of the training there was nothing to learn from, where that is most of it."""
    rate = fmean(point["equal_groups"] for point in curve) if curve else 0.0
    if rate <= _MOSTLY_EQUAL:
        return []
    return [f"In {rate:.0%} of the groups all rewards were equal, so there was nothing to learn from them."]


def _counts(lost: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {cause}" for cause, count in lost.items()) or "none"
