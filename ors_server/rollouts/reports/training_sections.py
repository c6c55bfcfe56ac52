"""The report of ``ors-server train`` in words and rows, for the page of its run and for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ors_server.rollouts.reports.figures import STATISTICS, percent, seconds, share, span, verdict_of
from ors_server.rollouts.reports.sections import Section, setting_rows

__all__ = ["Kinds", "difference_text", "training_headline", "training_kinds", "training_sections", "training_settings"]

_DIFFERENCES = (
    ("sampled, before to after", "difference"),
    ("sampled after, against greedy before", "over_greedy_before"),
    ("the training, against further supervised steps", "over_supervised"),
)
_STAGES = {
    "training": "training, with the loading of the trainer",
    "training_steps": "… its steps",
}


class Kinds(NamedTuple):
    """The pass rate of each kind of task in each evaluation."""

    columns: list[str]
    rows: list[tuple[str, list[str]]]


def training_headline(report: Mapping[str, Any]) -> str:
    """Return the verdict with what stands against it, or for it: no one reads only half of it."""
    verdict: str = report["verdict"]
    if report["failed"]:
        return verdict
    difference, greedy = report["difference"], report["over_greedy_before"]
    beside = f"{_relation(greedy)} greedy decoding before the training ({percent(greedy['other'])})"
    if "over_supervised" in report:
        further, steps = report["over_supervised"], report["further_supervised_steps"]
        beside += (
            f", and {_relation(further)} {steps} further supervised steps in its place ({percent(further['other'])})"
        )
    return (
        f"{verdict} Sampled, it solves {percent(difference['run'])} of held-out tasks, before the training"
        f" {percent(difference['other'])}. That is {beside}."
    )


def _relation(difference: Mapping[str, Any]) -> str:
    if not difference["significant"]:
        return "not shown to differ from"
    return "better than" if difference["difference"] > 0 else "worse than"


def training_sections(report: Mapping[str, Any]) -> list[Section]:
    """Return the sections of a training's report."""
    return [_score(report), _settings(report), _episodes(report), _time(report)]


def difference_text(found: Mapping[str, Any]) -> str:
    """Return a difference of pass rates with its interval, its p value and what that says."""
    sign = "+" if found["difference"] > 0 else ""
    between = span(found["interval"], percent) or ", no interval"
    return f"{sign}{percent(found['difference'])}{between}, {verdict_of(found)}"


def _score(report: Mapping[str, Any]) -> Section:
    rates: Mapping[str, Any] = report["pass_rates"]
    titles = {name: name.replace("-", ", ") for name in rates}
    rows = [(titles[name], share(found["all"], found["interval"])) for name, found in rates.items()]
    for title, name in _DIFFERENCES:
        if name in report:  # a checkpoint imitates nothing
            rows.append((title, difference_text(report[name])))
    floor_and_ceiling = (
        ("the same call in every task (floor)", "constant"),
        ("the tasks' own solutions (ceiling)", "oracle"),
    )
    rows += [(title, percent(report[name])) for title, name in floor_and_ceiling if name in report]
    title = f"Pass rates of {report['tasks']['held_out']} held-out tasks"
    return Section(title, rows, STATISTICS, {titles[name]: found["id"] for name, found in rates.items()})


def training_kinds(report: Mapping[str, Any]) -> Kinds | None:
    """Return the pass rates by kind of task; None where all tasks are of one kind."""
    rates: Mapping[str, Any] = report["pass_rates"]
    kinds = dict.fromkeys(kind for found in rates.values() for kind in found["kinds"])
    if len(kinds) < 2:
        return None
    rows = [(kind, [share(found["kinds"].get(kind)) for found in rates.values()]) for kind in kinds]
    return Kinds([name.replace("-", ", ") for name in rates], rows)


def training_settings(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a training, as its page shows them and a comparison compares them."""
    model = report["model"]
    named = f"{model['name']}, " if "name" in model else ""
    return {
        "target": report["target"],
        "environment": report["environment"],
        "seed": report["seed"],
        "model": f"{named}{model['weights']:,} weights, {model['tokens']:,} tokens",
        "training_tasks": report["tasks"]["training"],
        **{name: int(value) if value == int(value) else value for name, value in report["recipe"].items()},
        **{f"version of {name}": version for name, version in report["versions"].items()},
    }


def _settings(report: Mapping[str, Any]) -> Section:
    return Section("Settings", setting_rows(training_settings(report)))


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
    spent: Mapping[str, float | None] = report["seconds"]
    rows = [
        (_STAGES.get(stage) or stage.replace("_", " "), seconds(value))
        for stage, value in spent.items()
        if value is not None
    ]
    return Section("Cost, in seconds", rows)
