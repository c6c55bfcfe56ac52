"""The figures of a server: they are right, and clients cannot make more of them."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import pytest

from ors_server import Environment, InfrastructureFailure, RunToolOutput, ToolOutput, tool
from ors_server.telemetry.counts import EnvironmentCounts, Histogram, RouteCounts
from ors_server.telemetry.definitions import METRICS, OTHER
from ors_server.telemetry.exposition import labelled
from tests.server.metrics.reading import Figures, scrape
from tests.server.metrics.table import PAGE, table, with_table
from tests.server.protocol.conftest import Serve
from tests.support.environments import Bare, Echo, said


class Slow(Bare):
    @tool
    async def wait(self) -> ToolOutput:
        await asyncio.sleep(0.05)
        return said()

    @tool
    def block(self) -> ToolOutput:
        time.sleep(0.05)
        return said()


class Faulty(Bare):
    hangs = asyncio.Event()

    @tool
    async def crash(self) -> ToolOutput:
        raise ValueError("broken")

    @tool
    async def lose(self) -> ToolOutput:
        raise InfrastructureFailure("The machine burnt", "Buy another one.")

    @tool(concurrent=True)
    async def hang(self) -> ToolOutput:
        self.hangs.set()
        await asyncio.sleep(60)
        return said()


class Unbuildable(Echo):
    def __init__(self, task_spec: Any = {}, secrets: Any = {}) -> None:  # noqa: B006
        raise ValueError("no")


class Unready(Echo):
    async def setup(self) -> None:
        raise ValueError("no")


class Overriding(Echo):
    async def _call_tool(self, name: str, input: Mapping[str, Any]) -> RunToolOutput:
        return await super()._call_tool("echo", {"text": name})


async def test_an_episode_is_counted(serve: Serve) -> None:
    client = serve(Echo)
    sid = await client.open()
    await client.call(sid, "echo", {"text": "a"})
    await client.call(sid, "echo", {"number": 1})
    await client.call(sid, "win")
    await client.call(sid, "echo", {"text": "late"})

    figures = await scrape(client)
    echo = {"environment": "echo", "tool": "echo"}
    assert figures.sum("ors_sessions", {"environment": "echo", "state": "ready"}) == 1
    assert figures.sum("ors_calls_total", {**echo, "outcome": "ok"}) == 1
    assert figures.sum("ors_calls_total", {**echo, "outcome": "refused"}) == 2
    assert figures.sum("ors_calls_total", {"tool": "win", "outcome": "ok"}) == 1
    assert figures["ors_calls_total"] == 4
    assert figures.sum("ors_call_duration_seconds_count", echo) == 3
    assert figures.sum("ors_requests_total", {"route": "call", "code": "200"}) == 4
    assert figures.sum("ors_requests_total", {"route": "create", "code": "200"}) == 1
    assert figures["ors_session_setup_duration_seconds_count"] == 1
    assert figures["ors_requests_in_flight"] == 1  # this one
    assert figures["process_resident_memory_bytes"] > 2**20

    await client.post("/delete", sid=sid)
    figures = await scrape(client)
    assert figures["ors_sessions"] == 0
    assert figures["ors_sessions_created_total"] == 1
    assert figures.sum("ors_sessions_ended_total", {"reason": "deleted"}) == 1


async def test_the_time_in_the_tool_is_apart_from_that_in_the_server(serve: Serve) -> None:
    client = serve(Slow)
    sid = await client.open()
    await asyncio.gather(*(client.call(sid, name) for name in ("wait", "block", "wait")))

    figures = await scrape(client)
    # The second call of a tool waits in the server for the first.
    for name, calls in (("wait", 2), ("block", 1)):
        inside = figures.sum("ors_call_environment_seconds_sum", {"tool": name})
        assert inside >= 0.05 * calls * 0.99
    total = figures["ors_call_duration_seconds_sum"]
    assert total == pytest.approx(figures["ors_call_environment_seconds_sum"] + figures["ors_call_server_seconds_sum"])
    assert figures["ors_call_server_seconds_sum"] > 0.045


async def test_failures_have_their_outcomes(serve: Serve) -> None:
    client = serve(Faulty, Unbuildable, Unready, call_timeout=0.5, return_errors="none")
    crashed, lost, ended = await client.open(), await client.open(), await client.open()
    await client.call(crashed, "crash")
    await client.call(lost, "lose")
    hanging = asyncio.create_task(client.call(ended, "hang"))
    await Faulty.hangs.wait()
    assert (await scrape(client))["ors_calls_in_flight"] == 1
    await client.post("/delete", sid=ended)
    await hanging
    await client.call(crashed, "hang")  # up to its limit
    assert (await client.create("unbuilt", {"env_name": "unbuildable", "split": "train", "index": 0})).is_error
    await client.open({"env_name": "unready", "split": "train", "index": 0}, sid="unready")
    assert (await client.get("/prompt", "unready")).is_error

    figures = await scrape(client)
    for name, outcome in (("crash", "error"), ("lose", "infrastructure"), ("hang", "cancelled"), ("hang", "timeout")):
        assert figures.sum("ors_calls_total", {"tool": name, "outcome": outcome}) == 1, outcome
    assert figures["ors_calls_total"] == 4
    assert figures.sum("ors_sessions_ended_total", {"environment": "faulty", "reason": "lost"}) == 1
    assert figures.sum("ors_sessions_ended_total", {"environment": "unbuildable", "reason": "unbuilt"}) == 1
    assert figures.sum("ors_session_setup_failures_total", {"environment": "unready", "reason": "environment"}) == 1
    assert figures.sum("ors_sessions", {"environment": "unready", "state": "failed"}) == 1


@pytest.mark.parametrize("environment", [Echo, Overriding])
async def test_clients_make_no_labels(serve: Serve, environment: type[Environment]) -> None:
    client = serve(environment)
    sid = await client.open()
    before = len((await scrape(client)).samples)
    for number in range(100):
        name = f'stranger_{number}\n{{}}"'
        await client.call(sid, name, {"text": "a"})
        await client.get(f"/{name[:-4]}/tools", x_deployment=name[:-4])
        await client.get(f"/path_{number}", sid=f"stranger_{number}", x_request_id=f"stranger_{number}")
        await client.create(f"stranger_{number}", {"env_name": f"stranger_{number}"})
    figures = await scrape(client)

    assert figures.sum("ors_calls_total", {"tool": OTHER}) == 100
    assert "stranger" not in figures.text
    assert figures.sum("ors_requests_total", {"route": OTHER, "code": "404"}) == 100
    assert len(figures.samples) - before < 200


def test_an_environment_has_a_bounded_number_of_tools() -> None:
    names = [f"tool_{number}" for number in range(10_000)]
    counts = EnvironmentCounts("many", names)
    for name in names:
        counts.end_call(name, "ok", 0.1, 0.2)
    assert len(counts.tools) == 201
    assert counts.tools[OTHER].outcomes["ok"] == 9_800
    assert counts.server.sum == 0.0  # never negative


def test_a_bound_belongs_to_its_bucket() -> None:
    histogram = Histogram((0.1, 1.0))
    for seconds in (0.05, 0.1, 0.5, 1.0, 7.0):
        histogram.observe(seconds)
    assert histogram.buckets == [2, 2, 1]


def test_observations_together_are_those_one_by_one() -> None:
    seconds = [0.0, 7.0, 0.1, 0.05, 1.0, 0.5, 0.1, 3.0]
    together, single = Histogram((0.1, 1.0)), Histogram((0.1, 1.0))
    together.observe(0.2)
    together.observe_all(list(seconds))
    for each in (0.2, *seconds):
        single.observe(each)
    assert together.buckets == single.buckets == [4, 3, 2]
    assert together.sum == pytest.approx(single.sum)


def test_each_call_and_request_is_counted_once_whenever_it_is_read() -> None:
    counts, route = EnvironmentCounts("echo", ["echo"]), RouteCounts()
    for number in range(1, 1001):
        counts.end_call("echo", "ok" if number % 2 else "error", 0.2, 0.1)
        route.active += 1
        route.end(200 if number % 4 else 404, 0.2)
        if number % 37 == 0 or number == 1000:
            tool = counts.tools["echo"]
            assert tool.outcomes["ok"] + tool.outcomes["error"] == number
            assert tool.seconds.count == tool.inside.count == counts.server.count == number
            *codes, seconds = route.samples("call")
            assert sum(sample.value for sample in codes if isinstance(sample.value, int)) == number
            assert isinstance(seconds.value, Histogram)
            assert seconds.value.count == number
    assert counts.tools["echo"].outcomes["error"] == 500
    assert counts.server.sum == pytest.approx(100.0)
    codes = route.samples("call")[:2]
    assert [(sample.labels, sample.value) for sample in codes] == [(("call", "200"), 750), (("call", "404"), 250)]


async def test_text_is_what_the_definitions_say(serve: Serve) -> None:
    client = serve(Echo)
    await client.call(await client.open(), "echo", {"text": "a"})
    figures = await scrape(client)
    for name, family in figures.families.items():
        if name.startswith(("process_", "python_")):
            continue
        metric = METRICS[name]
        assert (family.type, family.documentation) == (metric.kind, metric.meaning)
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(metric.labels)


async def test_the_lag_of_the_loop(serve: Serve) -> None:
    client = serve(Echo)
    await scrape(client)
    time.sleep(0.3)  # noqa: ASYNC251 - the lag is what is measured
    await asyncio.sleep(0.02)
    figures = await scrape(client)
    assert figures["ors_event_loop_lag_seconds_count"] >= 1
    assert figures["ors_event_loop_lag_seconds_sum"] > 0.04
    client.app.metrics.lag.stop()  # type: ignore[union-attr]


async def test_scrapes_at_the_same_time(serve: Serve) -> None:
    client = serve(Echo)
    for figures in await asyncio.gather(*(scrape(client) for _ in range(20))):
        assert figures["ors_build_info"] == 1


async def test_off(serve: Serve) -> None:
    client = serve(Echo, metrics=False)
    await client.call(await client.open(), "echo", {"text": "a"})
    assert (await client.get("/metrics")).status_code == 404


def test_the_documentation_has_every_metric() -> None:
    page = PAGE.read_text()
    assert page == with_table(page), "run `python -m tests.server.metrics.table`"
    assert table() in page


def test_a_label_is_added_to_each_series() -> None:
    text = b'# HELP a A {b} c\n# TYPE a gauge\na 1.0\na{b="c d{ "} 2.0\n'
    added = Figures(labelled(text, "process", 'x"\\\ny').decode())
    assert added.values("process") == {'x"\\\ny'}
    assert added.sum("a", {"b": "c d{ "}) == 2
    assert added["a"] == 3


async def test_a_request_through_middleware_is_counted_once(serve: Serve) -> None:
    client = serve(Echo)

    async def pass_on(request: Any, call_next: Any) -> Any:
        return await call_next(request)

    client.app.middleware("http")(pass_on)  # type: ignore[union-attr]
    sid = await client.open()
    await client.call(sid, "echo", {"text": "a"})
    await client.get("/nothing")
    figures = await scrape(client)
    assert figures.sum("ors_requests_total", {"route": "call"}) == 1
    assert figures.sum("ors_requests_total", {"route": OTHER}) == 1
    assert figures["ors_requests_total"] == 3
