"""Protocol 0.1, "At most once per task_id": resuming by ``task_id`` and by ``Idempotency-Key``."""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import pytest

from ors_server import ToolOutput, tool
from tests.server.protocol.conftest import Serve
from tests.support.environments import Bare, Text, said
from tests.support.events import parse_events
from tests.support.http_client import Client
from tests.support.waiting import until


class Journal(list[str]):
    """Record of the tools' runs in one test."""


def counting(journal: Journal, proceed: asyncio.Event | None = None) -> type[Bare]:
    """Return an environment that records each run of its tools."""

    class Counting(Bare):
        @tool
        async def run(self, params: Text) -> ToolOutput:
            journal.append(params.text)
            return said(f"{params.text} {len(journal)}", 0.5)

        @tool(concurrent=True)
        async def wait(self, params: Text) -> ToolOutput:
            journal.append(params.text)
            number = len(journal)
            if proceed is not None:
                await proceed.wait()
            return said(f"{params.text} {number}", 0.25)

        @tool
        async def win(self) -> ToolOutput:
            journal.append("win")
            return said("won", 1.0, finished=True)

        @tool
        async def fail(self) -> ToolOutput:
            journal.append("fail")
            raise ValueError("once")

    return Counting


# --- task_id -------------------------------------------------------------------------------------


async def test_a_finished_call_is_resumed_byte_for_byte_any_number_of_times(serve: Serve) -> None:
    journal = Journal()
    client = serve(counting(journal))
    sid = await client.open()
    first = await client.call_response(sid, "run", {"text": "é" * 40_000})
    task_id = parse_events(first.content)[0].data
    for _ in range(5):
        again = await client.call_response(sid, "run", {"text": "é" * 40_000}, task_id=task_id)
        assert again.content == first.content
    assert len(journal) == 1


async def test_name_and_input_do_not_matter_on_resume_but_must_be_there(serve: Serve) -> None:
    """Section 2: the body is validated but otherwise ignored."""
    journal = Journal()
    client = serve(counting(journal))
    sid = await client.open()
    first = await client.call(sid, "run", {"text": "a"})
    again = await client.call(sid, "no such tool", {"other": "input"}, task_id=first.task_id)
    assert again.events == first.events
    assert (await client.post("/call", {"task_id": first.task_id}, sid)).status_code == 422
    assert journal == ["a"]


async def test_a_running_call_is_resumed_by_several_at_once(serve: Serve) -> None:
    journal, proceed = Journal(), asyncio.Event()
    client = serve(counting(journal, proceed))
    sid = await client.open()
    body: dict[str, object] = {"name": "wait", "input": {"text": "x"}}
    async with client.stream("/call", body, sid) as first:
        task_id = (await first.event()).data
        resumed = {**body, "task_id": task_id}
        async with client.stream("/call", resumed, sid) as second, client.stream("/call", resumed, sid) as third:
            assert (await second.event()).data == task_id
            assert (await third.event()).data == task_id
            proceed.set()
            replies = [await stream.reply() for stream in (first, second, third)]
    assert [reply.text for reply in replies] == ["x 1"] * 3
    assert replies[0].events == replies[1].events == replies[2].events
    assert journal == ["x"]


async def test_a_call_whose_client_hung_up_goes_on_and_is_resumed(serve: Serve) -> None:
    """Section 2: a disconnect cancels nothing."""
    journal, proceed = Journal(), asyncio.Event()
    client = serve(counting(journal, proceed))
    sid = await client.open()
    async with client.stream("/call", {"name": "wait", "input": {"text": "x"}}, sid) as stream:
        task_id = (await stream.event()).data
    proceed.set()
    reply = await client.call(sid, "wait", {"text": "x"}, task_id=task_id)
    assert (reply.task_id, reply.text) == (task_id, "x 1")
    again = await client.call(sid, "wait", {"text": "x"}, task_id=task_id)
    assert again.events == reply.events
    assert journal == ["x"]


async def test_an_unknown_task_id_is_one_error_event_and_runs_nothing(serve: Serve) -> None:
    """Section 8: clients compare the text; never fall back to executing."""
    journal = Journal()
    client = serve(counting(journal))
    sid = await client.open()
    for task_id in ("never", "", "0" * 32):
        reply = await client.call(sid, "run", {"text": "x"}, task_id=task_id)
        assert reply.events == [("error", "unknown task_id")]
    assert journal == []


async def test_a_foreign_task_id_is_as_unknown(serve: Serve) -> None:
    """Section 9, security: in the references any session can fetch any other's result."""
    journal = Journal()
    client = serve(counting(journal))
    mine, yours = await client.open(), await client.open()
    call = await client.call(mine, "run", {"text": "secret"})
    stolen = await client.call(yours, "run", {"text": "secret"}, task_id=call.task_id)
    assert stolen.events == [("error", "unknown task_id")]
    assert (await client.call(mine, "run", {"text": "secret"}, task_id=call.task_id)).events == call.events
    assert journal == ["secret"]


async def test_an_error_is_replayed_like_any_result(serve: Serve) -> None:
    journal = Journal()
    client = serve(counting(journal))
    sid = await client.open()
    first = await client.call(sid, "fail")
    assert first.error == "ValueError: once"
    assert (await client.call(sid, "fail", task_id=first.task_id)).events == first.events
    assert journal == ["fail"]


async def test_the_finishing_result_is_replayed(serve: Serve) -> None:
    """Section 8, "finished": idempotent replay, where the reference loses the reward."""
    journal = Journal()
    client = serve(counting(journal))
    sid = await client.open()
    first = await client.call(sid, "win")
    again = await client.call(sid, "win", task_id=first.task_id)
    assert again.output["reward"] == 1.0
    assert again.events == first.events


async def test_a_delivered_result_is_forgotten_after_its_time(serve: Serve) -> None:
    """Memory is bounded: afterwards the id is unknown, and still nothing runs."""
    journal = Journal()
    client = serve(counting(journal), delivered_memory=1)
    sid = await client.open()
    first = await client.call(sid, "run", {"text": "x"})
    late = await client.call(sid, "run", {"text": "x"}, task_id=first.task_id)
    assert late.events == [("error", "unknown task_id")]
    assert journal == ["x"]


async def test_a_delivered_result_is_forgotten_when_its_time_is_over(serve: Serve) -> None:
    journal = Journal()
    client = serve(counting(journal), delivered_ttl=0.05, result_ttl=0.1)
    sid = await client.open()
    first = await client.call(sid, "run", {"text": "x"})
    app: Any = client.app
    await until(lambda: app.sessions.results.bytes_in_memory == 0)
    late = await client.call(sid, "run", {"text": "x"}, task_id=first.task_id)
    assert late.events == [("error", "unknown task_id")]
    assert journal == ["x"]


async def test_the_same_call_again_without_a_token_is_a_new_call(serve: Serve) -> None:
    """Protocol 0.1: only a lost connection makes a repetition the same call."""
    journal = Journal()
    client = serve(counting(journal))
    sid = await client.open()
    first = await client.call(sid, "run", {"text": "x"})
    second = await client.call(sid, "run", {"text": "x"})
    assert (first.text, second.text) == ("x 1", "x 2")
    assert first.task_id != second.task_id


async def test_the_same_call_beside_a_connected_one_is_a_new_call(serve: Serve) -> None:
    journal, proceed = Journal(), asyncio.Event()
    client = serve(counting(journal, proceed))
    sid = await client.open()
    body = {"name": "wait", "input": {"text": "x"}}
    async with client.stream("/call", body, sid) as first, client.stream("/call", body, sid) as second:
        assert (await first.event()).data != (await second.event()).data
        proceed.set()
        assert [(await first.reply()).text, (await second.reply()).text] == ["x 1", "x 2"]
    assert journal == ["x", "x"]


# --- a lost connection, without any token --------------------------------------------------------


async def lose(client: Client, sid: str, text: str = "x") -> str:
    """Start a waiting call and disconnect. Return its task_id."""
    async with client.stream("/call", {"name": "wait", "input": {"text": text}}, sid) as stream:
        return (await stream.event()).data


@pytest.mark.parametrize("finished_first", [True, False])
async def test_a_repetition_of_a_lost_call_attaches_to_it(serve: Serve, finished_first: bool) -> None:
    journal, proceed = Journal(), asyncio.Event()
    client = serve(counting(journal, proceed))
    sid = await client.open()
    task_id = await lose(client, sid)
    if finished_first:
        proceed.set()
        await asyncio.sleep(0.02)
        reply = await client.call(sid, "wait", {"text": "x"})
    else:
        async with client.stream("/call", {"name": "wait", "input": {"text": "x"}}, sid) as stream:
            assert await stream.event() == ("task_id", task_id)
            proceed.set()
            reply = await stream.reply()
            assert reply.text == "x 1"
        reply = await client.call(sid, "wait", {"text": "x"}, task_id=task_id)
    assert (reply.task_id, reply.text) == (task_id, "x 1")
    assert journal == ["x"]


async def test_another_tool_input_or_session_does_not_attach_to_a_lost_call(serve: Serve) -> None:
    journal, proceed = Journal(), asyncio.Event()
    client = serve(counting(journal, proceed))
    sid, other = await client.open(), await client.open()
    await lose(client, sid)
    proceed.set()
    assert (await client.call(sid, "wait", {"text": "y"})).text == "y 2"
    assert (await client.call(sid, "run", {"text": "x"})).text == "x 3"
    assert (await client.call(other, "wait", {"text": "x"})).text == "x 4"


async def test_a_lost_call_is_attached_to_once(serve: Serve) -> None:
    """A repetition after the request that got the result is a new call."""
    journal, proceed = Journal(), asyncio.Event()
    client = serve(counting(journal, proceed))
    sid = await client.open()
    await lose(client, sid)
    proceed.set()
    assert (await client.call(sid, "wait", {"text": "x"})).text == "x 1"
    assert (await client.call(sid, "wait", {"text": "x"})).text == "x 2"


async def test_of_two_repetitions_at_once_one_is_a_call_of_its_own(serve: Serve) -> None:
    journal, proceed = Journal(), asyncio.Event()
    client = serve(counting(journal, proceed))
    sid = await client.open()
    task_id = await lose(client, sid)
    body = {"name": "wait", "input": {"text": "x"}}
    async with client.stream("/call", body, sid) as first, client.stream("/call", body, sid) as second:
        assert (await first.event()).data == task_id
        assert (await second.event()).data != task_id
        proceed.set()
        assert [(await stream.reply()).text for stream in (first, second)] == ["x 1", "x 2"]


async def test_a_repetition_lost_in_turn_is_attached_to_again(serve: Serve) -> None:
    journal, proceed = Journal(), asyncio.Event()
    client = serve(counting(journal, proceed))
    sid = await client.open()
    assert len({await lose(client, sid) for _ in range(3)}) == 1
    proceed.set()
    assert (await client.call(sid, "wait", {"text": "x"})).text == "x 1"
    assert journal == ["x"]


async def test_two_lost_calls_of_the_same_input_are_both_attached_to(serve: Serve) -> None:
    """Each of the two runs once; neither repetition may become a third run."""
    journal, proceed = Journal(), asyncio.Event()
    client = serve(counting(journal, proceed))
    sid = await client.open()
    body = {"name": "wait", "input": {"text": "x"}}
    async with client.stream("/call", body, sid) as first, client.stream("/call", body, sid) as second:
        lost = {(await first.event()).data, (await second.event()).data}
    assert len(lost) == 2
    proceed.set()
    replies = [await client.call(sid, "wait", {"text": "x"}) for _ in range(2)]
    assert {reply.task_id for reply in replies} == lost
    assert journal == ["x", "x"]


async def test_a_lost_call_that_was_resumed_is_no_longer_lost(serve: Serve) -> None:
    """After openreward resumes by task_id, the agent's next identical call must run, not get the old result."""
    journal, proceed = Journal(), asyncio.Event()
    client = serve(counting(journal, proceed))
    sid = await client.open()
    task_id = await lose(client, sid)
    proceed.set()
    assert (await client.call(sid, "wait", {"text": "x"}, task_id=task_id)).text == "x 1"
    following = await client.call(sid, "wait", {"text": "x"})
    assert following.task_id != task_id
    assert following.text == "x 2"
    assert journal == ["x", "x"]


async def test_a_lost_call_with_a_waiting_client_is_no_longer_lost(serve: Serve) -> None:
    """While the resumed request is connected, an identical call beside it is a new call."""
    journal, proceed = Journal(), asyncio.Event()
    client = serve(counting(journal, proceed))
    sid = await client.open()
    task_id = await lose(client, sid)
    body = {"name": "wait", "input": {"text": "x"}}
    async with client.stream("/call", {**body, "task_id": task_id}, sid) as resumed:
        assert (await resumed.event()).data == task_id
        async with client.stream("/call", body, sid) as beside:
            assert (await beside.event()).data != task_id
            proceed.set()
            assert (await beside.reply()).text == "x 2"
        assert (await resumed.reply()).text == "x 1"


async def test_a_call_resumed_while_running_is_no_longer_lost(serve: Serve) -> None:
    journal, proceed = Journal(), asyncio.Event()
    client = serve(counting(journal, proceed))
    sid = await client.open()
    task_id = await lose(client, sid)
    body = {"name": "wait", "input": {"text": "x"}, "task_id": task_id}
    async with client.stream("/call", body, sid) as resumed:
        assert (await resumed.event()).data == task_id
        proceed.set()
        assert (await resumed.reply()).text == "x 1"
    assert (await client.call(sid, "wait", {"text": "x"})).text == "x 2"


# --- Idempotency-Key -----------------------------------------------------------------------------


async def test_the_same_key_attaches_to_the_finished_call(serve: Serve) -> None:
    journal = Journal()
    client = serve(counting(journal))
    sid = await client.open()
    first = await client.call_response(sid, "run", {"text": "x"}, key="k1")
    again = await client.call_response(sid, "run", {"text": "x"}, key="k1")
    assert again.content == first.content
    assert journal == ["x"]
    assert (await client.call(sid, "run", {"text": "x"}, key="k2")).text == "x 2"


async def test_the_same_key_attaches_to_the_running_call(serve: Serve) -> None:
    journal, proceed = Journal(), asyncio.Event()
    client = serve(counting(journal, proceed))
    sid = await client.open()
    calls = [asyncio.create_task(client.call(sid, "wait", {"text": "x"}, key="k")) for _ in range(10)]
    await asyncio.sleep(0.1)
    proceed.set()
    replies = await asyncio.gather(*calls)
    assert {reply.task_id for reply in replies} == {replies[0].task_id}
    assert [reply.text for reply in replies] == ["x 1"] * 10


@pytest.mark.parametrize(("name", "text"), [("run", "y"), ("wait", "x")])
async def test_the_same_key_for_another_call_is_409(serve: Serve, name: str, text: str) -> None:
    journal = Journal()
    client = serve(counting(journal))
    sid = await client.open()
    await client.call(sid, "run", {"text": "x"}, key="k")
    response = await client.call_response(sid, name, {"text": text}, key="k")
    assert response.status_code == 409
    assert "Idempotency-Key 'k'" in response.json()["detail"]
    assert journal == ["x"]


async def test_the_order_of_an_inputs_keys_does_not_matter(serve: Serve) -> None:
    from pydantic import BaseModel

    runs: list[int] = []

    class Two(BaseModel):
        a: int
        b: int

    class Pairs(Bare):
        @tool
        async def pair(self, params: Two) -> ToolOutput:
            runs.append(params.a)
            return said()

    client = serve(Pairs)
    sid = await client.open()
    await client.call(sid, "pair", {"a": 1, "b": 2}, key="k")
    await client.call(sid, "pair", {"b": 2, "a": 1}, key="k")
    assert runs == [1]


async def test_a_key_is_the_sessions_own(serve: Serve) -> None:
    journal = Journal()
    client = serve(counting(journal))
    one, two = await client.open(), await client.open()
    assert (await client.call(one, "run", {"text": "x"}, key="k")).text == "x 1"
    assert (await client.call(two, "run", {"text": "y"}, key="k")).text == "y 2"


async def test_after_eviction_a_key_gives_an_error_and_no_second_run(serve: Serve) -> None:
    journal = Journal()
    client = serve(counting(journal), delivered_memory=1)
    sid = await client.open()
    assert (await client.call(sid, "run", {"text": "x"}, key="k")).text == "x 1"
    late = await client.call(sid, "run", {"text": "x"}, key="k")
    assert late.names == ["error"]
    assert late.error.startswith("ResultExpired")
    assert journal == ["x"]
    assert (await client.call_response(sid, "run", {"text": "y"}, key="k")).status_code == 409


async def test_a_lost_call_with_a_key_is_found_by_its_key_only(serve: Serve) -> None:
    journal, proceed = Journal(), asyncio.Event()
    client = serve(counting(journal, proceed))
    sid = await client.open()
    keyed = asyncio.create_task(client.call(sid, "wait", {"text": "x"}, key="k"))
    await asyncio.sleep(0.1)
    keyed.cancel()
    await asyncio.wait((keyed,))
    proceed.set()
    assert (await client.call(sid, "wait", {"text": "x"})).text == "x 2"
    assert (await client.call(sid, "wait", {"text": "x"}, key="k")).text == "x 1"


# --- undelivered results -------------------------------------------------------------------------


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set the folder for temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


async def lost_on_disk(client: Client, disk: Path, sid: str, proceed: asyncio.Event) -> str:
    """Make a call whose client disconnects and whose result goes to disk. Return its task_id."""
    task_id = await lose(client, sid)
    proceed.set()
    for _ in range(400):
        if any(path.is_file() for path in disk.rglob("*")):
            return task_id
        await asyncio.sleep(0.01)
    raise AssertionError("nothing was written to disk")


@pytest.mark.parametrize("settings", [{"result_ttl": 0.1}, {"result_ttl": 0.8, "result_memory": 1}])
async def test_an_undelivered_result_goes_to_disk_and_comes_back(
    serve: Serve, disk: Path, settings: dict[str, Any]
) -> None:
    """Protocol 0.1, "Numbers": in memory for a limited time and size, then on disk as long as the session exists."""
    journal, proceed = Journal(), asyncio.Event()
    client = serve(counting(journal, proceed), **settings)
    sid = await client.open()
    task_id = await lost_on_disk(client, disk, sid, proceed)
    reply = await client.call(sid, "wait", {"text": "x"}, task_id=task_id)
    assert reply.text == "x 1"
    assert journal == ["x"]


async def test_a_result_from_disk_is_resumed_any_number_of_times(serve: Serve, disk: Path) -> None:
    """ "Any number of times" includes results that were on disk."""
    journal, proceed = Journal(), asyncio.Event()
    client = serve(counting(journal, proceed), result_ttl=0.1)
    sid = await client.open()
    task_id = await lost_on_disk(client, disk, sid, proceed)
    resumed = [client.call(sid, "wait", {"text": "x"}, task_id=task_id) for _ in range(3)]
    replies = await asyncio.gather(*resumed)
    replies.append(await client.call(sid, "wait", {"text": "x"}, task_id=task_id))
    assert [reply.names for reply in replies] == [["task_id", "end"]] * 4
    assert [reply.text for reply in replies] == ["x 1"] * 4


async def test_a_lost_call_on_disk_is_attached_to_by_repetition(serve: Serve, disk: Path) -> None:
    journal, proceed = Journal(), asyncio.Event()
    client = serve(counting(journal, proceed), result_ttl=0.1)
    sid = await client.open()
    task_id = await lost_on_disk(client, disk, sid, proceed)
    reply = await client.call(sid, "wait", {"text": "x"})
    assert (reply.task_id, reply.text) == (task_id, "x 1")


async def test_the_end_of_a_session_clears_its_results_from_disk(serve: Serve, disk: Path) -> None:
    journal, proceed = Journal(), asyncio.Event()
    client = serve(counting(journal, proceed), result_ttl=0.1)
    sid = await client.open()
    await lost_on_disk(client, disk, sid, proceed)
    await client.post("/delete", sid=sid)  # perhaps while the event loop has not yet heard that the file is written
    await until(lambda: not any(path.is_file() for path in disk.rglob("*")))
