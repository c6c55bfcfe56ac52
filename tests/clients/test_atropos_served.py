"""Atropos environments over ORS: a real server, our client, and the rollout that trainers use."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest
import pytest_asyncio
from ors_clients.client.async_client import AsyncClient
from ors_clients.errors import NotFound, SessionLost

from tests.clients import atropos_stand_in
from tests.support.paths import ROOT
from tests.support.servers import served

atropos_stand_in.install()


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    tokenizer = atropos_stand_in.tokenizer_name(tmp_path_factory.mktemp("tokenizer"))
    target = Path(__file__).with_name("atropos_served_environments.py")
    variables = {"BYTE_TOKENIZER": tokenizer, "PYTHONPATH": f"{ROOT}:{ROOT / 'clients'}:{ROOT / 'containers'}"}
    with served(tmp_path_factory.mktemp("server"), target, **variables) as address:
        yield address


@pytest_asyncio.fixture
async def client(url: str) -> AsyncGenerator[AsyncClient]:
    async with AsyncClient(url) as made:
        yield made


async def test_any_number_of_turns(client: AsyncClient) -> None:
    async with client.environment("guessing").session(split="train", index=2) as session:
        assert [tool.name for tool in await session.tools()] == ["respond"]
        assert [block.type for block in await session.prompt()] == ["text"]
        first = await session.call("respond", {"message": "9"})
        assert (first.text, first.reward, first.finished) == ("No, guess again.", None, False)
        await session.call("respond", {"message": "8"})
        last = await session.call("respond", {"message": "2"})
        assert (last.reward, last.finished) == (0.5, True)
        assert last.metadata == {"atropos_score": 0.5}
        after = await session.call("respond", {"message": "2"})
        assert after.error


async def test_the_prompt_keeps_its_roles(client: AsyncClient) -> None:
    async with client.environment("arithmetic").session(split="train", index=3) as session:
        messages = await session.messages()
        assert [message.role for message in messages] == ["system", "user"]
        assert (await session.call("respond", {"message": "It is \\boxed{6}."})).reward == 1.0


async def test_failed_answers_and_the_bridge(client: AsyncClient) -> None:
    async with client.environment("arithmetic").session(split="train", index=3) as session:
        assert (await session.call("respond", {"message": "It is \\boxed{7}."})).reward == -1.0
    async with client.environment("shaped").session(split="train", index=3) as session:
        result = await session.call("respond", {"message": "It is \\boxed{7}."})
        assert result.reward == pytest.approx(-1.0 + 0.3 + 0.016)
        assert result.metadata == {"atropos_score": -1.0}


async def test_tasks_are_numbers(client: AsyncClient) -> None:
    environment = client.environment("arithmetic")
    assert await environment.num_tasks("train") == 7
    assert [task.spec for task in await environment.tasks("train")] == [{"index": index} for index in range(7)]
    assert (await environment.task("train", 6)).spec == {"index": 6}
    assert await client.environment("guessing").num_tasks("train") == 256


@pytest.mark.parametrize("name", ["raising", "lonely"])
async def test_an_episode_without_a_score_has_no_reward(client: AsyncClient, name: str) -> None:
    async with client.environment(name).session(split="train", index=2) as session:
        with pytest.raises(SessionLost) as lost:
            await session.call("respond", {"message": "It is \\boxed{4}."})
        assert "hunter2" not in str(lost.value)
        with pytest.raises(SessionLost):
            await session.call("respond", {"message": "again"})


async def test_an_environment_that_asks_nothing_cannot_be_opened(client: AsyncClient) -> None:
    async with client.environment("silent").session(split="train", index=0) as session:
        with pytest.raises(SessionLost, match="without asking"):
            await session.prompt()


async def test_sessions_do_not_mix(client: AsyncClient) -> None:
    async def play(index: int) -> float | None:
        async with client.environment("guessing").session(split="train", index=index) as session:
            await session.call("respond", {"message": "999"})
            return (await session.call("respond", {"message": str(index)})).reward

    assert await asyncio.gather(*(play(index) for index in range(30))) == [0.75] * 30


async def test_an_abandoned_session_is_cleaned_up_and_others_go_on(client: AsyncClient) -> None:
    environment = client.environment("careful")
    async with environment.session(split="train", index=0) as kept:
        async with environment.session(split="train", index=0) as left:
            await left.call("respond", {"message": "one"})
        for text in ("one", "two"):
            assert not (await kept.call("respond", {"message": text})).finished
        assert (await kept.call("respond", {"message": "three"})).reward == 1.0


async def test_tools_that_the_environment_offers_are_described(client: AsyncClient) -> None:
    async with client.environment("doubling").session(split="train", index=0) as session:
        prompt = "\n".join(block.text for block in await session.prompt() if block.type == "text")
        assert '"name": "double"' in prompt
        call = '<tool_call>\n{"name": "double", "arguments": {"number": 4}}\n</tool_call>'
        assert "8" in (await session.call("respond", {"message": call})).text
        assert (await session.call("respond", {"message": "8"})).reward == 1.0


async def test_a_class_without_an_environment_is_said_to_be_unavailable(client: AsyncClient) -> None:
    with pytest.raises(NotFound, match="atropos_environment"):
        await client.environment("unnamed").num_tasks("train")
