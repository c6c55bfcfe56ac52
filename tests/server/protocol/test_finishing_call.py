"""A finishing call whose result cannot be sent does not end the episode: the agent may call again."""

import asyncio

import pytest
from pydantic import BaseModel

from ors_server import JSONObject, ToolOutput, tool
from tests.server.protocol.conftest import Serve
from tests.support.environments import Bare, said
from tests.support.events import Reply, parse_events
from tests.support.http_client import Client


class Attempt(BaseModel):
    """Input: the size of the result, and the reward."""

    size: int = 1
    reward: float = 1.0


class Finishing(Bare):
    """Tools that end the episode, with a result of any size and reward."""

    @tool
    async def submit(self, params: Attempt) -> ToolOutput:
        return said("x" * params.size, params.reward, finished=True)

    @tool
    def submit_on_thread(self, params: Attempt) -> ToolOutput:
        return said("x" * params.size, params.reward, finished=True)

    @tool(concurrent=True)
    async def look(self) -> ToolOutput:
        return said("still here")


FAILURES: list[JSONObject] = [
    {"size": 20_000, "reward": 1.0},
    {"size": 1, "reward": float("nan")},
    {"size": 1, "reward": float("inf")},
]


async def attempt(client: Client, sid: str, name: str, failure: JSONObject) -> str:
    """Call the tool with a result that cannot be sent. Return the error."""
    if failure["size"] == 1:
        content = b'{"name":"%b","input":{"size":1,"reward":%b}}'
        reward = {"nan": b"NaN", "inf": b"Infinity"}[str(failure["reward"])]
        response = await client.http.post(
            "/call", content=content % (name.encode(), reward), headers={"X-Session-ID": sid}
        )
        assert response.status_code == 200, response.text
        return Reply(parse_events(response.content)).error
    return (await client.call(sid, name, failure)).error


@pytest.mark.parametrize("failure", FAILURES, ids=["too large", "nan", "infinite"])
@pytest.mark.parametrize("name", ["submit", "submit_on_thread"])
async def test_the_reward_of_the_next_try_arrives(serve: Serve, name: str, failure: JSONObject) -> None:
    client = serve(Finishing, max_output=10_000)
    sid = await client.open()
    error = await attempt(client, sid, name, failure)
    assert "OutputTooLarge" in error or "reward" in error
    assert (await client.call(sid, "look")).text == "still here"
    output = (await client.call(sid, name, {"reward": 0.75})).output
    assert (output["reward"], output["finished"]) == (0.75, True)
    assert (await client.call(sid, "look")).reason == "episode_finished"


async def test_the_next_try_may_have_been_waiting(serve: Serve) -> None:
    """Calls of one tool take turns; the failure of the first must not refuse the second."""
    proceed = asyncio.Event()

    class Queued(Bare):
        @tool
        async def submit(self, params: Attempt) -> ToolOutput:
            await proceed.wait()
            return said("x" * params.size, params.reward, finished=True)

    client = serve(Queued, max_output=10_000)
    sid = await client.open()
    first = asyncio.create_task(client.call(sid, "submit", {"size": 20_000}))
    await asyncio.sleep(0.1)
    second = asyncio.create_task(client.call(sid, "submit", {"reward": 0.5}))
    await asyncio.sleep(0.1)
    proceed.set()
    assert "OutputTooLarge" in (await first).error
    assert (await second).output["reward"] == 0.5


async def test_of_two_that_end_at_once_the_one_that_can_be_sent_counts(serve: Serve) -> None:
    proceed = asyncio.Event()

    class Racing(Bare):
        @tool(concurrent=True)
        async def submit(self, params: Attempt) -> ToolOutput:
            await proceed.wait()
            return said("x" * params.size, params.reward, finished=True)

    client = serve(Racing, max_output=10_000)
    sid = await client.open()
    calls = [
        asyncio.create_task(client.call(sid, "submit", {"size": 20_000})),
        asyncio.create_task(client.call(sid, "submit", {"reward": 0.5})),
        asyncio.create_task(client.call(sid, "submit", {"reward": 0.25})),
    ]
    await asyncio.sleep(0.1)
    proceed.set()
    replies = await asyncio.gather(*calls)
    assert "OutputTooLarge" in replies[0].error
    assert replies[1].output["reward"] == 0.5
    assert replies[2].reason == "episode_finished"


async def test_an_error_that_was_sent_stays_the_answer_of_its_call(serve: Serve) -> None:
    """By its id and by its key, whatever happened afterwards."""
    client = serve(Finishing, max_output=10_000)
    sid = await client.open()
    failed = await client.call(sid, "submit", {"size": 20_000}, key="k")
    await client.call(sid, "submit")
    assert (await client.call(sid, "submit", task_id=failed.task_id)).error == failed.error
    assert (await client.call(sid, "submit", {"size": 20_000}, key="k")).error == failed.error
