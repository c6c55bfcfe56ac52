"""A run's report for readers: the same rows as Markdown and as tables in a terminal.

Text of a server or an endpoint is shown on one line, without control characters, and as text.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ors_clients.errors import EvaluationError
from ors_server.rollouts.reports.figures import mean
from ors_server.rollouts.reports.sections import Section, comparison_section, report_sections, verdict_lines

__all__ = ["markdown", "print_report", "write_report"]


def markdown(report: Mapping[str, Any], comparison: Mapping[str, Any] | None = None) -> str:
    """Return the report as Markdown."""
    parts = [f"# {_escaped(report['run'])}\n"]
    parts += [f"**{_escaped(line)}**\n" for line in verdict_lines(report)]
    for section in _sections(report, comparison):
        parts.append(f"## {section.title}\n")
        parts.append("| | |\n|---|---|")
        parts += [f"| {_escaped(label)} | {_escaped(value)} |" for label, value in section.rows]
        parts += ["", f"{_escaped(section.note)}\n"] if section.note else [""]
    parts.append("## Tasks\n\n| task | samples | successes | mean reward | missing | lost attempts |")
    parts.append("|---|---|---|---|---|---|")
    for row in report["per_task"]:
        earned = sum(row["rewards"]) / len(row["rewards"]) if row["rewards"] else None
        cells = (_task(row), row["samples"], row["successes"], mean(earned), row["missing"], row["lost_attempts"])
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
        if section.note:
            console.print(Text(f"  {section.note}", style="dim"))
    console.print()
    for line in verdict_lines(report):
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


def _sections(report: Mapping[str, Any], comparison: Mapping[str, Any] | None) -> list[Section]:
    return report_sections(report) + ([] if comparison is None else [comparison_section(comparison)])


def _task(row: Mapping[str, Any]) -> str:
    name = f" {row['id']}" if "id" in row else ""
    return f"{row['split']}:{row['index']}{name}"


def _plain(text: str) -> str:
    return re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+", " ", text)


def _escaped(text: str) -> str:
    return re.sub(r"([\\`*_\[\]|<>&#])", r"\\\1", _plain(text)).replace("\\<", "&lt;").replace("\\&", "&amp;")
