"""The server that a process runs for itself: ``ors_server.local``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from ors_server import Blocks, DefinitionError, Environment, JSONObject, Split, TextBlock, ToolOutput, tool
from ors_server.local import LocalServer
from tests.support.events import Reply, parse_events


class Countdown(Environment):
    torn_down = 0

    @classmethod
    def list_splits(cls) -> Sequence[Split | str]:
        return ["train"]

    @classmethod
    def list_tasks(cls, split: str) -> Sequence[JSONObject]:
        return [{"from": 3}]

    def get_prompt(self) -> Blocks:
        return [TextBlock(text="Count.")]

    def teardown(self) -> None:
        type(self).torn_down += 1

    @tool
    async def step(self) -> ToolOutput:
        return ToolOutput(blocks=[TextBlock(text=f"from {self.task_spec['from']}")], finished=True)


async def post(server: LocalServer, path: str, body: Any, sid: str = "") -> tuple[int, bytes]:
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    headers = [(b"x-session-id", sid.encode())] if sid else []
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}
    await server(scope, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


async def test_an_episode_is_served_without_an_application() -> None:
    server = LocalServer(Countdown)
    status, body = await post(server, "/create_session", {})
    assert status == 200
    sid = json.loads(body)["sid"]
    assert (await post(server, "/create", {"split": "train", "index": 0}, sid))[0] == 200
    status, events = await post(server, "/call", {"name": "step", "input": {}}, sid)
    assert status == 200
    assert Reply(parse_events(events)).text == "from 3"
    assert (await post(server, "/create", {"split": "train", "index": 9}, "other"))[0] == 400
    await server.close()
    assert Countdown.torn_down == 1


async def test_other_paths_and_classes_are_refused() -> None:
    server = LocalServer(Countdown)
    with pytest.raises(KeyError):
        await post(server, "/list_environments", {})
    await server.close()

    class Nothing(Environment):
        pass

    with pytest.raises(DefinitionError):
        LocalServer(Nothing)
