"""Section 8, "wait for setup", and a set-up that fails, hangs or is cancelled."""

import asyncio
import threading

import pytest

from ors_server import Blocks, JSONObject, ListToolsOutput, TextBlock, ToolOutput, tool
from tests.server.protocol.conftest import Serve
from tests.support.environments import Echo, Number, said
from tests.support.waiting import PATIENCE, until

OPENREWARD = "openreward-sdk/0.1.167"


class Steps:
    """Record of the sessions of one test, and the event that set-up waits for."""

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.proceed = asyncio.Event()


def slow(steps: Steps) -> type[Echo]:
    """Return an environment whose set-up ends when the test allows it."""

    class Slow(Echo):
        async def setup(self) -> None:
            steps.taken.append("setup")
            await steps.proceed.wait()
            steps.taken.append("ready")

        def get_prompt(self) -> Blocks:
            steps.taken.append("prompt")
            return [TextBlock(text="go")]

        @tool
        async def step(self) -> ToolOutput:
            steps.taken.append("step")
            return said("stepped")

        async def teardown(self) -> None:
            steps.taken.append("teardown")

    return Slow


@pytest.mark.parametrize("path", ["/prompt", "/messages"])
async def test_openreward_gets_503_and_retries(serve: Serve, path: str) -> None:
    """6.4 pitfall 11: a transient state is a 503 with exactly the headers after which its client retries."""
    steps = Steps()
    client = serve(slow(steps), agent=OPENREWARD, setup_wait=0.05, setup_wait_long=PATIENCE)
    sid = await client.open()
    response = await client.get(path, sid)
    assert (response.status_code, response.json()) == (503, {"detail": "Environment still starting."})
    assert response.headers["x-backend-state"] == "starting"
    assert response.headers["retry-after"] == "2"
    assert steps.taken == ["setup"]
    steps.proceed.set()
    assert (await client.get(path, sid)).status_code == 200
    assert steps.taken == ["setup", "ready", "prompt"]


async def test_other_clients_wait_in_the_request(serve: Serve) -> None:
    """ors-sdk fails after three 503s, so its requests are held for longer."""
    steps = Steps()
    client = serve(slow(steps), agent="ors-sdk/0.1", setup_wait=0.05, setup_wait_long=PATIENCE)
    sid = await client.open()
    waiting = asyncio.create_task(client.get("/prompt", sid))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    steps.proceed.set()
    assert (await waiting).json()[0]["text"] == "go"


async def test_the_long_wait_ends_in_the_same_503(serve: Serve) -> None:
    client = serve(slow(Steps()), agent="ors-sdk/0.1", setup_wait=PATIENCE, setup_wait_long=0.05)
    sid = await client.open()
    response = await client.get("/prompt", sid)
    assert response.status_code == 503
    assert response.headers["x-backend-state"] == "starting"


async def test_a_prompt_during_set_up_goes_on_as_soon_as_it_is_done(serve: Serve) -> None:
    """The 25 s of openreward are an upper bound rather than an interval for polling."""
    steps = Steps()
    client = serve(slow(steps), agent=OPENREWARD)
    sid = await client.open()
    waiting = [asyncio.create_task(client.get("/prompt", sid)) for _ in range(5)]
    await asyncio.sleep(0.05)
    steps.proceed.set()
    assert [(await response).status_code for response in waiting] == [200] * 5


async def test_a_call_opens_its_stream_during_set_up_and_runs_once(serve: Serve) -> None:
    """Section 9: against ors-sdk one call with a slow set-up ran three times."""
    steps = Steps()
    client = serve(slow(steps), agent=OPENREWARD, heartbeat=0.05, setup_wait=0.05)
    sid = await client.open()
    body: dict[str, object] = {"name": "step", "input": {}}
    async with client.stream("/call", body, sid) as stream:
        task_id = (await stream.event()).data
        await asyncio.sleep(0.25)
        assert steps.taken == ["setup"]
        async with client.stream("/call", {**body, "task_id": task_id}, sid) as again:
            assert (await again.event()).data == task_id
            steps.proceed.set()
            assert (await again.reply()).text == "stepped"
        assert (await stream.reply()).text == "stepped"
        assert stream.parser.comments >= 2
    assert steps.taken == ["setup", "ready", "step"]


async def test_calls_during_set_up_keep_their_order(serve: Serve) -> None:
    steps = Steps()
    order: list[str] = []

    class Ordered(slow(steps)):
        @tool
        async def note(self, params: Number) -> ToolOutput:
            order.append(str(params.number))
            return said()

    client = serve(Ordered)
    sid = await client.open()
    calls: list[asyncio.Task[object]] = []
    for number in range(5):
        calls.append(asyncio.create_task(client.call(sid, "note", {"number": number})))
        await asyncio.sleep(0.01)
    steps.proceed.set()
    await asyncio.gather(*calls)
    assert order == ["0", "1", "2", "3", "4"]


async def test_task_tools_does_not_wait(serve: Serve) -> None:
    """Section 8, "/task_tools before setup": immediate."""
    steps = Steps()

    class Listing(slow(steps)):
        def list_task_tools(self) -> ListToolsOutput:
            return ListToolsOutput(tools=[])

    client = serve(Listing)
    sid = await client.open()
    async with asyncio.timeout(PATIENCE / 2):
        tools = (await client.get("/task_tools", sid)).json()["tools"]
    assert [entry["name"] for entry in tools] == ["echo", "step", "win"]
    assert "ready" not in steps.taken


async def test_ping_during_set_up(serve: Serve) -> None:
    client = serve(slow(Steps()))
    sid = await client.open()
    assert (await client.post("/ping", sid=sid)).status_code == 200


async def test_create_does_not_wait_for_set_up(serve: Serve) -> None:
    client = serve(slow(Steps()))
    async with asyncio.timeout(PATIENCE / 2):
        await client.open()


# --- failing -------------------------------------------------------------------------------------


@pytest.mark.parametrize("sync", [True, False])
async def test_a_set_up_that_raises_fails_every_request_and_is_torn_down_once(serve: Serve, sync: bool) -> None:
    ended: list[str] = []

    class Sync(Echo):
        def setup(self) -> None:
            raise RuntimeError("no image")

        def teardown(self) -> None:
            ended.append("teardown")

    class Async(Echo):
        async def setup(self) -> None:
            raise RuntimeError("no image")

        async def teardown(self) -> None:
            ended.append("teardown")

    client = serve(Sync if sync else Async)
    sid = await client.open()
    for _ in range(2):
        response = await client.get("/prompt", sid)
        assert (response.status_code, response.json()) == (500, {"detail": "RuntimeError: no image"})
    for response in (await client.get("/messages", sid), await client.call_response(sid, "echo", {"text": "x"})):
        assert (response.status_code, response.json()) == (500, {"detail": "RuntimeError: no image"})
    assert (await client.get("/task_tools", sid)).status_code in (200, 500)
    assert ended == []
    await client.post("/delete", sid=sid)
    assert ended == ["teardown"]


async def test_a_call_waiting_for_a_set_up_that_fails_gets_its_reason(serve: Serve) -> None:
    steps = Steps()

    class Failing(slow(steps)):
        async def setup(self) -> None:
            await steps.proceed.wait()
            raise RuntimeError("no image")

    client = serve(Failing)
    sid = await client.open()
    async with client.stream("/call", {"name": "step", "input": {}}, sid) as stream:
        assert (await stream.event()).name == "task_id"
        steps.proceed.set()
        assert "RuntimeError: no image" in (await stream.reply()).error
    assert "step" not in steps.taken


async def test_ping_of_a_failed_session_is_an_error(serve: Serve) -> None:
    """Section 9: with a 200 the client would keep a dead session alive."""

    class Failing(Echo):
        async def setup(self) -> None:
            raise RuntimeError("no image")

    client = serve(Failing)
    sid = await client.open()
    await client.get("/prompt", sid)
    assert (await client.post("/ping", sid=sid)).status_code == 500


@pytest.mark.parametrize(("mode", "detail"), [("none", "Internal Server Error"), ("stacktrace", "Traceback")])
async def test_return_errors_holds_for_set_up(serve: Serve, mode: str, detail: str) -> None:
    class Failing(Echo):
        async def setup(self) -> None:
            raise RuntimeError("no image at /srv/secret")

    client = serve(Failing, return_errors=mode)
    sid = await client.open()
    text = (await client.get("/prompt", sid)).json()["detail"]
    assert text.startswith(detail)
    assert ("/srv/secret" in text) is (mode == "stacktrace")


async def test_an_http_exception_in_set_up_decides_no_status(serve: Serve) -> None:
    """Section 9: in the references the environment's author controls the status."""
    from fastapi import HTTPException

    class Failing(Echo):
        async def setup(self) -> None:
            raise HTTPException(404, "not here")

    client = serve(Failing)
    sid = await client.open()
    assert (await client.get("/prompt", sid)).status_code == 500


async def test_a_set_up_that_is_cancelled_inside_has_failed(serve: Serve) -> None:
    """Section 9: in the references such a session counts as ready although its set-up never completed."""

    class Cancelled(Echo):
        async def setup(self) -> None:
            raise asyncio.CancelledError

    client = serve(Cancelled)
    sid = await client.open()
    response = await client.get("/prompt", sid)
    assert response.status_code == 500
    assert "cancelled" in response.json()["detail"]
    assert (await client.call_response(sid, "echo", {"text": "x"})).status_code == 500


@pytest.mark.parametrize("raised", [SystemExit(3), KeyboardInterrupt(), StopIteration(), GeneratorExit()])
@pytest.mark.parametrize("sync", [True, False])
async def test_a_set_up_that_would_end_the_process_only_fails(serve: Serve, raised: BaseException, sync: bool) -> None:
    class Sync(Echo):
        def setup(self) -> None:
            raise raised

    class Async(Echo):
        async def setup(self) -> None:
            raise raised

    client = serve(Sync if sync else Async)
    sid = await client.open()
    async with asyncio.timeout(PATIENCE):
        assert (await client.get("/prompt", sid)).status_code == 500
    assert (await client.get("/health")).status_code == 200


async def test_a_set_up_past_its_time_is_a_final_503(serve: Serve) -> None:
    """Protocol 0.1, "Numbers": set-up has a limit; exceeding it is an infrastructure failure, not the agent's."""
    steps = Steps()
    client = serve(slow(steps), agent=OPENREWARD, setup_timeout=0.1, setup_wait=PATIENCE)
    sid = await client.open()
    response = await client.get("/prompt", sid)
    assert response.status_code == 503
    assert response.json()["detail"].startswith("InfrastructureError:")
    assert "ORS_SETUP_TIMEOUT" in response.json()["detail"]
    assert "x-backend-state" not in response.headers
    await client.post("/delete", sid=sid)
    assert steps.taken == ["setup", "teardown"]


async def test_a_synchronous_set_up_past_its_time_is_torn_down_only_after_it_ended(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """Section 9: it runs on a thread that cannot be stopped; teardown must not overlap it."""
    taken: list[str] = []
    proceed = threading.Event()

    class Hanging(Echo):
        def setup(self) -> None:
            proceed.wait(PATIENCE)
            taken.append("setup ended")

        def teardown(self) -> None:
            taken.append("teardown")

    client = serve(Hanging, setup_timeout=0.1, teardown_timeout=0.2)
    sid = await client.open()
    assert (await client.get("/prompt", sid)).status_code == 503
    await client.post("/delete", sid=sid)
    await until(lambda: "session still busy after its end" in caplog.text)  # also past the limit of the teardown
    await asyncio.sleep(0.05)
    assert taken == []
    proceed.set()
    await until(lambda: len(taken) == 2)
    assert taken == ["setup ended", "teardown"]


async def test_a_constructor_past_its_time_is_a_503(serve: Serve) -> None:
    """The set-up limit applies to the constructor, too; otherwise a client would wait in ``/create`` without end."""
    proceed = threading.Event()

    class Hanging(Echo):
        def __init__(self, task_spec: JSONObject = {}, secrets: dict[str, str] = {}) -> None:  # noqa: B006
            super().__init__(task_spec, secrets)
            proceed.wait(PATIENCE / 2)

    client = serve(Hanging, setup_timeout=0.1)
    try:
        async with asyncio.timeout(PATIENCE / 2):
            response = await client.create("s")
        assert response.status_code == 503
        assert response.json()["detail"].startswith("InfrastructureError:")
        assert "ORS_SETUP_TIMEOUT" in response.json()["detail"]
    finally:
        proceed.set()
