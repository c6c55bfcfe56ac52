"""``/delete``: teardown runs exactly once and never beside other code of the session, and late requests are 410."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from ors_server import Blocks, JSONObject, TextBlock, ToolOutput, tool
from tests.server.protocol.conftest import Serve
from tests.support.environments import Echo, said
from tests.support.http_client import Client
from tests.support.waiting import PATIENCE, until

GONE = (410, {"detail": "Session deleted"})


class Stage:
    """Record of one session: begin and end of each method, and the events on which methods block."""

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.proceed = threading.Event()
        self.proceed_async = asyncio.Event()

    def release(self) -> None:
        self.proceed.set()
        self.proceed_async.set()

    def block(self, name: str) -> None:
        self.taken.append(f"{name} begins")
        self.proceed.wait(PATIENCE)
        self.taken.append(f"{name} ends")

    async def wait(self, name: str) -> None:
        self.taken.append(f"{name} begins")
        try:
            await self.proceed_async.wait()
        finally:
            await asyncio.sleep(0.02)  # clean-up of this method, which teardown must not overlap
            self.taken.append(f"{name} ends")


class Staged(Echo):
    """Methods that block or wait where ``where`` says."""

    stage: Stage
    where = ""

    def __init__(self, task_spec: JSONObject = {}, secrets: dict[str, str] = {}) -> None:  # noqa: B006
        super().__init__(task_spec, secrets)
        if self.where == "constructor":
            self.stage.block("constructor")

    async def setup(self) -> Any:
        if self.where == "async setup":
            await self.stage.wait("async setup")

    async def get_prompt(self) -> Blocks:
        if self.where == "prompt":
            await self.stage.wait("prompt")
        return [TextBlock(text="go")]

    @tool
    def sync_call(self) -> ToolOutput:
        self.stage.block("sync call")
        return said("sync")

    @tool
    async def async_call(self) -> ToolOutput:
        await self.stage.wait("async call")
        return said("async")

    async def score_group(self, candidates: object) -> list[float]:
        await self.stage.wait("scoring")
        return []

    def teardown(self) -> None:
        self.stage.taken.append("teardown")


class SyncSetup(Staged):
    """``Staged`` with a set-up that blocks a thread."""

    def setup(self) -> Any:
        self.stage.block("sync setup")


def staged(stage: Stage, place: str) -> type[Staged]:
    base = SyncSetup if place == "sync setup" else Staged
    return cast("type[Staged]", type("Chosen", (base,), {"stage": stage, "where": place}))


async def occupy(client: Client, place: str) -> asyncio.Task[Any]:
    """Send a request that occupies the session in that method."""
    requests: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
        "constructor": lambda: client.create("s"),
        "sync setup": lambda: client.get("/prompt", "s"),
        "async setup": lambda: client.get("/prompt", "s"),
        "prompt": lambda: client.get("/prompt", "s"),
        "sync call": lambda: client.call("s", "sync_call"),
        "async call": lambda: client.call("s", "async_call"),
        "scoring": lambda: client.post("/score_group", {"candidates": []}, "s"),
    }
    if place != "constructor":
        await client.open(sid="s")
    return asyncio.create_task(requests[place]())


async def test_it_is_idempotent(serve: Serve) -> None:
    stage = Stage()
    client = serve(staged(stage, ""))
    sid = await client.open()
    await client.get("/prompt", sid)
    for _ in range(3):
        response = await client.post("/delete", sid=sid)
        assert (response.status_code, response.json()) == (200, {"sid": sid})
    assert stage.taken == ["teardown"]


async def test_an_unknown_id_is_200(serve: Serve) -> None:
    """Section 1: always 200, and the id stays unknown."""
    client = serve(Echo)
    response = await client.post("/delete", sid="never")
    assert (response.status_code, response.json()) == (200, {"sid": "never"})
    assert (await client.get("/prompt", "never")).status_code == 404


async def test_a_hundred_at_once_tear_down_once(serve: Serve) -> None:
    stage = Stage()
    client = serve(staged(stage, ""))
    sid = await client.open()
    await client.get("/prompt", sid)
    responses = await asyncio.gather(*(client.post("/delete", sid=sid) for _ in range(100)))
    assert {response.status_code for response in responses} == {200}
    assert stage.taken == ["teardown"]


async def test_late_requests_are_410_and_not_404(serve: Serve) -> None:
    """Section 8, "gone session"; 6.4 pitfall 12: openreward falls back silently on a 404."""
    client = serve(Echo)
    sid = await client.open()
    call = await client.call(sid, "echo", {"text": "x"})
    await client.post("/delete", sid=sid)
    for response in (
        await client.get("/prompt", sid),
        await client.get("/messages", sid),
        await client.get("/task_tools", sid),
        await client.get("/echo/task_tools", sid),
        await client.post("/ping", sid=sid),
        await client.call_response(sid, "echo", {"text": "x"}),
        await client.call_response(sid, "echo", {"text": "x"}, task_id=call.task_id),
        await client.post("/score_group", {"candidates": []}, sid),
    ):
        assert (response.status_code, response.json()) == GONE


async def test_the_last_ended_sessions_are_remembered(serve: Serve) -> None:
    """Protocol 0.1, "Numbers": a limited number of tombstones; older sessions are as unknown as if never opened."""
    client = serve(Echo, tombstones=3)
    for number in range(12):
        await client.open(sid=f"s{number}")
        await client.post("/delete", sid=f"s{number}")
    assert [(await client.get("/prompt", f"s{number}")).status_code for number in (9, 10, 11)] == [410] * 3
    assert (await client.get("/prompt", "s0")).status_code == 404


async def test_an_id_can_be_used_again_after_its_session(serve: Serve) -> None:
    client = serve(Echo)
    await client.open(sid="s")
    await client.post("/delete", sid="s")
    await client.open({"split": "test", "index": 1}, sid="s")
    assert (await client.get("/prompt", "s")).json()[0]["text"] == "prompt of test-1"


EVERYWHERE = ["constructor", "sync setup", "async setup", "prompt", "sync call", "async call", "scoring"]


@pytest.mark.combinations
@pytest.mark.parametrize("deletes", [1, 3])
@pytest.mark.parametrize("place", EVERYWHERE)
async def test_teardown_runs_once_and_after_everything_has_ended(serve: Serve, place: str, deletes: int) -> None:
    """Section 9: in the references it runs under a running tool, is skipped, or leaks, depending on the moment."""
    stage = Stage()
    client = serve(staged(stage, place))
    occupying = await occupy(client, place)
    await until(lambda: stage.taken != [])
    deleting = [asyncio.create_task(client.post("/delete", sid="s")) for _ in range(deletes)]
    await asyncio.sleep(0.1)
    if place in ("constructor", "sync setup", "sync call"):
        assert stage.taken == [f"{place} begins"], "a thread cannot be stopped, so it has to be waited for"
        assert not any(delete.done() for delete in deleting)
    stage.release()
    for delete in deleting:
        assert (await delete).status_code == 200
    await asyncio.wait((occupying,), timeout=PATIENCE)
    assert occupying.done()
    assert stage.taken == [f"{place} begins", f"{place} ends", "teardown"]
    assert (await client.get("/prompt", "s")).status_code == 410


@pytest.mark.parametrize("place", ["sync setup", "async setup"])
async def test_a_request_that_waits_for_set_up_gets_410_at_once(serve: Serve, place: str) -> None:
    stage = Stage()
    client = serve(staged(stage, place))
    waiting = await occupy(client, place)
    await until(lambda: stage.taken != [])
    await asyncio.sleep(0.02)
    deleting = asyncio.create_task(client.post("/delete", sid="s"))
    done, _ = await asyncio.wait((waiting,), timeout=2)
    stage.release()
    await deleting
    assert done
    response = waiting.result()
    assert (response.status_code, response.json()) == GONE


async def test_a_create_under_way_is_410(serve: Serve) -> None:
    stage = Stage()
    client = serve(staged(stage, "constructor"))
    creating = await occupy(client, "constructor")
    await until(lambda: stage.taken != [])
    deleting = asyncio.create_task(client.post("/delete", sid="s"))
    await asyncio.sleep(0.05)
    stage.release()
    await deleting
    response = await creating
    assert (response.status_code, response.json()) == GONE


async def test_a_constructor_that_raises_during_the_deletion_is_not_torn_down(serve: Serve) -> None:
    stage = Stage()

    class Failing(Staged):
        def __init__(self, task_spec: JSONObject = {}, secrets: dict[str, str] = {}) -> None:  # noqa: B006
            stage.block("constructor")
            raise RuntimeError("after all")

    Failing.stage = stage
    client = serve(Failing)
    creating = asyncio.create_task(client.create("s"))
    await until(lambda: stage.taken != [])
    deleting = asyncio.create_task(client.post("/delete", sid="s"))
    await asyncio.sleep(0.05)
    stage.release()
    assert (await deleting).status_code == 200
    assert (await creating).status_code in (410, 500)
    assert "teardown" not in stage.taken
    assert (await client.get("/prompt", "s")).status_code in (404, 410)


@pytest.mark.parametrize("place", ["sync call", "async call"])
async def test_a_running_call_ends_with_an_event_that_says_why(serve: Serve, place: str) -> None:
    stage = Stage()
    client = serve(staged(stage, place))
    sid = await client.open()
    name = place.replace(" ", "_")
    async with client.stream("/call", {"name": name, "input": {}}, sid) as stream:
        assert (await stream.event()).name == "task_id"
        deleting = asyncio.create_task(client.post("/delete", sid=sid))
        await asyncio.sleep(0.05)
        stage.release()
        reply = await stream.reply()
        await deleting
    assert reply.names[-1] == "error"
    assert "Session deleted" in reply.error


async def test_new_requests_during_the_teardown_are_410(serve: Serve) -> None:
    proceed = asyncio.Event()

    class Slow(Echo):
        async def teardown(self) -> None:
            await proceed.wait()

    client = serve(Slow)
    sid = await client.open()
    await client.get("/prompt", sid)
    deleting = asyncio.create_task(client.post("/delete", sid=sid))
    await asyncio.sleep(0.05)
    assert not deleting.done()
    assert (await client.call_response(sid, "echo", {"text": "x"})).status_code == 410
    assert (await client.get("/prompt", sid)).status_code == 410
    assert (await client.create(sid)).status_code in (400, 410)
    proceed.set()
    assert (await deleting).status_code == 200


@pytest.mark.combinations
@pytest.mark.parametrize("raised", [RuntimeError("no"), asyncio.CancelledError(), SystemExit(1), KeyboardInterrupt()])
@pytest.mark.parametrize("sync", [True, False])
async def test_a_teardown_that_raises_affects_no_other_session(serve: Serve, raised: BaseException, sync: bool) -> None:
    class Sync(Echo):
        def teardown(self) -> None:
            raise raised

    class Async(Echo):
        async def teardown(self) -> None:
            raise raised

    client = serve(Sync if sync else Async)
    for _ in range(2):
        sid = await client.open()
        await client.get("/prompt", sid)
        assert (await client.post("/delete", sid=sid)).status_code == 200
        assert (await client.get("/prompt", sid)).status_code == 410


@pytest.mark.parametrize("sync", [True, False])
async def test_a_hanging_teardown_ends_at_its_limit(serve: Serve, sync: bool) -> None:
    """Section 9: one hung teardown stops all reaping in the references."""
    proceed = threading.Event()

    class Sync(Echo):
        def teardown(self) -> None:
            proceed.wait(PATIENCE)

    class Async(Echo):
        async def teardown(self) -> None:
            await asyncio.Event().wait()

    client = serve(Sync if sync else Async, teardown_timeout=0.1)
    sid = await client.open()
    await client.get("/prompt", sid)
    async with asyncio.timeout(PATIENCE / 2):
        assert (await client.post("/delete", sid=sid)).status_code == 200
        assert (await client.get("/prompt", sid)).status_code == 410
        await client.open()
    proceed.set()


async def test_a_deletion_whose_client_hangs_up_goes_on(serve: Serve) -> None:
    stage = Stage()
    client = serve(staged(stage, "sync call"))
    occupying = await occupy(client, "sync call")
    await until(lambda: stage.taken != [])
    deleting = asyncio.create_task(client.post("/delete", sid="s"))
    await asyncio.sleep(0.05)
    deleting.cancel()
    await asyncio.wait((deleting,))
    stage.release()
    await until(lambda: "teardown" in stage.taken)
    await asyncio.wait((occupying,))
    assert stage.taken == ["sync call begins", "sync call ends", "teardown"]


async def test_calls_that_wait_for_their_turn_never_run(serve: Serve) -> None:
    stage = Stage()
    client = serve(staged(stage, ""))
    sid = await client.open()
    calls = [asyncio.create_task(client.call(sid, "sync_call")) for _ in range(4)]
    await until(lambda: stage.taken != [])
    await asyncio.sleep(0.02)
    deleting = asyncio.create_task(client.post("/delete", sid=sid))
    await asyncio.sleep(0.05)
    stage.release()
    await deleting
    for reply in await asyncio.gather(*calls):
        assert "Session deleted" in reply.error
    assert stage.taken == ["sync call begins", "sync call ends", "teardown"]
