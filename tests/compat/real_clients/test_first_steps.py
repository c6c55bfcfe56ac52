"""Each client used as its own documentation shows, without helpers of ours."""

from __future__ import annotations

from typing import Any

import pytest

from . import openreward_sdk, ors_sdk
from .process import RunningServer


def test_openreward(server: RunningServer) -> None:
    with openreward_sdk.new_client(server.url, asynchronous=False) as client:
        environment = client.environments.get("guessit")
        task = environment.list_tasks(split="train")[1]
        with environment.session(task=task) as session:
            assert [block.text for block in session.get_prompt()] == ["The task is train-1."]
            output = session.call_tool("guess", {"number": 3})
            assert (output.reward, output.finished) == (1.0, True)


async def test_async_openreward(server: RunningServer) -> None:
    client: Any = openreward_sdk.new_client(server.url, asynchronous=True)
    async with client.environments as environments:
        environment = environments.get("guessit")
        task = (await environment.list_tasks(split="train"))[1]
        async with environment.session(task=task) as session:
            assert [block.text for block in await session.get_prompt()] == ["The task is train-1."]
            output = await session.call_tool("guess", {"number": 3})
            assert (output.reward, output.finished) == (1.0, True)


@pytest.mark.parametrize("slash", ["", "/"])
def test_openreward_with_the_url_named_at_the_environment(server: RunningServer, slash: str) -> None:
    """The other way to select a server of your own; no variable is set."""
    with openreward_sdk.new_client_without_url(asynchronous=False) as client:
        environment = client.environments.get("guessit", base_url=server.url + slash)
        with environment.session(split="train", index=0) as session:
            output = session.call_tool("guess", {"number": 7})
            assert (output.reward, output.finished) == (1.0, True)


def test_ors_sdk(server: RunningServer) -> None:
    with ors_sdk.new_client(server.url, asynchronous=False) as client:
        environment = client.environment("guessit")
        task = environment.list_tasks(split="train")[1]
        with environment.session(task=task) as session:
            assert [block.text for block in session.get_prompt()] == ["The task is train-1."]
            output = session.call_tool("guess", {"number": 3})
            assert (output.reward, output.finished) == (1.0, True)


async def test_async_ors_sdk(server: RunningServer) -> None:
    client: Any = ors_sdk.new_client(server.url, asynchronous=True)
    environment = client.environment("guessit")
    task = (await environment.list_tasks(split="train"))[1]
    async with environment.session(task=task) as session:
        assert [block.text for block in await session.get_prompt()] == ["The task is train-1."]
        output = await session.call_tool("guess", {"number": 3})
        assert (output.reward, output.finished) == (1.0, True)
    await ors_sdk.close(client)
