"""A task's `_ors_task` reveals nothing about the task's private fields, whatever its reader knows."""

import base64
import hashlib
import hmac
from collections.abc import Sequence

from ors_server import JSONObject
from tests.server.protocol.conftest import Serve
from tests.support.environments import Echo

BY_INDEX = {"split": "train", "index": 0}


class Quiz(Echo):
    """One task with a question and an answer that is easy to guess; the prompt does not show it."""

    private_task_fields = ("answer",)

    @classmethod
    def list_tasks(cls, split: str) -> list[JSONObject]:
        return [{"question": "Is it?", "answer": "yes"}]


def quiz(**task: object) -> type[Quiz]:
    """Return the same environment with another task."""

    def list_tasks(cls: type, split: str) -> Sequence[object]:
        return [task]

    return type("Quiz", (Quiz,), {"list_tasks": classmethod(list_tasks)})


async def token(serve: Serve, environment: type[Quiz]) -> str:
    """Return the token of the environment's task."""
    return (await serve(environment).post("/task", BY_INDEX)).json()["task"]["_ors_task"]


async def test_the_token_is_the_same_whatever_the_private_fields_are(serve: Serve) -> None:
    """Anyone can run this server and compare guesses with a token; the comparison must reveal nothing."""
    ours = await token(serve, Quiz)
    assert await token(serve, quiz(question="Is it?", answer="no")) == ours
    assert await token(serve, quiz(question="Is it?", answer=["gold"] * 100)) == ours
    assert await token(serve, quiz(question="Is it?")) == ours
    assert await token(serve, quiz(question="Is it not?", answer="yes")) != ours


async def test_a_task_comes_back_with_what_was_left_out(serve: Serve) -> None:
    environment = quiz(id="gold", question="Is it?")
    environment.private_task_fields = ("id",)
    client = serve(environment)
    task = (await client.post("/task", BY_INDEX)).json()["task"]
    assert "gold" not in str(task)
    assert "gold" not in base64.urlsafe_b64decode(task["_ors_task"]).decode("latin-1")
    sid = await client.open({"task_spec": task})
    assert (await client.get("/prompt", sid)).json()[0]["text"] == "prompt of gold"


def signed(payload: bytes) -> str:
    """Return a token signed as the server signs it. The key is public, since it protects nothing."""
    key = hashlib.sha256(b"ors-server task of quiz").digest()
    return base64.urlsafe_b64encode(hmac.new(key, payload, hashlib.sha256).digest()[:16] + payload).decode()


async def test_tokens_are_signed_as_this_test_signs_them(serve: Serve) -> None:
    """A precondition of the next test."""
    ours = await token(serve, Quiz)
    assert signed(base64.urlsafe_b64decode(ours)[16:]) == ours


FORGED = [
    '["train", 0, "ünïcode"]',
    '["train", 0, "\\ud800"]',
    '["train", 0, ""]',
    '["train", 0, null]',
    '["train", 0, 7]',
    '["train", 0]',
    '["train", "zero", "x"]',
    '["train", null, "x"]',
    '["train", Infinity, "x"]',
    '["train", NaN, "x"]',
    '["train", 1e999, "x"]',
    '["train", 5, "x"]',
    '["train", -1000000000000000000000000000000, "x"]',
    '["nothing", 0, "x"]',
    '[["train"], 0, "x"]',
    '{"train": 0}',
    "7",
    "",
    "\xff",
    "[" * 100_000,
    '["train", ' + "9" * 5000 + ', "x"]',
]


async def test_a_forged_token_is_400(serve: Serve) -> None:
    """Whatever its content; and no session is left."""
    client = serve(Quiz)
    for payload in FORGED:
        task = {"question": "Is it?", "_ors_task": signed(payload.encode())}
        response = await client.create("s", {"task_spec": task})
        assert response.status_code == 400, (payload[:50], response.text)
        assert (await client.post("/ping", sid="s")).status_code == 404


async def test_the_same_task_has_the_same_token_each_time(serve: Serve) -> None:
    """Clients compare and de-duplicate the tasks they list, and store them in datasets."""
    client = serve(Quiz)
    listed = (await client.post("/tasks", {"split": "train"})).json()["tasks"]
    assert (await client.post("/task", BY_INDEX)).json()["task"] == listed[0]
    assert (await client.post("/task_range", {"split": "train"})).json()["tasks"] == listed
    assert (await serve(Quiz).create("s", {"task_spec": listed[0]})).status_code == 200
