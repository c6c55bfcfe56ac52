"""Protocol 0.1, "Private task fields": clients never see them, and refer to them only by ``_ors_task``."""

from collections.abc import Callable

import pytest

from ors_server import Blocks, JSONObject, TextBlock
from tests.server.protocol.conftest import Serve
from tests.support.environments import Echo

BY_INDEX = {"split": "train", "index": 1}


class Guarded(Echo):
    """Tasks with an answer that no client may see; the prompt shows the instance's view, for the test only."""

    private_task_fields = ("answer", "grader")

    @classmethod
    def list_tasks(cls, split: str) -> list[JSONObject]:
        return [
            {"question": f"{split} {number}?", "answer": f"gold-{number}", "grader": "/grade"} for number in range(3)
        ]

    def get_prompt(self) -> Blocks:
        return [TextBlock(text=f"{self.task_spec.get('question')} {self.task_spec.get('answer')}")]


class Open(Guarded):
    """``Guarded`` without private fields."""

    private_task_fields = ()


async def test_no_route_shows_a_private_field(serve: Serve) -> None:
    client = serve(Guarded)
    responses = [
        await client.post("/tasks", {"split": "train"}),
        await client.post("/task", BY_INDEX),
        await client.post("/get_task", BY_INDEX),
        await client.post("/task_range", {"split": "train", "start": 1}),
        await client.post("/get_task_range", {"split": "train"}),
    ]
    for response in responses:
        assert response.status_code == 200
        assert "gold" not in response.text
        assert "/grade" not in response.text
    task = responses[1].json()["task"]
    assert set(task) == {"question", "_ors_task"}
    assert task["question"] == "train 1?"
    assert isinstance(task["_ors_task"], str)


@pytest.mark.parametrize("index", [0, 2])
async def test_a_listed_task_comes_back_whole(serve: Serve, index: int) -> None:
    client = serve(Guarded)
    tasks = (await client.post("/tasks", {"split": "train"})).json()["tasks"]
    single = (await client.post("/task", {"split": "train", "index": index})).json()["task"]
    assert single == tasks[index]
    sid = await client.open({"task_spec": single})
    assert (await client.get("/prompt", sid)).json()[0]["text"] == f"train {index}? gold-{index}"


async def test_a_task_by_index_is_whole(serve: Serve) -> None:
    client = serve(Guarded)
    sid = await client.open(BY_INDEX)
    assert (await client.get("/prompt", sid)).json()[0]["text"] == "train 1? gold-1"


async def test_fields_beside_the_token_are_ignored(serve: Serve) -> None:
    client = serve(Guarded)
    task = (await client.post("/task", BY_INDEX)).json()["task"]
    sid = await client.open({"task_spec": {**task, "question": "mine?", "answer": "forged"}})
    assert (await client.get("/prompt", sid)).json()[0]["text"] == "train 1? gold-1"


DAMAGES: dict[str, Callable[[str], object]] = {
    "first character": lambda token: ("B" if token[0] == "A" else "A") + token[1:],
    "near the end": lambda token: token[:-6] + ("BBBB" if token[-6:-2] == "AAAA" else "AAAA") + token[-2:],
    "cut": lambda token: token[:10],
    "empty": lambda token: "",
    "garbage": lambda token: "no token",
    "unicode": lambda token: "ünïcode",
    "number": lambda token: 7,
    "list": lambda token: [token],
    "object": lambda token: {"token": token},
}


async def test_a_tampered_token_is_400(serve: Serve) -> None:
    client = serve(Guarded)
    task = (await client.post("/task", BY_INDEX)).json()["task"]
    for name, damage in DAMAGES.items():
        response = await client.create("s", {"task_spec": {**task, "_ors_task": damage(task["_ors_task"])}})
        assert response.status_code == 400, name
        assert "_ors_task" in response.json()["detail"], name
    assert (await client.post("/ping", sid="s")).status_code == 404


async def test_a_token_of_another_environment_is_400(serve: Serve) -> None:
    class Other(Guarded):
        pass

    client = serve(Guarded, Other)
    task = (await client.post("/guarded/task", BY_INDEX)).json()["task"]
    assert (await client.create("a", {"env_name": "other", "task_spec": task})).status_code == 400
    assert (await client.create("b", {"env_name": "guarded", "task_spec": task})).status_code == 200


class Moving(Guarded):
    """One task that changes while the server runs."""

    task: JSONObject

    @classmethod
    async def get_task(cls, split: str, index: int) -> JSONObject:
        return cls.task

    @classmethod
    async def num_tasks(cls, split: str) -> int:
        return 1


async def test_a_task_that_has_changed_since_is_400(serve: Serve) -> None:
    client = serve(Moving)
    Moving.task = {"question": "old?", "answer": "a"}
    task = (await client.post("/task", {"split": "train", "index": 0})).json()["task"]
    assert (await client.create("a", {"task_spec": task})).status_code == 200
    Moving.task = {"question": "new?", "answer": "a"}
    response = await client.create("b", {"task_spec": task})
    assert response.status_code == 400
    assert "changed" in response.json()["detail"]


async def test_the_token_cannot_confirm_a_guess_of_the_answer(serve: Serve) -> None:
    """It does not depend on the private fields, so it cannot confirm a guess; a corrected answer is used at once."""
    client = serve(Moving)
    Moving.task = {"question": "?", "answer": "old"}
    task = (await client.post("/task", {"split": "train", "index": 0})).json()["task"]
    Moving.task = {"question": "?", "answer": "new"}
    assert (await client.post("/task", {"split": "train", "index": 0})).json()["task"] == task
    sid = await client.open({"task_spec": task})
    assert (await client.get("/prompt", sid)).json()[0]["text"] == "? new"


async def test_without_private_fields_a_task_has_no_token(serve: Serve) -> None:
    """ "Only where an environment has some"."""
    client = serve(Open)
    assert (await client.post("/task", BY_INDEX)).json()["task"] == {
        "question": "train 1?",
        "answer": "gold-1",
        "grader": "/grade",
    }


@pytest.mark.parametrize("environment", [Guarded, Open])
async def test_a_task_of_the_clients_own_is_trusted_by_default(serve: Serve, environment: type) -> None:
    client = serve(environment)
    sid = await client.open({"task_spec": {"question": "mine", "answer": "too"}})
    assert (await client.get("/prompt", sid)).json()[0]["text"] == "mine too"


async def test_an_empty_task_counts_as_given(serve: Serve) -> None:
    """Section 1: ``task_spec: {}``."""
    client = serve(Open)
    sid = await client.open({"task_spec": {}})
    assert (await client.get("/prompt", sid)).json()[0]["text"] == "None None"


@pytest.mark.parametrize("environment", [Guarded, Open])
async def test_trust_client_tasks_off_takes_only_tasks_given_out(serve: Serve, environment: type) -> None:
    client = serve(environment, trust_client_tasks=False)
    refused = await client.create("a", {"task_spec": {"question": "mine", "answer": "too"}})
    assert refused.status_code == 400
    assert "_ors_task" in (await client.post("/task", BY_INDEX)).json()["task"]
    task = (await client.post("/task", BY_INDEX)).json()["task"]
    sid = await client.open({"task_spec": {**task, "answer": "forged"}})
    assert (await client.get("/prompt", sid)).json()[0]["text"] == "train 1? gold-1"
    by_index = await client.open(BY_INDEX)
    assert (await client.get("/prompt", by_index)).json()[0]["text"] == "train 1? gold-1"


async def test_private_fields_stay_private_in_errors(serve: Serve) -> None:
    client = serve(Guarded)
    bad = {"task_spec": {"answer": "gold-1"}, "split": "train", "index": 0}
    response = await client.create("s", bad)
    assert response.status_code == 422
    assert "gold-1" not in response.text
