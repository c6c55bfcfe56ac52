"""The report of ``ors-server train`` as rows for the page of its run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ors_server.rollouts.reports.sections import Section, number, percent, span

__all__ = ["training_sections"]

_DIFFERENCES = (
    ("sampled, before to after", "difference"),
    ("sampled after, against greedy before", "over_greedy_before"),
    ("the training, against further supervised steps", "over_supervised"),
)


def training_sections(report: Mapping[str, Any]) -> list[Section]:
    """Return the sections of a training's report."""
    return [_score(report), _kinds(report), _settings(report), _episodes(report), _time(report)]


def _score(report: Mapping[str, Any]) -> Section:
    rows = [
        (name.replace("-", ", "), _share(found["all"]) + span(found["interval"], percent))
        for name, found in report["pass_rates"].items()
    ]
    for title, name in _DIFFERENCES:
        if name not in report:  # a checkpoint imitates nothing
            continue
        found: Mapping[str, Any] = report[name]
        between = span(found["interval"], percent) or ", no interval"
        p = "p < 0.0001" if found["p"] < 0.0001 else f"p = {found['p']:.4f}"
        word = "significant" if found["significant"] else "not significant"
        rows.append((title, f"{100 * found['difference']:+.1f} %{between}, {p}: {word}"))
    floor_and_ceiling = (("a constant answer", "constant"), ("the solutions", "oracle"))
    rows += [(title, percent(report[name])) for title, name in floor_and_ceiling if name in report]
    return Section(f"Pass rates of {report['tasks']['held_out']} held-out tasks", rows)


def _kinds(report: Mapping[str, Any]) -> Section:
    rates: Mapping[str, Any] = report["pass_rates"]
    kinds = dict.fromkeys(kind for found in rates.values() for kind in found["kinds"])
    rows = [
        (
            kind,
            "; ".join(f"{name.replace('-', ', ')} {_share(found['kinds'].get(kind))}" for name, found in rates.items()),
        )
        for kind in kinds
    ]
    return Section("By kind of task", rows)


def _settings(report: Mapping[str, Any]) -> Section:
    model = report["model"]
    named = f"{model['name']}, " if "name" in model else ""
    rows = [
        ("target", report["target"]),
        ("environment", report["environment"]),
        ("seed", str(report["seed"])),
        ("model", f"{named}{model['weights']:,} weights, {model['tokens']:,} tokens"),
        ("training tasks", str(report["tasks"]["training"])),
    ]
    rows += [(name.replace("_", " "), number(value)) for name, value in report["recipe"].items()]
    rows += [(f"version of {name}", version) for name, version in report["versions"].items()]
    return Section("Settings", rows)


def _episodes(report: Mapping[str, Any]) -> Section:
    episodes = report["episodes"]
    rows = [("episodes of the training", f"{episodes['training']:,}")]
    rows += [(f"lost: {cause}", str(count)) for cause, count in episodes["lost"].items()]
    rows += [
        (f"lost in the evaluation {name.replace('-', ', ')}, and played again", str(count))
        for name, count in report["lost_in_evaluations"].items()
        if count
    ]
    return Section("Infrastructure (in no score)", rows)


def _time(report: Mapping[str, Any]) -> Section:
    rows = [
        (f"seconds of {stage.replace('_', ' ')}", number(seconds))
        for stage, seconds in report["seconds"].items()
        if seconds is not None
    ]
    return Section("Cost", rows)


def _share(value: float | None) -> str:
    return "-" if value is None else percent(value)
