"""``/messages`` and ``/prompt``: each is derived from the other where only one is written (protocol, section 5)."""

import asyncio
import json
from typing import Any

import pytest

from ors_server import (
    Blocks,
    Environment,
    ImageBlock,
    JSONObject,
    Message,
    ReasoningBlock,
    Split,
    TextBlock,
    ToolCallBlock,
    ToolOutput,
    ToolResultBlock,
    flatten_messages,
    tool,
)
from tests.server.protocol.conftest import Serve
from tests.support.environments import Echo, Text, said
from tests.support.http_client import Client

PICTURE = ImageBlock(data="aGk=", mimeType="image/png")


async def read(client: Client, sid: str, path: str) -> object:
    response = await client.get(path, sid)
    assert response.status_code == 200, response.text
    return response.json()


def text(value: str, **detail: str) -> dict[str, object]:
    return {"text": value, "detail": detail or None, "type": "text"}


def talking(*messages: Message) -> type[Environment]:
    """Return an environment with ``get_messages`` only."""

    class Talking(Environment):
        @classmethod
        def list_splits(cls) -> list[Split | str]:
            return ["train"]

        @classmethod
        def list_tasks(cls, split: str) -> list[JSONObject]:
            return [{}]

        async def get_messages(self) -> list[Message]:
            return list(messages)

        @tool
        async def echo(self, params: Text) -> ToolOutput:
            return said(params.text)

    return Talking


async def test_messages_of_an_environment_with_a_prompt(serve: Serve) -> None:
    """Section 5: the prompt as one user message."""
    client = serve(Echo)
    sid = await client.open()
    assert await read(client, sid, "/messages") == [
        {"role": "user", "blocks": [text("prompt of train-0")], "detail": None}
    ]


async def test_a_single_user_message_is_the_prompt_verbatim(serve: Serve) -> None:
    blocks = [TextBlock(text="look", detail={"k": 1}), PICTURE]
    client = serve(talking(Message(role="user", blocks=blocks)))
    sid = await client.open()
    assert await read(client, sid, "/prompt") == [block.model_dump() for block in blocks]
    assert await read(client, sid, "/talking/prompt") == [block.model_dump() for block in blocks]


async def test_a_conversation_is_flattened(serve: Serve) -> None:
    """Section 5: role headers, ``<think>``, ``[tool_call …]``, ``[tool_result]``."""
    messages = [
        Message(role="system", blocks=[TextBlock(text="Be brief.")]),
        Message(role="user", blocks=[TextBlock(text="What is it?"), PICTURE]),
        Message(
            role="assistant",
            blocks=[
                ReasoningBlock(text="hm"),
                TextBlock(text="Let me look."),
                ToolCallBlock(id="1", name="look", input={"at": ["x", 1]}),
            ],
        ),
        Message(
            role="user",
            blocks=[
                ToolResultBlock(tool_call_id="1", blocks=[TextBlock(text="a cat"), PICTURE]),
                ToolResultBlock(tool_call_id="2", blocks=[], is_error=True),
            ],
        ),
    ]
    client = serve(talking(*messages))
    sid = await client.open()
    blocks = await read(client, sid, "/prompt")
    assert isinstance(blocks, list)
    flat = [block.get("text", block["type"]) for block in blocks]  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    assert flat == [
        "[system]",
        "Be brief.",
        "[user]",
        "What is it?",
        "image",
        "[assistant]",
        "<think>hm</think>",
        "Let me look.",
        '[tool_call look] {"at": ["x", 1]}',
        "[user]",
        "[tool_result]",
        "a cat",
        "image",
        "[tool_result (error)]",
    ]
    assert blocks[0]["detail"] == {"role": "system"}
    assert blocks[5]["detail"] == {"role": "assistant"}
    assert blocks == [block.model_dump() for block in flatten_messages(messages)]
    full = await read(client, sid, "/messages")
    assert full == [json.loads(message.model_dump_json()) for message in messages]


async def test_a_single_system_or_assistant_message_gets_its_header(serve: Serve) -> None:
    client = serve(talking(Message(role="system", blocks=[TextBlock(text="x")])))
    sid = await client.open()
    assert await read(client, sid, "/prompt") == [text("[system]", role="system"), text("x")]


async def test_an_environment_with_both_gives_each_its_own(serve: Serve) -> None:
    class Two(Echo):
        def get_prompt(self) -> Blocks:
            return [TextBlock(text="short")]

        def get_messages(self) -> list[Message]:
            return [Message(role="user", blocks=[TextBlock(text="long")])]

    client = serve(Two)
    sid = await client.open()
    assert await read(client, sid, "/prompt") == [text("short")]
    assert await read(client, sid, "/messages") == [{"role": "user", "blocks": [text("long")], "detail": None}]


@pytest.mark.parametrize("asynchronous", [True, False])
async def test_prompts_sync_and_async(serve: Serve, asynchronous: bool) -> None:
    class Sync(Echo):
        def get_prompt(self) -> Blocks:
            return [TextBlock(text="x")]

    class Async(Echo):
        async def get_prompt(self) -> Blocks:
            await asyncio.sleep(0)
            return [TextBlock(text="x")]

    client = serve(Async if asynchronous else Sync)
    assert await read(client, await client.open(), "/prompt") == [text("x")]


async def test_blocks_written_as_dictionaries(serve: Serve) -> None:
    class Loose(Echo):
        def get_prompt(self) -> Any:
            return [{"type": "text", "text": "x"}]

    client = serve(Loose)
    assert await read(client, await client.open(), "/prompt") == [text("x")]


@pytest.mark.parametrize("prompt", [None, 3, [3], [{"type": "video"}]])
async def test_an_invalid_prompt_is_a_500_that_says_so(serve: Serve, prompt: object) -> None:
    def get_prompt(self: object) -> object:
        return prompt

    client = serve(type("Echo", (Echo,), {"get_prompt": get_prompt}))
    sid = await client.open()
    response = await client.get("/prompt", sid)
    assert response.status_code == 500
    assert response.json()["detail"]
    assert (await client.call(sid, "echo", {"text": "well"})).text == "well"


async def test_the_prompt_is_requested_each_time(serve: Serve) -> None:
    """The prompt may depend on the episode's state."""

    class Stateful(Echo):
        turns = 0

        def get_prompt(self) -> Blocks:
            self.turns += 1
            return [TextBlock(text=f"turn {self.turns}")]

    client = serve(Stateful)
    sid = await client.open()
    assert await read(client, sid, "/prompt") == [text("turn 1")]
    assert await read(client, sid, "/prompt") == [text("turn 2")]
