"""The client against our server and both reference servers: one suite with the same expectations."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator, Callable, Generator
from contextvars import ContextVar

import httpx
import pytest
import pytest_asyncio
from ors_clients.client.async_client import AsyncClient
from ors_clients.client.environments import AsyncEnvironment
from ors_clients.client.sync_client import Client
from ors_clients.errors import (
    CallOutcomeUnknown,
    DeadlineExceeded,
    NotFound,
    RequestRefused,
    ServerUnavailable,
    SessionLost,
    ToolFailed,
)
from ors_clients.models import ToolResult
from ors_clients.transport.base import Headers, Request, Response
from ors_clients.transport.httpx_transport import HttpxTransport
from ors_clients.transport.sockets import SocketTransport

from ors_server.protocol import ImageBlock, TextBlock
from tests.clients.workshop import LINES, MODULES, PNG, Site, sites
from tests.server.robustness.cutting import UNCUT, Cut, call_request, cutting, each, send

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECRET = "hunter2hunter2"


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Generator[dict[str, Site]]:
    with sites(tmp_path_factory.mktemp("workshops")) as running:
        yield running


@pytest.fixture(params=MODULES)
def site(request: pytest.FixtureRequest, servers: dict[str, Site]) -> Site:
    return servers[request.param]


@pytest_asyncio.fixture(loop_scope="module")
async def environment(site: Site) -> AsyncGenerator[AsyncEnvironment]:
    async with AsyncClient(site.url, retries=2) as client:
        yield client.environment("workshop")


@pytest.fixture
def subject() -> str:
    return uuid.uuid4().hex


async def test_discovery(site: Site, environment: AsyncEnvironment) -> None:
    async with AsyncClient(site.url) as client:
        assert await client.environments() == ["workshop"]
    assert [split.name for split in await environment.splits()] == ["train", "test"]
    assert await environment.num_tasks("train") == 5
    tasks = await environment.tasks("test")
    assert [(task.index, task.split, task.spec["subject"]) for task in tasks] == [
        (number, "test", f"test-{number}") for number in range(5)
    ]
    assert {task.environment for task in tasks} == {"workshop"}
    assert await environment.task("test", 2) == tasks[2] or site.kind == "ors-sdk"
    if site.kind == "own":
        with pytest.raises(RequestRefused, match="-1 is outside"):
            await environment.task("train", -1)
    else:  # the SDKs' servers count from the end
        last = await environment.task("train", -1)
        assert (last.index, last.spec) == (None, {"subject": "train-4"})
    sliced = await environment.task_range("train", 1, 3)
    assert [(task.index, task.spec["subject"]) for task in sliced] == [(1, "train-1"), (2, "train-2")]
    names = [tool.name for tool in await environment.tools()]
    assert names == ["fail", "finish", "lines", "look", "whisper", "work"]


async def test_an_episode(site: Site, environment: AsyncEnvironment, subject: str) -> None:
    async with environment.session(task={"subject": subject}) as session:
        prompt = [TextBlock(text=f" Work on {subject}."), ImageBlock(data=PNG, mimeType="image/png")]
        assert await session.prompt() == prompt
        (message,) = await session.messages()
        assert (message.role, message.blocks) == ("user", prompt)
        assert "finish" in {tool.name for tool in await session.tools()}
        assert session.terminal_tool is None
        result = await session.call("work", {"text": "  é\u2028"})
        assert result == ToolResult([TextBlock(text="   é\u2028\n")], 0.5, False, {"run": 1})
        looked = await session.call("look")
        assert (looked.text, looked.images, looked.reward) == (
            "a\nb",
            [ImageBlock(data=PNG, mimeType="image/png")],
            None,
        )
        assert (await session.call("lines")).text == LINES
        assert not session.finished
        done = await session.call("finish", {"reward": -0.25})
        assert (done.reward, done.finished, session.finished) == (-0.25, True, True)
    await site.until("torn-down", subject)


@pytest.mark.combinations
@pytest.mark.parametrize("owner", ["someone/Workshop", None])
async def test_with_an_owner_or_without_a_name(site: Site, owner: str | None, subject: str) -> None:
    """Bare paths; the reference servers redirect them, and the client remembers the targets."""
    async with AsyncClient(site.url) as client:
        environment = client.environment(owner)
        assert await environment.num_tasks("train") == 5
        async with environment.session(task={"subject": subject}) as session:
            for _ in range(2):
                assert (await session.call("work", {"text": "x"})).text == " x\n"


async def test_calls_that_run_no_tool_are_results(site: Site, environment: AsyncEnvironment) -> None:
    async with environment.session(split="train", index=0) as session:
        unknown = await session.call("nothing")
        assert unknown.error is not None
        assert unknown.error.startswith("'nothing' is not a valid tool")
        assert unknown.text == unknown.error
        invalid = await session.call("work", {"milliseconds": "soon"})
        assert invalid.error is not None
        assert invalid.error.startswith("Tool input validation error")
        assert invalid.blocks == ()
        await session.call("finish", {"reward": 1})
        late = await session.call("work", {"text": "late"})
        if site.kind == "ors-sdk":  # ors-sdk allows further calls
            assert late.error is None
        else:
            assert (unknown.reason, invalid.reason, late.reason) == (
                "not_found",
                "input_validation",
                "episode_finished",
            )


async def test_a_tool_that_raises(environment: AsyncEnvironment) -> None:
    """The session goes on; a secret in the tool's message is redacted."""
    async with environment.session(split="train", index=0, secrets={"key": SECRET}) as session:
        assert SECRET not in repr(session)
        assert (await session.call("whisper")).text == SECRET
        with pytest.raises(ToolFailed) as failed:
            await session.call("fail")
        assert "broken tool" in failed.value.message
        assert SECRET not in str(failed.value)
        assert SECRET not in failed.value.message
        assert (await session.call("work", {"text": "on"})).text == " on\n"


async def test_a_set_up_that_fails(environment: AsyncEnvironment) -> None:
    task = {"broken": True}
    async with environment.session(task=task, secrets={"key": SECRET}) as session:
        with pytest.raises(SessionLost, match="cannot set up") as lost:
            await session.prompt()
    assert SECRET not in str(lost.value)


async def test_a_set_up_that_takes_its_time(environment: AsyncEnvironment) -> None:
    async with environment.session(task={"setup": 0.5, "subject": "slow"}) as session:
        assert (await session.call("work", {"text": "x"})).metadata == {"run": 1}


@pytest.mark.combinations
@pytest.mark.parametrize(
    "choice",
    [{"split": "nowhere", "index": 0}, {"split": "train", "index": 99}, {"split": "train", "index": "first"}],
    ids=["split", "index", "type"],
)
async def test_tasks_that_are_refused(environment: AsyncEnvironment, choice: dict[str, object]) -> None:
    session = environment.session(**choice)  # pyright: ignore[reportArgumentType] - one of them on purpose
    with pytest.raises(RequestRefused):
        await session.open()
    with pytest.raises(RequestRefused):
        await environment.num_tasks("nowhere")
    assert "new" in repr(session)


async def test_an_environment_that_is_not_there(site: Site) -> None:
    async with AsyncClient(site.url) as client:
        environment = client.environment("elsewhere")
        with pytest.raises(NotFound):
            await environment.session(split="train", index=0).open()
        with pytest.raises(NotFound):
            await environment.num_tasks("train")


async def test_a_session_that_was_deleted(site: Site, environment: AsyncEnvironment, subject: str) -> None:
    async with environment.session(task={"subject": subject}) as session:
        sid = session.id
        async with AsyncClient(site.url) as other:
            connection = other._connection  # pyright: ignore[reportPrivateUsage]
            await connection.json("POST", "/delete", headers=[Headers([("X-Session-ID", sid)])])
        for attempt in (session.prompt, session.messages, session.tools, lambda: session.call("work")):
            with pytest.raises(SessionLost):
                await attempt()


async def test_only_our_server_makes_the_promise(site: Site, environment: AsyncEnvironment) -> None:
    async with environment.session(split="train", index=0) as session:
        calls = session._calls  # pyright: ignore[reportPrivateUsage]
        assert calls is not None
        assert calls.keyed is (site.kind == "own")


async def test_over_httpx(site: Site, subject: str) -> None:
    """With httpx instead of our own sockets, for its proxies and other features."""
    transport = HttpxTransport(site.url, lambda: httpx.AsyncClient(trust_env=False))
    async with AsyncClient(site.url, transport=transport, retries=0) as client:
        environment = client.environment("workshop")
        assert await client.environments() == ["workshop"]
        async with environment.session(task={"subject": subject}, secrets={"é": SECRET}) as session:
            assert len(await session.prompt()) == 2
            slow = await session.call("work", {"text": "x", "milliseconds": 100})
            assert (slow.text, slow.reward) == (" x\n", 0.5)
            assert (await session.call("lines")).text == LINES
            with pytest.raises(DeadlineExceeded):
                await session.call("work", {"milliseconds": 60_000}, timeout=0.1)
        with pytest.raises(NotFound):
            await client.environment("elsewhere").num_tasks("train")
    await site.until("torn-down", subject)
    async with AsyncClient(transport=HttpxTransport("http://127.0.0.1:1", httpx.AsyncClient), retries=0) as nowhere:
        with pytest.raises(ServerUnavailable, match="no connection"):
            await nowhere.environments()


async def test_the_synchronous_client(site: Site, subject: str) -> None:
    def play() -> ToolResult:
        with Client(site.url) as client:
            environment = client.environment("workshop")
            assert client.environments() == ["workshop"]
            assert [split.name for split in environment.splits()] == ["train", "test"]
            assert len(environment.tasks("train")) == environment.num_tasks("train") == 5
            assert environment.task("train", 1).spec == environment.task_range("train", 1, 2)[0].spec
            assert len(environment.tools()) == 6
            with environment.session(task={"subject": subject}) as session:
                assert len(session.prompt()) == 2
                assert len(session.messages()) == 1
                assert len(session.tools()) == 6
                session.call("work", {"text": "a"})
                return session.call("work", {"text": "a"}, timeout=10)

    assert (await asyncio.to_thread(play)).metadata == {"run": 2}
    await site.until("torn-down", subject)


# --- lost connections ---------------------------------------------------------------------------------

#: The `X-Cut` header of a task's requests.
PLAN: ContextVar[str] = ContextVar("PLAN", default=UNCUT)


class Planned(SocketTransport):
    """Sends each request over a connection of its own, with the header that tells the proxy where to cut it."""

    async def exchange(self, request: Request, on_data: Callable[[bytes], None] | None = None) -> Response:
        request.headers = (*request.headers, Headers([("Connection", "close"), ("X-Cut", PLAN.get())]))
        return await super().exchange(request, on_data)


@contextlib.asynccontextmanager
async def cut_environment(site: Site) -> AsyncGenerator[AsyncEnvironment]:
    async with cutting(site.running.port) as port, AsyncClient(transport=Planned("127.0.0.1", port)) as client:
        yield client.environment("workshop")


@pytest.fixture
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ors_clients.transport.connection._FIRST_PAUSE", 0.02)


@pytest.mark.combinations
@pytest.mark.usefixtures("quick_retries")
@pytest.mark.parametrize("milliseconds", [0, 60], ids=["at once", "in a stream"])
async def test_the_response_is_cut_at_every_byte(site: Site, milliseconds: int, subject: str) -> None:
    """Whatever is lost, the tool runs once. The result still arrives, or the error says that it is unknown."""
    unknown: list[int] = []
    async with cut_environment(site) as environment, environment.session(task={"subject": subject}) as session:
        body = {"name": "work", "input": {"text": "0000", "milliseconds": milliseconds}}
        raw = call_request(session.id, body).replace(b"/call", b"/workshop/call", 1)
        length = len((await send(site.running.port, raw)).raw) + 2
        # The reference servers always respond with a stream: the slow variant differs only for ours.
        step = 1 if site.kind == "own" or not milliseconds else 7
        places = range(step, length, step)

        async def one(number: int) -> None:
            at = places[number]
            manner = "end" if at % 2 else "reset"
            PLAN.set(Cut("response", manner, at).header(f"{subject}-{at}"))
            try:
                result = await session.call("work", {"text": f"{at:04d}", "milliseconds": milliseconds})
            except CallOutcomeUnknown:
                unknown.append(at)
            else:
                assert result == ToolResult([TextBlock(text=f" {at:04d}\n")], 0.5, False, {"run": 1})
            finally:
                PLAN.set(UNCUT)

        await each(len(places), one, at_once=64)
    worked = site.noted("worked")
    assert {at for at in places if worked[f"{subject}/{at:04d}"] != 1} == set()
    # Before the server has sent the call's id, only the promise helps. After that, everything arrives.
    if site.kind == "own":
        assert not unknown
    else:
        assert sorted(unknown) == list(places[: len(unknown)])
        assert 0 < len(unknown) < len(places) - 10


@pytest.mark.usefixtures("quick_retries")
async def test_the_request_is_cut(site: Site, subject: str) -> None:
    """A request that arrives in part does not run; a request that arrives whole runs once."""
    async with cut_environment(site) as environment, environment.session(task={"subject": subject}) as session:

        async def one(number: int) -> None:
            at = number * 13
            PLAN.set(Cut("request", "reset" if number % 2 else "end", at).header(f"{subject}-{at}"))
            try:
                result = await session.call("work", {"text": f"{at:04d}"})
            except CallOutcomeUnknown:
                assert site.kind != "own"
            else:
                assert site.kind == "own"
                assert result.metadata == {"run": 1}
            finally:
                PLAN.set(UNCUT)

        await each(40, one)
    worked = site.noted("worked")
    for number in range(40):
        runs = worked[f"{subject}/{number * 13:04d}"]
        assert runs == 1 or (runs == 0 and site.kind != "own")


@pytest.mark.usefixtures("quick_retries")
async def test_a_long_result_is_cut_at_many_bytes(site: Site, subject: str) -> None:
    async with cut_environment(site) as environment, environment.session(task={"subject": subject}) as session:

        async def one(number: int) -> None:
            at = 2000 + number * 9973
            PLAN.set(Cut("response", "end", at).header(f"{subject}-{at}"))
            assert (await session.call("lines")).text == LINES
            PLAN.set(UNCUT)

        await each(len(LINES) // 9973, one, at_once=8)


@pytest.mark.usefixtures("quick_retries")
async def test_requests_other_than_calls_are_retried(site: Site, subject: str) -> None:
    async with cut_environment(site) as environment:
        for at in (0, 5, 40, 120, 150):
            PLAN.set(Cut("response", "end", at).header(f"open-{subject}-{at}"))
            session = await environment.session(task={"subject": f"{subject}-{at}"}).open()
            PLAN.set(Cut("response", "end", at).header(f"read-{subject}-{at}"))
            assert len(await session.prompt()) == 2
            PLAN.set(Cut("response", "end", at).header(f"list-{subject}-{at}"))
            assert len(await environment.tasks("train")) == 5
            PLAN.set(Cut("response", "end", at).header(f"close-{subject}-{at}"))
            await session.close()
            PLAN.set(UNCUT)
            await site.until("torn-down", f"{subject}-{at}")
