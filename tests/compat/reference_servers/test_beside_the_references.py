"""The faults of the reference servers.

Each scenario is played on the SDK's own server, which shows the fault, and on ours, which must not. The environments
are the same classes (`beside`); `docs/decisions/0014-faults-of-the-reference-servers.md` has all of them.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import importlib
import json
import uuid
from collections.abc import AsyncGenerator, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import aiohttp
import httpx
import pytest
import pytest_asyncio

from tests.compat.reference_servers.beside import JOURNAL, LINGER
from tests.server.robustness.parsers import PARSERS, read_by
from tests.support.events import Event, EventParser, Reply, parse_events
from tests.support.servers import Running, launched

#: Long, for the faults are those of others, and their SDKs take ten seconds to import.
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.long]

SDK = Literal["openreward", "ors-sdk"]
EVERY_SDK: tuple[SDK, ...] = ("openreward", "ors-sdk")


@dataclass
class Side:
    """One server that hosts the classes of one SDK."""

    sdk: SDK
    is_reference: bool
    http: httpx.AsyncClient
    journal: Path
    #: The environment of a session other than `bench`.
    others: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def prefix(self) -> str:
        return "p" if self.sdk == "openreward" else "o"

    def path(self, name: str, environment: str = "bench") -> str:
        return f"/{self.prefix}{environment}/{name}"

    def noted(self, subject: str) -> list[str]:
        lines = (line.rpartition(" ") for line in self.journal.read_text().splitlines())
        return [event for event, _, name in lines if name == subject]

    async def until(self, subject: str, *events: str) -> None:
        """Wait until all of these have been recorded."""
        async with asyncio.timeout(60):
            while not set(events) <= set(self.noted(subject)):  # noqa: ASYNC110 - noted by another process
                await asyncio.sleep(0.01)

    async def post(self, path: str, sid: str | None, body: object = None, **headers: str) -> httpx.Response:
        if sid is not None:
            headers["X-Session-ID"] = sid
        return await self.http.post(path, json=body, headers=headers)

    async def create(self, sid: str, environment: str = "bench", **spec: Any) -> httpx.Response:
        task = {"subject": sid, **spec}
        return await self.post("/create", sid, {"task_spec": task, "env_name": self.prefix + environment})

    async def open(self, environment: str = "bench", **spec: Any) -> str:
        sid = uuid.uuid4().hex
        self.others[sid] = environment
        response = await self.create(sid, environment, **spec)
        assert response.status_code == 200, response.text
        return sid

    async def call(self, sid: str, tool: str, task_id: str | None = None, **arguments: Any) -> Reply:
        return Reply(parse_events((await self.call_response(sid, tool, task_id, **arguments)).content))

    async def call_response(self, sid: str, tool: str, task_id: str | None = None, **arguments: Any) -> httpx.Response:
        body: dict[str, Any] = {"name": tool, "input": arguments}
        if task_id is not None:
            body["task_id"] = task_id
        response = await self.post(self.path("call", self.others.get(sid, "bench")), sid, body)
        assert response.status_code == 200, response.text
        return response

    async def events_within(
        self, limit: float, sid: str, tool: str, *, only_first: bool = False, **arguments: Any
    ) -> list[Event]:
        """Return the events of a call within this many seconds, or until the stream ends; then disconnect."""
        parser, events = EventParser(), list[Event]()
        body, headers = {"name": tool, "input": arguments}, {"X-Session-ID": sid}
        with contextlib.suppress(TimeoutError):
            async with (
                asyncio.timeout(limit),
                self.http.stream("POST", self.path("call"), json=body, headers=headers) as response,
            ):
                async for chunk in response.aiter_raw():
                    events += parser.feed(chunk)
                    if events and only_first:
                        break
        return events


@dataclass(frozen=True)
class Servers:
    """All three servers."""

    running: dict[str, Running]
    journals: dict[str, Path]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Generator[Servers]:
    folders = {which: tmp_path_factory.mktemp(f"beside-{which}") for which in ("own", *EVERY_SDK)}
    with contextlib.ExitStack() as stack, ThreadPoolExecutor() as threads:

        def start(which: str) -> Running:
            journal = folders[which] / "journal"
            journal.touch()
            variables = {
                JOURNAL: str(journal),
                "ORS_RESULT_TTL": "0.1",
                "OPENREWARD_DISABLE_UPDATE_CHECK": "1",
                "PYTHONWARNINGS": "ignore",
                "ORS_LOG_LEVEL": "error" if which == "own" else "CRITICAL",
                "OPENREWARD_LOG_LEVEL": "CRITICAL",
            }
            launching = launched("compat.reference_servers.beside", folders[which], which, variables=variables)
            return stack.enter_context(launching)

        running = dict(zip(folders, threads.map(start, folders), strict=True))  # each takes seconds to import its SDK
        yield Servers(running, {which: folder / "journal" for which, folder in folders.items()})


@pytest_asyncio.fixture(loop_scope="module", params=[*EVERY_SDK, "own-openreward", "own-ors-sdk"])
async def side(request: pytest.FixtureRequest, servers: Servers) -> AsyncGenerator[Side]:
    """Return each reference server, and ours with the classes of each SDK."""
    parameter: str = request.param
    which = "own" if parameter.startswith("own-") else parameter
    sdk: SDK = "openreward" if parameter.endswith("openreward") else "ors-sdk"
    timeout = httpx.Timeout(20)
    async with httpx.AsyncClient(base_url=servers.running[which].url, timeout=timeout, trust_env=False) as http:
        yield Side(sdk, which != "own", http, servers.journals[which])


#: For faults of one reference server alone.
of_openreward = pytest.mark.parametrize("side", ["openreward", "own-openreward"], indirect=True)
of_ors_sdk = pytest.mark.parametrize("side", ["ors-sdk", "own-ors-sdk"], indirect=True)


# --- results -------------------------------------------------------------------------------------


async def test_white_space_at_chunk_borders(side: Side) -> None:
    response = await side.call_response(await side.open(), "lines")
    events = await asyncio.to_thread(read_by, side.sdk, response.content)
    text = "".join(data for name, data in events if name in ("chunk", "end"))
    wanted = "".join(f"        line {number}\n" for number in range(1000))
    assert (json.loads(text)["output"]["blocks"][0]["text"] == wanted) is not side.is_reference


async def test_a_reward_that_is_not_a_number(side: Side) -> None:
    reply = await side.call(await side.open(), "nan")
    if side.is_reference:
        assert reply.output["reward"] is None  # as if the tool had returned none
    else:
        assert reply.names == ["task_id", "error"]


async def test_a_lone_surrogate(side: Side) -> None:
    reply = await side.call(await side.open(), "surrogate")
    if side.is_reference:
        assert reply.names[-1] == "error"
    else:
        assert reply.text == "half \N{REPLACEMENT CHARACTER}"


async def test_metadata_that_is_not_json(side: Side) -> None:
    sid = await side.open()
    reply = await side.call(sid, "metadata")
    assert side.noted(sid).count("metadata") == 1
    if side.is_reference:
        assert reply.names[-1] == "error"  # after the tool has had all its effects
    else:
        assert reply.text == "done"


async def test_a_tool_that_is_cancelled(side: Side) -> None:
    events = await side.events_within(0.5, await side.open(), "cancelled")
    if side.is_reference:
        assert [event.name for event in events] == ["task_id"]  # and nothing more, without end
    else:
        assert [event.name for event in events] == ["task_id", "error"]


async def test_the_id_of_another_sessions_call(side: Side) -> None:
    mine, theirs = await side.open(), await side.open()
    task_id = (await side.call(mine, "echo", text="my secret")).task_id
    stolen = await side.call(theirs, "echo", task_id=task_id)
    if side.is_reference:
        assert stolen.text == "my secret"
    else:
        assert stolen.error == "unknown task_id"


async def test_a_result_fetched_late(side: Side) -> None:
    """The reference keeps results for a minute, here less; ours moves undelivered results to disk, here at once."""
    sid = await side.open()
    first, *_ = await side.events_within(5, sid, "nap", only_first=True, seconds=0.15)
    await asyncio.sleep(0.15 + LINGER + 0.2)
    reply = await side.call(sid, "nap", task_id=first.data, seconds=0.15)
    if side.is_reference:
        assert reply.error == "unknown task_id"
    else:
        assert reply.text == "rested"


async def test_the_text_of_an_error_event(side: Side) -> None:
    """Every server here is configured to return no errors."""
    reply = await side.call(await side.open(), "leak")
    assert ("hunter2" in reply.error) is side.is_reference


# --- sessions ------------------------------------------------------------------------------------


@of_openreward
async def test_a_create_that_is_retried_while_the_first_runs(side: Side) -> None:
    sid = uuid.uuid4().hex
    answers = await asyncio.gather(*(side.create(sid, construct=0.2) for _ in range(2)))
    assert [answer.status_code for answer in answers] == [200, 200]
    await asyncio.sleep(0.2)
    await side.post("/delete", sid)
    noted = side.noted(sid)
    if side.is_reference:
        # Two instances; the one in use was never set up, the other is never torn down.
        assert (noted.count("constructed"), noted.count("torn down")) == (2, 1)
    else:
        assert noted == ["construct", "constructed", "set up", "torn down"]


async def test_a_create_that_is_retried_later(side: Side) -> None:
    sid = await side.open()
    assert (await side.create(sid)).status_code == (400 if side.is_reference else 200)


@of_openreward
async def test_a_deletion_during_construction(side: Side) -> None:
    sid = uuid.uuid4().hex
    creating = asyncio.create_task(side.create(sid, construct=0.3))
    await side.until(sid, "construct")
    assert (await side.post("/delete", sid)).status_code == 200
    await creating
    if side.is_reference:
        await asyncio.sleep(0.1)
        assert "torn down" not in side.noted(sid)
    else:
        await side.until(sid, "torn down")


async def test_a_deletion_under_a_running_call(side: Side) -> None:
    sid = await side.open()
    call = asyncio.create_task(side.events_within(0.6, sid, "nap", seconds=0.3))
    await side.until(sid, "nap")
    await side.post("/delete", sid)
    await call
    await side.until(sid, "nap ended", "torn down")
    last = [event for event in side.noted(sid) if event in ("nap ended", "torn down")]
    assert last == (["torn down", "nap ended"] if side.is_reference else ["nap ended", "torn down"])


@of_ors_sdk
async def test_a_set_up_that_fails_is_torn_down(side: Side) -> None:
    sid = await side.open(setup_fails="error")
    await side.http.get(side.path("prompt"), headers={"X-Session-ID": sid})
    await side.post("/delete", sid)
    assert ("torn down" in side.noted(sid)) is not side.is_reference


async def test_a_ping_after_a_failed_set_up(side: Side) -> None:
    sid = await side.open(setup_fails="error")
    prompt = await side.http.get(side.path("prompt"), headers={"X-Session-ID": sid})
    assert prompt.status_code == 500
    assert (await side.post("/ping", sid)).status_code == (200 if side.is_reference else 500)


async def test_a_set_up_that_chooses_its_status(side: Side) -> None:
    sid = await side.open(setup_fails="teapot")
    prompt = await side.http.get(side.path("prompt"), headers={"X-Session-ID": sid})
    assert prompt.status_code == (418 if side.is_reference else 500)


@of_openreward
async def test_a_set_up_that_is_cancelled_from_within(side: Side) -> None:
    sid = await side.open(setup_cancelled=True)
    prompt = await side.http.get(side.path("prompt"), headers={"X-Session-ID": sid})
    if side.is_reference:
        assert (prompt.status_code, prompt.json()[0]["text"]) == (200, f"{sid} False")  # never set up, and used
    else:
        assert prompt.status_code == 500


async def test_a_read_time_out_during_set_up(side: Side) -> None:
    """The clients' own code, which cancels a silent response; after 30 s, shortened here to 0.3 s.

    openreward's server answers 503 after 25 s, in time for its own client's 30.
    """
    resumable_sse: Any = importlib.import_module(PARSERS[side.sdk]).resumable_sse
    sid = await side.open(setup=0.9)
    async with aiohttp.ClientSession(str(side.http.base_url)) as http:
        call = {"name": "echo", "input": {"text": "once"}}
        await resumable_sse(
            http, side.path("call"), None, json=call, sid=sid, heartbeat_timeout=0.3, backoff_base=0.05, max_retries=9
        )
    await asyncio.sleep(0.2)
    runs = side.noted(sid).count("echo")
    assert runs > 1 if side.is_reference else runs == 1


@of_ors_sdk
async def test_secrets_in_the_header(side: Side) -> None:
    """Both SDKs' clients send secrets there."""
    sid = uuid.uuid4().hex
    secrets = base64.b64encode(json.dumps({"key": {"value": "hunter2"}}).encode()).decode()
    body: dict[str, Any] = {"task_spec": {}, "env_name": "obench"}
    assert (await side.post("/create", sid, body, **{"X-Secrets": secrets})).status_code == 200
    assert (await side.call(sid, "secret_is")).text == ("" if side.is_reference else "hunter2")


@of_ors_sdk
async def test_a_call_after_the_end(side: Side) -> None:
    sid = await side.open()
    await side.call(sid, "win")
    late = (await side.call(sid, "echo", text="late")).result
    assert late["ok"] is side.is_reference


# --- environments --------------------------------------------------------------------------------


async def test_a_subclass_beside_its_base(side: Side) -> None:
    async def count(environment: str) -> int:
        return (await side.post(side.path("num_tasks", environment), None, {"split": "train"})).json()["num_tasks"]

    assert await count("base") == 3
    assert await count("derived") == (3 if side.is_reference else 1)


@of_openreward
async def test_a_subclass_with_splits_and_tasks_of_its_own(side: Side) -> None:
    async def splits(environment: str) -> list[str]:
        return [split["name"] for split in (await side.http.get(side.path("splits", environment))).json()]

    async def task(environment: str) -> Any:
        body = {"split": "train", "index": 0}
        return (await side.post(side.path("task", environment), None, body)).json()["task"]

    assert await splits("bench") == ["train"]
    assert await splits("base") == (["train"] if side.is_reference else ["train", "test"])
    assert await task("base") == {"subject": "listed"}
    assert await task("derived") == {"subject": "listed" if side.is_reference else "derived"}


async def test_unshared_tools(side: Side) -> None:
    """A session has the shared tools and those that `list_task_tools` names; the reference runs the others, too."""

    async def tools(sid: str) -> dict[str, str]:
        response = await side.http.get(side.path("task_tools", "listing"), headers={"X-Session-ID": sid})
        return {tool["name"]: tool["description"] for tool in response.json()["tools"]}

    shared = {tool["name"] for tool in (await side.http.get(side.path("tools", "listing"))).json()["tools"]}
    assert not shared & {"hint", "solve"}
    none, one = await side.open("listing", listed=[]), await side.open("listing", listed=["hint"])
    assert set(await tools(none)) == shared
    assert set(await tools(one)) == shared | {"hint"}
    assert (await tools(one))["hint"] == "of this task"
    assert (await side.call(one, "hint")).text == "hint"
    assert (await side.call(one, "echo", text="a")).text == "a"
    kept_back = await side.call(one, "solve")
    assert (kept_back.result["ok"]) is side.is_reference
    assert (await side.call(none, "hint")).result["ok"] is side.is_reference
    if not side.is_reference:
        assert kept_back.reason == "not_found"
        told = kept_back.result["error"]
        assert "hint" in told
        assert "solve" not in told.removeprefix("'solve'")


async def test_a_call_tool_of_the_authors_own(side: Side) -> None:
    """`_call_tool` is run for every call, and `super()._call_tool` runs tools; the responses equal the reference's."""
    sid = await side.open("dynamic")
    made = (await side.call(sid, "made.up", b=1, a=[2])).output
    assert made["blocks"][0]["text"] == "up [('a', [2]), ('b', 1)]"
    assert (made["reward"], made["finished"], made["metadata"]) == (0.5, False, {"name": "up"})
    echoed = (await side.call(sid, "echo", text="one")).output
    assert [block["text"] for block in echoed["blocks"]] == ["one", "seen"]
    assert (await side.call(sid, "alias.echo", text="two")).text == "two"
    refused = (await side.call(sid, "refuse")).result
    assert (refused["ok"], refused["error"], refused.get("reason")) == (False, "not now", None)
    unknown = (await side.call(sid, "unknown")).result
    assert unknown["error"].startswith("'unknown' is not a valid tool")
    invalid = (await side.call(sid, "echo", text=[])).result
    assert invalid["error"].startswith("Tool input validation error")
    assert (await side.call(sid, "raise")).names[-1] == "error"
    called = ("made.up", "echo", "alias.echo", "refuse", "unknown", "echo", "raise")
    assert [event for event in side.noted(sid) if event.startswith("called-")] == [f"called-{name}" for name in called]


async def test_a_call_tool_of_the_authors_own_ends_the_episode(side: Side) -> None:
    """Once: the reference grants a reward for each call that a class handles by itself."""
    sid = await side.open("dynamic")
    # Both run at once, and the call that began first ends last.
    slow = asyncio.create_task(side.call(sid, "finish", second=True))
    await side.until(sid, "called-finish")
    results = [(await side.call(sid, "finish.again")).result, (await slow).result]
    assert results[0]["output"]["reward"] == 1.0
    late = (await side.call(sid, "made.up")).result
    if side.is_reference:
        assert results[1]["ok"] is late["ok"] is True
    else:
        assert results[1]["reason"] == late["reason"] == "episode_finished"
    sid = await side.open("dynamic")
    assert (await side.call(sid, "win")).output["reward"] == 1.0
    assert (await side.call(sid, "win")).result["ok"] is (side.is_reference and side.sdk == "ors-sdk")


async def test_synchronous_tools_behind_a_call_tool(side: Side) -> None:
    """Never on the event loop, where ors-sdk runs them."""
    thread = (await side.call(await side.open("dynamic"), "thread")).output["blocks"][0]["text"]
    assert (thread == "MainThread") is (side.is_reference and side.sdk == "ors-sdk")
    if not side.is_reference:
        assert thread.startswith("ors-")


@of_openreward
async def test_a_call_tool_that_returns_something_else(side: Side) -> None:
    assert (await side.call(await side.open("dynamic"), "bare")).names[-1] == "error"


@of_ors_sdk
async def test_blocking_code_of_one_session(side: Side) -> None:
    sid = await side.open()
    await side.call(sid, "echo")
    call = asyncio.create_task(side.call(sid, "block", seconds=0.8))
    await side.until(sid, "block")
    assert (await side.http.get("/health")).status_code == 200
    assert ("block ended" in side.noted(sid)) is side.is_reference
    assert (await call).text == "unblocked"


async def test_an_environment_that_is_not_hosted(side: Side) -> None:
    response = await side.http.get("/typo/tools")
    assert response.status_code == (308 if side.is_reference else 404)


async def test_the_error_for_a_body_does_not_repeat_it(side: Side) -> None:
    body: dict[str, Any] = {"name": "echo", "input": {}, "password": "hunter2"}
    response = await side.post(side.path("call"), await side.open(), body)
    assert response.status_code == 422
    assert ("hunter2" in response.text) is side.is_reference


@of_ors_sdk
async def test_a_body_over_any_limit(side: Side) -> None:
    """17 MiB, a little over our limit."""
    body = {"name": "echo", "input": {"text": "x" * 17 * 2**20}}
    response = await side.post(side.path("call"), await side.open(), body)
    assert response.status_code == (200 if side.is_reference else 413)
