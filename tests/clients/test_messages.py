"""Conversion of an environment's messages to chat messages: every block keeps its place."""

from typing import Any

from ors_clients.rollouts.chat_renderer import ChatRenderer
from ors_clients.rollouts.messages import chat_messages, content_of, images_of, text_of

from ors_server import ImageBlock, Message, ReasoningBlock, TextBlock, ToolCallBlock, ToolResultBlock
from tests.clients.rollout_environments import PICTURE
from tests.clients.tiny_tokenizer import tiny_tokenizer

IMAGE = ImageBlock(data=PICTURE, mimeType="image/png")
URL = f"data:image/png;base64,{PICTURE}"


def test_text_stays_text_and_an_image_makes_parts() -> None:
    assert content_of([]) == ""
    assert content_of([TextBlock(text="a"), TextBlock(text="b")]) == "a\nb"
    parts = content_of([TextBlock(text="a"), IMAGE, TextBlock(text="b")])
    assert parts == [{"type": "text", "text": "a"}, {"type": "image", "image": URL}, {"type": "text", "text": "b"}]
    assert (text_of(parts), text_of("a"), text_of(None)) == ("a\nb", "a", "")


def test_a_conversation_with_every_kind_of_block() -> None:
    messages = chat_messages(
        [
            Message(role="system", blocks=[TextBlock(text="S")]),
            Message(role="user", blocks=[TextBlock(text="U"), IMAGE]),
            Message(
                role="assistant",
                blocks=[
                    ReasoningBlock(text="R"),
                    TextBlock(text="A"),
                    ToolCallBlock(id="1", name="look", input={"at": {"x": 1}}),
                ],
            ),
            Message(
                role="user",
                blocks=[
                    ToolResultBlock(tool_call_id="1", blocks=[TextBlock(text="T"), IMAGE]),
                    TextBlock(text="go on"),
                ],
            ),
            Message(role="user", blocks=[]),
        ]
    )
    call: dict[str, Any] = {"id": "1", "type": "function", "function": {"name": "look", "arguments": {"at": {"x": 1}}}}
    image = {"type": "image", "image": URL}
    assert messages == [
        {"role": "system", "content": "S"},
        {"role": "user", "content": [{"type": "text", "text": "U"}, image]},
        {"role": "assistant", "content": "A", "reasoning_content": "R", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "T"}, image]},
        {"role": "user", "content": "go on"},
        {"role": "user", "content": ""},
    ]
    assert images_of(messages) == [URL, URL]
    start = ChatRenderer(tiny_tokenizer("vision")).start(messages)
    assert start.text.count("<|image|>") == 2
