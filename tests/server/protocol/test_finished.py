"""Protocol 0.1, "The finished latch": no call after ``finished=True``, unless a setting disables the latch."""

import asyncio

from ors_server import ToolOutput, tool
from tests.server.protocol.conftest import Serve
from tests.support.environments import Bare, Echo, said

REFUSED = (
    "'echo' was not run: the episode has finished (a tool returned finished=True), "
    "so no further tool calls are accepted."
)


async def test_calls_after_the_end_are_refused_with_the_reason(serve: Serve) -> None:
    client = serve(Echo)
    sid = await client.open()
    assert (await client.call(sid, "win")).output["finished"] is True
    for _ in range(2):
        reply = await client.call(sid, "echo", {"text": "x"})
        assert reply.result == {"ok": False, "error": REFUSED, "reason": "episode_finished"}


async def test_the_latch_is_the_sessions_own(serve: Serve) -> None:
    client = serve(Echo)
    one, two = await client.open(), await client.open()
    await client.call(one, "win")
    assert (await client.call(two, "echo", {"text": "x"})).text == "x"


async def test_the_prompt_stays_readable_after_the_end(serve: Serve) -> None:
    client = serve(Echo)
    sid = await client.open()
    await client.call(sid, "win")
    assert (await client.get("/prompt", sid)).status_code == 200
    assert (await client.post("/ping", sid=sid)).status_code == 200


async def test_a_call_that_was_running_reports_no_second_result(serve: Serve) -> None:
    """Section 4: a concurrent call that completes after the finishing one has its result replaced."""
    proceed = asyncio.Event()

    class Racing(Bare):
        @tool
        async def slow(self) -> ToolOutput:
            await proceed.wait()
            return said("late", 1.0, finished=True)

        @tool
        async def quick(self) -> ToolOutput:
            return said("first", 0.5, finished=True)

    client = serve(Racing)
    sid = await client.open()
    slow = asyncio.create_task(client.call(sid, "slow"))
    await asyncio.sleep(0.05)
    assert (await client.call(sid, "quick")).output["reward"] == 0.5
    proceed.set()
    assert (await slow).reason == "episode_finished"


async def test_a_call_that_waited_for_its_turn_does_not_run(serve: Serve) -> None:
    runs: list[str] = []
    proceed = asyncio.Event()

    class Queued(Bare):
        @tool
        async def submit(self) -> ToolOutput:
            runs.append("submit")
            await proceed.wait()
            return said("done", 1.0, finished=True)

    client = serve(Queued)
    sid = await client.open()
    calls = [asyncio.create_task(client.call(sid, "submit")) for _ in range(3)]
    await asyncio.sleep(0.1)
    proceed.set()
    replies = await asyncio.gather(*calls)
    assert [reply.result["ok"] for reply in replies].count(True) == 1
    assert [reply.reason for reply in replies if not reply.result["ok"]] == ["episode_finished"] * 2
    assert runs == ["submit"]


async def test_enforce_finished_off(serve: Serve) -> None:
    client = serve(Echo, enforce_finished=False)
    sid = await client.open()
    await client.call(sid, "win")
    assert (await client.call(sid, "echo", {"text": "more"})).text == "more"
    assert (await client.call(sid, "win")).output["reward"] == 1.0


async def test_an_unknown_tool_after_the_end_is_refused_too(serve: Serve) -> None:
    client = serve(Echo)
    sid = await client.open()
    await client.call(sid, "win")
    assert (await client.call(sid, "nothing")).reason in ("not_found", "episode_finished")


async def test_a_tool_that_raises_does_not_finish(serve: Serve) -> None:
    class Trying(Echo):
        @tool
        async def fail(self) -> ToolOutput:
            raise ValueError("try again")

    client = serve(Trying)
    sid = await client.open()
    await client.call(sid, "fail")
    assert (await client.call(sid, "echo", {"text": "again"})).text == "again"
