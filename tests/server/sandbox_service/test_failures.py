"""The errors that clients see when a sandbox fails in an environment's code, or the machine has no capacity."""

import asyncio
from typing import ClassVar, NoReturn

import pytest
from ors_containers import InfrastructureFailure, InvalidLimits, Overloaded, SandboxDied, StartFailed

from ors_server import Blocks, Environment, JSONObject, ToolOutput, tool
from ors_server.errors import InfrastructureFailure as ServerFailure
from ors_server.errors import MachineBusy
from tests.server.protocol.conftest import Serve
from tests.support.environments import Echo, said
from tests.support.events import Reply, parse_events
from tests.support.waiting import until

DIED = "InfrastructureError: Sandbox 1234 died: killed"


def die() -> NoReturn:
    raise SandboxDied("1234", "killed")


def overload() -> NoReturn:
    raise Overloaded("The machine has no room for another sandbox", "Wait.", retry_after=0.05)


@pytest.mark.parametrize("sync", [True, False])
async def test_in_a_call_the_session_is_lost(serve: Serve, sync: bool) -> None:
    class Losing(Echo):
        @tool
        def step(self) -> ToolOutput:
            die()

        @tool
        async def step_async(self) -> ToolOutput:
            die()

    client = serve(Losing, return_errors="none")
    sid = await client.open()
    reply = await client.call(sid, "step" if sync else "step_async")
    assert reply.names == ["task_id", "error"]
    assert reply.error == DIED
    response = await client.get("/prompt", sid)
    assert (response.status_code, response.json()) == (410, {"detail": f"Session lost: {DIED}"})


@pytest.mark.parametrize("where", ["constructor", "setup", "setup_async", "get_prompt", "list_tasks"])
async def test_anywhere_else_it_is_a_final_503(serve: Serve, where: str) -> None:
    class Losing(Echo):
        def __init__(self, task_spec: JSONObject = {}, secrets: dict[str, str] = {}) -> None:  # noqa: B006
            super().__init__(task_spec, secrets)
            if where == "constructor":
                die()

        def get_prompt(self) -> Blocks:
            if where == "get_prompt":
                die()
            return []

        @classmethod
        def list_tasks(cls, split: str) -> list[JSONObject]:
            if where == "list_tasks":
                die()
            return [{"id": 1}]

    class Sync(Losing):
        def setup(self) -> None:
            if where == "setup":
                die()

    class Async(Losing):
        async def setup(self) -> None:
            if where == "setup_async":
                die()

    client = serve(Async if where == "setup_async" else Sync, agent="openreward-sdk/0.1.167")
    if where == "list_tasks":
        response = await client.post("/tasks", {"split": "train"})
    elif where == "constructor":
        response = await client.create("s")
    else:
        response = await client.get("/prompt", await client.open())
    assert (response.status_code, response.json()) == (503, {"detail": DIED})
    assert "x-backend-state" not in response.headers


async def test_in_teardown_it_is_logged_and_nothing_else(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    class Losing(Echo):
        async def teardown(self) -> None:
            die()

    client = serve(Losing)
    sid = await client.open()
    assert (await client.post("/delete", sid=sid)).status_code == 200
    assert "teardown failed" in caplog.text


async def test_in_a_toolset_and_in_scoring(serve: Serve) -> None:
    class Remote:
        def __init__(self, env: Environment) -> None:
            raise StartFailed("no luck")

        @tool
        async def fetch(self) -> ToolOutput:
            return said()

    class Losing(Echo):
        toolsets = (Remote,)

        async def score_group(self, candidates: object) -> list[float]:
            die()

    client = serve(Losing)
    assert (await client.call(await client.open(), "fetch")).error == "InfrastructureError: no luck"
    response = await client.post("/score_group", {"candidates": []}, await client.open())
    assert Reply(parse_events(response.content)).error == DIED


async def test_a_mistake_in_the_environments_code_is_no_failure_of_the_machine(serve: Serve) -> None:
    class Mistaken(Echo):
        @tool
        async def step(self) -> ToolOutput:
            raise InvalidLimits("memory=1 is too little")

    client = serve(Mistaken)
    sid = await client.open()
    assert (await client.call(sid, "step")).error == "InvalidLimits: memory=1 is too little"
    assert (await client.call(sid, "echo", {"text": "on"})).text == "on"


async def test_the_first_failure_stays_its_cause() -> None:
    class Losing(Echo):
        @tool
        async def step(self) -> ToolOutput:
            die()

        @tool
        def step_sync(self) -> ToolOutput:
            die()

    for name in ("step", "step_sync"):
        with pytest.raises(ServerFailure) as error:
            await Losing()._call_tool(name, {})  # pyright: ignore[reportPrivateUsage]
        assert isinstance(error.value.__cause__, SandboxDied)


# --- no capacity -------------------------------------------------------------------------------------


class Crowded(Echo):
    """Its set-ups find no capacity until the test frees some."""

    full: ClassVar[bool]
    journal: ClassVar[list[str]]

    def __init__(self, task_spec: JSONObject = {}, secrets: dict[str, str] = {}) -> None:  # noqa: B006
        super().__init__(task_spec, secrets)
        self.ready = False
        self.journal.append("built")

    async def setup(self) -> None:
        if self.full:
            overload()
        self.ready = True

    async def teardown(self) -> None:
        self.journal.append("torn down")

    @tool
    async def state(self) -> ToolOutput:
        return said(f"{self.ready} {self.task_spec['id']} {self.secrets.get('key')}")


def crowded(full: bool = True) -> type[Crowded]:
    class Fresh(Crowded):
        journal: ClassVar[list[str]] = []

        @classmethod
        def name(cls) -> str:
            return "crowded"

    Fresh.full = full
    return Fresh


async def test_a_set_up_without_room_is_done_later_with_a_new_instance(serve: Serve) -> None:
    environment = crowded()
    client = serve(environment, setup_wait=0.01)
    sid = await client.open({"split": "train", "index": 2, "secrets": {"key": "k"}})
    waiting = asyncio.create_task(client.get("/prompt", sid))
    await until(lambda: len(environment.journal) > 6)
    assert not waiting.done()
    environment.full = False
    response = await waiting
    assert response.status_code == 200
    assert (await client.call(sid, "state")).text == "True train-2 k"
    await client.post("/delete", sid=sid)
    assert environment.journal.count("built") == environment.journal.count("torn down")


async def test_openreward_is_told_that_it_is_starting(serve: Serve) -> None:
    environment = crowded()
    client = serve(environment, setup_wait=0.05, agent="openreward-sdk/0.1.167")
    sid = await client.open()
    response = await client.get("/prompt", sid)
    assert (response.status_code, response.headers["x-backend-state"]) == (503, "starting")
    environment.full = False
    for _ in range(200):
        response = await client.get("/prompt", sid)
        if response.status_code == 200:
            break
        await asyncio.sleep(0.01)
    assert response.status_code == 200


async def test_new_sessions_are_asked_to_come_back_meanwhile(serve: Serve) -> None:
    environment = crowded()
    client = serve(environment, Echo)
    first = await client.open({"env_name": "crowded", "split": "train", "index": 0})
    await until(lambda: len(environment.journal) > 2)
    response = await client.create("second", {"env_name": "crowded", "split": "train", "index": 0})
    assert response.status_code == 503
    assert response.headers["x-backend-state"] == "starting"
    assert int(response.headers["retry-after"]) > 0
    assert "wait for room" in response.json()["detail"]
    # other sessions are not affected
    await client.open({"env_name": "echo", "split": "train", "index": 0}, sid="third")
    environment.full = False
    assert (await client.get("/prompt", first)).status_code == 200
    await client.open({"env_name": "crowded", "split": "train", "index": 0}, sid="second")
    assert (await client.get("/prompt", "second")).status_code == 200


async def test_a_session_deleted_while_it_waits_is_torn_down_once_an_instance(serve: Serve) -> None:
    environment = crowded()
    client = serve(environment)
    sid = await client.open()
    waiting = asyncio.create_task(client.get("/prompt", sid))
    for count in (3, 5, 7):
        await until(lambda count=count: len(environment.journal) >= count)
    assert (await client.post("/delete", sid=sid)).status_code == 200
    assert (await waiting).status_code == 410
    assert environment.journal.count("built") == environment.journal.count("torn down")
    environment.full = False
    await client.open(sid="another")  # the queue is no longer blocked


async def test_waiting_too_long_is_final(serve: Serve) -> None:
    environment = crowded()
    client = serve(environment, setup_timeout=0.3, agent="openreward-sdk/0.1.167")
    sid = await client.open()
    response = await client.get("/prompt", sid)
    assert response.status_code == 503
    assert "x-backend-state" not in response.headers
    assert response.json()["detail"].startswith("InfrastructureError: The machine has no room for another sandbox")
    await client.open(sid="another")


async def test_a_constructor_that_fails_the_second_time(serve: Serve) -> None:
    class Failing(crowded()):
        def __init__(self, task_spec: JSONObject = {}, secrets: dict[str, str] = {}) -> None:  # noqa: B006
            super().__init__(task_spec, secrets)
            if len(self.journal) > 1:
                raise ValueError("not again")

    client = serve(Failing)
    sid = await client.open()
    response = await client.get("/prompt", sid)
    assert (response.status_code, response.json()) == (500, {"detail": "ValueError: not again"})
    await client.post("/delete", sid=sid)
    assert Failing.journal == ["built", "built", "torn down"]


async def test_in_a_call_it_cannot_be_waited_out(serve: Serve) -> None:
    """Its result is final, and a trainer must not count it as the agent's failure."""

    class Losing(Echo):
        @tool
        async def done(self) -> ToolOutput:
            overload()

    client = serve(Losing)
    sid = await client.open()
    reply = await client.call(sid, "done")
    assert reply.error == "InfrastructureError: The machine has no room for another sandbox. Wait."
    assert (await client.get("/prompt", sid)).status_code == 410


async def test_in_a_prompt_it_can(serve: Serve) -> None:
    class Waiting(Echo):
        full = True

        async def get_prompt(self) -> Blocks:
            if self.full:
                overload()
            return []

    client = serve(Waiting)
    sid = await client.open()
    response = await client.get("/prompt", sid)
    assert (response.status_code, response.headers["x-backend-state"]) == (503, "starting")
    assert response.headers["retry-after"] == "1"
    Waiting.full = False
    assert (await client.get("/prompt", sid)).status_code == 200


def test_a_full_machine_is_busy_and_no_failure() -> None:
    assert issubclass(Overloaded, InfrastructureFailure)
    assert not issubclass(MachineBusy, ServerFailure)
    assert MachineBusy("a", "b", 7.4).headers == (("X-Backend-State", "starting"), ("Retry-After", "8"))
