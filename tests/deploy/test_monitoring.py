"""The dashboard and Prometheus' configuration: what they ask for is what ``/metrics`` has."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import prometheus_client
import pytest
import yaml

from ors_server.telemetry.definitions import METRICS
from tests.support.paths import ROOT

promql: Any = import_module("promql_parser")  # modules without types
grafana: Any = import_module("grafana_foundation_sdk.models.dashboard")

PROMETHEUS = ROOT / "deploy" / "prometheus" / "prometheus.yml"
DASHBOARD: dict[str, Any] = json.loads((ROOT / "deploy" / "grafana" / "ors-server.json").read_text())
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load(PROMETHEUS.with_name("alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
#: Labels of Prometheus, of a server with several workers, and of a histogram.
COMMON = {"job", "instance", "worker", "gateway", "process", "le"}


def labels_of_series() -> dict[str, set[str]]:
    """Return the labels of every series that a response may have."""
    found: dict[str, set[str]] = {"up": set()}
    for metric in METRICS.values():
        parts = ("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",)
        found |= {f"{metric.exposed_name}{part}": set(metric.labels) for part in parts}
    for family in prometheus_client.REGISTRY.collect():
        found |= {sample.name: set(sample.labels) for sample in family.samples}
    return found


def expressions() -> list[str]:
    found = [target["expr"] for panel in PANELS for target in panel["targets"]]
    found += [rule["expr"] for rule in RULES]
    page = (ROOT / "docs" / "metrics.md").read_text()
    found += [query.replace("\\|", "|") for query in re.findall(r"^\| [^|]*\? \| `(.*?)`", page, re.MULTILINE)]
    return [text.replace("$__rate_interval", "5m") for text in found]


def parts(node: Any) -> Iterator[Any]:
    """Walk the tree of an expression."""
    yield node
    for name in ("lhs", "rhs", "expr", "vector_selector", "args"):
        child = getattr(node, name, None)
        for each in child if isinstance(child, list) else [child]:  # pyright: ignore[reportUnknownVariableType]
            if each is not None:
                yield from parts(each)


@pytest.mark.parametrize("text", expressions())
def test_a_query_names_series_and_labels_that_exist(text: str) -> None:
    series = labels_of_series()
    nodes = list(parts(promql.parse(text)))
    selectors = [node for node in nodes if isinstance(node, promql.VectorSelector)]
    assert selectors
    known: set[str] = set(COMMON)
    for selector in selectors:
        assert selector.name in series
        matched = {matcher.name for matcher in selector.matchers.matchers}
        assert matched <= series[selector.name] | COMMON, selector.name
        known |= series[selector.name]
    for node in nodes:
        if isinstance(node, promql.AggregateExpr) and node.modifier is not None:
            assert set(node.modifier.labels) <= known
            # A rate outside of the sum, or none: a worker that begins again would look like a burst.
            inner = [child for child in parts(node) if isinstance(child, promql.VectorSelector)]
            assert not any(selector.name.endswith("_total") for selector in inner) or re.search(
                r"(rate|increase)\(", text
            )


def test_the_dashboard_loads() -> None:
    dashboard = grafana.Dashboard.from_json(DASHBOARD)
    assert dashboard.title == "ors-server"
    assert len(dashboard.panels) == len(DASHBOARD["panels"])
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in PANELS:
        assert panel["datasource"]["uid"] == "${datasource}", "a dashboard knows no data source of its author's"
        for target in panel["targets"]:
            assert set(re.findall(r"\$(\w+)", target["expr"])) <= {"job", "environment", "__rate_interval"}
    for one, other in itertools.combinations((panel["gridPos"] for panel in DASHBOARD["panels"]), 2):
        apart = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert apart or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]


def test_the_dashboard_shows_every_metric() -> None:
    text = json.dumps(DASHBOARD)
    missing = {name for name in METRICS if name not in text}
    assert missing == set()


def test_the_configuration_of_prometheus() -> None:
    given = yaml.safe_load(PROMETHEUS.read_text())
    (job,) = given["scrape_configs"]
    assert (job["metrics_path"], job["static_configs"]) == ("/metrics", [{"targets": ["127.0.0.1:8080"]}])
    promtool = shutil.which("promtool")
    if promtool is not None:
        checked = subprocess.run([promtool, "check", "config", PROMETHEUS], capture_output=True, text=True, timeout=30)
        assert checked.returncode == 0, checked.stderr


def test_each_alert_says_what_happened_and_how_bad_it_is() -> None:
    assert yaml.safe_load(PROMETHEUS.read_text())["rule_files"] == ["alerts.yml"]
    names = [rule["alert"] for rule in RULES]
    assert len(set(names)) == len(names)
    for rule in RULES:
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"]
