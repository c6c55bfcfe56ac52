"""Sessions that are opened ahead: in their order, bounded, behind what an episode waits for, and never lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, ClassVar

import pytest
from ors_clients.client.async_client import AsyncClient
from ors_clients.client.environments import AsyncEnvironment
from ors_clients.client.sessions import AsyncSession
from ors_clients.errors import ConfigurationError, RequestRefused
from ors_clients.rollouts import sessions_ahead
from ors_clients.rollouts.sessions_ahead import SessionsAhead

from ors_server import Environment, Server, TextBlock, ToolOutput, tool
from ors_server.settings import Settings
from tests.clients.scripted_engine import serve_application
from tests.support.waiting import until


class Desk(Environment):
    """Counts its sessions; a set-up goes on as long as its task is in ``wait``."""

    tasks: ClassVar[list[int]] = []
    live: ClassVar[int] = 0
    most: ClassVar[int] = 0
    ended: ClassVar[int] = 0
    wait: ClassVar[Sequence[int]] = ()

    @classmethod
    def reset(cls) -> None:
        cls.tasks, cls.live, cls.most, cls.ended, cls.wait = [], 0, 0, 0, ()

    @classmethod
    def list_splits(cls) -> list[str]:
        return ["train"]

    @classmethod
    def list_tasks(cls, split: str) -> list[dict[str, Any]]:
        return [{"id": number} for number in range(32)]

    async def setup(self) -> None:
        number = int(str(self.task_spec["id"]))
        Desk.tasks.append(number)
        Desk.live += 1
        Desk.most = max(Desk.most, Desk.live)
        while number in Desk.wait:  # noqa: ASYNC110 - set by a test on another thread
            await asyncio.sleep(0.01)

    async def teardown(self) -> None:
        Desk.live -= 1
        Desk.ended += 1

    def get_prompt(self) -> list[TextBlock]:
        return [TextBlock(text=f"task {self.task_spec['id']}")]

    @tool
    def done(self) -> ToolOutput:
        """End it."""
        return ToolOutput(blocks=[TextBlock(text="done")], reward=1.0, finished=True)


@contextmanager
def served(**settings: Any) -> Generator[str]:
    Desk.reset()
    with serve_application(Server([Desk], settings=Settings(**settings)).app) as url:
        yield url


@asynccontextmanager
async def desk(**settings: Any) -> AsyncGenerator[AsyncEnvironment]:
    with served(**settings) as url:
        async with AsyncClient(url, timeout=20.0) as client:
            yield client.environment("desk")


def maker(environment: AsyncEnvironment, number: int) -> Callable[[], AsyncSession]:
    return lambda: environment.session(split="train", index=number)


async def played(ahead: SessionsAhead, environment: AsyncEnvironment, number: int) -> str:
    """Play an episode; return its prompt."""
    session = ahead.take(number, maker(environment, number))
    await session.__aenter__()
    try:
        assert [tool.name for tool in await session.tools()] == ["done"]
        [message] = await session.messages()
        result = await session.call("done", {})
        assert result.finished
    finally:
        await session.close()
    [block] = message.blocks
    assert isinstance(block, TextBlock)
    return block.text


def expect(ahead: SessionsAhead, environment: AsyncEnvironment, count: int) -> None:
    ahead.expect((number, maker(environment, number)) for number in range(count))


async def test_the_next_sessions_are_there_when_their_episodes_begin() -> None:
    async with desk() as environment, SessionsAhead(3) as ahead:
        expect(ahead, environment, 6)
        assert await played(ahead, environment, 0) == "task 0"
        await until(lambda: len(Desk.tasks) >= 4)
        assert (Desk.tasks[0], sorted(Desk.tasks)) == (0, [0, 1, 2, 3])
        assert ahead.ahead == 3
        session = ahead.take(1, maker(environment, 1))
        await session.__aenter__()
        # What its episode asks for first was read before it began.
        Desk.wait = range(32)
        assert [tool.name for tool in await session.tools()] == ["done"]
        assert str(await session.messages()).count("task 1") == 1
        Desk.wait = ()
        await session.close()
        for number in range(2, 6):
            assert await played(ahead, environment, number) == f"task {number}"
        assert ahead.problem is None
    assert sorted(Desk.tasks) == list(range(6))  # each was opened once
    await until(lambda: Desk.ended == 6)
    assert Desk.live == 0


async def test_nothing_is_opened_ahead_while_an_episode_waits() -> None:
    async with desk() as environment, SessionsAhead(4) as ahead:
        expect(ahead, environment, 4)
        Desk.wait = [7]
        waiting = asyncio.create_task(played(ahead, environment, 7))
        await until(lambda: len(Desk.tasks) == 1)
        await played(ahead, environment, 0)
        await asyncio.sleep(0.1)
        assert Desk.tasks == [7, 0]
        Desk.wait = ()
        await waiting
        await until(lambda: len(Desk.tasks) == 5)


async def test_more_than_the_server_admits_is_said_and_loses_no_episode(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "ors_clients.rollouts.sessions_ahead"):
        async with desk(max_sessions=3) as environment, SessionsAhead(8) as ahead:
            expect(ahead, environment, 6)
            for number in range(6):
                assert await played(ahead, environment, number) == f"task {number}"
                await asyncio.sleep(0.1)
            assert ahead.problem is not None
            assert "of 8 sessions could be opened ahead" in ahead.problem
            assert "ORS_MAX_SESSIONS" in ahead.problem
        assert Desk.most <= 3
        await until(lambda: Desk.live == 0)
    assert [record.levelname for record in caplog.records] == ["WARNING"]  # once


async def _brief(_: float) -> None:
    await asyncio.sleep(0.02)


async def test_an_episode_that_waits_for_a_place_gets_that_of_one_opened_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sessions_ahead, "_PATIENCE", 0.05)
    monkeypatch.setattr(sessions_ahead, "_PAUSE", 0.2)
    monkeypatch.setattr("ors_clients.transport.connection.sleep", _brief)
    async with desk(max_sessions=2) as environment, SessionsAhead(2) as ahead:
        expect(ahead, environment, 3)
        assert await played(ahead, environment, 0) == "task 0"
        await until(lambda: ahead.ahead == 2 and Desk.live == 2)
        # It was not expected, and the server is full of sessions that no episode waits for.
        async with asyncio.timeout(60):
            assert await played(ahead, environment, 9) == "task 9"
            assert await played(ahead, environment, 1) == "task 1"
            assert await played(ahead, environment, 2) == "task 2"
    await until(lambda: Desk.live == 0)


@pytest.mark.parametrize("moment", ["opening", "open", "begun"])
async def test_a_run_that_ends_early_leaves_nothing_behind(moment: str) -> None:
    async with desk() as environment:
        Desk.wait = range(32) if moment == "opening" else ()

        async def run() -> None:
            async with SessionsAhead(4) as ahead:
                expect(ahead, environment, 8)
                if moment == "begun":
                    session = ahead.take(0, maker(environment, 0))
                    await session.__aenter__()
                    await session.messages()
                else:
                    ahead.waits_no_longer(ahead.take(7, maker(environment, 7)))  # pyright: ignore[reportArgumentType]
                await asyncio.sleep(3600)

        task = asyncio.create_task(run())
        await until(lambda: Desk.live >= 4)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        Desk.wait = ()
        if moment == "begun":  # its episode's own, which ends it
            assert Desk.live <= 1
        else:
            await until(lambda: Desk.live == 0)


async def test_a_session_that_has_ended_meanwhile_is_opened_again() -> None:
    async with desk() as environment, SessionsAhead(2) as ahead:
        expect(ahead, environment, 3)
        await played(ahead, environment, 0)
        await until(lambda: ahead.ahead == 2 and sorted(Desk.tasks) == [0, 1, 2])
        await asyncio.sleep(0.05)
        for session in ahead._ahead.values():  # pyright: ignore[reportPrivateUsage]
            inner = session._session  # pyright: ignore[reportPrivateUsage]
            assert isinstance(inner, AsyncSession)
            await inner._connection.json("POST", "/delete", headers=inner._headers)  # pyright: ignore[reportPrivateUsage]
        assert await played(ahead, environment, 1) == "task 1"
        assert await played(ahead, environment, 2) == "task 2"
    assert sorted(Desk.tasks) == [0, 1, 1, 2, 2]
    assert Desk.live == 0


async def test_ends_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = asyncio.Event()
    close = AsyncSession.close

    async def slow(session: AsyncSession) -> None:
        await ended.wait()
        await close(session)

    monkeypatch.setattr(AsyncSession, "close", slow)
    async with desk() as environment, SessionsAhead(0) as ahead:
        async with asyncio.timeout(60):
            for number in range(3):
                await played(ahead, environment, number)
        assert Desk.ended == 0
        ended.set()
    assert Desk.ended == 3


async def test_a_refusal_is_raised_where_the_episode_begins() -> None:
    async with desk() as environment, SessionsAhead(2) as ahead:
        ahead.expect((number, maker(environment, 1000 + number)) for number in range(2))
        session = ahead.take("first", maker(environment, 0))
        await session.__aenter__()
        await session.messages()
        await until(lambda: ahead.problem is not None)
        with pytest.raises(RequestRefused):
            await ahead.take(0, maker(environment, 1000)).__aenter__()
        await session.close()


def test_a_negative_number_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="-1 sessions"):
        SessionsAhead(-1)
