"""Environments that report that they cannot be served on this machine."""

from collections.abc import Sequence

import pytest
from ors_containers import StartFailed

from ors_server import Environment, InfrastructureFailure, JSONObject, Server, Settings, Split, ToolOutput, tool
from ors_server.errors import DefinitionError
from ors_server.hosting.errors import NoEnvironments
from ors_server.sandboxes import sandboxes_unavailable
from tests.support.environments import Echo, said
from tests.support.http_client import Client

REASON = "It needs bubblewrap: apt-get install bubblewrap"


class Isolated(Echo):
    """An environment that cannot even list its splits where it is unavailable."""

    aliases = ("owner/Isolated",)
    reason: str = REASON

    @classmethod
    def unavailable(cls) -> str:
        return cls.reason

    @classmethod
    def list_splits(cls) -> Sequence[Split | str]:
        if cls.reason:
            raise OSError("no tasks here")
        return ["train"]


class Asynchronous(Isolated):
    @classmethod
    async def unavailable(cls) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        return cls.reason


@pytest.mark.parametrize("environment", [Isolated, Asynchronous])
async def test_the_rest_is_served_and_clients_get_the_reason(environment: type[Isolated]) -> None:
    server = Server([environment, Echo])
    client = Client(server.app)
    name = environment.__name__.lower()
    assert (await client.get("/list_environments")).json() == ["echo"]
    for path in (f"/{name}/tools", f"/{environment.__name__}/splits"):
        response = await client.get(path)
        assert response.status_code == 404
        assert REASON in response.json()["detail"]
    for deployment in ("owner/Isolated", name):
        response = await client.get("/tools", X_Deployment=deployment)
        assert (response.status_code, REASON in response.text) == (404, True)
    response = await client.create("s", {"env_name": name, "split": "train", "index": 0})
    assert (response.status_code, REASON in response.text) == (404, True)
    assert server.catalogue.reasons == {name: REASON}
    await client.open({"env_name": "echo", "split": "train", "index": 0})
    await client.close()
    await server.sessions.close()


async def test_one_that_is_available() -> None:
    class Available(Isolated):
        reason = ""

    server = Server([Available])
    assert [hosted.name for hosted in server.environments] == ["available"]
    assert server.catalogue.unavailable == {}


@pytest.mark.parametrize(
    "error", [StartFailed("no namespaces", "Allow them"), InfrastructureFailure("no namespaces", "Allow them")]
)
def test_a_failure_while_it_is_asked_is_a_reason(error: Exception) -> None:
    class Failing(Echo):
        @classmethod
        def unavailable(cls) -> str:
            raise error

    assert Server([Failing, Echo]).catalogue.reasons == {"failing": "no namespaces. Allow them"}


def test_any_other_error_is_the_authors() -> None:
    class Mistaken(Echo):
        @classmethod
        def unavailable(cls) -> str:
            raise KeyError("typo")

    with pytest.raises(KeyError, match="typo"):
        Server([Mistaken])


def test_a_server_of_nothing_else_does_not_start() -> None:
    with pytest.raises(NoEnvironments) as error:
        Server([Isolated])
    assert str(error.value) == f"No environment can be served on this machine. isolated: {REASON}."


def test_a_forgotten_class_method() -> None:
    class Forgotten(Echo):
        def unavailable(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
            return ""

    with pytest.raises(DefinitionError, match="unavailable is not a class method"):
        Server([Forgotten])


def test_a_class_of_another_sdk_may_call_anything_so() -> None:
    ors = pytest.importorskip("ors")

    class Foreign(ors.Environment):
        @classmethod
        def list_splits(cls) -> list[str]:
            return ["train"]

        @classmethod
        def list_tasks(cls, split: str) -> list[JSONObject]:
            return [{}]

        def get_prompt(self) -> list[object]:
            return []

        def unavailable(self) -> str:
            return "a method of its own"

        @tool
        def step(self) -> ToolOutput:
            return said()

    assert [hosted.name for hosted in Server([Foreign]).environments] == ["foreign"]

    class Asked(Foreign):
        @classmethod
        def unavailable(cls) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
            return "no licence here"

    assert Server([Asked, Foreign]).catalogue.reasons == {"asked": "no licence here"}


async def test_whether_sandboxes_can_be_started_here() -> None:
    said = await sandboxes_unavailable(Settings(sandbox_runtime="nothing"))
    assert "No runtime 'nothing' is installed" in said
    assert "Installed: bubblewrap" in said
    here = await sandboxes_unavailable()
    assert here == "" or "bubblewrap" in here


def test_the_runtime_that_is_tried_is_the_servers() -> None:
    class Sandboxed(Echo):
        @classmethod
        async def unavailable(cls) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
            return await sandboxes_unavailable()

    reasons = Server([Sandboxed, Echo], settings=Settings(sandbox_runtime="nothing")).catalogue.reasons
    assert "No runtime 'nothing' is installed" in reasons["sandboxed"]


def test_by_default_an_environment_is_available() -> None:
    assert Environment.unavailable() == ""
