"""The table of runs in docs/train.md is that of the committed reports."""

from __future__ import annotations

import json

from tests.support.paths import ROOT


def test_the_table_is_that_of_the_reports() -> None:
    reports = [json.loads(file.read_bytes()) for file in (ROOT / "benchmarks" / "results").glob("train-*.json")]
    rows: list[str] = []
    for report in sorted(reports, key=lambda report: (report["target"], report["seed"])):
        names = ("before-sampled", "after-sampled", "before-greedy", "supervised-sampled")
        rates = (f"{report['pass_rates'][name]['all']:.3f}" for name in names)
        rows.append(f"| `{report['target']}`, {report['seed']} | {' | '.join(rates)} |")
    assert "\n".join(rows) in (ROOT / "docs" / "train.md").read_text()
    assert len(rows) >= 6
