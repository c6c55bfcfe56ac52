"""Authors' methods that raise exceptions without a text, lose the machine, or return invalid values."""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import pytest

from ors_server import Environment, InfrastructureFailure, JSONObject, Message, TextBlock, ToolOutput, tool
from tests.server.protocol.conftest import Serve
from tests.support.environments import Echo, said
from tests.support.events import Reply, parse_events
from tests.support.http_client import Client
from tests.support.waiting import PATIENCE, until

READS = {"get_prompt": "/prompt", "get_messages": "/messages", "list_task_tools": "/task_tools"}
BY_INDEX = {"split": "train", "index": 0}


# --- exceptions whose text raises ----------------------------------------------------------------


class Unspeakable(Exception):
    """An exception whose text raises in turn."""

    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


class UnspeakableExit(SystemExit):
    """An unspeakable exception that would end the process."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class UnspeakableLoss(InfrastructureFailure):
    """An unspeakable infrastructure failure."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


def raising(method: str, error: type[BaseException], *, on_loop: bool, of_class: bool = False) -> type[Echo]:
    """Return an environment with a method that raises."""

    def fail(self: Any, *arguments: Any, **keywords: Any) -> Any:
        raise error("no reason")

    async def fail_on_loop(self: Any, *arguments: Any, **keywords: Any) -> Any:
        raise error("no reason")

    function: Any = fail_on_loop if on_loop else fail
    return type("Raising", (Echo,), {method: classmethod(function) if of_class else function})


def all_raising(method: str, *, of_class: bool = False) -> list[type[Echo]]:
    """Return an environment for each such exception, raised on a thread and on the loop."""
    environments: list[type[Echo]] = []
    for number, (error, on_loop) in enumerate(itertools.product((Unspeakable, UnspeakableExit), (False, True))):
        environment = raising(method, error, on_loop=on_loop, of_class=of_class)
        environment.__name__ = f"Raising{number}"
        environments.append(environment)
    return environments


@pytest.mark.parametrize("mode", ["none", "exception", "stacktrace"])
async def test_a_failed_set_up_does_not_stay_under_way(serve: Serve, mode: str) -> None:
    environments = all_raising("setup")
    client = serve(*environments, return_errors=mode)
    for environment in environments:
        sid = await client.open({"env_name": environment.__name__, **BY_INDEX})
        for path in ("/prompt", "/messages"):
            response = await asyncio.wait_for(client.get(path, sid), PATIENCE / 2)
            assert response.status_code == 500
            assert ("Unspeakable" in response.json()["detail"]) is (mode != "none"), response.text


async def test_a_constructor_leaves_no_session(serve: Serve) -> None:
    environments = [raising("__init__", error, on_loop=False) for error in (Unspeakable, UnspeakableExit)]
    environments[1].__name__ = "Other"
    client = serve(*environments)
    for environment in environments:
        body = {"env_name": environment.__name__, **BY_INDEX}
        response = await asyncio.wait_for(client.create("s", body), PATIENCE / 2)
        assert response.status_code == 500
        assert "Unspeakable" in response.json()["detail"]
        assert (await client.post("/ping", sid="s")).status_code == 404


@pytest.mark.parametrize("method", READS)
async def test_a_read_is_answered(serve: Serve, method: str) -> None:
    environments = all_raising(method)
    client = serve(*environments)
    for environment in environments:
        sid = await client.open({"env_name": environment.__name__, **BY_INDEX})
        response = await asyncio.wait_for(client.get(READS[method], sid), PATIENCE / 2)
        assert response.status_code == 500
        assert "Unspeakable" in response.json()["detail"]


async def test_a_task_list_is_answered(serve: Serve) -> None:
    environments = all_raising("list_tasks", of_class=True)
    client = serve(*environments)
    for environment in environments:
        name = environment.__name__
        for path in ("tasks", "num_tasks"):
            response = await asyncio.wait_for(client.post(f"/{name}/{path}", {"split": "train"}), PATIENCE / 2)
            assert response.status_code == 500
            assert "Unspeakable" in response.json()["detail"]
        assert (await client.create("s", {"env_name": name, **BY_INDEX})).status_code == 500


@pytest.mark.parametrize("error", [Unspeakable, UnspeakableExit, UnspeakableLoss])
async def test_a_call_and_a_scoring_are_answered(serve: Serve, error: type[BaseException]) -> None:
    class Failing(raising("score_group", error, on_loop=False)):
        @tool
        async def fail_on_loop(self) -> ToolOutput:
            raise error("no reason")

        @tool
        def fail(self) -> ToolOutput:
            raise error("no reason")

    client = serve(Failing)
    for name in ("fail", "fail_on_loop"):
        called = await asyncio.wait_for(client.call(await client.open(), name), PATIENCE / 2)
        assert ("InfrastructureError" if error is UnspeakableLoss else "Unspeakable") in called.error
    sid = await client.open()
    scored = await asyncio.wait_for(client.post("/score_group", {"candidates": []}, sid), PATIENCE / 2)
    assert Reply(parse_events(scored.content)).error
    app: Any = client.app
    assert app.sessions.call_slots.taken == 0


async def test_a_teardown_ends_its_session(serve: Serve) -> None:
    client = serve(raising("teardown", Unspeakable, on_loop=True))
    sid = await client.open()
    await asyncio.wait_for(client.post("/delete", sid=sid), PATIENCE / 2)
    assert (await client.post("/ping", sid=sid)).status_code == 410


# --- the machine, lost while reading -------------------------------------------------------------

LOST = "InfrastructureError: The sandbox is gone. Start it again."


def losing(method: str, *, on_loop: bool) -> tuple[type[Echo], list[str]]:
    """Return an environment with a method that finds its machine gone."""
    notes: list[str] = []

    def lose(self: Any) -> Any:
        raise InfrastructureFailure("The sandbox is gone", "Start it again.")

    async def lose_on_loop(self: Any) -> Any:
        raise InfrastructureFailure("The sandbox is gone", "Start it again.")

    class Losing(Echo):
        @tool
        async def work(self) -> ToolOutput:
            notes.append("working")
            await asyncio.Event().wait()
            return said("worked", 1.0)

        @tool
        async def stubborn(self) -> ToolOutput:
            """Ignore cancellation and end with a reward."""
            notes.append("working")
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            return said("worked", 1.0, finished=True)

        async def teardown(self) -> None:
            notes.append("teardown")

    setattr(Losing, method, lose_on_loop if on_loop else lose)
    return Losing, notes


@pytest.mark.parametrize("on_loop", [False, True], ids=["thread", "loop"])
@pytest.mark.parametrize("method", READS)
async def test_the_session_is_lost_with_the_machine(serve: Serve, method: str, on_loop: bool) -> None:
    """503 once, which distinguishes it from a session that ended normally; then 410."""
    environment, notes = losing(method, on_loop=on_loop)
    client = serve(environment)
    sid = await client.open()
    response = await client.get(READS[method], sid)
    assert (response.status_code, response.json()) == (503, {"detail": LOST})
    assert "x-backend-state" not in response.headers
    for gone in (
        await client.get(READS[method], sid),
        await client.get("/prompt", sid),
        await client.call_response(sid, "win"),
        await client.post("/ping", sid=sid),
    ):
        assert (gone.status_code, gone.json()) == (410, {"detail": f"Session lost: {LOST}"})
    await until(lambda: notes == ["teardown"])
    assert (await client.call(await client.open(), "echo", {"text": "others go on"})).text == "others go on"


@pytest.mark.parametrize("name", ["work", "stubborn"])
async def test_a_call_beside_it_has_no_reward(serve: Serve, name: str) -> None:
    environment, notes = losing("get_prompt", on_loop=True)
    client = serve(environment)
    sid = await client.open()
    working = asyncio.create_task(client.call(sid, name))
    await until(lambda: notes == ["working"])
    assert (await client.get("/prompt", sid)).status_code == 503
    reply = await asyncio.wait_for(working, PATIENCE / 2)
    assert reply.names == ["task_id", "error"], reply.events
    assert "The sandbox is gone" in reply.error
    await until(lambda: notes == ["working", "teardown"])


# --- invalid return values -----------------------------------------------------------------------


def returning(method: str, values: Sequence[object], *, of_class: bool = False) -> list[type[Echo]]:
    """Return environments with a method that returns each of these values."""

    def environment(number: int, value: object) -> type[Echo]:
        def give(self: Any, *arguments: Any) -> Any:
            return value

        return type(f"Giving{number}", (Echo,), {method: classmethod(give) if of_class else give})

    return [environment(number, value) for number, value in enumerate(values)]


def failed(response: httpx.Response, caplog: pytest.LogCaptureFixture, method: str, sid: str | None = None) -> str:
    """Check that a 500 names the method and the expected type, and that the log has it as the environment's failure."""
    assert response.status_code == 500, (response.status_code, response.text[:200])
    detail = response.json()["detail"]
    assert isinstance(detail, str)
    assert method in detail, detail
    assert len(detail) < 1000, detail
    records = [record for record in caplog.records if record.getMessage() == "environment failed"]
    assert records, [record.getMessage() for record in caplog.records]
    if sid is not None:
        assert {getattr(record, "sid", None) for record in records} == {sid}
    assert "request failed" not in [record.getMessage() for record in caplog.records]
    caplog.clear()
    return detail


NO_BLOCKS: list[Any] = [None, 3, "text", {"text": "x"}, [1, 2], ["text"], [None], [{"text": 1}], [object()]]
NO_MESSAGES: list[Any] = [
    None,
    3,
    "text",
    {"role": "user", "blocks": []},
    [1, 2],
    ["text"],
    [None],
    [{"role": "user"}],
    [{"role": "nobody", "blocks": []}],
    [TextBlock(text="x")],
    [object()],
    Message(role="user", blocks=[]),
]
NO_TOOLS: list[Any] = [None, 3, "text", [1], [{"name": "echo"}], {"tools": [1]}, object()]


@pytest.mark.parametrize(
    ("method", "paths", "values", "expected"),
    [
        ("get_prompt", ("/prompt", "/messages"), NO_BLOCKS, "TextBlock"),
        ("get_messages", ("/messages",), NO_MESSAGES, "Message"),
        ("list_task_tools", ("/task_tools",), NO_TOOLS, "ListToolsOutput"),
    ],
    ids=READS,
)
async def test_values_that_methods_return_are_checked(
    serve: Serve,
    caplog: pytest.LogCaptureFixture,
    method: str,
    paths: Sequence[str],
    values: Sequence[object],
    expected: str,
) -> None:
    """If passed on, the value would fail in the client, far from the author."""
    environments = returning(method, values)
    client = serve(*environments)
    for environment, value in zip(environments, values, strict=True):
        sid = await client.open({"env_name": environment.__name__, **BY_INDEX})
        for path in paths:
            assert expected in failed(await client.get(path, sid), caplog, method, sid), value
        assert (await client.call(sid, "echo", {"text": "on"})).text == "on"


async def test_an_invalid_conversation_makes_no_prompt(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    """Without a `get_prompt`, the prompt is derived from the messages."""

    class Talking(Environment):
        @classmethod
        def list_splits(cls) -> list[str]:
            return ["train"]

        @classmethod
        def list_tasks(cls, split: str) -> list[JSONObject]:
            return [{}]

        def get_messages(self) -> Any:
            return ["text"]

        @tool
        async def act(self) -> ToolOutput:
            return said()

    client = serve(Talking)
    sid = await client.open()
    for path in ("/messages", "/prompt"):
        assert "Message" in failed(await client.get(path, sid), caplog, "get_messages", sid)


async def test_a_number_of_tasks_is_checked(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    values = [None, -5, "many", 1.5, [1], float("nan")]
    environments = returning("num_tasks", values, of_class=True)
    client = serve(*environments)
    for environment, value in zip(environments, values, strict=True):
        response = await client.post(f"/{environment.__name__}/num_tasks", {"split": "train"})
        detail = failed(response, caplog, "num_tasks")
        assert repr(value) in detail
        assert "number of tasks" in detail


NO_LISTS: list[Any] = [None, 3, "tasks", {"id": 1}]
NO_TASKS: list[Any] = ["a task", 3, None, [1], b"task", object()]


@pytest.mark.parametrize("private", [False, True], ids=["public", "private"])
async def test_a_task_list_is_checked(serve: Serve, caplog: pytest.LogCaptureFixture, private: bool) -> None:
    """A string is a sequence of its letters, and a mapping a sequence of its keys: neither is a list of tasks."""
    values = [*NO_LISTS, *([{"id": "x"}, value] for value in NO_TASKS)]
    environments = returning("list_tasks", values, of_class=True)
    for environment in environments:
        environment.private_task_fields = ("answer",) if private else ()
    client = serve(*environments)
    for environment in environments:
        await no_task(client, caplog, environment.__name__, "list_tasks", ("tasks", "task", "task_range"))


async def test_a_task_by_index_is_checked(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    environments = returning("get_task", NO_TASKS, of_class=True)
    for environment in environments:

        def num_tasks(cls: Any, split: str) -> int:
            return 1

        method: Any = classmethod(num_tasks)
        environment.num_tasks = method
    client = serve(*environments)
    for environment in environments:
        await no_task(client, caplog, environment.__name__, "get_task", ("task", "task_range"))


async def no_task(
    client: Client, caplog: pytest.LogCaptureFixture, name: str, method: str, paths: Sequence[str]
) -> None:
    """Check that no route returns a task, and that the attempt to open a session leaves none."""
    bodies: dict[str, object] = {"task": BY_INDEX}
    for path in paths:
        failed(await client.post(f"/{name}/{path}", bodies.get(path, {"split": "train"})), caplog, method)
    failed(await client.create("s", {"env_name": name, **BY_INDEX}), caplog, method)
    assert (await client.post("/ping", sid="s")).status_code == 404


async def test_any_sequence_of_any_mappings_is_a_task_list(serve: Serve) -> None:
    """Tuples, generators, and mappings other than dict."""
    from types import MappingProxyType

    values: list[Callable[[], Any]] = [
        lambda: ({"id": "x"},),
        lambda: (task for task in [{"id": "x"}]),
        lambda: [MappingProxyType({"id": "x"})],
    ]
    for make in values:

        class Listing(Echo):
            given = staticmethod(make)

            @classmethod
            def list_tasks(cls, split: str) -> list[JSONObject]:
                return cls.given()

        client: Client = serve(Listing)
        assert (await client.post("/tasks", {"split": "train"})).json()["tasks"] == [{"id": "x"}]
        assert (await client.get("/prompt", await client.open())).json()[0]["text"] == "prompt of x"


async def test_errors_hidden_from_clients_stay_hidden(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    """With `return_errors="none"` only the log contains the error."""
    client = serve(*returning("get_prompt", [["the answer is gold"]]), return_errors="none")
    sid = await client.open()
    with caplog.at_level(logging.ERROR, logger="ors_server"):
        response = await client.get("/prompt", sid)
    assert response.status_code == 500
    assert "gold" not in response.text
    assert "environment failed" in [record.getMessage() for record in caplog.records]


# --- exceptions that tell a secret -----------------------------------------------------------------


class Telling(Echo):
    """Its methods raise what they know: a key in a text, and in the repr of one."""

    @tool
    async def fail(self) -> ToolOutput:
        try:
            raise KeyError(self.secrets["key"])
        except KeyError as error:
            raise ValueError(f"401 for {self.secrets['key']} at api") from error

    def get_messages(self) -> list[Message]:
        raise ValueError(self.secrets["key"])

    def teardown(self) -> None:
        raise ValueError(self.secrets["key"])


async def test_the_log_of_a_failure_tells_no_secret(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    secret = 'sk-"quoted"\'-\\0123456789'
    client = serve(Telling)
    sid = await client.open(BY_INDEX | {"secrets": {"key": secret}})
    assert secret in (await client.call(sid, "fail")).error  # the client that sent it
    await client.get("/messages", sid)
    await client.post("/delete", sid=sid)
    failures = [record for record in caplog.records if record.exc_info]
    assert [record.message for record in failures] == ["environment failed", "environment failed", "teardown failed"]
    log = "\n".join(logging.Formatter().format(record) for record in failures)
    assert "0123456789" not in log
    assert "401 for [redacted] at api" in log
    assert "KeyError: '[redacted]'" in log
