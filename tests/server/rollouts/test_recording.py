"""``--record``: the sessions that a server plays are stored as rollouts."""

from __future__ import annotations

import asyncio
import itertools
import json
import stat
import sys
import time
from collections.abc import AsyncGenerator, Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic_core import to_json

from ors_server import JSONObject, Server, Settings, TextBlock, ToolOutput, tool
from ors_server.errors import InfrastructureError
from ors_server.http.app import OrsApp
from ors_server.rollouts import recorder as recording
from ors_server.rollouts.location import Location
from ors_server.rollouts.queries.listed import RolloutFilter, list_rollouts
from ors_server.rollouts.queries.runs import list_runs
from ors_server.rollouts.recording.batches import Batches, messages_of_batches
from ors_server.rollouts.recording.events import Head, encode_events, read_events
from ors_server.rollouts.store import RolloutStore
from ors_server.rollouts.storing.database import open_to_write
from ors_server.rollouts.storing.writer import RolloutWriter
from ors_server.telemetry.redaction import forms_of, redact_json, redact_text, redact_value
from ors_server.wire.sse import error_frame, result_frames
from tests.server.rollouts.support import at, body, message, rows, stored
from tests.support.environments import Echo, Text, said
from tests.support.http_client import Client
from tests.support.waiting import until

pytestmark = pytest.mark.usefixtures("database")

SECRET = 'sk-"quoted"-0123456789'


class Played(Echo):
    """Echo with a partial reward, failures, secrets and a private field."""

    private_task_fields = ("answer",)

    @classmethod
    def list_tasks(cls, split: str) -> list[JSONObject]:
        return [{"id": f"{split}-{number}", "answer": f"the answer {number}"} for number in range(4)]

    @tool
    async def huge(self) -> ToolOutput:
        return said("huge", -1.7e308)

    @tool
    async def graded(self) -> ToolOutput:
        metadata: JSONObject = {"verdict_mark": f"a mark {self.secrets.get('key', '')}"}
        return ToolOutput(blocks=[TextBlock(text="solved")], metadata=metadata, reward=1.0, finished=True)

    @tool
    async def half(self) -> ToolOutput:
        return said("half", 0.5)

    @tool
    async def leak(self) -> ToolOutput:
        text = f"{self.secrets['key']} ors_{'A' * 43}"
        return ToolOutput(blocks=[TextBlock(text=text)], metadata={"nested": '{"key": "' + text + '"}'})

    @tool
    async def break_down(self) -> ToolOutput:
        raise InfrastructureError("the machine is gone")

    @tool
    async def raise_error(self) -> ToolOutput:
        raise ValueError("no such file")

    @tool
    async def hang(self) -> ToolOutput:
        await asyncio.sleep(60)
        return said("late", 1.0)

    @tool(concurrent=True)
    async def pause(self) -> ToolOutput:
        await asyncio.sleep(0.2)
        return said("paused")

    @tool(concurrent=True)
    async def repeat(self, params: Text) -> ToolOutput:
        return said(params.text * 1000)


Start = Callable[..., Client]


@pytest.fixture
async def start(data_dir: Path) -> AsyncGenerator[Start]:
    """Return a starter of servers in this process that record."""
    made: list[tuple[OrsApp, Client]] = []

    def starting(**settings: Any) -> Client:
        server = Server([Played], settings=Settings(data_dir=data_dir, record=True, **settings))
        made.append((server.app, Client(server.app)))
        return made[-1][1]

    yield starting
    for app, client in made:
        await client.close()
        await finish(app)


async def finish(app: OrsApp) -> None:
    """End a server as its lifespan does."""
    await app.sessions.close()
    assert app.recorder is not None
    app.recorder.close()
    await app.rollouts.close()


async def recorded(client: Client, folder: Path) -> list[dict[str, Any]]:
    """End the server and return what it has stored."""
    assert isinstance(client.app, OrsApp)
    await finish(client.app)
    return stored(folder)


async def test_an_episode_from_its_prompt_to_its_reward(start: Start, data_dir: Path) -> None:
    client = start()
    sid = await client.open({"split": "train", "index": 2})
    await client.get("/prompt", sid)
    await client.get("/prompt", sid)
    await client.call(sid, "echo", {"text": "é \x00 \u2028"})
    await client.call(sid, "half")
    await client.call(sid, "raise_error")
    await client.call(sid, "unknown")
    await client.call(sid, "win")
    await client.post("/delete", sid=sid)
    (found,) = await recorded(client, data_dir)
    kept = ("environment", "split", "task_spec", "finished", "max_reward", "total_reward", "outcome", "source")
    assert {name: found[name] for name in kept} == {
        "environment": "played",
        "split": "train",
        "task_spec": {"id": "train-2"},
        "finished": True,
        "max_reward": 1.0,
        "total_reward": 1.5,
        "outcome": "finished",
        "source": "session",
    }
    assert found["run_name"].startswith("recorded-2")
    assert found["metadata"] == {"session": sid}
    assert (found["owner"], found["dropped"]) == (None, 0)
    prompt, *calls = found["messages"]
    assert (prompt["type"], prompt["content"], prompt["index"]) == ("user_message", "prompt of train-2", 0)
    assert [(each["type"], each["name"], each["content"], each["reward"], each["is_finished"]) for each in calls] == [
        ("tool_call", "echo", '{"text": "é \\u0000 \u2028"}', None, False),
        ("tool_result", "echo", "é \x00 \u2028", None, False),
        ("tool_call", "half", "{}", None, False),
        ("tool_result", "half", "half", 0.5, False),
        ("tool_call", "raise_error", "{}", None, False),
        ("tool_result", "raise_error", "ValueError: no such file", None, False),
        ("tool_call", "unknown", "{}", None, False),
        ("tool_result", "unknown", calls[7]["content"], None, False),
        ("tool_call", "win", "{}", None, False),
        ("tool_result", "win", "won", 1.0, True),
    ]
    assert "not a valid tool" in calls[7]["content"]
    assert calls[7]["metadata"]["refused"] == "not_found"
    assert calls[5]["metadata"]["error"] is True
    timings = calls[1]["metadata"]
    assert timings["waiting_ms"] >= 0
    assert timings["inside_ms"] >= 0
    assert [each["call_id"] for each in calls[::2]] == [each["call_id"] for each in calls[1::2]]


async def test_a_mark_of_the_verdict_is_the_rollouts(start: Start, data_dir: Path) -> None:
    client = start()
    marked = await client.open({"split": "train", "index": 2, "secrets": {"key": SECRET}})
    plain = await client.open({"split": "train", "index": 1})
    await client.call(marked, "graded")
    await client.call(plain, "win")
    for sid in (marked, plain):
        await client.post("/delete", sid=sid)
    found = {
        each["metadata"]["session"]: each["metadata"].get("verdict_mark") for each in await recorded(client, data_dir)
    }
    assert found == {marked: "a mark [redacted]", plain: None}
    location = at(data_dir)
    with RolloutStore(location).reading() as connection:
        assert connection is not None
        listed = list_rollouts(connection, RolloutFilter()).rows
    assert sorted(each.verdict_mark or "" for each in listed) == ["", "a mark [redacted]"]


async def test_the_sum_of_huge_rewards_is_a_number(start: Start, data_dir: Path) -> None:
    client = start()
    sid = await client.open()
    for _ in range(3):
        await client.call(sid, "huge")
    (found,) = await recorded(client, data_dir)
    assert (found["max_reward"], found["total_reward"]) == (-1.7e308, -sys.float_info.max)


async def test_a_lost_session_has_no_reward(start: Start, data_dir: Path) -> None:
    client = start()
    sid = await client.open()
    await client.call(sid, "half")
    assert "InfrastructureError" in (await client.call(sid, "break_down")).error
    (found,) = await recorded(client, data_dir)
    assert (found["outcome"], found["max_reward"], found["total_reward"]) == ("lost", None, None)
    assert "the machine is gone" in found["outcome_reason"]
    with RolloutStore(at(data_dir)).reading() as connection:
        assert connection is not None
        (run,) = list_runs(connection).rows
        assert (run.num_rollouts, run.num_rewarded, run.num_lost, run.mean_reward) == (1, 0, 1, None)
        (summary,) = list_rollouts(connection, RolloutFilter(outcome="lost")).rows
        assert (summary.max_reward, summary.total_reward, summary.num_messages) == (None, None, 4)


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        (b'{"text": "half an emoji: \\ud83d."}', {"text": "half an emoji: \ufffd."}),
        (b'{ "text"\n:\t"\xc3\xa9",  "text": "a\\u0000\\u0062\\/" }', {"text": "a\0b/"}),
        (b'{"text": "x", "more": [NaN, -1e400, 1e-7, 12345678901234567890123]}', None),
    ],
)
async def test_a_call_is_recorded_however_its_client_writes_json(
    start: Start, data_dir: Path, sent: bytes, kept: JSONObject | None
) -> None:
    client = start()
    sid = await client.open()
    body = b' {"input":' + sent + b', "task_id":null, "name": "echo"}\n'
    assert (await client.http.post("/call", content=body, headers={"X-Session-ID": sid})).status_code == 200
    (found,) = await recorded(client, data_dir)
    call, result = found["messages"]
    shown = '{"text": "x", "more": [NaN, -Infinity, 1e-07, 12345678901234567890123]}'
    assert call["content"] == (shown if kept is None else json.dumps(kept, ensure_ascii=False))
    assert (call["name"], call["call_id"], result["name"]) == ("echo", result["call_id"], "echo")


async def test_calls_at_once_are_recorded_in_the_order_in_which_they_began_and_ended(
    start: Start, data_dir: Path
) -> None:
    client = start()
    sid = await client.open()
    before = time.time()
    slow = asyncio.create_task(client.call(sid, "pause"))
    await asyncio.sleep(0.1)
    await client.call(sid, "repeat", {"text": "x"})
    await slow
    (found,) = await recorded(client, data_dir)
    messages = found["messages"]
    assert [(each["type"], each["name"]) for each in messages] == [
        ("tool_call", "pause"),
        ("tool_call", "repeat"),
        ("tool_result", "repeat"),
        ("tool_result", "pause"),
    ]
    assert [each["call_id"] for each in messages[:2]] == [each["call_id"] for each in messages[:1:-1]]
    times = [datetime.fromisoformat(each["sent_at"]).timestamp() for each in messages]
    assert times == sorted(times)
    assert before - 0.01 < times[0] <= times[1] - 0.05 < times[3] < time.time() + 0.01


def test_rows_that_an_earlier_version_kept_on_the_disk_are_stored() -> None:
    kept = Batches("recorder", (), 0).to_json().replace(b'"batches"', b'"pieces"')
    assert b"pieces" in kept
    assert Batches.from_json(kept).rows()["batches"] == []


def test_events_that_an_earlier_version_called_notes_are_read() -> None:
    stored = '{"offset":1,"notes":[1,"c",null,null,null],"data":[{"name":"echo","input":{}}]}'
    (event,) = read_events(stored)
    assert event == {"at": 2000, "call": "c", "name": "echo", "input": {}}


def test_batches_of_earlier_versions_are_read() -> None:
    batch = (
        '[{"at":1,"blocks":[{"type":"text","text":"Say it","detail":null}]},'
        '{"at":2,"call":"c","name":"echo","input":{"text":"x"}},'
        '{"at":3,"result":"c","name":"echo","waiting_us":40,"inside_us":null,"error":"ValueError: no"}]'
    )
    prompt, call, result = messages_of_batches([batch])
    assert (prompt["content"], prompt["sent_at"]) == ("Say it", 1)
    assert (call["name"], call["content"], call["call_id"]) == ("echo", '{"text": "x"}', "c")
    assert (result["content"], result["metadata"]) == ("ValueError: no", {"waiting_ms": 0.04, "error": True})


async def test_how_sessions_end(start: Start, data_dir: Path) -> None:
    client = start(session_ttl=0.4)
    deleted, expired = await client.open(), await client.open()
    await client.post("/delete", sid=deleted)
    await asyncio.sleep(0.8)
    assert (await client.post("/ping", sid=expired)).status_code == 410
    stopped = await client.open()
    hanging = asyncio.create_task(client.call(stopped, "hang"))
    await asyncio.sleep(0.05)
    found = {each["metadata"]["session"]: each for each in await recorded(client, data_dir)}
    await hanging
    assert [found[sid]["outcome"] for sid in (deleted, expired, stopped)] == ["deleted", "expired", "stopped"]
    assert "ORS_SESSION_TTL" in found[expired]["outcome_reason"]
    call, result = found[stopped]["messages"]
    assert (call["type"], result["type"], result["reward"]) == ("tool_call", "tool_result", None)
    assert "SessionGone" in result["content"]


async def test_no_secret_and_no_private_field_is_stored(start: Start, data_dir: Path) -> None:
    client = start()
    task = (await client.post("/task", {"split": "train", "index": 1})).json()["task"]
    sid = await client.open({"task_spec": task, "secrets": {"key": SECRET, "api_key": "the-api-key"}})
    await client.get("/prompt", sid)
    await client.call(sid, "leak")
    await client.call(sid, "echo", {"text": f"the model says {SECRET} and the-api-key"})
    escaped = b'{"name": "echo", "input": {"text": "\\u0074he\\u002dapi-key \\/"}}'
    await client.http.post("/call", content=escaped, headers={"X-Session-ID": sid})
    await client.post("/delete", sid=sid)
    (found,) = await recorded(client, data_dir)
    assert (found["task_spec"], found["split"]) == ({"id": "train-1"}, "train")
    assert found["messages"][2]["content"] == "[redacted] [redacted]"
    tables = ("runs", "rollouts", "batches")
    content = repr([rows(data_dir, f"SELECT * FROM {table}") for table in tables])
    for secret in ("0123456789", "the-api-key", "the answer", "AAAAAAAA", "_ors_task", "u002dapi"):
        assert secret not in content


WORDS = (
    *("1795", "null", "true", "false", "0000", "text", "output", "blocks", "result", "call", "name", "input", "data"),
    *(
        "events",
        "offset",
        "type",
        "error",
        "reward",
        "finished",
        "metadata",
        '{"at',
        "[redacted]",
        "train-2",
        "session-1",
    ),
)


async def test_no_secret_changes_the_shape_of_a_record_or_its_rewards(start: Start, data_dir: Path) -> None:
    client = start()
    sid = await client.open({"split": "train", "index": 2, "secrets": {word: word for word in WORDS}})
    await client.get("/prompt", sid)
    await client.call(sid, "echo", {"text": "the pin is 1795, not null", "pin": 1795, "1795": [True, None, 17950]})
    await client.call(sid, "half")
    await client.call(sid, "raise_error")
    await client.call(sid, "win")
    await client.post("/delete", sid=sid)
    (found,) = await recorded(client, data_dir)
    assert (found["max_reward"], found["total_reward"], found["outcome"]) == (1.0, 1.5, "finished")
    assert (found["task_spec"], found["metadata"]) == ({"id": "[redacted]"}, {"session": "[redacted]"})
    prompt, echo, echoed, _, half, _, _, _, won = found["messages"]
    assert prompt["content"] == "prompt of [redacted]"
    pin = {"text": "the pin is [redacted], not [redacted]", "pin": "[redacted]", "[redacted]": [True, None, 17950]}
    assert json.loads(echo["content"]) == pin
    assert echoed["content"] == pin["text"]
    assert (half["reward"], won["reward"], won["is_finished"]) == (0.5, 1.0, True)
    ((label,),) = rows(data_dir, "SELECT task_label FROM rollouts")
    assert label == "[redacted]"


def test_a_tool_may_be_named_as_a_secret() -> None:
    heads: list[Head] = [2.0, "c", "hunter2", None, None]
    alone = encode_events(heads, [result_frames(b'{"ok":false,"error":"x","reason":null}')], 0.0, forms_of(["hunter2"]))
    assert b"hunter2" not in alone
    heads = [1.0, "c", None, None, None, *heads]
    data = [b'{"name":"hunter2","input":{}}', error_frame("no tool hunter2 and 99")]
    batch = encode_events(heads, data, 0.0, forms_of(["hunter2"])).decode()
    call, result = read_events(batch)
    assert (call["name"], result["name"]) == ("[redacted]", "[redacted]")
    assert result["error"] == "no tool [redacted] and 99"


@pytest.mark.parametrize(
    "damaged",
    [
        '[{"at":[redacted],"call":"c"}]',
        '{"offset":1,"events":[1,"c",null,null,null],"data":["x"]}',
        '{"offset":1,"events":[1,"c",null,null,null],"data":[]}',
        '{"offset":1}',
        "3",
        "",
    ],
)
def test_the_rest_of_a_record_is_read_where_a_part_is_damaged(damaged: str) -> None:
    whole = '{"offset":1,"events":[1,"c",null,null,null],"data":[{"name":"echo","input":{}}]}'
    first, unreadable, second = messages_of_batches([whole, damaged, whole])
    assert (first["name"], second["name"], second["index"]) == ("echo", "echo", 2)
    assert (unreadable["type"], unreadable["sent_at"]) == ("system_message", None)
    assert "cannot be read" in unreadable["content"]


def test_what_python_does_not_read_and_may_hold_a_secret_is_left_out() -> None:
    heads: list[Head] = [1.0, "c", None, None, None, 2.0, "c", "echo", None, None, 3.0, "d", None, None, None]
    unread = b'{"name":"echo","input":{"n":' + b"9" * 5000 + b',"key":"hunter2"}}'
    deep = b'{"ok":true,"output":{"blocks":[],"metadata":' + b'{"a":' * 220 + b'"hunter2"' + b"}" * 220 + b"}}"
    whole = b'{"name":"echo","input":{}}'
    batch = encode_events(heads, [unread, result_frames(deep), whole], 0.0, forms_of(["hunter2"])).decode()
    first, second, third = messages_of_batches([batch])
    assert (first["name"], first["content"]) == ("[redacted]", "{}")
    assert second["metadata"]["metadata"]["a"]["a"] != "hunter2"
    assert third["content"] == "{}"
    assert "hunter2" not in batch


@pytest.mark.parametrize(
    ("secret", "value", "kept"),
    [
        ("1795442", [1795442, -1795442, 1795442.0, 17954420], ["[redacted]", "[redacted]", "[redacted]", 17954420]),
        ("1795.50", {"reward": 1795.5}, {"reward": "[redacted]"}),
        ("0000", [0, 0.0, "0000"], [0, 0.0, "[redacted]"]),
        ("colors_x", {"colors_x": 1, "my colors_x": 2}, {"[redacted]": 1, "my [redacted]": 2}),
        ("hunter", {"hunter": 1, "hunterhunter": 2}, {"[redacted]": 1, "[redacted][redacted]": 2}),
    ],
)
def test_numbers_and_names_are_replaced(secret: str, value: Any, kept: Any) -> None:
    assert redact_value({"input": value}, forms_of([secret])) == {"input": kept}


@pytest.mark.parametrize(
    ("result", "kept"),
    [
        (
            {"ok": True, "output": {"reward": 1795.5, "metadata": {"reward": 1795.5}}},
            {"ok": True, "output": {"reward": 1795.5, "metadata": {"reward": "[redacted]"}}},
        ),
        (
            {"scores": [{"reward": 1795.5, "id": 1795.5}, {"reward": 0.0}]},
            {"scores": [{"reward": 1795.5, "id": "[redacted]"}, {"reward": 0.0}]},
        ),
    ],
)
def test_a_reward_may_be_a_secret_number(result: dict[str, Any], kept: dict[str, Any]) -> None:
    assert json.loads(redact_json(json.dumps(result).encode(), forms_of(["1795.5"]), b"null")) == kept


def test_no_member_is_lost_where_two_names_hold_secrets() -> None:
    found = redact_value({"hunter2": 1, "other-secret": 2, "[redacted]": 3}, forms_of(["hunter2", "other-secret"]))
    assert list(found.values()) == [1, 2, 3]


def test_a_secret_is_found_where_a_long_result_was_cut() -> None:
    for length in range(32_700, 32_770):
        text = "x" * length + "alpha bravo" + "x" * 100
        frames = result_frames(to_json({"ok": True, "output": {"blocks": [{"type": "text", "text": text}]}}))
        batch = encode_events([1.0, "c", "echo", None, None], [frames], 0.0, forms_of(["alpha bravo"])).decode()
        assert "bravo" not in batch


@pytest.mark.parametrize("times", range(4))
def test_a_secret_is_redacted_however_often_a_tool_encoded_it(times: int) -> None:
    """Once or twice by the tool, and once as the result; with escapes for all that is not ASCII, and without."""
    secret = SECRET + "é\\\n"
    forms = forms_of([secret])
    for ways in itertools.product((True, False), repeat=times):
        text = f"the key is {secret}, again {secret}"
        for only in ways:
            text = json.dumps(text, ensure_ascii=only)
        inner = "the key is [redacted], again [redacted]"
        found = redact_text(text, forms)
        for _ in ways:
            found = json.loads(found)
        assert found == inner


async def test_only_the_owner_may_read_the_files(start: Start, data_dir: Path) -> None:
    client = start()
    sid = await client.open()
    await client.post("/delete", sid=sid)
    await recorded(client, data_dir)
    with open_to_write(Location(data_dir)) as connection, connection.begin():
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in data_dir.iterdir()}
    assert {"rollouts.sqlite3", "rollouts.sqlite3-wal", "rollouts.sqlite3-shm"} <= set(modes)
    assert set(modes.values()) == {0o600}


async def test_what_is_dropped_is_counted_and_the_reward_stays_true(
    start: Start, data_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client = start()
    assert isinstance(client.app, OrsApp)
    app = client.app
    assert app.recorder is not None
    app.recorder._limit = 20_000  # pyright: ignore[reportPrivateUsage]
    sid = await client.open()
    await asyncio.gather(*(client.call(sid, "repeat", {"text": f"{number:04}"}) for number in range(8)))
    await client.call(sid, "win")
    await client.post("/delete", sid=sid)
    (found,) = await recorded(client, data_dir)
    assert app.recorder.dropped > 0
    assert found["dropped"] == app.recorder.dropped
    assert len(found["messages"]) + found["dropped"] == 18
    with RolloutStore(at(data_dir)).reading() as connection:
        assert connection is not None
        (summary,) = list_rollouts(connection, RolloutFilter()).rows
    assert (summary.max_reward, summary.outcome) == (1.0, "finished")
    assert [each.message for each in caplog.records].count("records of sessions are dropped: more wait than may") == 1


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_a_database_that_cannot_be_used_for_a_while_loses_no_record(
    start: Start, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ors_server.rollouts.storing.writer.RETRY", 0.1)
    monkeypatch.setattr(recording, "INTERVAL", 0.01)
    data_dir.write_text("a file")
    client = start()
    assert isinstance(client.app, OrsApp)
    sid = await client.open()
    for number in range(5):
        assert (await client.call(sid, "echo", {"text": str(number)})).text == str(number)
        await asyncio.sleep(0.05)
    assert client.app.rollouts.failing
    data_dir.unlink()
    await client.call(sid, "win")
    (found,) = await recorded(client, data_dir)
    assert [each["content"] for each in found["messages"][1::2]] == ["0", "1", "2", "3", "4", "won"]


async def test_no_client_changes_a_recorded_rollout(start: Start, data_dir: Path) -> None:
    """It would be paid without solving: a message with a reward raises that of its rollout."""
    client = start()
    sid = await client.open()
    await client.post("/delete", sid=sid)
    (found,) = await recorded(client, data_dir)
    again = start()
    forged = body(message(found["id"], 7, reward=1.0, isFinished=True))
    assert (await again.http.post("/v1/rollouts", content=forged)).json() == {"stored": 1}
    assert await recorded(again, data_dir) == [found]


async def test_a_server_that_records_nothing_stores_nothing(data_dir: Path) -> None:
    server = Server([Played], settings=Settings(data_dir=data_dir))
    client = Client(server.app)
    sid = await client.open()
    await client.call(sid, "win")
    await client.close()
    await server.sessions.close()
    await server.app.rollouts.close()
    assert not data_dir.exists()


async def test_sessions_of_a_process_that_died_are_lost(
    start: Start, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process in its place marks them at once. One that was only stopped for a while takes its sessions back."""
    monkeypatch.setattr(recording, "INTERVAL", 0.01)
    client = start()
    assert isinstance(client.app, OrsApp)
    died = client.app.recorder
    assert died is not None
    paid, unpaid = await client.open(), await client.open()
    await client.call(paid, "win")
    await client.call(unpaid, "half")
    await until(lambda: died.waiting == 0)
    following = RolloutWriter(at(data_dir))
    data_dir.joinpath("recorders").mkdir(parents=True)
    data_dir.joinpath("recorders", died.name).touch()  # a lock that is not held
    following.keep_alive("next")
    await following.close()
    found = {each["metadata"]["session"]: each for each in await asyncio.to_thread(stored, data_dir)}
    assert (found[paid]["outcome"], found[paid]["max_reward"]) == ("finished", 1.0)
    assert (found[unpaid]["outcome"], found[unpaid]["max_reward"]) == ("lost", None)
    assert "ended without ending its sessions" in found[unpaid]["outcome_reason"]
    await client.call(unpaid, "win")
    found = {each["metadata"]["session"]: each for each in await recorded(client, data_dir)}
    assert (found[unpaid]["outcome"], found[unpaid]["total_reward"]) == ("finished", 1.5)
