"""A run's report for readers: the same rows as Markdown and as tables in a terminal.

Text of a server or an endpoint is shown on one line, without control characters, and as text.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ors_clients.errors import EvaluationError
from ors_clients.evaluation.attempts import MISTAKES
from ors_clients.evaluation.estimators import FEWEST_DIFFERENCES

__all__ = ["markdown", "print_report", "write_report"]

_ENDS = {
    "finished": "the environment ended it",
    "max_turns": "--max-turns was reached",
    "max_time": "--episode-timeout was reached",
    "context_overflow": "the conversation no longer fitted into the context",
}
#: Tasks that the terminal and a list name, at most; Markdown's table has all of them.
_LISTED = 8
#: Settings that every report shows; of the others, those that are set.
_SHOWN = ("target", "environment", "split", "model", "samples")


class _Section(NamedTuple):
    title: str
    rows: list[tuple[str, str]]


def markdown(report: Mapping[str, Any], comparison: Mapping[str, Any] | None = None) -> str:
    """Return the report as Markdown."""
    parts = [f"# {_escaped(report['run'])}\n"]
    parts += [f"**{_escaped(line)}**\n" for line in _verdict(report)]
    for section in _sections(report, comparison):
        parts.append(f"## {section.title}\n")
        parts.append("| | |\n|---|---|")
        parts += [f"| {_escaped(label)} | {_escaped(value)} |" for label, value in section.rows]
        parts.append("")
    parts.append("## Tasks\n\n| task | samples | successes | mean reward | missing | lost attempts |")
    parts.append("|---|---|---|---|---|---|")
    for row in report["per_task"]:
        mean = sum(row["rewards"]) / len(row["rewards"]) if row["rewards"] else None
        cells = (_task(row), row["samples"], row["successes"], _number(mean), row["missing"], row["lost_attempts"])
        parts.append(f"| {' | '.join(_escaped(str(cell)) for cell in cells)} |")
    return "\n".join(parts) + "\n"


def print_report(console: Console, report: Mapping[str, Any], comparison: Mapping[str, Any] | None = None) -> None:
    """Print the report to a terminal."""
    for section in _sections(report, comparison):
        console.print(Text(f"\n{section.title}", style="bold"))
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 3, 0, 2))
        table.add_column(no_wrap=True)
        table.add_column()
        for label, value in section.rows:
            table.add_row(Text(_plain(label), style="dim"), Text(_plain(value)))
        console.print(table)
    console.print()
    for line in _verdict(report):
        console.print(Text(_plain(line), style="bold red"), soft_wrap=True)


def write_report(folder: Path, report: Mapping[str, Any], comparison: Mapping[str, Any] | None) -> None:
    """Write ``report.json`` and ``report.md``, each whole or not at all. Raises ``EvaluationError``."""
    whole = dict(report) if comparison is None else {**report, "comparison": comparison}
    texts = {"report.json": json.dumps(whole, indent=2) + "\n", "report.md": markdown(report, comparison)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            partial = folder / f".{name}.{os.getpid()}"
            partial.write_text(text, "utf-8")
            partial.replace(folder / name)
    except OSError as error:
        raise EvaluationError(f"The report cannot be written to {folder}: {error}", "Name another --report.") from error


def _verdict(report: Mapping[str, Any]) -> list[str]:
    """Return why the numbers are not to be taken as they are; nothing if they are."""
    if report["failed"]:
        limit = f"--max-failures is {report['max_failures']:.1%}"
        return [f"The run fails ({limit}): {'; '.join(report['failed'])}."]
    if not report["complete"]:
        return [f"{report['samples']['missing']} of {report['samples']['planned']} samples are missing."]
    return []


def _sections(report: Mapping[str, Any], comparison: Mapping[str, Any] | None) -> list[_Section]:
    sections = [_settings(report), _score(report), _model(report), _infrastructure(report), _costs(report)]
    if comparison is not None:
        sections.append(_comparison(comparison))
    return sections


def _settings(report: Mapping[str, Any]) -> _Section:
    settings: Mapping[str, Any] = report["settings"]
    rows = [("run", f"{report['run']}, begun {report['begun']}")]
    rows += [(name.replace("_", " "), str(settings[name])) for name in _SHOWN]
    for name, value in settings.items():
        used = name != "context" or settings["api"] != "chat"
        if used and name not in _SHOWN and value not in (None, False, {}, []):
            rows.append((name.replace("_", " "), value if isinstance(value, str) else json.dumps(value)))
    return _Section("Settings", rows)


def _score(report: Mapping[str, Any]) -> _Section:
    tasks, samples = report["tasks"], report["samples"]
    rows: list[tuple[str, str]] = []
    for entry in report["pass_at_k"]:
        left_out = f"; {entry['left_out']} tasks with fewer samples left out" if entry["left_out"] else ""
        rows.append(
            (f"pass@{entry['k']}", f"{_share(entry['value'], entry['interval'])} of {entry['tasks']} tasks{left_out}")
        )
    reward = report["reward"]
    spread = "" if reward["lowest"] is None else f", from {_number(reward['lowest'])} to {_number(reward['highest'])}"
    rows.append(("mean reward", f"{_number(reward['mean'])}{_range(reward['interval'], _number)}{spread}"))
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
        rows.append((f"pass@1 if what was lost{missing} had failed", _share(low, None)))
        if samples["missing"]:
            rows.append(("pass@1 if what is missing had succeeded", _share(high, None)))
    return _Section("Score", rows)


def _model(report: Mapping[str, Any]) -> _Section:
    model = report["model"]
    ends: Mapping[str, int] = model["ends"]
    rows = [(_ENDS.get(end, end), f"{count} episodes") for end, count in ends.items()]
    for name, count in model["mistakes"].items():
        rows.append((MISTAKES[name], f"{count['times']}, in {count['episodes']} episodes"))
    if model["without_room_for_prompt"]:
        rows.append(("no room even for the prompt", f"{model['without_room_for_prompt']} episodes"))
    return _Section("The model's episodes", rows)


def _infrastructure(report: Mapping[str, Any]) -> _Section:
    found = report["infrastructure"]
    rows = [("attempts", f"{found['attempts']}, {found['lost']} lost, {found['lost_after_a_turn']} after a turn")]
    for kind in found["kinds"]:
        text = f"{kind['attempts']} lost, {kind['after_a_turn']} after a turn; the last: {kind['last']}"
        rows.append((f"{kind['side']}: {kind['kind']}", text))
    for kind, count in found["requests_sent_again"].items():
        rows.append((f"requests to the model sent again: {kind}", str(count)))
    if found["interrupted"]:
        rows.append(("cut off by an end of the run", f"{found['interrupted']}, begun again when it goes on"))
    return _Section("Infrastructure (in no score)", rows)


def _costs(report: Mapping[str, Any]) -> _Section:
    tokens = report["tokens"]
    rows = [("tokens", _tokens(tokens)), ("tokens of lost attempts", _tokens(tokens["lost_attempts"]))]
    if tokens["cost"] is not None:
        lost = tokens["lost_attempts"]
        lost_least = "at least " if lost["answers_without_count"] else ""
        # An attempt that a kill cut off has cost something, and nothing is known of it.
        cut_off = report["infrastructure"]["interrupted"]
        least = "at least " if lost_least or tokens["answers_without_count"] or cut_off else ""
        rows.append(("cost", f"{least}{tokens['cost'] + lost['cost']:.4f}, of it lost {lost_least}{lost['cost']:.4f}"))
    rows.append(("turns", _spread(report["turns"])))
    for name, title in (("episode", "seconds an episode"), ("model", "… for the model"), ("tools", "… for tools")):
        rows.append((title, _spread(report["seconds"][name])))
    return _Section("Cost", rows)


def _comparison(found: Mapping[str, Any]) -> _Section:
    rows = [("settings that differ", line) for line in found["settings"]]
    rows.append(("tasks compared", f"{found['tasks']}, {found['left_out']} left out for want of samples"))
    if found["fewer_samples"]:
        rows.append(("tasks with fewer samples in one run", str(found["fewer_samples"])))
    unknown = (
        ", the same in all tasks" if found["tasks"] >= FEWEST_DIFFERENCES else ", of too few tasks for an interval"
    )
    for name, title, shown in (("pass_at_1", "pass@1", _percent), ("reward", "mean reward", _number)):
        entry: Mapping[str, Any] | None = found[name]
        if entry is None:
            rows.append((title, "no task has samples in both"))
            continue
        sign = "+" if entry["difference"] > 0 else ""
        rows += [
            (title, f"{shown(entry['other'])} → {shown(entry['run'])}"),
            ("… difference", f"{sign}{shown(entry['difference'])}{_range(entry['interval'], shown) or unknown}"),
            (
                "… by task",
                f"better in {entry['better']}, worse in {entry['worse']}, p = {entry['p']:.4f}: "
                + ("significant" if entry["significant"] else "not significant"),
            ),
        ]
    return _Section(f"Compared with {found['other']}", rows)


# --- figures -------------------------------------------------------------------------------------


def _share(value: float | None, interval: Sequence[float] | None) -> str:
    return "-" if value is None else f"{_percent(value)}{_range(interval, _percent)}"


def _range(interval: Sequence[float] | None, shown: Any) -> str:
    return "" if interval is None else f" [{shown(interval[0])}, {shown(interval[1])}]"


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _tokens(tokens: Mapping[str, Any]) -> str:
    text = f"{tokens['prompt']:,} in ({tokens['cached']:,} cached), {tokens['completion']:,} out"
    unknown = tokens["answers_without_count"]
    return f"{text}; not counted by the endpoint: {unknown} answers" if unknown else text


def _spread(values: Mapping[str, float] | None) -> str:
    if values is None:
        return "-"
    mean, median, p95, highest = (f"{values[name]:.3g}" for name in ("mean", "median", "p95", "highest"))
    return f"mean {mean}, median {median}, 95 % {p95}, highest {highest}"


def _task(row: Mapping[str, Any]) -> str:
    name = f" {row['id']}" if "id" in row else ""
    return f"{row['split']}:{row['index']}{name}"


def _plain(text: str) -> str:
    return re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+", " ", text)


def _escaped(text: str) -> str:
    return re.sub(r"([\\`*_\[\]|<>&#])", r"\\\1", _plain(text)).replace("\\<", "&lt;").replace("\\&", "&amp;")
