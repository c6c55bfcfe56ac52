"""Each failure reaches a client as its own kind of error, and the server stays healthy."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from . import openreward_sdk
from .clients import Client, ClientKind, Environment, connected, failure, with_every_client
from .process import RunningServer

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def assert_healthy(environment: Environment) -> None:
    """Play another episode of the same environment, which must be unaffected."""
    async with environment.session(split="train", index=0) as session:
        assert await session.text("repeat", text="still here") == "still here"


@pytest.mark.combinations
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("raise", "ValueError: the kettle is cold:\nfill it first"),
        ("cancel", "ancelled"),
        ("exit", "SystemExit(3)"),
        ("interrupt", "KeyboardInterrupt"),
        ("nothing", "TypeError: Tool 'fail' returned NoneType; a tool returns ToolOutput"),
    ],
)
async def test_a_tool_that_fails(client: Client, http: httpx.AsyncClient, kind: str, message: str) -> None:
    environment = await client.named("workbench")

    async with environment.session(split="train", index=0) as session:
        error = await failure(session.call("fail", kind=kind))
        assert isinstance(error, client.failed)
        assert message in str(error)
        assert "Traceback" not in str(error)
        if client.is_openreward:
            # To openreward the episode is over, and it deletes the session at once.
            dead = await failure(session.call("reveal"))
            assert isinstance(dead, openreward_sdk.SessionTerminatedError)
            openreward_sdk.forget_dead_call(dead)
        else:
            assert await session.text("repeat", text="go on") == "go on"

    await assert_healthy(environment)
    assert (await http.get("/health")).json() == {"status": "ok"}


async def test_a_call_that_no_tool_takes(client: Client) -> None:
    """The model's mistake: it gets an error, and the episode goes on."""
    environment = await client.named("workbench")

    async with environment.session(split="train", index=0) as session:
        for tool, arguments, reason, message in [
            ("nosuch", {}, "not_found", "'nosuch' is not a valid tool. Tools: annotate, "),
            ("__init__", {}, "not_found", "'__init__' is not a valid tool. Tools: annotate, "),
            ("teardown", {}, "not_found", "'teardown' is not a valid tool. Tools: annotate, "),
            ("say", {}, "input_validation", "Tool input validation error: kind: Field required"),
            ("say", {"kind": 7}, "input_validation", "kind: Input should be a valid string"),
            ("work", {"token": "-", "seconds": "long"}, "input_validation", "seconds: Input should be a valid number"),
        ]:
            error = await failure(session.call(tool, **arguments))
            assert isinstance(error, client.refused)
            assert message in str(error)
            if client.is_openreward:
                assert getattr(error, "reason", None) == reason
        assert await session.text("repeat", text="go on") == "go on"


async def test_input_that_is_not_an_object(client: Client) -> None:
    """Never sent: the client itself refuses it."""
    environment = await client.named("workbench")

    async with environment.session(split="train", index=0) as session:
        error = await failure(session.run(session.sdk.call_tool, "say", ["spaces"]))
        assert isinstance(error, client.refused)
        assert await session.text("repeat", text="go on") == "go on"


async def test_a_machine_that_fails_under_a_tool(client: Client, http: httpx.AsyncClient) -> None:
    """An error and never a reward; the session is lost, and later requests get that error."""
    environment = await client.named("workbench")

    async with environment.session(split="train", index=0) as session:
        error = await failure(session.call("fail", kind="machine"))
        assert isinstance(error, client.failed)
        assert "InfrastructureError: The sandbox is gone. Start another episode." in str(error)
        late = await failure(session.call("reveal"))
        if client.is_openreward:
            assert isinstance(late, openreward_sdk.SessionTerminatedError)
            openreward_sdk.forget_dead_call(late)
        else:
            assert "410, message='Session lost: InfrastructureError: The sandbox is gone." in str(late)
        for method, path in [("GET", "/prompt"), ("GET", "/task_tools"), ("POST", "/ping")]:
            response = await http.request(method, path, headers={"X-Session-ID": session.sid})
            assert response.status_code == 410
            assert response.json() == {
                "detail": "Session lost: InfrastructureError: The sandbox is gone. Start another episode."
            }

    await assert_healthy(environment)


# --- before the first call -----------------------------------------------------------------------


async def test_trouble_before_the_first_call(server: RunningServer) -> None:
    """ors-sdk tries three times before it raises an error, and openreward retries a 503; so all plays run at once."""

    async def play(kind: ClientKind, where: str) -> None:
        async with connected(kind, server.url) as client:
            environment = await client.named("troubled")
            token = f"{where}-{kind}"
            session = environment.session(client.task("troubled", id=where, number=1, fails=where, token=token))
            match where:
                case "constructor":
                    error = await failure(session.__aenter__())
                    status, message = 500, "LookupError: trouble in the constructor"
                case "machine":
                    async with session:
                        error = await failure(session.prompt())
                    status, message = 503, "InfrastructureError: The sandbox did not start. Free some memory."
                case _:
                    async with session:
                        error = await failure(session.prompt())
                    status, message = 500, f"LookupError: trouble in the {where}"
            assert message in str(error)
            assert str(status) in str(error)
            assert "Traceback" not in str(error)
            events = server.journal.events(token)
            tries = 1 if client.is_openreward else 3  # each client's tries after a 500
            assert (
                events
                == {
                    "constructor": ["constructed", "failed in constructor"] * tries,
                    "setup": ["constructed", "set up", "failed in setup", "torn down"],
                    "prompt": ["constructed", "set up", *["failed in prompt"] * tries, "torn down"],
                    "machine": ["constructed", "set up", "torn down"],
                }[where]
            )

    async def list_tasks(kind: ClientKind) -> None:
        async with connected(kind, server.url) as client:
            environment = await client.named("endless")
            error = await failure(environment.tasks("train"))
        assert error.status == 400
        assert error.message.startswith("list_tasks is not supported for this environment.")

    async def everywhere(kind: ClientKind) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(list_tasks(kind))
            for where in ("constructor", "setup", "prompt", "machine"):
                group.create_task(play(kind, where))

    await with_every_client(everywhere)


async def test_a_set_up_that_fails_under_a_call(client: Client) -> None:
    """The call waits for the set-up in an open stream, and gets the error there."""
    environment = await client.named("troubled")

    async with environment.session(client.task("troubled", id="x", number=1, fails="setup")) as session:
        error = await failure(session.call("guess", number=1))

    assert isinstance(error, client.failed)
    # The author's error as `/prompt` reports it, without a wrapper.
    assert str(error).rpartition(") ")[2] == "LookupError: trouble in the setup"
