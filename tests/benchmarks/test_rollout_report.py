"""The report's statement on its ratio: the budget only where one was set, and the servers that must be exceeded."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from ors_benchmarks.harness.machine import describe
from ors_benchmarks.harness.reports.results import Summary
from ors_benchmarks.rollout.figures import Cell
from ors_benchmarks.rollout.reports.report import RolloutReport, headline

CORES = describe().cores


def cell(server: str = "ors-server", ratio: float | None = 0.95, concurrency: int = 64, **changes: Any) -> Cell:
    return Cell(
        server=server,
        client=changes.pop("client", "ors_clients"),
        concurrency=concurrency,
        think_time=changes.pop("think_time", 0.0),
        ratio=None if ratio is None else Summary.of([ratio]),
        figures={"environment_share": Summary.of([0.016])},
    )


def report(*cells: Cell, device: str = "cpu", env: str = "echo", engine: str = "vllm", **changes: Any) -> RolloutReport:
    first = cells[0].ratio
    return RolloutReport(
        ratio=None if first is None else first.median,
        ended_early=None,
        started=datetime.now(UTC),
        seconds=1.0,
        machine=describe().model_copy(update={"pinned": changes.pop("pinned", True)}),
        model=changes.pop("model", "tiny"),
        engine=engine,
        engine_description={"device": device},
        packages={},
        options={"env": env},
        rounds=1,
        cells=list(cells),
        timeline=[],
    )


@pytest.mark.parametrize(
    ("made", "budget"),
    [
        (report(cell()), 0.90),
        (report(cell(), env="terminal"), None),
        (report(cell(concurrency=16)), None),
        (report(cell(think_time=0.1)), None),
        (report(cell(client="openreward")), None),
        (report(cell("ors-sdk")), None),
        (report(cell(), model="qwen3-0.6b-random"), None),
        (report(cell(), pinned=False), None),
        (report(cell(), engine="url"), None),
        (report(cell(), device=""), None),
        (report(cell(concurrency=256), device="cuda", env="terminal", model="qwen3-8b-random"), 0.90),
        (report(cell(concurrency=16 * CORES), device="emulated", engine="emulated"), 0.97),
        (report(cell(concurrency=16 * CORES), device="emulated", env="terminal"), 0.92),
        (report(cell(concurrency=1), device="emulated", env="terminal"), None),
        (report(cell(concurrency=256), device="cuda", env="mine"), None),
        (report(cell(concurrency=64), device="cuda"), None),
    ],
)
def test_the_headline_names_a_budget_only_where_one_was_set(made: RolloutReport, budget: float | None) -> None:
    assert made.budget == budget
    assert made.cells[0].ratio is not None
    assert ("budget" in headline(made, made.cells[0].ratio)) == (budget is not None)


def test_the_other_servers_are_part_of_the_budget() -> None:
    other_client = cell("openreward", 0.99, client="openreward")
    below = report(cell(), cell("ors-sdk", 0.91), cell("openreward", None), other_client)
    assert below.cells[0].ratio is not None
    assert headline(below, below.cells[0].ratio).startswith(
        "ratio 0.950 (0.950–0.950), budget ≥ 0.90 ✓, and above ors-sdk 0.910 ✓: "
    )
    assert headline(below, below.cells[0].ratio).endswith("; 1.6% of an episode's time at its environment")
    above = report(cell(), cell("ors-sdk", 1.109), cell("openreward", 0.91))
    assert above.cells[0].ratio is not None
    assert "and above ors-sdk 1.109, openreward 0.910 ✗" in headline(above, above.cells[0].ratio)
