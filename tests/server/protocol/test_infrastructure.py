"""Protocol 0.1, "Infrastructure failure on the wire": never a reward, and distinct from the agent's failures."""

from typing import NoReturn

import pytest

from ors_server import Blocks, InfrastructureFailure, JSONObject, ToolOutput, tool
from tests.server.protocol.conftest import Serve
from tests.support.environments import Echo, said
from tests.support.events import Reply, parse_events

DETAIL = "InfrastructureError: The disk is full. Free some space."


def broken() -> NoReturn:
    raise InfrastructureFailure("The disk is full", "Free some space.")


class Journaled(Echo):
    """Records its teardowns."""

    ended: list[str]

    def __init__(self, task_spec: JSONObject = {}, secrets: dict[str, str] = {}) -> None:  # noqa: B006
        super().__init__(task_spec, secrets)

    def teardown(self) -> None:
        self.ended.append("torn down")


@pytest.mark.parametrize("sync", [True, False])
async def test_in_a_call_it_is_an_error_event_and_the_session_is_lost(serve: Serve, sync: bool) -> None:
    ended_sessions: list[str] = []

    class Losing(Journaled):
        ended = ended_sessions

        @tool
        def step(self) -> ToolOutput:
            broken()

        @tool
        async def step_async(self) -> ToolOutput:
            broken()

    client = serve(Losing)
    sid = await client.open()
    reply = await client.call(sid, "step" if sync else "step_async")
    assert reply.names == ["task_id", "error"]
    assert reply.error == DETAIL
    gone = (410, {"detail": f"Session lost: {DETAIL}"})
    for response in (
        await client.call_response(sid, "echo", {"text": "x"}),
        await client.get("/prompt", sid),
        await client.get("/task_tools", sid),
        await client.get("/messages", sid),
        await client.post("/ping", sid=sid),
        await client.call_response(sid, "step", task_id=reply.task_id),
    ):
        assert (response.status_code, response.json()) == gone
    assert (await client.post("/delete", sid=sid)).status_code == 200
    assert ended_sessions == ["torn down"]


async def test_other_sessions_go_on(serve: Serve) -> None:
    class Losing(Echo):
        @tool
        async def step(self) -> ToolOutput:
            broken()

    client = serve(Losing)
    lost, other = await client.open(), await client.open()
    await client.call(lost, "step")
    assert (await client.call(other, "echo", {"text": "on"})).text == "on"


async def test_it_is_never_hidden_by_return_errors(serve: Serve) -> None:
    """Its text is meant for clients; adapters need it to mask the episode."""

    class Losing(Echo):
        @tool
        async def step(self) -> ToolOutput:
            broken()

    client = serve(Losing, return_errors="none")
    sid = await client.open()
    assert (await client.call(sid, "step")).error == DETAIL


async def test_in_a_constructor_it_is_a_final_503(serve: Serve) -> None:
    """Without ``X-Backend-State``, because with it openreward would retry for ten minutes."""
    attempts: list[int] = []

    class Losing(Echo):
        def __init__(self, task_spec: JSONObject = {}, secrets: dict[str, str] = {}) -> None:  # noqa: B006
            super().__init__(task_spec, secrets)
            attempts.append(1)
            if len(attempts) == 1:
                broken()

    client = serve(Losing, agent="openreward-sdk/0.1.167")
    response = await client.create("s")
    assert (response.status_code, response.json()) == (503, {"detail": DETAIL})
    assert "x-backend-state" not in response.headers
    assert (await client.get("/prompt", "s")).status_code == 404
    assert (await client.create("s")).status_code == 200
    assert (await client.get("/prompt", "s")).status_code == 200


@pytest.mark.parametrize("sync", [True, False])
async def test_in_set_up_it_is_a_final_503(serve: Serve, sync: bool) -> None:
    ended_sessions: list[str] = []

    class Sync(Journaled):
        ended = ended_sessions

        def setup(self) -> None:
            broken()

    class Async(Journaled):
        ended = ended_sessions

        async def setup(self) -> None:
            broken()

    client = serve(Sync if sync else Async, agent="openreward-sdk/0.1.167")
    sid = await client.open()
    for path in ("/prompt", "/messages"):
        response = await client.get(path, sid)
        assert (response.status_code, response.json()) == (503, {"detail": DETAIL})
        assert "x-backend-state" not in response.headers
    await client.post("/delete", sid=sid)
    assert ended_sessions == ["torn down"]
    assert (await client.get("/prompt", sid)).status_code == 410


@pytest.mark.parametrize("where", ["get_prompt", "get_messages", "list_task_tools"])
async def test_in_a_reading_method_it_is_a_503(serve: Serve, where: str) -> None:
    class Losing(Echo):
        pass

    setattr(Losing, where, lambda self: broken())  # pyright: ignore[reportUnknownLambdaType]
    client = serve(Losing)
    sid = await client.open()
    path = {"get_prompt": "/prompt", "get_messages": "/messages", "list_task_tools": "/task_tools"}[where]
    response = await client.get(path, sid)
    assert (response.status_code, response.json()) == (503, {"detail": DETAIL})
    assert "x-backend-state" not in response.headers


async def test_in_a_task_list_it_is_a_503(serve: Serve) -> None:
    class Losing(Echo):
        @classmethod
        def list_tasks(cls, split: str) -> list[JSONObject]:
            broken()

    response = await serve(Losing).post("/tasks", {"split": "train"})
    assert (response.status_code, response.json()) == (503, {"detail": DETAIL})


async def test_in_a_toolset_it_loses_the_session(serve: Serve) -> None:
    class Remote:
        def __init__(self, env: Echo) -> None:
            broken()

        @tool
        async def fetch(self) -> ToolOutput:
            return said()

    class Losing(Echo):
        toolsets = (Remote,)

    client = serve(Losing)
    sid = await client.open()
    assert (await client.call(sid, "fetch")).error == DETAIL
    assert (await client.get("/prompt", sid)).status_code == 410


async def test_in_scoring_it_loses_the_session(serve: Serve) -> None:
    class Losing(Echo):
        async def score_group(self, candidates: object) -> list[float]:
            broken()

    client = serve(Losing)
    sid = await client.open()
    response = await client.post("/score_group", {"candidates": []}, sid)
    assert Reply(parse_events(response.content)).error == DETAIL
    assert (await client.post("/ping", sid=sid)).status_code == 410


async def test_a_subclass_of_it_and_a_cause_without_remedy(serve: Serve) -> None:
    class NoGPU(InfrastructureFailure):
        pass

    class Losing(Echo):
        def get_prompt(self) -> Blocks:
            raise NoGPU("The GPU fell off the bus")

    client = serve(Losing)
    sid = await client.open()
    response = await client.get("/prompt", sid)
    assert (response.status_code, response.json()) == (503, {"detail": "InfrastructureError: The GPU fell off the bus"})
