"""Tests of the environment: the grading alone, and whole episodes as a client plays them. Run `pytest` here.

They need neither a network nor a running server.
"""

import asyncio
import json
from typing import Any

import httpx
from environment import AnswerInput, PriceInput, TemplateEnvironment

from ors_server import Server, TextBlock

TASK = TemplateEnvironment.list_tasks("train")[0]


def test_the_right_answer_is_rewarded() -> None:
    """A reward has to be right before anything else is."""
    environment = TemplateEnvironment(TASK)
    output = environment.answer(AnswerInput(cents=environment.total()))
    assert output.reward == 1.0
    assert output.finished


def test_a_wrong_answer_is_not() -> None:
    """And an agent must not get it for less."""
    environment = TemplateEnvironment(TASK)
    output = environment.answer(AnswerInput(cents=environment.total() + 1))
    assert output.reward == 0.0
    assert output.finished


def test_an_unknown_item_is_an_answer_and_no_error() -> None:
    """A mistake of the agent does not end the episode."""
    output = asyncio.run(TemplateEnvironment(TASK).price(PriceInput(item="caviar")))
    assert output.blocks == [TextBlock(text="No such item: caviar")]
    assert not output.finished


def test_no_task_tells_its_answer() -> None:
    """Clients see tasks whole."""
    for split in TemplateEnvironment.list_splits():
        for task in TemplateEnvironment.list_tasks(split):
            assert str(TemplateEnvironment(task).total()) not in json.dumps(task)


def test_an_episode() -> None:
    """Every task of the test split is played over HTTP, by an agent that asks for each price and adds them up."""

    async def play() -> list[float]:
        # The server's own application: what `ors-server serve` listens with, called in this process.
        transport = httpx.ASGITransport(app=Server([TemplateEnvironment]).app)
        async with httpx.AsyncClient(transport=transport, base_url="http://environment") as client:
            count = (await client.post("/num_tasks", json={"split": "test"})).json()["num_tasks"]
            return [await play_task(client, index) for index in range(count)]

    rewards = asyncio.run(play())
    assert rewards == [1.0] * len(TemplateEnvironment.list_tasks("test"))


async def play_task(client: httpx.AsyncClient, index: int) -> float:
    """One episode: open a session, read the prompt, call tools, end the session."""
    session = (await client.post("/create_session")).json()
    headers = {"X-Session-ID": session["sid"]}
    created = await client.post("/create", json={"split": "test", "index": index}, headers=headers)
    created.raise_for_status()

    prompt = (await client.get("/prompt", headers=headers)).json()
    order = [line.removeprefix("- ").split(" x ") for line in prompt[0]["text"].splitlines() if line.startswith("- ")]
    cents = 0
    for number, item in order:
        answer = await call(client, headers, "price", {"item": item})
        cents += int(number) * int(answer["blocks"][0]["text"].split()[1])
    output = await call(client, headers, "answer", {"cents": cents})

    await client.post("/delete", headers=headers)
    assert output["finished"]
    return output["reward"]


async def call(client: httpx.AsyncClient, headers: dict[str, str], tool: str, tool_input: dict[str, Any]) -> Any:
    """Call a tool and return its output. The result comes as events; the data of the last one is the result."""
    response = await client.post("/call", json={"name": tool, "input": tool_input}, headers=headers)
    response.raise_for_status()
    event, _, data = response.text.strip().rpartition("data: ")
    assert event.rstrip().endswith("event: end"), response.text
    result = json.loads(data)
    assert result["ok"], result
    return result["output"]
