"""Real clients with keys: ours, ``openreward`` and ``ors-sdk``, unchanged, against a server in a process of its own."""

import asyncio
from collections.abc import Generator
from importlib import import_module
from typing import Any

import pytest
from ors_clients import AsyncClient, Client
from ors_clients.errors import NotAuthorized

from ors_server import Settings
from ors_server.keys.exposure import add_key
from ors_server.keys.key import Limits
from tests.support.servers import served

pytestmark = pytest.mark.long


class Keyed:
    """A server's address, and keys of it."""

    def __init__(self, url: str, settings: Settings) -> None:
        self.url = url
        self.settings = settings


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Generator[Keyed]:
    """Serve echo with a key."""
    folder = tmp_path_factory.mktemp("keyed")
    settings = Settings(data_dir=folder / "data")
    add_key(settings, "first")
    with served(folder, "echo") as url:
        yield Keyed(url, settings)


def test_our_client(keyed: Keyed, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = add_key(keyed.settings, "ours")
    monkeypatch.delenv("OPENREWARD_API_KEY", raising=False)
    monkeypatch.setenv("ORS_API_KEY", secret)
    with Client(keyed.url) as client, client.environment().session(split="train", index=1) as session:
        assert session.call("echo", {"text": "world"}).reward == 1.0
    for wrong in ("", "wrong"):
        with pytest.raises(NotAuthorized, match="key") as caught, Client(keyed.url, api_key=wrong) as client:
            client.environment().tasks("train")
        assert secret not in str(caught.value)


def test_the_openreward_client(keyed: Keyed, monkeypatch: pytest.MonkeyPatch) -> None:
    openreward: Any = import_module("openreward")
    refused: Any = import_module("openreward.api._session.http").AuthenticationError
    secret = add_key(keyed.settings, "openreward")
    for name in ("OPENREWARD_API_URL", "OPENREWARD_SESSION_URL"):
        monkeypatch.setenv(name, keyed.url)
    monkeypatch.setenv("OPENREWARD_API_KEY", secret)
    with openreward.OpenReward() as client:
        environment = client.environments.get(name="echoenvironment")
        with environment.session(task=environment.list_tasks("train")[1]) as session:
            assert session.call_tool("echo", {"text": "world"}).reward == 1.0
    with openreward.OpenReward(api_key="wrong") as client, pytest.raises(refused, match="does not know the key"):
        client.environments.get(name="echoenvironment").list_tasks("train")


def test_the_client_of_ors_sdk(keyed: Keyed, monkeypatch: pytest.MonkeyPatch) -> None:
    ors: Any = import_module("ors.client")
    secret = add_key(keyed.settings, "sdk")
    monkeypatch.delenv("ORS_API_KEY", raising=False)

    def play(**arguments: str) -> float | None:
        with ors.ORS(base_url=keyed.url, **arguments) as client:
            environment = client.environment("echoenvironment")
            with environment.session(task=environment.list_tasks("train")[1]) as session:
                return session.call_tool("echo", {"text": "world"}).reward

    assert play(api_key=secret) == 1.0
    for wrong in ({}, {"api_key": "wrong"}):
        with pytest.raises(Exception, match="401"):
            play(**wrong)
    monkeypatch.setenv("ORS_API_KEY", secret)
    assert play() == 1.0


async def test_clients_wait_out_the_limits_of_their_key(keyed: Keyed, monkeypatch: pytest.MonkeyPatch) -> None:
    """One session at once, ten requests a second: four episodes of two kinds of clients end, one after the other."""
    openreward: Any = import_module("openreward")
    secret = add_key(keyed.settings, "narrow", Limits(sessions=1, rate=10))
    for name in ("OPENREWARD_API_URL", "OPENREWARD_SESSION_URL"):
        monkeypatch.setenv(name, keyed.url)

    async def play_ours() -> float | None:
        async with (
            AsyncClient(keyed.url, api_key=secret, timeout=120) as client,
            client.environment().session(split="train", index=1) as session,
        ):
            return (await session.call("echo", {"text": "world"})).reward

    async def play_openreward() -> float | None:
        environment = environments.get(name="echoenvironment")
        async with environment.session(split="train", index=1) as session:
            return (await session.call_tool("echo", {"text": "world"})).reward

    environments = openreward.AsyncOpenReward(api_key=secret).environments

    played = await asyncio.wait_for(
        asyncio.gather(play_ours(), play_ours(), play_openreward(), play_openreward()), timeout=120
    )
    assert played == [1.0] * 4
    for connections in getattr(environments, "_clients").values():  # noqa: B009 - the client never closes them
        await connections.close()
