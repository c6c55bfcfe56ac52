"""Section 4, "Concurrency": which calls of one session overlap, and that sessions never wait for each other."""

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable

import pytest

from ors_server import ToolOutput, tool
from tests.server.protocol.conftest import Serve
from tests.support.environments import Bare, Number, said
from tests.support.events import Reply
from tests.support.waiting import PATIENCE, until


class Board:
    """The calls that are inside a tool, and the calls that may leave it."""

    def __init__(self) -> None:
        self.inside: list[str] = []
        self.log: list[str] = []
        self.doors: dict[str, asyncio.Event] = {}

    async def visit(self, name: str) -> None:
        self.log.append(name)
        self.inside.append(name)
        await self.doors.setdefault(name, asyncio.Event()).wait()
        self.inside.remove(name)

    def open(self, name: str) -> None:
        self.doors.setdefault(name, asyncio.Event()).set()


def playground(board: Board) -> type[Bare]:
    """Tools of every kind."""

    class Playground(Bare):
        @tool
        async def serial(self, params: Number) -> ToolOutput:
            await board.visit(f"serial {params.number}")
            return said(str(params.number))

        @tool
        async def other(self, params: Number) -> ToolOutput:
            await board.visit(f"other {params.number}")
            return said(str(params.number))

        @tool(concurrent=True)
        async def free(self, params: Number) -> ToolOutput:
            await board.visit(f"free {params.number}")
            return said(str(params.number))

        @tool(exclusive=True)
        async def alone(self, params: Number) -> ToolOutput:
            await board.visit(f"alone {params.number}")
            return said(str(params.number))

    return Playground


Caller = Callable[[str, int], Awaitable[asyncio.Task[Reply]]]


@pytest.fixture
def board() -> Board:
    return Board()


@pytest.fixture
async def start(serve: Serve, board: Board) -> Caller:
    """Start a call in the session and wait until it runs or is blocked."""
    client = serve(playground(board), stream_after=0.001)
    sid = await client.open()

    async def call(name: str, number: int) -> asyncio.Task[Reply]:
        task = asyncio.create_task(client.call(sid, name, {"number": number}))
        await asyncio.sleep(0.02)
        return task

    return call


async def test_calls_of_one_tool_run_one_after_another_in_order(start: Caller, board: Board) -> None:
    calls = [await start("serial", number) for number in range(3)]
    for number in range(3):
        await until(lambda number=number: board.inside == [f"serial {number}"])
        board.open(f"serial {number}")
    assert [(await call).text for call in calls] == ["0", "1", "2"]
    assert board.log == ["serial 0", "serial 1", "serial 2"]


async def test_different_tools_overlap(start: Caller, board: Board) -> None:
    calls = [await start("serial", 0), await start("other", 0), await start("free", 0)]
    assert sorted(board.inside) == ["free 0", "other 0", "serial 0"]
    for name in list(board.inside):
        board.open(name)
    assert [(await call).text for call in calls] == ["0", "0", "0"]


async def test_calls_of_a_concurrent_tool_overlap(start: Caller, board: Board) -> None:
    calls = [await start("free", number) for number in range(5)]
    assert len(board.inside) == 5
    for name in list(board.inside):
        board.open(name)
    await asyncio.gather(*calls)


async def test_an_exclusive_tool_waits_for_all_and_runs_alone(start: Caller, board: Board) -> None:
    before = [await start("free", 0), await start("serial", 0)]
    alone = await start("alone", 0)
    after = [await start("free", 1), await start("other", 1), await start("serial", 1)]
    # It waits for earlier calls and blocks later ones.
    assert sorted(board.inside) == ["free 0", "serial 0"]
    board.open("free 0")
    await before[0]
    await asyncio.sleep(0.02)
    assert board.inside == ["serial 0"]
    board.open("serial 0")
    await until(lambda: board.inside == ["alone 0"])
    await asyncio.sleep(0.05)
    assert board.inside == ["alone 0"]
    board.open("alone 0")
    await until(lambda: len(board.inside) == 3)
    assert sorted(board.inside) == ["free 1", "other 1", "serial 1"]
    for name in list(board.inside):
        board.open(name)
    await asyncio.gather(*before, alone, *after)


async def test_two_exclusive_calls_never_overlap(start: Caller, board: Board) -> None:
    calls = [await start("alone", 0), await start("alone", 1)]
    assert board.inside == ["alone 0"]
    board.open("alone 0")
    await until(lambda: board.inside == ["alone 1"])
    board.open("alone 1")
    await asyncio.gather(*calls)


async def test_a_failing_call_releases_the_next_one(serve: Serve) -> None:
    class Failing(Bare):
        @tool(exclusive=True)
        async def submit(self, params: Number) -> ToolOutput:
            await asyncio.sleep(0.02)
            if params.number == 0:
                raise ValueError("zero")
            return said("fine")

    client = serve(Failing)
    sid = await client.open()
    first, second = await asyncio.gather(
        client.call(sid, "submit", {"number": 0}), client.call(sid, "submit", {"number": 1})
    )
    assert (first.error, second.text) == ("ValueError: zero", "fine")


async def test_an_invalid_call_does_not_wait(start: Caller, board: Board, serve: Serve) -> None:
    client = serve(playground(board))
    sid = await client.open()
    running = asyncio.create_task(client.call(sid, "alone", {"number": 7}))
    await until(lambda: board.inside == ["alone 7"])
    async with asyncio.timeout(PATIENCE / 2):
        assert (await client.call(sid, "alone", {"number": "x"})).reason == "input_validation"
        assert (await client.call(sid, "nothing")).reason == "not_found"
    board.open("alone 7")
    await running


async def test_a_serial_call_past_its_limit_still_blocks_the_next_one(serve: Serve) -> None:
    """Code on a thread cannot be stopped; the calls of one tool must still not overlap."""
    inside: list[int] = []
    overlaps: list[list[int]] = []
    proceed = threading.Event()

    class Slow(Bare):
        @tool
        def step(self, params: Number) -> ToolOutput:
            inside.append(params.number)
            overlaps.append(list(inside))
            if params.number == 0:
                proceed.wait(PATIENCE)
            inside.remove(params.number)
            return said(str(params.number))

    client = serve(Slow, call_timeout=0.2)
    sid = await client.open()
    assert (await client.call(sid, "step", {"number": 0})).error.startswith("ToolTimeout")
    second = asyncio.create_task(client.call(sid, "step", {"number": 1}))
    await asyncio.sleep(0.05)
    proceed.set()
    assert (await second).text == "1"
    assert overlaps == [[0], [1]]


async def test_synchronous_tools_of_many_sessions_run_in_parallel(serve: Serve) -> None:
    """Section 9: in ors-sdk one blocking tool blocks every session."""
    together = threading.Barrier(30)

    class Meeting(Bare):
        @tool
        def meet(self) -> ToolOutput:
            together.wait(PATIENCE)
            return said("met")

    client = serve(Meeting)
    sids = [await client.open() for _ in range(30)]
    replies = await asyncio.gather(*(client.call(sid, "meet") for sid in sids))
    assert [reply.text for reply in replies] == ["met"] * 30


async def test_a_blocking_tool_blocks_no_other_sessions_calls(serve: Serve) -> None:
    proceed = threading.Event()

    class Blocking(Bare):
        @tool
        def block(self) -> ToolOutput:
            proceed.wait(PATIENCE)
            return said("done")

        @tool
        async def quick(self) -> ToolOutput:
            return said("quick")

    client = serve(Blocking)
    one, two = await client.open(), await client.open()
    blocked = asyncio.create_task(client.call(one, "block"))
    await asyncio.sleep(0.02)
    assert (await client.call(two, "quick")).text == "quick"
    assert (await client.call(one, "quick")).text == "quick"
    assert not blocked.done()
    proceed.set()
    assert (await blocked).text == "done"


async def test_context_variables_reach_synchronous_tools(serve: Serve) -> None:
    """Section 10: openreward authors rely on it."""
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")

    class Contextual(Bare):
        @tool
        def read(self) -> ToolOutput:
            return said(variable.get())

    client = serve(Contextual)
    sid = await client.open()
    variable.set("set")
    assert (await client.call(sid, "read")).text == "set"
