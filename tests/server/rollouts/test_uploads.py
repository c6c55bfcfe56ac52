"""Validation of uploaded events, and the errors for invalid ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ors_server.errors import InvalidBody
from ors_server.rollouts.errors import InvalidEvents
from ors_server.rollouts.storing.writer import RolloutWriter
from ors_server.rollouts.uploads import InvalidEvent, MessageEvent, read_event, read_upload
from tests.server.rollouts.support import NOON, at, body, message, rollout, rows, stored, update

pytestmark = pytest.mark.usefixtures("database")


@pytest.mark.parametrize(
    ("event", "field"),
    [
        (rollout(runName=None), "runName"),
        (rollout(runName=""), "runName"),
        (rollout(timestamp="now"), "timestamp"),
        (rollout(timestamp=-1), "timestamp"),
        (rollout(timestamp=10**15), "timestamp"),
        (rollout(metadata=[1]), "metadata"),
        (rollout(step=2**63), "step"),
        (rollout(eventId="x" * 201), "eventId"),
        (message("r", -1), "index"),
        (message("r", 0, type="monologue"), "type"),
        (message("r", 0, content=3), "content"),
        (message("r", 0, reward="1.0"), "reward"),
        (message("r", 0, reward=True), "reward"),
        (message("r", 0, reward=float("nan")), "reward"),
        (message("r", 0, reward=float("inf")), "reward"),
        (message("r", 0, isFinished=1), "isFinished"),
        (message("r", 0, rolloutEventId=None), "rolloutEventId"),
        ({**update("r"), "rollout_info": 3}, "rollout_info"),
        ({**update("r"), "eventType": "farewell"}, "eventType"),
        ({"eventId": "e"}, "eventType"),
    ],
)
def test_an_event_that_does_not_fit_is_named_with_its_field(event: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidEvent) as raised:
        read_event(7, event)
    first = raised.value.problems[0]
    assert first["loc"] == ["body", "events", 7, field]
    assert first["event_id"] == event["eventId"][:200]
    assert "input" not in first


def test_an_event_that_is_not_an_object() -> None:
    with pytest.raises(InvalidEvent) as raised:
        read_event(0, "event")
    assert raised.value.problems[0]["loc"] == ["body", "events", 0]


@pytest.mark.parametrize(
    "upload", [b"", b"{", b"[]", b'"events"', b"{}", b'{"events": {}}', b'{"events": null}', b"\xff", b"[" * 100_000]
)
def test_an_upload_without_a_list_of_events(upload: bytes) -> None:
    with pytest.raises(InvalidBody):
        read_upload(upload)


def test_lone_surrogates_and_nan_do_not_cost_the_event() -> None:
    """Written by Python's json. A metric of NaN does not cost the message that has it."""
    sent = message("r", 0, "half \ud83d", metadata={"loss": float("nan")})
    event = read_event(0, read_upload(body(sent))[0])
    assert isinstance(event, MessageEvent)
    assert event.content == "half \ufffd"


async def test_the_good_events_of_an_upload_are_stored_and_the_others_named(tmp_path: Path) -> None:
    writer = RolloutWriter(at(tmp_path))
    good = [rollout("r"), message("r", 0), message("r", 1)]
    bad = [message("r", 2, type="x", eventId="bad-1"), {"eventType": "rollout"}, 5]
    with pytest.raises(InvalidEvents) as raised:
        await writer.store(body(good[0], bad[0], good[1], bad[1], bad[2], good[2]))
    await writer.close()
    assert "3 of 6 events do not fit" in raised.value.text
    assert "event 1 (bad-1), type: " in raised.value.text
    assert "Stored: 3" in raised.value.text
    assert {problem["loc"][2] for problem in raised.value.problems} == {1, 3, 4}
    assert [each["index"] for each in stored(tmp_path)[0]["messages"]] == [0, 1]


async def test_an_answer_does_not_list_a_million_problems(tmp_path: Path) -> None:
    writer = RolloutWriter(at(tmp_path))
    with pytest.raises(InvalidEvents) as raised:
        await writer.store(body(*[None] * 10_000))
    assert "10000 of 10000" in raised.value.text
    assert len(raised.value.problems) <= 200
    await writer.close()
    assert not (tmp_path / "rollouts.sqlite3").exists()


async def test_keys_that_are_not_known_are_kept(tmp_path: Path) -> None:
    writer = RolloutWriter(at(tmp_path))
    await writer.store(body(rollout("r", hue="blue"), message("r", 0, eventId="m", sound={"loud": True})))
    await writer.close()
    assert rows(tmp_path, "SELECT other FROM rollouts") == [('{"hue":"blue"}',)]
    assert rows(tmp_path, "SELECT other FROM messages") == [('{"sound":{"loud":true}}',)]


async def test_every_value_comes_back_as_it_was_sent(tmp_path: Path) -> None:
    text = "tab\t nul\0 quote' \" \u2028 \U0001f600 \x1b[31m \r\n"
    info = {"lr": 1e-5, "big": 2**70, "none": None, "deep": [{"a": [1, 2.5, "x"]}]}
    sent = rollout(
        "r", "a/b c", step=3, rolloutName=text, environment="o/n", variant="v", split="s", metadata=info, task_spec={}
    )
    said = message("r", 0, text, reward=-0.1, isFinished=True, callId="c", name="n", summary="s", contentReference="f")
    writer = RolloutWriter(at(tmp_path))
    assert await writer.store(body(sent, said, update("r", task_index=3, temperature=0.7))) == 3
    await writer.close()
    (found,) = stored(tmp_path)
    (read,) = found.pop("messages")
    assert found == {
        "id": "r",
        "run_id": found["run_id"],
        "run_name": "a/b c",
        "rollout_name": text,
        "environment": "o/n",
        "variant": "v",
        "split": "s",
        "step": 3,
        "created_at": "2023-11-14T22:13:20.000+00:00",
        "num_messages": 1,
        "finished": True,
        "reward": -0.1,
        "passed": False,
        "max_reward": -0.1,
        "total_reward": -0.1,
        "outcome": None,
        "outcome_reason": None,
        "source": "upload",
        "owner": None,
        "dropped": 0,
        "counterpart": None,
        "regrade": None,
        "task_spec": {},
        "metadata": info,
        "run_info": None,
        "rollout_info": {"task_index": 3, "temperature": 0.7},
    }
    assert read == {
        "index": 0,
        "type": "assistant_message",
        "content": text,
        "summary": "s",
        "content_reference": "f",
        "name": "n",
        "call_id": "c",
        "reward": -0.1,
        "is_finished": True,
        "metadata": {},
        "verdict": None,
        "sent_at": "2023-11-14T22:13:20.000+00:00",
    }
    assert said["timestamp"] == NOON
