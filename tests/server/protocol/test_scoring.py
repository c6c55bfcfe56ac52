"""``/score_group``: like a call, with a score for each candidate (protocol, sections 1 and 5)."""

import asyncio
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy
import pytest

from ors_server import GroupCandidate, GroupScore, TextBlock
from tests.server.protocol.conftest import Serve
from tests.support.environments import Echo
from tests.support.events import Reply, parse_events
from tests.support.http_client import Client


def candidate(text: str, **more: object) -> dict[str, object]:
    return {"messages": [{"role": "assistant", "blocks": [{"type": "text", "text": text}]}], **more}


async def score(client: Client, sid: str, body: object) -> Reply:
    response = await client.post("/echo/score_group", body, sid)
    assert response.status_code == 200, response.text
    return Reply(parse_events(response.content))


def returning(scores: object) -> type[Echo]:
    """Return an environment whose judge gives these scores."""

    async def score_group(self: object, candidates: object) -> object:
        return scores

    return type("Echo", (Echo,), {"score_group": score_group})


class Judging(Echo):
    """Scores candidates by their length."""

    @classmethod
    def name(cls) -> str:
        return "Echo"

    async def score_group(self, candidates: Sequence[GroupCandidate]) -> list[GroupScore]:
        scores: list[GroupScore] = []
        for one in candidates:
            block = one.messages[0].blocks[0]
            assert isinstance(block, TextBlock)
            scores.append(GroupScore(reward=float(len(block.text)), metadata={"given": one.metadata}))
        return scores


async def test_a_score_for_each_candidate_in_order(serve: Serve) -> None:
    client = serve(Judging)
    assert (await client.get("/tools")).json()["supports_score_group"] is True
    sid = await client.open()
    reply = await score(client, sid, {"candidates": [candidate("abc"), candidate("", metadata={"k": 1})]})
    assert reply.names == ["task_id", "end"]
    assert reply.result == {
        "scores": [{"reward": 3.0, "metadata": {"given": None}}, {"reward": 0.0, "metadata": {"given": {"k": 1}}}]
    }


@pytest.mark.parametrize(
    "scores", [[1, 0.5], (1.0, 0.5), [1.0, GroupScore(reward=0.5)], [True, 0.5], [numpy.float32(1), Decimal("0.5")]]
)
async def test_numbers_are_scores(serve: Serve, scores: object) -> None:
    client = serve(returning(scores))
    sid = await client.open()
    result = (await score(client, sid, {"candidates": [candidate("a"), candidate("b")]})).result
    assert result == {"scores": [{"reward": 1.0, "metadata": None}, {"reward": 0.5, "metadata": None}]}


async def test_a_synchronous_judge(serve: Serve) -> None:
    class Sync(Judging):
        def score_group(self, candidates: Sequence[GroupCandidate]) -> Any:
            return [float(index) for index, _ in enumerate(candidates)]

    client = serve(Sync)
    result = (await score(client, await client.open(), {"candidates": [candidate("a")] * 3})).result
    assert [entry["reward"] for entry in result["scores"]] == [0.0, 1.0, 2.0]


async def test_a_wrong_number_of_scores_is_an_error(serve: Serve) -> None:
    client = serve(returning([1.0]))
    sid = await client.open()
    reply = await score(client, sid, {"candidates": [candidate("a"), candidate("b")]})
    assert "score_group returned 1 scores for 2 candidates" in reply.error


@pytest.mark.parametrize("reward", [float("nan"), float("inf")])
async def test_a_score_that_is_not_finite_is_an_error_that_names_the_candidate(serve: Serve, reward: float) -> None:
    """Protocol 0.1, "Values": never null."""
    client = serve(returning([0.0, reward]))
    sid = await client.open()
    reply = await score(client, sid, {"candidates": [candidate("a"), candidate("b")]})
    assert str(reward) in reply.error
    assert "candidate 1" in reply.error


@pytest.mark.parametrize("scores", [None, 3, ["high", "low"], [None, None]])
async def test_a_result_that_is_not_a_list_of_scores_is_an_error(serve: Serve, scores: object) -> None:
    client = serve(returning(scores))
    sid = await client.open()
    assert (await score(client, sid, {"candidates": [candidate("a"), candidate("b")]})).error
    assert (await client.call(sid, "echo", {"text": "well"})).text == "well"


async def test_a_judge_that_raises_is_an_error_and_the_session_goes_on(serve: Serve) -> None:
    class Failing(Judging):
        async def score_group(self, candidates: Sequence[GroupCandidate]) -> list[GroupScore]:
            raise RuntimeError("no judge")

    client = serve(Failing)
    sid = await client.open()
    reply = await score(client, sid, {"candidates": [candidate("a")]})
    assert reply.names == ["task_id", "error"]
    assert reply.error == "RuntimeError: no judge"
    assert (await client.post("/ping", sid=sid)).status_code == 200


async def test_resuming(serve: Serve) -> None:
    """Section 2: as for a call, bound to the session."""
    runs: list[int] = []

    class Counted(Judging):
        async def score_group(self, candidates: Sequence[GroupCandidate]) -> list[GroupScore]:
            runs.append(1)
            return await super().score_group(candidates)

    client = serve(Counted)
    sid, other = await client.open(), await client.open()
    body: dict[str, Any] = {"candidates": [candidate("abc")]}
    first = await score(client, sid, body)
    again = await score(client, sid, {**body, "task_id": first.task_id})
    assert again.events == first.events
    assert (await score(client, other, {**body, "task_id": first.task_id})).events == [("error", "unknown task_id")]
    assert runs == [1]


async def test_it_is_not_latched_by_finished(serve: Serve) -> None:
    """Section 5: groups are scored after their episodes."""
    client = serve(Judging)
    sid = await client.open()
    await client.call(sid, "win")
    assert (await score(client, sid, {"candidates": [candidate("abc")]})).result["scores"][0]["reward"] == 3.0


async def test_it_opens_its_stream_during_set_up(serve: Serve) -> None:
    proceed = asyncio.Event()

    class Slow(Judging):
        async def setup(self) -> None:
            await proceed.wait()

    client = serve(Slow)
    sid = await client.open()
    async with client.stream("/score_group", {"candidates": [candidate("ab")]}, sid) as stream:
        assert (await stream.event()).name == "task_id"
        proceed.set()
        assert (await stream.reply()).result["scores"][0]["reward"] == 2.0


async def test_an_empty_group(serve: Serve) -> None:
    client = serve(Judging)
    assert (await score(client, await client.open(), {"candidates": []})).result == {"scores": []}


@pytest.mark.parametrize(
    ("role", "block"),
    [
        ("system", {"type": "reasoning", "text": "x"}),
        ("system", {"type": "tool_result", "tool_call_id": "1", "blocks": []}),
        ("user", {"type": "tool_call", "id": "1", "name": "n", "input": {}}),
        ("user", {"type": "reasoning", "text": "x"}),
        ("assistant", {"type": "tool_result", "tool_call_id": "1", "blocks": []}),
    ],
)
async def test_a_block_its_role_cannot_hold_is_422(serve: Serve, role: str, block: dict[str, object]) -> None:
    """Section 1: placement of the rich blocks."""
    client = serve(Judging)
    sid = await client.open()
    body = {"candidates": [{"messages": [{"role": role, "blocks": [block]}]}]}
    response = await client.post("/score_group", body, sid)
    assert response.status_code == 422
    assert str(block["type"]) in response.text


async def test_every_block_its_role_can_hold_is_taken(serve: Serve) -> None:
    image = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
    text = {"type": "text", "text": "abcd"}
    result = {"type": "tool_result", "tool_call_id": "1", "blocks": [text, image], "is_error": True}
    call = {"type": "tool_call", "id": "1", "name": "n", "input": {"a": 1}}
    reasoning = {"type": "reasoning", "text": "hm", "signature": "s"}
    messages = [
        {"role": "system", "blocks": [text, image]},
        {"role": "user", "blocks": [text, image, result]},
        {"role": "assistant", "blocks": [text, image, reasoning, call]},
    ]
    client = serve(Judging)
    reply = await score(client, await client.open(), {"candidates": [{"messages": messages}]})
    assert reply.result["scores"][0]["reward"] == 4.0
