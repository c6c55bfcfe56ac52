"""Sinks: their output, and that their failures never reach a run."""

import asyncio
import dataclasses
import json
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from fastapi import FastAPI, Request, Response
from ors_clients.client.local_sessions import local
from ors_clients.errors import ServerUnavailable
from ors_clients.rollouts.chat_renderer import ChatRenderer
from ors_clients.rollouts.loop import rollout
from ors_clients.rollouts.sinks import JsonlSink, RolloutsSink
from ors_clients.rollouts.trajectory import Segment, StopReason, Trajectory
from ors_clients.rollouts.upload_events import RolloutLabels, rollout_events
from ors_clients.samplers import ScriptedSampler
from ors_clients.tool_calls import find_format

from tests.clients.rollout_environments import Bench, Desk
from tests.clients.scripted_engine import serve_application
from tests.clients.tiny_tokenizer import tiny_tokenizer

LABELS = RolloutLabels(
    run_name="run",
    reward=1.5,
    environment="owner/Bench",
    split="train",
    step=3,
    task_spec={"goal": "work"},
    metadata={"seed": 7},
    run_info={"model_name": "tiny", "lr": None},
    rollout_info={"task_index": 4},
)
TEXTS = [
    '<think>\nhm\n</think>\n\nFirst.\n<tool_call>{"name": "look", "arguments": {}}</tool_call>'
    '<tool_call>{"name": "earn", "arguments": {}}</tool_call>',
    "<tool_call>{bad</tool_call>",
    '<tool_call>{"name": "finish", "arguments": {"reward": 1.0}}</tool_call>',
]


async def played(texts: list[str] = TEXTS, environment: Any = Bench, rollout_id: str = "r1") -> Trajectory:
    tokenizer = tiny_tokenizer("qwen3")
    return await rollout(
        local(environment, {"goal": "work"}),
        ScriptedSampler(texts, tokenizer),
        ChatRenderer(tokenizer),
        find_format("hermes"),
        rollout_id=rollout_id,
    )


def small(number: int) -> Trajectory:
    trajectory = Trajectory(f"r{number}", stop_reason="finished")
    trajectory.segments.append(Segment("prompt", [1], [0.0], False, "p"))
    trajectory.messages = [{"role": "user", "content": "x" * 100}]
    return trajectory


# --- events --------------------------------------------------------------------------------------


async def test_an_upload_names_the_session_that_was_played() -> None:
    first, second = await played(), await played()
    sessions = [rollout_events(each, LABELS)[0]["metadata"]["session"] for each in (first, second)]
    assert sessions == [first.session, second.session]
    assert len({*sessions, None}) == 3
    own = dataclasses.replace(LABELS, metadata={"session": "the trainer's"})
    assert rollout_events(first, own)[0]["metadata"]["session"] == "the trainer's"
    assert "session" not in rollout_events(small(1), LABELS)[0]["metadata"]


def test_an_upload_says_how_the_rollout_ended() -> None:
    ended = {"finished": small(1), "max_turns": small(2), "infrastructure": small(3)}
    for reason, trajectory in ended.items():
        trajectory.stop_reason = cast("StopReason", reason)
    ended["infrastructure"].failure = ServerUnavailable("no server")
    said = [rollout_events(each, LABELS)[0]["rollout_info"] for each in ended.values()]
    assert [(info["outcome"], info.get("outcome_reason")) for info in said] == [
        ("finished", None),
        ("deleted", "max_turns"),
        ("lost", "no server"),
    ]
    own = dataclasses.replace(LABELS, rollout_info={"outcome": "lost"})
    assert rollout_events(small(1), own)[0]["rollout_info"]["outcome"] == "lost"


async def test_events_carry_the_tokens_of_each_turn_and_of_its_answer() -> None:
    trajectory = await played()
    assert all("tokens" not in event.get("metadata", {}) for event in rollout_events(trajectory, LABELS)[1:])
    messages = rollout_events(trajectory, LABELS, tokens=True)[1:]
    held = [message["metadata"]["tokens"] for message in messages if "tokens" in message.get("metadata", {})]
    segments = trajectory.segments[1:]
    # The last turn ends the episode: what would open the next one has no message.
    assert [tokens["ids"] for tokens in held] == [segment.ids for segment in segments[: len(held)]]
    assert len(held) >= len(segments) - 1
    for tokens, segment in zip(held, segments, strict=False):
        assert tokens["mask"] == [int(segment.trainable)] * len(segment.ids)
        assert ("logprobs" in tokens) == (segment.kind == "model")
        assert len(tokens["pieces"]) == len(segment.ids)
    assert "".join(held[0]["pieces"]).startswith("<think>")
    assert messages[1]["type"] == "reasoning"
    assert messages[1]["metadata"]["seconds"] >= 0


async def test_a_trajectory_as_events() -> None:
    trajectory = await played()
    head, *messages = rollout_events(trajectory, LABELS)
    assert (head["eventType"], head["runName"], head["environment"], head["split"]) == (
        "rollout",
        "run",
        "owner/Bench",
        "train",
    )
    assert head["run_info"] == {"model_name": "tiny"}
    assert head["rollout_info"]["task_index"] == 4
    assert head["metadata"]["reward"] == 1.5
    assert (head["metadata"]["stop_reason"], head["metadata"]["malformed_tool_calls"]) == ("finished", 1)
    assert [message["type"] for message in messages] == [
        "user_message",
        "reasoning",
        "assistant_message",
        "tool_call",
        "tool_call",
        "tool_result",
        "tool_result",
        "assistant_message",
        "user_message",
        "tool_call",
        "tool_result",
    ]
    assert [message["index"] for message in messages] == list(range(11))
    assert {message["rolloutEventId"] for message in messages} == {head["eventId"]}
    assert (messages[1]["content"], messages[2]["content"]) == ("hm", "First.")
    assert (messages[3]["name"], messages[3]["callId"], messages[3]["content"]) == ("look", "call_0_0", "{}")
    assert messages[5]["content"] == "here:\n[image]"
    assert messages[5]["metadata"].keys() == {"pixels", "seconds"}
    assert [message.get("reward") for message in messages if message["type"] == "tool_result"] == [None, 0.5, 1.0]
    assert [message["isFinished"] for message in messages] == [False] * 10 + [True]
    assert messages[7]["content"] == "<tool_call>{bad</tool_call>"


@pytest.mark.parametrize(
    ("scored", "rule", "sent"),
    [
        (1.5, {}, [0.5, 1.0]),
        (1.0, {"reward": "max"}, [0.5, 1.0]),
        (1.5, {"reward": "max"}, [1.5]),
        (0.75, {"reward": "mean"}, [0.75]),  # a store takes the sum or the highest
        (0.0, {}, [0.0]),
        (None, {}, []),
    ],
)
async def test_a_store_counts_what_the_trainer_scored(
    scored: float | None, rule: dict[str, Any], sent: list[float]
) -> None:
    labels = dataclasses.replace(LABELS, reward=scored, run_info=rule)
    _, *messages = rollout_events(await played(), labels)
    assert [message["reward"] for message in messages if "reward" in message] == sent
    own = [message["metadata"]["step_reward"] for message in messages if "step_reward" in message.get("metadata", {})]
    assert own == ([] if len(sent) == 2 else [0.5, 1.0])


def test_a_rollout_that_no_tool_rewarded_counts_what_the_trainer_scored() -> None:
    """As a malformed call that ends the episode: without it, means are those of the others alone."""
    labels = dataclasses.replace(LABELS, reward=0.0)
    assert [event.get("reward") for event in rollout_events(small(1), labels)] == [None, 0.0]
    assert len(rollout_events(Trajectory("r1"), labels)) == 1


async def test_events_have_the_shape_of_the_api_s_own_client() -> None:
    models = pytest.importorskip("openreward.models")
    kinds = {"rollout": models.RolloutStartedEvent, "message": models.LogMessageEvent}
    for event in rollout_events(await played(), LABELS):
        built = kinds[event["eventType"]](**event)
        assert {key: value for key, value in dataclasses.asdict(built).items() if value is not None} == event


async def test_a_rollout_sent_twice_has_the_same_ids() -> None:
    trajectory = await played()
    first, second = (rollout_events(trajectory, LABELS) for _ in range(2))
    assert [event["eventId"] for event in first] == [event["eventId"] for event in second]
    assert len({event["eventId"] for event in first}) == len(first)
    assert rollout_events(small(1), LABELS)[0]["eventId"] != rollout_events(small(2), LABELS)[0]["eventId"]


async def test_a_final_message_is_a_message_and_a_call() -> None:
    trajectory = await played(["five"], Desk)
    kinds = [event.get("type") for event in rollout_events(trajectory, LABELS)]
    assert kinds == [None, "system_message", "user_message", "assistant_message", "tool_call", "tool_result"]


# --- files ---------------------------------------------------------------------------------------


async def test_a_file_gets_a_line_for_each_trajectory(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "rollouts.jsonl"
    sink = JsonlSink(path)
    trajectory = await played()
    for _ in range(3):
        sink.submit(trajectory, LABELS)
    await sink.close()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(rows) == 3
    row = rows[0]
    assert (row["reward"], row["stop_reason"], row["turns"], row["metadata"]) == (1.5, "finished", 3, {"seed": 7})
    assert row["prompt_ids"] + row["response_ids"] == trajectory.ids
    assert (row["loss_mask"], row["logprobs"]) == (trajectory.loss_mask, trajectory.logprobs)
    assert row["messages"] == trajectory.messages
    assert [step.get("name") for step in row["steps"]] == ["look", "earn", None, "finish"]
    assert row["steps"][2]["malformed"] == "<tool_call>{bad</tool_call>"
    # A closed sink starts again.
    sink.submit(trajectory, LABELS)
    await sink.close()
    assert len(path.read_text().splitlines()) == 4


async def test_tokens_may_be_left_out(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "rollouts.jsonl", tokens=False)
    sink.submit(await played(), LABELS)
    await sink.close()
    assert "prompt_ids" not in json.loads((tmp_path / "rollouts.jsonl").read_text())


def nested(levels: int) -> list[Any]:
    inner: list[Any] = []
    for _ in range(levels):
        inner = [inner]
    return inner


async def test_a_trajectory_that_cannot_be_written_is_the_only_one_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "rollouts.jsonl"
    sink = JsonlSink(path)
    odd = small(2)
    odd.messages = [{"role": "user", "content": "lone \ud83d"}]
    with caplog.at_level(logging.WARNING, "ors_clients.rollouts.sinks"):
        sink.submit(small(1), LABELS)
        sink.submit(odd, LABELS)
        sink.submit(small(3), dataclasses.replace(LABELS, metadata={"deep": nested(100_000)}))
        sink.submit(small(4), LABELS)
        await sink.close()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["rollout_id"] for row in rows] == ["r1", "r2", "r4"]
    assert rows[1]["messages"][0]["content"] == "lone ?"
    assert sink.lost == 1
    assert "RecursionError" in caplog.text


async def test_a_file_that_cannot_be_written_costs_the_trajectories_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sink = JsonlSink(tmp_path)
    with caplog.at_level(logging.WARNING, "ors_clients.rollouts.sinks"):
        sink.submit(small(1), LABELS)
        await sink.close()
    assert sink.lost == 1
    assert "IsADirectoryError" in caplog.text


# --- uploads -------------------------------------------------------------------------------------


class Store:
    """A server that records the bodies of uploads."""

    def __init__(self, statuses: list[int] | None = None) -> None:
        self.statuses = statuses or []
        self.batches: list[list[dict[str, Any]]] = []
        self.keys: set[str] = set()
        self.released = threading.Event()
        self.released.set()
        self.app = FastAPI()

        @self.app.post("/v1/rollouts")
        async def _rollouts(request: Request) -> Any:
            await asyncio.to_thread(self.released.wait)
            if self.statuses:
                return Response("no", self.statuses.pop(0))
            self.keys.add(request.headers["x-api-key"])
            self.batches.append((await request.json())["events"])
            return {"ok": True}

    @property
    def events(self) -> list[dict[str, Any]]:
        return [event for batch in self.batches for event in batch]


async def test_uploads_arrive_in_batches_that_the_api_takes() -> None:
    store = Store()
    with serve_application(store.app) as url:
        sink = RolloutsSink(url, api_key="key")
        sent: list[dict[str, Any]] = []
        for number in range(40):
            trajectory = small(number)
            trajectory.messages *= 9
            sent += rollout_events(trajectory, LABELS)
            sink.submit(trajectory, LABELS)
        sink.submit(big := small(99), LABELS)
        big.messages = [{"role": "user", "content": "y" * 400_000}] * 6
        await sink.close()
    assert [event["eventId"] for event in store.events][:400] == [event["eventId"] for event in sent]
    assert all(len(batch) <= 128 for batch in store.batches)
    assert all(len(json.dumps(batch)) < 1_100_000 for batch in store.batches)
    assert sum(event["eventType"] == "rollout" for event in store.events) == 41
    assert (store.keys, sink.lost) == ({"key"}, 0)


async def test_the_platforms_key_goes_to_the_platform_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENREWARD_API_KEY", "key")
    monkeypatch.delenv("ORS_API_KEY", raising=False)
    store, platform = Store(), Store()
    with serve_application(store.app) as url, serve_application(platform.app) as elsewhere:
        monkeypatch.setenv("OPENREWARD_API_URL", elsewhere)
        for sink in (RolloutsSink(url), RolloutsSink()):
            sink.submit(small(1), LABELS)
            await sink.close()
    assert (store.keys, platform.keys) == ({""}, {"key"})


async def test_an_upload_has_the_key_of_its_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same key as the sessions on that server."""
    monkeypatch.setenv("OPENREWARD_API_KEY", "platform's")
    monkeypatch.setenv("ORS_API_KEY", "server's")
    monkeypatch.delenv("OPENREWARD_SESSION_URL", raising=False)
    monkeypatch.delenv("OPENREWARD_API_URL", raising=False)
    store = Store()
    with serve_application(store.app) as url:
        for pointer in (None, "OPENREWARD_SESSION_URL"):
            if pointer:
                monkeypatch.setenv(pointer, url)
            sink = RolloutsSink(url)
            sink.submit(small(1), LABELS)
            await sink.close()
    assert store.keys == {"server's", "platform's"}


async def test_uploads_that_a_server_cannot_take_yet_are_retried() -> None:
    store = Store([503, 429, 500])
    with serve_application(store.app) as url:
        sink = RolloutsSink(url, api_key="", first_pause=0.01)
        sink.submit(small(1), LABELS)
        await sink.close()
    assert len(store.events) == 2
    assert sink.lost == 0


@pytest.mark.parametrize("status", [404, 422])
async def test_a_refused_upload_is_dropped_and_the_next_goes_through(
    status: int, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store([status])
    with serve_application(store.app) as url:
        sink = RolloutsSink(url, api_key="secret-key", first_pause=0.01)
        with caplog.at_level(logging.WARNING, "ors_clients.rollouts.sinks"):
            sink.submit(small(1), LABELS)
            await asyncio.to_thread(_wait_until, lambda: sink.lost > 0)
            sink.submit(small(2), LABELS)
            await sink.close()
    assert sink.lost == 1
    assert len(store.events) == 2
    assert str(status) in caplog.text
    assert "secret-key" not in caplog.text


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


async def test_a_trajectory_that_cannot_be_uploaded_is_the_only_one_lost() -> None:
    store = Store()
    with serve_application(store.app) as url:
        sink = RolloutsSink(url, api_key="")
        sink.submit(small(1), LABELS)
        sink.submit(small(2), dataclasses.replace(LABELS, metadata={"deep": nested(100_000)}))
        sink.submit(small(3), LABELS)
        await sink.close()
    assert sink.lost == 1
    assert sum(event["eventType"] == "rollout" for event in store.events) == 2


async def test_a_missing_server_does_not_fail_the_run() -> None:
    sink = RolloutsSink("http://127.0.0.1:9", api_key="", attempts=2, first_pause=0.01)
    sink.submit(small(1), LABELS)
    await sink.close()
    assert sink.lost == 1


async def test_a_slow_server_neither_slows_nor_fills_the_run() -> None:
    store = Store()
    store.released.clear()
    with serve_application(store.app) as url:
        sink = RolloutsSink(url, api_key="", capacity=10)
        begun = time.perf_counter()
        for number in range(1000):
            sink.submit(small(number), LABELS)
        assert time.perf_counter() - begun < 20
        assert sink.lost >= 900
        await sink.close(0.1)
        store.released.set()
        await sink.close()
    # The newest are kept.
    assert any(event["eventId"] == rollout_events(small(999), LABELS)[0]["eventId"] for event in store.events)


async def test_a_forked_process_has_a_sink_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    sink = JsonlSink(path)
    sink.submit(small(1), LABELS)
    await sink.close()
    sink.submit(small(2), LABELS)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            sink.submit(small(3), LABELS)
            sink.stop(5.0)
            status = 0
        finally:
            os._exit(status)
    _, status = await asyncio.to_thread(os.waitpid, child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    await sink.close()
    kept = [json.loads(line)["rollout_id"] for line in path.read_text().splitlines()]
    assert sorted(kept) == ["r1", "r2", "r3"]
