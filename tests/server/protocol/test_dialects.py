"""Classes written for openreward and ors-sdk, hosted unchanged (protocol 0.1 "Foreign classes", "Sync code")."""

import asyncio
import threading
from typing import Any

import pytest

from tests.server.protocol import foreign
from tests.server.protocol.conftest import Serve
from tests.support.http_client import secrets_header

EVERY = [foreign.OpenRewardGame, foreign.OrsGame]


@pytest.mark.parametrize("environment", EVERY)
async def test_an_episode(serve: Serve, environment: Any) -> None:
    client = serve(environment)
    assert (await client.get("/list_environments")).json() == [environment.__name__.lower()]
    assert (await client.get("/splits")).json()[0] == {"name": "train", "type": "train"}
    assert (await client.post("/task", {"split": "train", "index": 1})).json()["task"] == {"word": "two"}
    tools = (await client.get("/tools")).json()["tools"]
    assert [entry["name"] for entry in tools] == ["guess", "look"]
    assert set(tools[0]) == {"name", "description", "input_schema"}
    sid = await client.open({"split": "train", "index": 1}, X_Secrets=secrets_header({"k": {"value": "v"}}))
    assert (await client.get("/prompt", sid)).json() == [{"text": "guess two", "detail": None, "type": "text"}]
    assert (await client.call(sid, "look")).text == "v"
    assert (await client.call(sid, "guess", {"word": "one"})).output["reward"] == 0.0
    won = (await client.call(sid, "guess", {"word": "two"})).output
    assert (won["reward"], won["finished"], won["metadata"]) == (1.0, True, {"by": "guess"})


@pytest.mark.parametrize("environment", EVERY)
@pytest.mark.parametrize("enforce", [True, False])
async def test_the_finished_latch_holds_for_every_dialect(serve: Serve, environment: Any, enforce: bool) -> None:
    """Protocol 0.1: also for ors classes, whose own server lets calls go on."""
    client = serve(environment, enforce_finished=enforce)
    sid = await client.open()
    assert (await client.call(sid, "guess", {"word": "one"})).output["finished"] is True
    after = await client.call(sid, "look")
    if enforce:
        assert after.reason == "episode_finished"
    else:
        assert after.result["ok"] is True


async def test_an_ors_class_runs_all_its_synchronous_code_on_one_thread(serve: Serve) -> None:
    """Protocol 0.1, "Sync code": the author assumes that methods of one session never overlap."""
    foreign.THREADS.clear()
    client = serve(foreign.OrsThreads)
    one, two = await client.open(), await client.open()
    for sid in (one, two):
        await client.get("/prompt", sid)
        await asyncio.gather(*(client.call(sid, name) for name in ("first", "second", "first")))
        await client.post("/delete", sid=sid)
    assert set(foreign.THREADS) == {0, 1}
    for steps in foreign.THREADS.values():
        assert [step for step, _ in steps][:3] == ["init", "setup", "prompt"]
        assert steps[-1][0] == "teardown"
        assert len(steps) == 7
        assert len({thread for _, thread in steps}) == 1
    threads = {steps[0][1] for steps in foreign.THREADS.values()}
    assert threading.get_ident() not in threads
    assert len(threads) == 2


async def test_sync_on_loop_restores_the_reference(serve: Serve) -> None:
    foreign.THREADS.clear()
    client = serve(foreign.OrsThreads, sync_on_loop=True)
    sid = await client.open()
    await client.call(sid, "first")
    await client.post("/delete", sid=sid)
    (steps,) = foreign.THREADS.values()
    assert {thread for _, thread in steps} == {threading.get_ident()}


async def test_a_blocking_ors_tool_blocks_no_other_session(serve: Serve) -> None:
    """Section 9, performance: any sync tool blocks every session of the ors-sdk server."""
    client = serve(foreign.OrsBlocking)
    blocked, other = await client.open(), await client.open()
    foreign.RELEASE.clear()
    blocking = asyncio.create_task(client.call(blocked, "block"))
    try:
        await asyncio.sleep(0.05)
        assert (await client.call(other, "quick")).text == "quick"
        assert not blocking.done()
    finally:
        foreign.RELEASE.set()
    assert (await blocking).text == "blocked"


@pytest.mark.parametrize("pair", [foreign.OPENREWARD_FAMILY, foreign.ORS_FAMILY])
async def test_a_subclass_does_not_get_its_parents_tasks(serve: Serve, pair: Any) -> None:
    """Protocol 0.1: an SDK's default ``num_tasks`` and caches leak between subclasses, so they are never called."""
    client = serve(*pair)
    for _ in range(2):
        for name, count in (("parent", 3), ("child", 1)):
            number = await client.post(f"/{name}/num_tasks", {"split": "train"})
            assert number.json() == {"num_tasks": count}
            listed = await client.post(f"/{name}/tasks", {"split": "train"})
            assert len(listed.json()["tasks"]) == count
        assert (await client.post("/child/task", {"split": "train", "index": 1})).status_code == 400


async def test_a_malformed_foreign_tool_is_left_out_as_its_sdk_does(serve: Serve) -> None:
    """Unchanged code works: a foreign class is served without the malformed tool; our own classes are refused."""
    client = serve(foreign.OrsMalformed)
    assert [entry["name"] for entry in (await client.get("/tools")).json()["tools"]] == ["good"]
    sid = await client.open()
    assert (await client.call(sid, "bad")).reason == "not_found"


async def test_a_hidden_collision_is_found_when_the_tool_is_called(serve: Serve) -> None:
    """Section 4: clients infer ``name_collision`` from the prefix."""
    client = serve(foreign.OrsCollision)
    sid = await client.open()
    result = (await client.call(sid, "look")).result
    assert (result["ok"], result["reason"]) == (False, "name_collision")
    assert result["error"].startswith(
        "Tool name collision: 'look' is defined in both the environment and toolset 'OrsExtra'"
    )
    assert (await client.call(sid, "guess", {"word": "one"})).output["reward"] == 1.0


async def test_openreward_messages_and_terminal_tool(serve: Serve) -> None:
    client = serve(foreign.OpenRewardChat)
    tools = (await client.get("/tools")).json()
    assert [entry["name"] for entry in tools["tools"]] == ["step"]
    assert tools["terminal_tool"] == {"name": "answer", "arg": "message", "description": "Grade the answer."}
    assert tools["supports_score_group"] is True
    sid = await client.open()
    assert [turn["role"] for turn in (await client.get("/messages", sid)).json()] == ["system", "user"]
    assert (await client.get("/prompt", sid)).json()[0]["text"] == "[system]"
    body = {"candidates": [{"messages": [{"role": "assistant", "blocks": [{"type": "text", "text": "abc"}]}]}]}
    scored = await client.post("/score_group", body, sid)
    assert '"reward":3.0' in scored.text
    assert (await client.call(sid, "answer", {"message": "42"})).output["reward"] == 1.0
