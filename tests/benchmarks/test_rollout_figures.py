"""The figures: overlapping intervals are counted once, and an episode's parts add up to the episode."""

from __future__ import annotations

import pytest
from ors_benchmarks.rollout.engines.base import EngineTotals, difference, read_counters
from ors_benchmarks.rollout.figures import Gatherer, ServerFacts, breakdown_of, busy_seconds, figures_of
from ors_benchmarks.rollout.recording import EngineTimes, EpisodeRecord, Span, TurnRecord
from ors_benchmarks.rollout.runs import Run
from ors_clients.errors import SessionLost
from ors_clients.samplers import SamplingParameters

#: Ten seconds: 1 to open, 0.5 for the prompt, 4 of generation, 2 of a call, 0.5 to close, 2 of the client's own.
SPANS = [
    Span("open", 0.0, 1.0),
    Span("prompt", 1.0, 1.25),
    Span("tools", 1.25, 1.5),
    Span("generate", 2.5, 6.5),
    Span("call", 7.0, 9.0),
    Span("close", 9.5, 10.0),
]


def episode(**changes: object) -> EpisodeRecord:
    turn = TurnRecord([1, 2, 3], 3, [7] * 8, SamplingParameters(), EngineTimes(queue=0.5, engine=3.0, cached=1))
    record = EpisodeRecord("a", 0, 0.0, 10.0, list(SPANS), [turn], "finished")
    for name, value in changes.items():
        setattr(record, name, value)
    return record


def test_the_parts_of_an_episode_are_the_whole_of_it() -> None:
    http = {"http_server": 0.75, "http_client": 0.25, "http_waiting": 1.5}
    server = ServerFacts(environment_seconds=1.5, environment_cpu=0.25, cpu_seconds=1.0)
    parts = breakdown_of([episode(request_cpu=0.25)], server)
    rest = {"engine": 3.0, "queue": 0.5, "handover": 0.5, "environment": 1.5, "client": 2.0}
    assert parts == pytest.approx(rest | http)
    assert sum(parts.values()) == pytest.approx(10.0)
    # Processor time of requests that ran at once may be more than one of them waited.
    busy = breakdown_of([episode(request_cpu=9.0)], server.model_copy(update={"cpu_seconds": 9.0}))
    assert busy == pytest.approx(rest | {"http_server": 2.5, "http_client": 0.0, "http_waiting": 0.0})


def test_unknown_figures_are_left_out() -> None:
    record = episode()
    record.turns = [record.turns[0]._replace(times=EngineTimes())]
    parts = breakdown_of([record], ServerFacts())
    assert parts == pytest.approx({"engine": 4.0, "http_client": 0.0, "http_waiting": 4.0, "client": 2.0})
    run = Run(0.0, 10.0, [record])
    assert "prefix_hits" not in figures_of(run, None, ServerFacts())


def test_busy_seconds_of_overlapping_spans() -> None:
    spans = [Span("generate", 5.0, 6.0), Span("generate", 0.0, 2.0), Span("generate", 1.0, 3.0)]
    assert busy_seconds(spans) == pytest.approx(4.0)
    assert busy_seconds([]) == 0.0


def test_the_ratio_is_of_tokens_a_second() -> None:
    run = Run(0.0, 10.0, [episode()])
    replayed = Run(0.0, 4.0, [episode()])
    figures = figures_of(run, replayed, ServerFacts(cpu_seconds=2.5))
    assert figures["generated_per_second"] == pytest.approx(0.8)
    assert figures["replayed_per_second"] == pytest.approx(2.0)
    assert figures["ratio"] == pytest.approx(0.4)
    assert figures["environment_share"] == pytest.approx(0.4)
    assert figures["engine_busy"] == pytest.approx(0.4)
    assert figures["server_cpu"] == pytest.approx(0.25)
    assert figures["prefix_hits"] == pytest.approx(1 / 3)


def test_an_aborted_replay_gives_no_ratio() -> None:
    figures = figures_of(Run(0.0, 10.0, [episode()]), Run(0.0, 4.0, [episode()], "broken"), ServerFacts())
    assert "ratio" not in figures


def test_rounds_are_combined_in_a_cell() -> None:
    gatherer = Gatherer("ors-server", "ours", 2, 0.0)
    lost = episode(outcome="infrastructure", failure=SessionLost("gone"), problems=["no such tool"])
    gatherer.add(Run(0.0, 10.0, [episode(), lost]), Run(0.0, 8.0, [episode(), episode()]), ServerFacts(), {"more": 1.0})
    gatherer.add(Run(0.0, 20.0, [episode()], "it broke"), None, ServerFacts(peak_mib=7.0), {"more": 3.0})
    cell = gatherer.finish()
    assert cell.outcomes == {"finished": 2, "infrastructure": 1}
    assert cell.failures == {"SessionLost: gone": 1}
    assert cell.infrastructure_failures == 1
    assert cell.problems == {"no such tool": 1}
    assert cell.notes == ["it broke"]
    assert cell.ratio is not None
    assert cell.ratio.values == pytest.approx([0.8])
    assert cell.figures["more"].values == [1.0, 3.0]
    assert cell.latencies["prompt"].count == 3
    assert cell.latencies["prompt"].p50 == pytest.approx(500.0)
    assert cell.memory_mib == {"server": 7.0}


def test_counters_of_an_engine() -> None:
    text = '# HELP x\nvllm:hits_total{engine="0"} 3.0\nvllm:hits_total{engine="1"} 1e1\nother 5\n'
    assert read_counters(text) == {"vllm:hits_total": 13.0, "other": 5.0}
    told = difference(EngineTotals(requests=2.0, queue=1.0), EngineTotals(requests=5.0, queue=1.5))
    assert told == EngineTotals(requests=3.0, queue=0.5)
