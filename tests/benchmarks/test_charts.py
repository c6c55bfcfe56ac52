"""The charts: drawn where there are figures; without matplotlib, a message says so."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from ors_benchmarks.harness.reports import charts
from ors_benchmarks.harness.reports.figures import Measured
from ors_benchmarks.server.charts import draw

from tests.benchmarks.test_results import gather, measured, report_of

needs_matplotlib = pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="matplotlib, of the extra `bench`, is not installed"
)


@pytest.mark.long
@needs_matplotlib
def test_charts_of_what_was_measured(tmp_path: Path) -> None:
    gathered = gather()
    assert draw(report_of(gathered), tmp_path, "none") == []
    measured(gathered, ours=[60, 70, 75], ors_sdk=[840, 850, 860], floor=[20, 20, 20])
    assert [path.name for path in draw(report_of(gathered), tmp_path, "some")] == ["some-cpu.png"]
    curve = [(1.0, 2.0), (512.0, 90.0)]
    gathered.add("ours", "latency", Measured(curves={"latency_p50": curve, "latency_p99": curve}), {})
    gathered.add("ours", "sessions", Measured(curves={"memory": [(0, 0), (1024, 3)]}), {})
    written = draw(report_of(gathered), tmp_path, "all")
    assert [path.name for path in written] == ["all-cpu.png", "all-latency.png", "all-memory.png"]
    for path in written:
        content = path.read_bytes()
        assert content.startswith(b"\x89PNG")
        assert len(content) > 10_000


def test_without_matplotlib_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_nothing(name: str) -> None:
        return None

    monkeypatch.setattr("importlib.util.find_spec", find_nothing)
    with pytest.raises(charts.ChartsUnavailable, match="--no-charts"):
        charts.check_available()
