"""A report as rows for readers: the same in Markdown, in a terminal and on the page of a run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ors_server.rollouts.reports.estimators import FEWEST_DIFFERENCES
from ors_server.rollouts.reports.figures import STATISTICS, mean, number, percent, seconds, share, span, verdict_of

__all__ = [
    "MISTAKES",
    "Section",
    "comparison_section",
    "report_sections",
    "score_rows",
    "set_ones",
    "setting_rows",
    "verdict_lines",
]

#: What a model may do wrong within an episode, by the name in reports.
MISTAKES: Mapping[str, str] = {
    "malformed_calls": "tool calls that are not JSON, or cannot be read",
    "unknown_tools": "calls of tools that do not exist",
    "invalid_inputs": "calls whose input the tool's schema refuses",
    "failed_tools": "calls whose tool raised an error",
    "cut_turns": "turns cut off at the limit of tokens",
    "turns_without_call": "turns without a tool call",
}
_ENDS = {
    "finished": "ended by the environment",
    "max_turns": "cut off at the limit of turns",
    "max_tokens": "cut off at the limit of tokens",
    "max_time": "cut off at the limit of time",
    "context_overflow": "cut off at the model's context",
}
#: Tasks that a row names, at most.
_LISTED = 8
#: Seconds that no model takes less than: those of one that was sampled ahead were not measured.
_MEASURED = 1e-4
#: Settings that every report shows; of the others, those that are set.
_SHOWN = ("target", "environment", "split", "model", "samples")


class Section(NamedTuple):
    """Rows of a label and a value, below a title."""

    title: str
    rows: list[tuple[str, str]]
    #: Said once, of all rows.
    note: str = ""
    #: The runs that labels name.
    runs: Mapping[str, str] = {}


def verdict_lines(report: Mapping[str, Any]) -> list[str]:
    """Return why the numbers of an evaluation are not to be taken as they are; nothing if they are."""
    if report["failed"]:
        limit = f"--max-failures is {report['max_failures']:.1%}"
        return [f"The run fails ({limit}): {'; '.join(report['failed'])}."]
    if not report["complete"]:
        return [f"{report['samples']['missing']} of {report['samples']['planned']} samples are missing."]
    return []


def report_sections(report: Mapping[str, Any]) -> list[Section]:
    """Return the sections of an evaluation's report."""
    return [_settings(report), _score(report), _model(report), _infrastructure(report), _costs(report)]


def _settings(report: Mapping[str, Any]) -> Section:
    settings: Mapping[str, Any] = report["settings"]
    rows = [("run", f"{report['run']}, begun {report['begun']}")]
    rows += [(name.replace("_", " "), str(settings[name])) for name in _SHOWN]
    rows += setting_rows({name: value for name, value in set_ones(settings).items() if name not in _SHOWN})
    return Section("Settings", rows)


def set_ones(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that are set and used: a temperature of 0 is."""
    unused = ("context",) if settings.get("api") == "chat" else ()
    return {
        name: value
        for name, value in settings.items()
        if value is not None and value is not False and value not in ({}, []) and name not in unused
    }


def setting_rows(settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return settings as rows."""
    return [
        (name.replace("_", " "), value if isinstance(value, str) else json.dumps(value))
        for name, value in settings.items()
    ]


def _score(report: Mapping[str, Any]) -> Section:
    tasks, samples = report["tasks"], report["samples"]
    rows = score_rows(report["pass_at_k"], report["reward"])
    rows.append(("samples scored", f"{samples['scored']} of {samples['planned']}, {samples['missing']} missing"))
    rows += [
        ("passes that are marked", f"{entry['passes']} of {entry['of_passes']}: {entry['mark']}")
        for entry in report.get("marked", ())
    ]
    fewer: Sequence[Mapping[str, Any]] = tasks["with_fewer_samples"]
    rows.append(("tasks with all samples", f"{tasks['with_all_samples']} of {tasks['planned']}"))
    if fewer:
        names = ", ".join(f"{task['split']}:{task['index']} ({task['samples']})" for task in fewer[:_LISTED])
        rows.append(("tasks with fewer", f"{names}{', …' if len(fewer) > _LISTED else ''}"))
    failures = report["infrastructure"]
    if failures["lost_after_a_turn"] or failures["interrupted"] or samples["missing"]:
        low, high = report["bounds"].values()
        missing = " or is missing" if samples["missing"] else ""
        rows.append((f"pass@1 if what was lost{missing} had failed", share(low)))
        if samples["missing"]:
            rows.append(("pass@1 if what is missing had succeeded", share(high)))
    return Section("Score", rows, "In brackets: intervals of 95 %, over tasks.")


def score_rows(passes: Sequence[Mapping[str, Any]], reward: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """Return the rows of pass@k and of the mean reward (``task_scores``)."""
    rows: list[tuple[str, str]] = []
    for entry in passes:
        left_out = f"; {entry['left_out']} tasks with fewer samples left out" if entry["left_out"] else ""
        rows.append(
            (f"pass@{entry['k']}", f"{share(entry['value'], entry['interval'])} of {entry['tasks']} tasks{left_out}")
        )
    if reward is not None:
        spread = "" if reward["lowest"] is None else f", from {number(reward['lowest'])} to {number(reward['highest'])}"
        rows.append(("mean reward", f"{mean(reward['mean'])}{span(reward['interval'], mean)}{spread}"))
    return rows


def _model(report: Mapping[str, Any]) -> Section:
    model = report["model"]
    ends: Mapping[str, int] = model["ends"]
    rows = [(_ENDS.get(end, end), _counted(count, "episode")) for end, count in ends.items()]
    for name, count in model["mistakes"].items():
        rows.append((MISTAKES.get(name, name), f"{count['times']}, in {_counted(count['episodes'], 'episode')}"))
    if model["without_room_for_prompt"]:
        rows.append(("no room even for the prompt", _counted(model["without_room_for_prompt"], "episode")))
    return Section("The model's episodes", rows)


def _infrastructure(report: Mapping[str, Any]) -> Section:
    found = report["infrastructure"]
    late = f", {found['lost_after_a_turn']} of them after the model's first turn" if found["lost"] else ""
    rows = [("attempts", f"{found['attempts']}, {found['lost']} lost{late}")]
    for kind in found["kinds"]:
        late = f"{kind['after_a_turn']} of them after the model's first turn"
        text = f"{kind['attempts']} lost, {late}; the last: {kind['last']}"
        rows.append((f"{kind['side']}: {kind['kind']}", text))
    for kind, count in found["requests_sent_again"].items():
        rows.append((f"requests to the model sent again: {kind}", str(count)))
    if found["interrupted"]:
        rows.append(("cut off by an end of the run", f"{found['interrupted']}, begun again when it goes on"))
    return Section("Infrastructure (in no score)", rows)


def _costs(report: Mapping[str, Any]) -> Section:
    tokens = report["tokens"]
    rows = [("tokens", _tokens(tokens)), ("tokens of lost attempts", _tokens(tokens["lost_attempts"]))]
    if tokens["cost"] is not None:
        lost = tokens["lost_attempts"]
        lost_least = "at least " if lost["answers_without_count"] else ""
        # An attempt that a kill cut off has cost something, and nothing is known of it.
        cut_off = report["infrastructure"]["interrupted"]
        least = "at least " if lost_least or tokens["answers_without_count"] or cut_off else ""
        costs = f"{least}{tokens['cost'] + lost['cost']:.4f}, of it lost {lost_least}{lost['cost']:.4f}"
        rows.append(("cost, in the currency of the prices", costs))
    rows.append(("turns", _spread(report["turns"], number)))
    for name, title in (("episode", "seconds an episode"), ("model", "… for the model"), ("tools", "… for tools")):
        spread: Mapping[str, float] | None = report["seconds"][name]
        if spread is None or spread["highest"] >= _MEASURED:
            rows.append((title, _spread(spread, seconds)))
    if (whole := report["seconds"].get("whole")) is not None:
        rows.append(("seconds of the whole run", seconds(whole)))
    return Section("Cost", rows)


def comparison_section(found: Mapping[str, Any]) -> Section:
    """Return the section of a comparison (``comparison``)."""
    rows = [("result", _result(found))]
    rows += [("settings that differ", line) for line in found["settings"]]
    rows.append(("tasks compared", f"{found['tasks']}, {found['left_out']} left out for want of samples"))
    if found["fewer_samples"]:
        rows.append(("tasks with fewer samples in one run", str(found["fewer_samples"])))
    unknown = (
        ", the same in all tasks" if found["tasks"] >= FEWEST_DIFFERENCES else ", of too few tasks for an interval"
    )
    for name, title, shown in (("pass_at_1", "pass@1", percent), ("reward", "mean reward", mean)):
        entry: Mapping[str, Any] | None = found[name]
        if entry is None:
            rows.append((title, "no task has samples in both"))
            continue
        sign = "+" if entry["difference"] > 0 else ""
        rows += [
            (title, f"{shown(entry['other'])} → {shown(entry['run'])}"),
            ("… difference", f"{sign}{shown(entry['difference'])}{span(entry['interval'], shown) or unknown}"),
            (
                "… by task",
                f"better in {entry['better']}, worse in {entry['worse']}, {verdict_of(entry)}",
            ),
        ]
    return Section(f"Compared with {found['other']}", rows, STATISTICS)


def _result(found: Mapping[str, Any]) -> str:
    """Return which run is better, in one sentence."""
    for name, more in (("pass_at_1", "passes more"), ("reward", "earns more")):
        entry: Mapping[str, Any] | None = found[name]
        if entry is not None and entry["significant"]:
            better, worse = ("run", "other") if entry["difference"] > 0 else ("other", "run")
            return f"{found[better]} {more} than {found[worse]}."
    return f"No difference is shown between {found['run']} and {found['other']}."


# --- figures -------------------------------------------------------------------------------------


def _counted(count: int, thing: str) -> str:
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def _tokens(tokens: Mapping[str, Any]) -> str:
    text = f"{tokens['prompt']:,} in ({tokens['cached']:,} cached), {tokens['completion']:,} out"
    unknown = tokens["answers_without_count"]
    return f"{text}; not counted by the endpoint: {unknown} answers" if unknown else text


def _spread(values: Mapping[str, float] | None, shown: Callable[[float], str]) -> str:
    if values is None:
        return "-"
    middle, median, p95, highest = (shown(values[name]) for name in ("mean", "median", "p95", "highest"))
    return f"mean {middle}, median {median}, 95th percentile {p95}, highest {highest}"
