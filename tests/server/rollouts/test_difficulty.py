"""``task-difficulty``: statistics of each task from the uploaded rollouts."""

from __future__ import annotations

import asyncio
import json
import statistics
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from ors_server import Server, Settings
from ors_server.rollouts.storing.additions import Additions
from ors_server.rollouts.storing.database import open_to_write
from ors_server.rollouts.uploads import read_event
from tests.server.rollouts.support import NOON, Event, at, body, message, rollout, update
from tests.support.environments import Echo
from tests.support.http_client import Client

pytestmark = pytest.mark.usefixtures("database")


class Second(Echo):
    aliases = ("Somebody/Second-One",)


@pytest.fixture
async def client(data_dir: Path) -> AsyncGenerator[Client]:
    server = Server([Echo, Second], settings=Settings(data_dir=data_dir))
    opened = Client(server.app)
    yield opened
    await opened.close()
    await server.sessions.close()
    await server.app.rollouts.close()


def played(name: str, index: int | None, *rewards: float | None, said: str = "words", **others: Any) -> list[Event]:
    """Return the events of a rollout of one task, with one message per reward."""
    labels: dict[str, Any] = {"environment": "me/Second", "split": "train", **others}
    head = rollout(name, **labels)
    tasks = [] if index is None else [update(name, task_index=index)]
    return [head, *(message(name, n, said, reward=reward) for n, reward in enumerate(rewards)), *tasks]


async def upload(client: Client, *events: object) -> None:
    response = await client.http.post("/v1/rollouts", content=body(*events))
    assert response.status_code == 200, response.text


async def difficulty(client: Client, query: str = "", name: str = "me/second") -> list[dict[str, Any]]:
    response = await client.get(f"/v1/environments/{name}/task-difficulty{query}")
    assert response.status_code == 200, response.text
    assert list(response.json()) == ["tasks"]
    return response.json()["tasks"]


async def test_without_uploads_there_are_no_statistics(client: Client, data_dir: Path) -> None:
    assert await difficulty(client) == []
    assert not data_dir.exists()


async def test_rewards_and_lengths_of_a_task(client: Client) -> None:
    """Lengths are of the model's text; percentiles are interpolated as a database does."""
    for number in range(10):
        await upload(
            client,
            *played(f"r{number}", 3, number / 10, 0.0, said="x" * 50),
            message(f"r{number}", 7, "y" * 10 * number, type="reasoning"),
            message(f"r{number}", 8, None, type="reasoning", summary="z" * 5, contentReference="hidden"),
            message(f"r{number}", 9, '{"a": 1}', type="tool_call", name="echo", callId="c"),
            message(f"r{number}", 10, "t" * 1000, type="tool_result", callId="c"),
            message(f"r{number}", 11, "u" * 1000, type="user_message"),
        )
    (task,) = await difficulty(client)
    lengths = [113 + 10 * number for number in range(10)]
    assert task["response_chars"].pop("p1") == pytest.approx(113.9)
    assert task["response_chars"].pop("p99") == pytest.approx(202.1)
    assert task == {
        "task_index": 3,
        "avg_reward": pytest.approx(0.45),
        "min_reward": 0.0,
        "max_reward": 0.9,
        "num_rollouts": 10,
        "response_chars": {
            "mean": statistics.fmean(lengths),
            "p10": pytest.approx(122.0),
            "p25": pytest.approx(135.5),
            "p50": 158.0,
            "p75": pytest.approx(180.5),
            "p90": pytest.approx(194.0),
        },
        "split": "train",
        "variant": None,
    }


async def test_a_lost_rollout_is_no_reward_of_zero(client: Client) -> None:
    await upload(
        client, *played("lost", 0, None), *played("begun", 0), *played("won", 0, 1.0), *played("none", None, 0)
    )
    (task,) = await difficulty(client)
    assert (task["num_rollouts"], task["avg_reward"]) == (1, 1.0)


async def test_groups_and_their_order(client: Client) -> None:
    await upload(
        client,
        *played("a", 1, 1.0, split="train", variant="hard"),
        *played("b", 0, 1.0, split="train", variant="hard"),
        *played("c", 10, 1.0, split="train"),
        *played("d", 9, 1.0, split="train"),
        *played("e", 0, 1.0, split=None),
        *played("f", 0, 0.0, split="test"),
    )
    found = [(task["split"], task["variant"], task["task_index"]) for task in await difficulty(client)]
    assert found == [
        (None, None, 0),
        ("test", None, 0),
        ("train", None, 9),
        ("train", None, 10),
        ("train", "hard", 0),
        ("train", "hard", 1),
    ]
    assert [task["task_index"] for task in await difficulty(client, "?split=train")] == [9, 10, 0, 1]
    assert [task["task_index"] for task in await difficulty(client, "?variant=hard")] == [0, 1]
    assert await difficulty(client, "?split=tr%25") == []


async def test_the_model_that_played(client: Client) -> None:
    for number, info in enumerate(
        [
            {"model_name": "tiny", "model_params": 1000, "training_stage": "rl"},
            {"model_name": "big", "model_params": 10**10, "training_stage": "sft"},
            {"model_name": "odd", "model_params": "many", "training_stage": 3},
            {},
            None,
        ]
    ):
        await upload(client, *played(f"r{number}", number, 1.0, run_info=info))

    async def indices(query: str) -> list[int]:
        return [task["task_index"] for task in await difficulty(client, query)]

    assert await indices("") == [0, 1, 2, 3, 4]
    assert await indices("?model_name=big") == [1]
    assert await indices("?min_model_params=1000") == [0, 1]
    assert await indices("?min_model_params=1001") == [1]
    assert await indices("?max_model_params=1000") == [0]
    assert await indices("?training_stage=rl&model_name=tiny") == [0]
    for wrong in ("min_model_params=x", "min_model_params=-1", f"max_model_params={2**63}", "training_stage=x"):
        response = await client.get(f"/v1/environments/me/second/task-difficulty?{wrong}")
        assert response.status_code == 422
        assert wrong.partition("=")[0] in response.json()["message"]


async def test_which_rollouts_are_the_environments(client: Client) -> None:
    """By the id the server gave the client, by each of its names, and not by a name of another environment."""
    uploaded: list[dict[str, Any]] = [
        {"environment": "second"},
        {"environment": "SOMEBODY/second-one"},
        {"environment": "another/Second"},
        {"environment": None, "environment_id": "second"},
        {"environment": "echo"},
        {"environment": "me/unknown"},
        {"environment": None},
    ]
    for number, names in enumerate(uploaded):
        await upload(client, *played(f"r{number}", number, 1.0, **names))
    assert [task["task_index"] for task in await difficulty(client)] == [0, 1, 2, 3]
    assert [task["task_index"] for task in await difficulty(client, name="somebody/second-one")] == [0, 1, 2, 3]
    assert [task["task_index"] for task in await difficulty(client, name="me/echo")] == [4]


async def test_the_last_update_names_the_task(client: Client) -> None:
    await upload(client, *played("r", None, 1.0), update("r", at=NOON + 2, task_index=2), update("r", task_index=1))
    await upload(client, update("r", at=NOON + 3, harness="x"))
    assert [task["task_index"] for task in await difficulty(client)] == [2]


async def test_invalid_values_are_ignored(client: Client) -> None:
    """Uploads contain arbitrary values; none of them makes the other rollouts' numbers unreadable."""
    deep: Any = 1
    for _ in range(900):
        deep = {"a": deep}
    await upload(client, *played("good", 5, 1.0), *played("large", 5, 1.5e308), *played("larger", 5, 1.7e308))
    for number, index in enumerate((True, "3", 1.5, None, [1], {"a": 1}, 2**70, -1)):
        await upload(client, *played(f"odd{number}", None, 1.0), update(f"odd{number}", task_index=index))
    for number, info in enumerate(({"task_index": 6, "a": deep}, {"task_index": 7, "\x00": "\ud800"})):
        events = [*played(f"deep{number}", None, 1.0, run_info=info), update(f"deep{number}", **info)]
        response = await client.http.post("/v1/rollouts", content=json.dumps({"events": events}).encode())
        assert response.status_code in (200, 422)
    for query in ("", "?min_model_params=1", "?model_name=x"):
        tasks = {task["task_index"]: task for task in await difficulty(client, query)}
        if not query:
            assert tasks[5]["num_rollouts"] == 3
            assert tasks[5]["avg_reward"] == pytest.approx(1.5e308 / 3 + 1.7e308 / 3)
            assert set(tasks) == {-1, 5, 6, 7}


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_a_file_that_cannot_be_read(client: Client, data_dir: Path) -> None:
    data_dir.mkdir()
    (data_dir / "rollouts.sqlite3").write_bytes(b"nothing like it" * 100)
    response = await client.get("/v1/environments/me/second/task-difficulty")
    assert response.status_code == 503
    assert "damaged" in response.json()["message"]
    assert str(data_dir) not in response.text


@pytest.mark.long
async def test_calls_are_answered_while_many_rollouts_are_counted(client: Client, data_dir: Path) -> None:
    additions = Additions()
    for number in range(4000):
        events = played(f"r{number}", number % 50, number % 2, said="x" * 2000)
        for place, event in enumerate(events):
            additions.add(read_event(place, event))
    connection = open_to_write(at(data_dir))
    additions.write(connection)
    connection.close()
    sid = await client.open()
    counting = [asyncio.create_task(difficulty(client)) for _ in range(20)]
    await asyncio.sleep(0)
    assert (await client.call(sid, "echo", {"text": "x"})).text == "x"
    assert not all(task.done() for task in counting)
    for tasks in await asyncio.gather(*counting):
        assert [task["num_rollouts"] for task in tasks] == [80] * 50
