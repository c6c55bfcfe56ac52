"""Time limits: idle sessions, long calls, and the server's shutdown."""

import asyncio
import threading

import pytest

from ors_server import Blocks, Server, Settings, TextBlock, ToolOutput, tool
from tests.server.protocol.conftest import Serve
from tests.support.environments import Echo, Number, said
from tests.support.http_client import Client
from tests.support.waiting import PATIENCE, until


class Lasting(Echo):
    """Calls of a given duration, and a record of teardowns."""

    ended: list[str]

    @tool(concurrent=True)
    async def last(self, params: Number) -> ToolOutput:
        await asyncio.sleep(params.number / 1000)
        self.ended.append("call ends")
        return said("lasted")

    @tool(concurrent=True)
    def last_blocking(self, params: Number) -> ToolOutput:
        threading.Event().wait(params.number / 1000)
        self.ended.append("call ends")
        return said("lasted")

    def teardown(self) -> None:
        self.ended.append("teardown")


def lasting() -> tuple[type[Lasting], list[str]]:
    notes: list[str] = []
    return type("Lasting", (Lasting,), {"ended": notes}), notes


# --- the time to live ----------------------------------------------------------------------------


async def test_an_idle_session_is_ended(serve: Serve) -> None:
    """Section 3: torn down once, and late requests get 410."""
    environment, notes = lasting()
    client = serve(environment, session_ttl=0.2)
    sid = await client.open()
    await client.get("/prompt", sid)
    await until(lambda: notes != [])
    response = await client.get("/prompt", sid)
    assert response.status_code == 410
    assert response.json()["detail"].startswith("Session deleted")
    assert "ORS_SESSION_TTL" in response.json()["detail"]
    await client.post("/delete", sid=sid)
    assert notes == ["teardown"]


async def test_pings_and_requests_keep_it_alive(serve: Serve) -> None:
    environment, notes = lasting()
    client = serve(environment, session_ttl=0.4)
    pinging, reading, calling = [await client.open() for _ in range(3)]
    for _ in range(10):
        await asyncio.sleep(0.1)
        assert (await client.post("/ping", sid=pinging)).status_code == 200
        assert (await client.get("/prompt", reading)).status_code == 200
        assert (await client.call(calling, "echo", {"text": "x"})).text == "x"
    assert notes == []


async def test_an_unbound_session_expires_too(serve: Serve) -> None:
    class Other(Echo):
        pass

    client = serve(Echo, Other, session_ttl=0.2)
    sid = await client.open()
    await asyncio.sleep(0.5)
    assert (await client.post("/ping", sid=sid)).status_code == 410


async def test_pings_do_not_keep_a_failed_session_alive(serve: Serve) -> None:
    """Section 9: clients keep a dead session alive by pinging it."""
    ended: list[str] = []

    class Failing(Echo):
        async def setup(self) -> None:
            raise RuntimeError("no")

        async def teardown(self) -> None:
            ended.append("teardown")

    client = serve(Failing, session_ttl=0.3)
    sid = await client.open()
    for _ in range(7):
        await client.post("/ping", sid=sid)
        await asyncio.sleep(0.1)
    assert ended == ["teardown"]


@pytest.mark.parametrize("name", ["last", "last_blocking"])
async def test_a_session_is_not_reaped_under_a_running_call(serve: Serve, name: str) -> None:
    """Section 9: the references tear down a call of more than 15 minutes while it runs."""
    environment, notes = lasting()
    client = serve(environment, session_ttl=0.2)
    assert (await client.call(await client.open(), name, {"number": 900})).text == "lasted"
    # A machine under load may end the idle session before this line: after the call, never under it.
    assert notes[0] == "call ends"


async def test_its_time_counts_from_the_end_of_a_long_call(serve: Serve) -> None:
    """ors-sdk's synchronous client sends nothing meanwhile: afterwards the agent must have the whole time."""
    environment, notes = lasting()
    client = serve(environment, session_ttl=0.8)
    sid = await client.open()
    assert (await client.call(sid, "last", {"number": 1200})).text == "lasted"
    await asyncio.sleep(0.45)
    assert notes == ["call ends"]
    assert (await client.call(sid, "echo", {"text": "on"})).text == "on"


async def test_a_session_is_not_reaped_while_its_prompt_is_made(serve: Serve) -> None:
    ended: list[str] = []

    class Thinking(Echo):
        async def get_prompt(self) -> Blocks:
            await asyncio.sleep(0.9)
            ended.append("prompt")
            return [TextBlock(text="go")]

        async def teardown(self) -> None:
            ended.append("teardown")

    client = serve(Thinking, session_ttl=0.2)
    sid = await client.open()
    assert (await client.get("/prompt", sid)).status_code == 200
    assert ended[0] == "prompt"


async def test_a_session_is_not_reaped_during_or_right_after_a_long_set_up(serve: Serve) -> None:
    ended: list[str] = []

    class Preparing(Echo):
        async def setup(self) -> None:
            await asyncio.sleep(0.9)

        async def teardown(self) -> None:
            ended.append("teardown")

    client = serve(Preparing, session_ttl=0.4)
    sid = await client.open()
    assert (await client.get("/prompt", sid)).status_code == 200
    await asyncio.sleep(0.2)
    assert (await client.get("/prompt", sid)).status_code == 200
    assert ended == []


async def test_one_bad_teardown_does_not_stop_the_reaping_of_others(serve: Serve) -> None:
    """Section 9: the references reap sessions one by one without a limit, and a CancelledError ends their reaper."""
    ended: list[str] = []

    class Sometimes(Echo):
        async def teardown(self) -> None:
            number = len(ended)
            ended.append(str(self.task_spec["id"]))
            if number == 0:
                raise asyncio.CancelledError
            if number == 1:
                raise SystemExit(1)
            await asyncio.Event().wait()

    client = serve(Sometimes, session_ttl=0.2, teardown_timeout=0.5)
    for _ in range(2):
        for index in range(4):
            await client.open({"split": "train", "index": index})
        await until(lambda: sorted(set(ended)) == ["train-0", "train-1", "train-2", "train-3"])
        ended.clear()


# --- the call limit ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["last", "last_blocking"])
async def test_a_call_past_its_limit_is_an_error_and_the_session_goes_on(serve: Serve, name: str) -> None:
    """Protocol 0.1, "Numbers": a call has a limit; the error message contains it and its setting."""
    environment, notes = lasting()
    client = serve(environment, call_timeout=0.2)
    sid = await client.open()
    reply = await client.call(sid, name, {"number": 2000})
    assert reply.error.startswith(f"ToolTimeout: '{name}'")
    assert notes == []
    assert "ORS_CALL_TIMEOUT" in reply.error
    assert (await client.call(sid, "echo", {"text": "on"})).text == "on"
    again = await client.call(sid, name, {"number": 2000}, task_id=reply.task_id)
    assert again.events == reply.events
    # Code on a thread goes on after its call got a response; teardown waits for it.
    await client.post("/delete", sid=sid)
    assert notes == (["teardown"] if name == "last" else ["call ends", "teardown"])


async def test_a_call_past_its_limit_has_no_late_effect_on_the_episode(serve: Serve) -> None:
    class Late(Echo):
        @tool
        def finish_late(self) -> ToolOutput:
            threading.Event().wait(0.5)
            return said("late", 1.0, finished=True)

    client = serve(Late, call_timeout=0.15)
    sid = await client.open()
    assert (await client.call(sid, "finish_late")).error.startswith("ToolTimeout")
    await asyncio.sleep(0.5)
    assert (await client.call(sid, "echo", {"text": "on"})).text == "on"


async def test_a_late_result_does_not_replace_the_error_that_waits_for_a_lost_client(serve: Serve) -> None:
    proceed, ended = threading.Event(), threading.Event()

    class Late(Echo):
        @tool
        def finish_late(self) -> ToolOutput:
            proceed.wait(PATIENCE)
            ended.set()
            return said("late", 1.0, finished=True)

    client = serve(Late, call_timeout=0.2, stream_after=0.01)
    sid = await client.open()
    async with client.stream("/call", {"name": "finish_late", "input": {}}, sid) as stream:
        task_id = (await stream.event()).data
    await asyncio.sleep(0.5)
    proceed.set()
    await until(ended.is_set)
    await asyncio.sleep(0.05)
    reply = await client.call(sid, "finish_late", task_id=task_id)
    assert reply.error.startswith("ToolTimeout")


async def test_calls_that_wait_for_their_turn_past_the_limit_let_others_go_on(serve: Serve) -> None:
    proceed = threading.Event()

    class Queued(Echo):
        @tool(concurrent=True)
        def block(self) -> ToolOutput:
            proceed.wait(PATIENCE)
            return said()

        @tool(exclusive=True)
        async def alone(self) -> ToolOutput:
            return said("alone")

    client = serve(Queued, call_timeout=0.2)
    sid = await client.open()
    replies = await asyncio.gather(client.call(sid, "block"), client.call(sid, "alone"))
    assert [reply.error.split(":")[0] for reply in replies] == ["ToolTimeout", "ToolTimeout"]
    # The thread is still inside the first call; the exclusive call no longer waits, so it does not block others.
    async with asyncio.timeout(PATIENCE / 2):
        assert (await client.call(sid, "echo", {"text": "on"})).text == "on"
    proceed.set()
    assert (await client.call(sid, "alone")).text == "alone"


# --- the server's end ----------------------------------------------------------------------------


async def test_shutdown_ends_many_sessions_in_parallel() -> None:
    """Section 9: no limit and one after another in the references."""
    ended: list[str] = []
    together = asyncio.Barrier(60)

    class Slow(Echo):
        async def teardown(self) -> None:
            await together.wait()
            ended.append(str(self.task_spec["id"]))

    server = Server([Slow])
    client = Client(server.app)
    for _ in range(60):
        await client.open()
    await server.sessions.close()
    assert ended == ["train-0"] * 60
    await client.close()


async def test_shutdown_ends_running_calls_first() -> None:
    taken: list[str] = []

    class Busy(Echo):
        @tool
        def block(self) -> ToolOutput:
            threading.Event().wait(0.3)
            taken.append("call ends")
            return said()

        def teardown(self) -> None:
            taken.append("teardown")

    server = Server([Busy])
    client = Client(server.app)
    sid = await client.open()
    async with client.stream("/call", {"name": "block", "input": {}}, sid) as stream:
        assert (await stream.event()).name == "task_id"
        closing = asyncio.create_task(server.sessions.close())
        assert "shutting down" in (await stream.reply()).error
        await closing
    assert taken == ["call ends", "teardown"]
    await client.close()


async def test_shutdown_is_over_after_its_limit() -> None:
    released, left = asyncio.Event(), list[str]()

    class Hanging(Echo):
        async def teardown(self) -> None:
            await released.wait()
            left.append(str(self.task_spec["id"]))

    server = Server([Hanging], settings=Settings(shutdown_timeout=0.2, teardown_timeout=PATIENCE))
    client = Client(server.app)
    for _ in range(3):
        await client.open()
    await server.sessions.close()
    assert left == []
    released.set()
    await until(lambda: len(left) == 3)
    await client.close()


async def test_the_lifespan_ends_the_sessions() -> None:
    """Section 10: ``Server.app`` works with a lifespan, too, whose end does what the end of ``run`` does."""
    ended: list[str] = []

    class Ending(Echo):
        def teardown(self) -> None:
            ended.append("teardown")

    server = Server([Ending])
    client = Client(server.app)
    async with server.app.router.lifespan_context(server.app):
        await client.open()
        await client.get("/prompt", "session-1")
    assert ended == ["teardown"]
    await client.close()


def test_the_numbers_of_the_protocol() -> None:
    """Protocol 0.1, "Numbers", and 6.4 pitfall 15 for the connections."""
    settings = Settings(_env_file=None)  # pyright: ignore[reportCallIssue]
    assert settings.session_ttl == 900
    assert settings.setup_timeout == 900
    assert settings.setup_wait == 25
    assert settings.call_timeout == 3600
    assert settings.teardown_timeout == 30
    assert settings.result_ttl == 300
    assert settings.result_memory == 256 * 2**20
    assert settings.tombstones == 1_000_000
    assert settings.max_body == 16 * 2**20
    assert settings.max_headers == 64 * 2**10
    assert settings.heartbeat <= 10
    assert settings.stream_after == 0.05
    assert settings.keep_alive >= 60
