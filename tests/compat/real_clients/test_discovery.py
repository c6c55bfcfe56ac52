"""Discovery before an episode: splits, tasks, tools."""

from __future__ import annotations

import pytest

from .clients import OPENREWARD, Client, Task, connected, failure
from .openreward_sdk import SessionResponseError
from .process import RunningServer

pytestmark = pytest.mark.asyncio(loop_scope="session")

TRAIN = [
    {"id": "train-0", "number": 7},
    {"id": "train-1", "number": 3},
    {"id": "train-2", "number": 11},
    {"id": "train-3", "number": 5},
]


def specs(tasks: list[Task]) -> list[dict[str, object]]:
    return [task.task_spec for task in tasks]


async def test_splits_and_tasks(client: Client) -> None:
    environment = await client.environment("guessit")

    assert await environment.splits() == ["train", "holdout"]
    assert [await environment.count(split) for split in ("train", "holdout")] == [4, 2]
    tasks = await environment.tasks("train")
    assert specs(tasks) == TRAIN
    assert {task.environment_name for task in tasks} == {"guessit"}
    assert specs(await environment.tasks("holdout")) == [
        {"id": "holdout-0", "number": 13},
        {"id": "holdout-1", "number": 17},
    ]


async def test_a_task_by_its_index(client: Client) -> None:
    environment = await client.environment("guessit")

    first, last = [await environment.task("train", index) for index in (0, 3)]
    refusals = [await failure(environment.task("train", index)) for index in (-1, 4)]

    assert specs([first, last]) == [TRAIN[0], TRAIN[3]]
    assert first.environment_name == "guessit"
    assert [getattr(refusal, "status", None) for refusal in refusals] == [400, 400], refusals


async def test_ranges_are_slices(client: Client) -> None:
    environment = await client.environment("guessit")

    for start, stop in [(None, None), (1, 3), (None, 2), (2, None), (-2, None), (None, -3), (1, 99), (3, 1), (9, None)]:
        assert specs(await environment.range("train", start, stop)) == TRAIN[start:stop], (start, stop)


async def test_tools_of_an_environment(client: Client) -> None:
    environment = await client.environment("guessit")

    give_up, guess = await environment.tools()

    assert (give_up.name, give_up.description, give_up.input_schema) == ("give_up", "End the episode.", None)
    assert guess.name == "guess"
    assert guess.description == "Guess. The reward is 1.0, and the episode ends, if you are right."
    assert guess.input_schema == {
        "properties": {"number": {"description": "Your guess.", "minimum": 0, "title": "Number", "type": "integer"}},
        "required": ["number"],
        "title": "GuessInput",
        "type": "object",
    }


async def test_tools_in_the_form_of_a_provider(client: Client) -> None:
    environment = await client.environment("guessit")

    tools = await environment.run(environment.sdk.list_tools, format="openai")

    number = {"description": "Your guess.", "minimum": 0, "type": "integer"}
    assert tools[1] == {
        "type": "function",
        "name": "guess",
        "description": "Guess. The reward is 1.0, and the episode ends, if you are right.",
        "parameters": {"properties": {"number": number}, "required": ["number"], "type": "object"},
    }


async def test_an_environment_with_tasks_by_index_only(client: Client) -> None:
    environment = await client.named("endless")

    assert await environment.count("train") == 1_000_000
    assert (await environment.task("train", 999_999)).task_spec == {"id": "train-999999", "number": 999_999}
    assert specs(await environment.range("train", -2)) == [
        {"id": "train-999998", "number": 999_998},
        {"id": "train-999999", "number": 999_999},
    ]
    async with environment.session(split="train", index=123_456) as session:
        assert (await session.call("guess", number=123_456)).reward == 1.0


async def test_missing_environments_splits_and_tasks(server: RunningServer) -> None:
    for kind in OPENREWARD:
        async with connected(kind, server.url) as client:
            guess = await client.environment("guessit")
            endless = await client.named("endless")
            nowhere = await client.environment("nowhere")
            for request, status, message in [
                (guess.tasks("nosuch"), 400, "Invalid split. 'nosuch' is none of train, holdout"),
                (guess.count("nosuch"), 400, "Invalid split. 'nosuch' is none of train, holdout"),
                (guess.task("train", 4), 400, "Invalid index. 4 is outside split 'train', which has 4 tasks"),
                (guess.task("train", -5), 400, "Invalid index. -5 is outside split 'train', which has 4 tasks"),
                (endless.tasks("train"), 400, "list_tasks is not supported for this environment. Use the index-based"),
                (endless.task("train", 1_000_000), 400, "Invalid index. 1000000 is outside split 'train'"),
                (nowhere.splits(), 404, "unknown environment 'nowhere'. This server hosts: guessit, slowstart, "),
            ]:
                error = await failure(request)
                assert isinstance(error, SessionResponseError)
                assert getattr(error, "status", None) == status
                assert getattr(error, "message", "").startswith(message), error


async def test_a_task_list_that_cannot_be_read(openreward_client: Client) -> None:
    environment = await openreward_client.named("troubled")

    error = await failure(environment.tasks("unlisted"))

    assert (error.status, error.message) == (500, "OSError: the list is unreadable")
    assert len(await environment.tasks("train")) == 4
