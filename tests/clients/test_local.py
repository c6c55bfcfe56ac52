"""The local mode: an episode without a server has the same results as with one, for the classes of every SDK."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ors_clients.client.async_client import AsyncClient
from ors_clients.client.local_sessions import local, local_sync
from ors_clients.client.sessions import AsyncSession
from ors_clients.errors import (
    ClientError,
    ConfigurationError,
    InfrastructureFailure,
    RequestRefused,
    ServerUnavailable,
    SessionLost,
    ToolFailed,
)
from ors_clients.models import ToolResult
from ors_clients.transport.asgi import ApplicationTransport
from pydantic import BaseModel

import ors_server
from ors_server import (
    Blocks,
    DefinitionError,
    Environment,
    JSONObject,
    Split,
    TextBlock,
    ToolOutput,
    terminal,
    tool,
)
from tests.clients.workshop import JOURNAL, MODULES, workshop
from tests.server.protocol.plain_uvicorn import under_plain_uvicorn

SECRET = "hunter2hunter2"


class Number(BaseModel):
    number: int


class Guess(Environment):
    """Guess a number; the tools can fail in every way."""

    ended: int = 0

    @classmethod
    def list_splits(cls) -> Sequence[Split | str]:
        return ["train"]

    @classmethod
    def list_tasks(cls, split: str) -> Sequence[JSONObject]:
        return [{"target": 3}, {"target": 7}]

    def get_prompt(self) -> Blocks:
        return [TextBlock(text=f"Guess, {self.secrets.get('name', 'you')}.")]

    def teardown(self) -> None:
        type(self).ended += 1

    @tool
    def guess(self, params: Number) -> ToolOutput:
        """Guess."""
        right = params.number == self.task_spec["target"]
        return ToolOutput(blocks=[TextBlock(text="yes" if right else "no")], reward=float(right), finished=right)

    @tool
    async def nan(self) -> ToolOutput:
        return ToolOutput(blocks=[], reward=float("nan"))

    @tool
    async def odd(self) -> ToolOutput:
        return ToolOutput(blocks=[TextBlock(text="half \ud83d")], metadata={"inner": {1, 2}})

    @tool
    async def thread(self) -> ToolOutput:
        await asyncio.sleep(0.15)  # past the moment at which a server opens its stream
        return ToolOutput(blocks=[TextBlock(text=str(threading.current_thread() is threading.main_thread()))])

    @tool
    async def break_machine(self) -> ToolOutput:
        raise ors_server.InfrastructureFailure("The disk is full", "Empty it.")

    @terminal
    @tool
    async def answer(self, params: Number) -> ToolOutput:
        """Submit the answer."""
        return ToolOutput(blocks=[], reward=0.5, finished=True)


Step = tuple[str, dict[str, Any]]

EPISODES: list[list[Step]] = [
    [("guess", {"number": 3}), ("guess", {"number": 7}), ("guess", {"number": 7}), ("answer", {"number": 1})],
    [("guess", {"number": "x"}), ("guess", {}), ("nothing", {}), ("nan", {}), ("odd", {}), ("guess", {"number": "7"})],
    [("thread", {}), ("answer", {"number": 1}), ("thread", {})],
    [("break_machine", {}), ("guess", {"number": 7})],
]


async def play(session: AsyncSession, steps: Sequence[Step]) -> list[object]:
    """Return every visible result of an episode."""
    seen: list[object] = []
    async with session:
        seen += [await session.prompt(), await session.messages(), await session.tools(), session.terminal_tool]
        for name, arguments in steps:
            try:
                seen.append(await session.call(name, arguments))
            except ClientError as error:
                seen.append((type(error), str(error)))
            seen.append(session.finished)
    return seen


@pytest.mark.parametrize("steps", EPISODES)
async def test_the_same_as_served(steps: list[Step]) -> None:
    from ors_server import Server

    choice: dict[str, Any] = {"split": "train", "index": 1, "secrets": {"name": "Ann"}}
    server = Server([Guess])
    async with under_plain_uvicorn(server.app) as address, AsyncClient(address.url) as client:
        served = await play(client.environment("guess").session(**choice), steps)
    await server.sessions.close()
    assert await play(local(Guess, **choice), steps) == served
    # The same over ASGI alone, including streams.
    server = Server([Guess])
    async with AsyncClient(transport=ApplicationTransport(server.app)) as client:
        assert await play(client.environment("guess").session(**choice), steps) == served
    await server.sessions.close()
    assert await play(local(Guess, {"target": 7}, secrets={"name": "Ann"}), steps) == served


async def test_a_reward_that_is_not_a_number_is_not_shown_to_the_model() -> None:
    async with local(Guess, {"target": 7}) as session:
        with pytest.raises(InfrastructureFailure, match="reward nan"):
            await session.call("nan")


@pytest.mark.parametrize("kind", MODULES)
async def test_environments_of_every_sdk(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(JOURNAL, str(tmp_path / "journal"))
    async with local(workshop(kind), {"subject": "me"}, secrets={"key": SECRET}) as session:
        assert (await session.call("work", {"text": "x"})).metadata == {"run": 1}
        assert (await session.call("whisper")).text == SECRET
        with pytest.raises(ToolFailed) as failed:
            await session.call("fail")
        assert SECRET not in str(failed.value)
        assert (await session.call("work", {"milliseconds": "x"})).reason == "input_validation"
        await session.call("finish", {"reward": 1})
        assert (await session.call("work")).reason == "episode_finished"
    assert (tmp_path / "journal").read_text().splitlines()[-1] == "torn-down me"


def test_without_an_event_loop() -> None:
    before = Guess.ended
    with local_sync(Guess, split="train", index=0) as session:
        assert session.prompt() == [TextBlock(text="Guess, you.")]
        assert session.call("guess", {"number": 3}).reward == 1.0
        assert session.finished
        assert [tool.name for tool in session.tools()] == ["break_machine", "guess", "nan", "odd", "thread"]
        assert session.terminal_tool is not None
    assert Guess.ended == before + 1


async def test_it_ends_with_everything_it_started() -> None:
    # The threads themselves rather than their number: threads of earlier tests may end meanwhile.
    before, threads, tasks = Guess.ended, set(threading.enumerate()), len(asyncio.all_tasks())
    async with local(Guess, {"target": 1}) as session:
        await session.call("guess", {"number": 1})
        assert set(threading.enumerate()) - threads  # synchronous tools do not block the loop
    await session.close()
    assert Guess.ended == before + 1
    async with asyncio.timeout(60):
        while set(threading.enumerate()) - threads:  # noqa: ASYNC110 - the end of a thread cannot be awaited
            await asyncio.sleep(0.01)
    assert len(asyncio.all_tasks()) == tasks
    with pytest.raises(SessionLost, match="closed"):
        await session.call("guess", {"number": 1})


async def test_a_cancelled_episode_is_torn_down() -> None:
    before = Guess.ended
    entered = asyncio.Event()

    async def rollout() -> None:
        async with local(Guess, {"target": 1}) as session:
            entered.set()
            await session.call("thread")

    task = asyncio.create_task(rollout())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert Guess.ended == before + 1


async def test_what_cannot_be_opened() -> None:
    choices: list[dict[str, Any]] = [{}, {"split": "train"}, {"task": {}, "split": "train", "index": 0}]
    for choice in choices:
        with pytest.raises(ConfigurationError):
            local(Guess, **choice)
    for split, index in (("nowhere", 0), ("train", 9)):
        session = local(Guess, split=split, index=index)
        with pytest.raises(RequestRefused):
            await session.open()
        await session.close()

    class Nothing(Environment):
        pass

    with pytest.raises(DefinitionError):
        local(Nothing, {})
    with pytest.raises(TypeError):
        local(dict, {})


@pytest.mark.parametrize("raises", [True, False])
async def test_an_application_that_gives_no_answer(raises: bool) -> None:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        if raises:
            raise ValueError("broken")

    async with AsyncClient(transport=ApplicationTransport(application), retries=0) as client:
        with pytest.raises(ServerUnavailable):
            await client.environments()


def test_results_can_be_compared() -> None:
    assert ToolResult([TextBlock(text="a")], 1.0) == ToolResult([TextBlock(text="a")], 1.0)
