"""The environment of a request: by variant, by name, by owner and name, by the session; or the only one."""

from __future__ import annotations

import json

import pytest

from .clients import EVERY_CLIENT, OPENREWARD, ORS, Client, ClientKind, Environment, connected, failure
from .process import RunningServer

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def play_workbench(environment: Environment) -> None:
    """Play an episode by task and an episode by index that only the workbench supports; it is not the default."""
    task = await environment.task("train", 0)
    assert task.task_spec == {"id": "workbench-0"}
    async with environment.session(task) as session:
        assert (await session.prompt())[0].text == "The task is workbench-0."
        assert await session.text("repeat", text="by task") == "by task"
    async with environment.session(split="train", index=0) as session:
        assert "repeat" in [tool.name for tool in await session.tools()]
        assert await session.text("repeat", text="by index") == "by index"


@pytest.mark.parametrize("variant", ["workbench", "WorkBench"])
async def test_openreward_by_variant(openreward_client: Client, variant: str) -> None:
    """The variant goes into the path and takes precedence over the name, which is unknown here."""
    await play_workbench(await openreward_client.environment("nobody/nothing", variant=variant))


@pytest.mark.parametrize("name", ["workbench", "WorkBench", "anybody/WorkBench", "Someone/TheBench"])
async def test_openreward_by_name_alone(openreward_client: Client, name: str) -> None:
    """The name goes only into a header: whole, or its last part; the last case is an alias."""
    await play_workbench(await openreward_client.environment(name))


@pytest.mark.parametrize("name", ["workbench", "WorkBench"])
async def test_ors_sdk_by_name(ors_client: Client, name: str) -> None:
    """Created by index, its session names no environment; the path of its first request does."""
    environment = await ors_client.environment(name)
    await play_workbench(environment)

    async with environment.session(split="train", index=0, secrets={"password": "open sesame"}) as session:
        assert json.loads(await session.text("reveal")) == {"password": "open sesame"}


async def test_ors_sdk_learns_of_a_wrong_index_at_its_first_request(ors_client: Client) -> None:
    environment = await ors_client.environment("workbench")

    async with environment.session(split="train", index=1) as session:
        error = await failure(session.call("reveal"))

    assert "Invalid index. 1 is outside split 'train', which has 1 tasks" in str(error)


async def test_an_ors_sdk_session_without_requests(ors_client: Client) -> None:
    environment = await ors_client.environment("workbench")

    async with environment.session(split="train", index=0) as session:
        assert session.sid


async def test_a_session_keeps_to_its_environment(client: Client) -> None:
    """The task of one environment, opened through another: the client then requests the other environment's tools."""
    guess = await client.named("guessit")

    async with guess.session(client.task("workbench", id="made up")) as session:
        error = await failure(session.call("guess", number=1))

    assert "This session belongs to environment 'workbench', not 'guessit'" in str(error)


@pytest.mark.parametrize("variant", [None, "nowhere"])
async def test_openreward_with_a_name_that_is_not_hosted(openreward_client: Client, variant: str | None) -> None:
    environment = await openreward_client.environment("nowhere", **({"variant": variant} if variant else {}))

    for request in (environment.tools(), environment.session(split="train", index=0).__aenter__()):
        error = await failure(request)
        assert error.status == 404
        assert error.message.startswith("unknown environment 'nowhere'. This server hosts: guessit, slowstart, endless")


async def test_trl_gives_no_name(openreward_client: Client) -> None:
    """Its default, `env`, is an unknown name and selects the first environment."""
    environment = await openreward_client.environment("env")

    assert [task.environment_name for task in await environment.tasks("train")] == ["guessit"] * 4
    async with environment.session(split="train", index=0) as session:
        assert (await session.call("guess", number=7)).reward == 1.0


@pytest.mark.parametrize("kind", OPENREWARD)
@pytest.mark.parametrize("name", ["env", "whatever", "Owner/Whatever"])
async def test_where_there_is_one_every_name_means_it(lone_server: RunningServer, kind: ClientKind, name: str) -> None:
    async with connected(kind, lone_server.url) as client:
        await play_workbench(await client.environment(name))


@pytest.mark.parametrize("kind", EVERY_CLIENT)
async def test_where_there_is_one_a_path_must_still_name_it(lone_server: RunningServer, kind: ClientKind) -> None:
    async with connected(kind, lone_server.url) as client:
        await play_workbench(await client.named("Workbench"))
        wrong = await client.named("typo")
        async with wrong.session(client.task("workbench", id="made up")) as session:
            error = await failure(session.call("reveal"))

    assert "unknown environment 'typo'. This server hosts: workbench" in str(error)


@pytest.mark.parametrize("kind", ORS)
async def test_ors_sdk_where_there_is_one(lone_server: RunningServer, kind: ClientKind) -> None:
    async with connected(kind, lone_server.url) as client:
        await play_workbench(await client.environment("WORKBENCH"))
