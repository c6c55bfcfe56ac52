"""Large or unusual results reach a client unchanged, character for character."""

from __future__ import annotations

import pytest

from .awkward import REPLACED, TEXTS
from .clients import Client, failure
from .environments import PICTURE

pytestmark = pytest.mark.asyncio(loop_scope="session")


def difference(received: str, sent: str) -> str | None:
    """Return the position where two long texts differ; pytest would take minutes to show it."""
    if received == sent:
        return None
    place = next((i for i, pair in enumerate(zip(received, sent, strict=False)) if pair[0] != pair[1]), None)
    if place is None:
        return f"{len(received)} characters instead of {len(sent)}"
    return f"at {place}: {received[place : place + 20]!r} instead of {sent[place : place + 20]!r}"


@pytest.mark.combinations
@pytest.mark.parametrize("kind", TEXTS)
async def test_a_text(client: Client, kind: str) -> None:
    environment = await client.named("workbench")

    async with environment.session(split="train", index=0) as session:
        received = await session.text("say", kind=kind)

    assert difference(received, TEXTS[kind]) is None


@pytest.mark.combinations
# aiohttp recommends a file for a body of a mebibyte; the SDKs decide that, not these tests.
@pytest.mark.filterwarnings("ignore:.*Sending a large body directly:ResourceWarning")
@pytest.mark.parametrize("kind", TEXTS)
async def test_a_text_there_and_back(client: Client, kind: str) -> None:
    environment = await client.named("workbench")

    async with environment.session(split="train", index=0) as session:
        output = await session.call("repeat", text=TEXTS[kind])

    assert difference(output.blocks[0].text, TEXTS[kind]) is None
    assert output.metadata == {"length": len(TEXTS[kind])}


async def test_a_long_text_in_an_open_stream(client: Client) -> None:
    """The same for a call that takes longer than the server waits before it opens a stream."""
    environment = await client.named("workbench")

    async with environment.session(split="train", index=0) as session:
        output = await session.call("work", token="-", seconds=0.1, text="white space of all kinds")

    assert difference(output.blocks[0].text, TEXTS["white space of all kinds"]) is None


@pytest.mark.combinations
@pytest.mark.parametrize("kind", REPLACED)
async def test_lone_surrogates_are_replaced(client: Client, kind: str) -> None:
    """JSON cannot carry them; they must cost neither the call nor the rest of the text."""
    environment = await client.named("workbench")
    expected = REPLACED[kind][1]

    async with environment.session(split="train", index=0) as session:
        output = await session.call("babble", kind=kind)

    assert difference(output.blocks[0].text, expected) is None
    assert output.blocks[0].detail == {"said": expected}
    assert output.metadata == {"said": [expected]}


async def test_lone_surrogates_from_the_client(client: Client) -> None:
    """A model's text may contain half an emoji; the clients send it as an escape, and both SDKs accept it."""
    environment = await client.named("workbench")

    async with environment.session(split="train", index=0) as session:
        output = await session.call("repeat", text="half \ud83d of it")

    assert (output.blocks[0].text, output.metadata) == ("half \ufffd of it", {"length": 12})


async def test_images(client: Client) -> None:
    environment = await client.named("workbench")

    async with environment.session(split="train", index=0) as session:
        output = await session.call("paint")

    before, image, after = output.blocks
    assert (before.text, after.text) == ("before", "after")
    assert (image.type, image.mimeType, image.detail) == ("image", "image/png", {"width": 640})
    assert len(PICTURE) == 409_600
    assert difference(image.data, PICTURE) is None


@pytest.mark.combinations
@pytest.mark.parametrize("reward", [0.1, -2.5, 0.0, 1e-9, 1e300])
async def test_rewards(client: Client, reward: float) -> None:
    environment = await client.named("workbench")

    async with environment.session(split="train", index=0) as session:
        output = await session.call("reward", kind=str(reward))

    assert (output.reward, output.finished, output.metadata) == (reward, False, None)


@pytest.mark.combinations
@pytest.mark.parametrize("reward", ["nan", "inf", "-inf"])
async def test_a_reward_that_is_not_a_number_is_an_error_and_never_none(client: Client, reward: str) -> None:
    environment = await client.named("workbench")

    async with environment.session(split="train", index=0) as session:
        error = await failure(session.call("reward", kind=reward))

    assert isinstance(error, client.failed)
    assert f"Tool 'reward' returned the reward {reward}; a reward must be a finite number or None" in str(error)


async def test_metadata_that_is_not_json(client: Client) -> None:
    environment = await client.named("workbench")

    async with environment.session(split="train", index=0) as session:
        output = await session.call("annotate")

    assert output.metadata == {
        "object": "<opaque>",
        "time": "2026-01-02T00:00:00Z",
        "nan": "nan",
        "big": 2**70,
        "nested": {"list": [1, None, True, 1.5]},
    }
