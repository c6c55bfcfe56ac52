"""Section 4: input, refusals, and tools that raise exceptions of any kind."""

import asyncio
import threading
from typing import Literal

import pytest
from pydantic import BaseModel, Field

from ors_server import (
    Blocks,
    Environment,
    ListToolsOutput,
    TextBlock,
    ToolOutput,
    Toolset,
    ToolSpec,
    terminal,
    tool,
)
from tests.server.protocol.conftest import Serve
from tests.support.environments import Bare, Echo, Text, said
from tests.support.waiting import PATIENCE


class Search(BaseModel):
    """Input with fields of every kind."""

    query: str
    limit: int = 5
    mode: Literal["fast", "slow"] = "fast"
    note: str | None = "none given"
    by_alias: int = Field(default=1, alias="byAlias")


class Searching(Echo):
    @tool
    async def search(self, params: Search) -> ToolOutput:
        return said(f"{params.query} {params.limit} {params.mode} {params.note} {params.by_alias}")


async def test_an_unknown_tool(serve: Serve) -> None:
    """Bad input: unknown tool. The prefix is what clients infer the reason from; the tools help a model."""
    client = serve(Echo)
    sid = await client.open()
    result = (await client.call(sid, "ecko", {"text": "x"})).result
    assert (result["ok"], result["reason"]) == (False, "not_found")
    assert result["error"].startswith("'ecko' is not a valid tool")
    assert "echo" in result["error"]


@pytest.mark.parametrize("name", ["get_prompt", "setup", "__init__", "list_tasks", "task_spec", "", "echo.__doc__"])
async def test_only_marked_methods_are_tools(serve: Serve, name: str) -> None:
    client = serve(Echo)
    sid = await client.open()
    assert (await client.call(sid, name)).reason == "not_found"


async def test_invalid_input(serve: Serve) -> None:
    """Section 4: the prefix; the model that wrote the input reads which field is wrong."""
    client = serve(Searching)
    sid = await client.open()
    result = (await client.call(sid, "search", {"limit": "many", "mode": "odd"})).result
    assert (result["ok"], result["reason"]) == (False, "input_validation")
    assert result["error"].startswith("Tool input validation error: ")
    for field in ("query", "limit", "mode"):
        assert field in result["error"]
    assert "errors.pydantic.dev" not in result["error"]


async def test_null_for_optional_parameters(serve: Serve) -> None:
    """Trainers send null for every field the model left out."""
    client = serve(Searching)
    sid = await client.open()
    full = {"query": "q", "limit": None, "mode": None, "note": None, "byAlias": None}
    assert (await client.call(sid, "search", full)).text in ("q 5 fast None 1", "q 5 fast none given 1")
    assert (await client.call(sid, "search", {"query": "q", "note": None})).text == "q 5 fast None 1"
    assert (await client.call(sid, "search", {"query": None})).reason == "input_validation"


async def test_a_tool_without_input_ignores_it(serve: Serve) -> None:
    client = serve(Echo)
    sid = await client.open()
    assert (await client.call(sid, "win", {"any": "thing"})).output["reward"] == 1.0


async def test_synchronous_and_asynchronous_tools_alike(serve: Serve) -> None:
    class Both(Bare):
        @tool
        def sync(self, params: Text) -> ToolOutput:
            return said(f"{params.text} {threading.current_thread() is threading.main_thread()}")

        @tool()
        async def asynchronous(self, params: Text) -> ToolOutput:
            return said(f"{params.text} {threading.current_thread() is threading.main_thread()}")

    client = serve(Both)
    sid = await client.open()
    assert (await client.call(sid, "sync", {"text": "a"})).text == "a False"
    assert (await client.call(sid, "asynchronous", {"text": "b"})).text == "b True"


# --- listing -------------------------------------------------------------------------------------


class Hidden(Echo):
    @tool(shared=False)
    async def hint(self) -> ToolOutput:
        """Help."""
        return said("hint")

    def list_task_tools(self) -> ListToolsOutput:
        extra = ToolSpec(name="echo", description="again", input_schema=None)
        special = ToolSpec(name="special", description="of this task", input_schema={"type": "object"})
        return ListToolsOutput(tools=[extra, special])

    @tool(shared=False)
    async def special(self) -> ToolOutput:
        return said("special")


async def test_unshared_tools_are_listed_for_a_session_only(serve: Serve) -> None:
    """Issue, item 2: ``shared=False`` tools do appear in ``/task_tools``, and are callable."""
    client = serve(Hidden)
    sid = await client.open()
    shared = (await client.get("/tools")).json()
    session = (await client.get("/task_tools", sid)).json()
    assert [entry["name"] for entry in shared["tools"]] == ["echo", "win"]
    assert sorted(entry["name"] for entry in session["tools"]) == ["echo", "hint", "special", "win"]
    assert set(session) == {"tools", "terminal_tool", "supports_score_group", "message_block_types"}
    assert all(set(entry) == {"name", "description", "input_schema"} for entry in session["tools"])
    assert (await client.call(sid, "hint")).text == "hint"
    assert (await client.call(sid, "special")).text == "special"


async def test_toolsets(serve: Serve) -> None:
    """Section 4: instantiated with the environment where they take it, once a session."""
    built: list[str] = []

    class Counter(Toolset):
        def __init__(self, env: Environment) -> None:
            super().__init__(env)
            built.append("counter")
            self.count = 0

        @tool
        def count_up(self) -> ToolOutput:
            self.count += 1
            return said(f"{self.env.task_spec['id']} {self.count}")

    class Plain:
        @tool
        async def plain(self) -> ToolOutput:
            return said("plain")

    class Equipped(Echo):
        toolsets = (Counter, Plain)

    client = serve(Equipped)
    one, two = await client.open(), await client.open()
    assert built == []
    assert [(await client.call(one, "count_up")).text for _ in range(2)] == ["train-0 1", "train-0 2"]
    assert (await client.call(two, "count_up")).text == "train-0 1"
    assert (await client.call(one, "plain")).text == "plain"
    assert built == ["counter", "counter"]
    assert [entry["name"] for entry in (await client.get("/tools")).json()["tools"]] == [
        "echo",
        "win",
        "count_up",
        "plain",
    ]


async def test_an_environment_that_skips_the_constructor_of_its_base(serve: Serve) -> None:
    """Section 10: authors do, and with toolsets both references fail."""

    class Own(Toolset):
        @tool
        async def where(self) -> ToolOutput:
            return said(self.env.place)

    class Skipping(Echo):
        toolsets = (Own,)

        def __init__(self, task_spec: object, secrets: object) -> None:
            self.place = "here"

        def get_prompt(self) -> Blocks:
            return [TextBlock(text=self.place)]

    client = serve(Skipping)
    sid = await client.open()
    assert (await client.call(sid, "where")).text == "here"
    assert (await client.call(sid, "win")).output["finished"] is True
    assert (await client.call(sid, "where")).reason == "episode_finished"
    assert (await client.get("/prompt", sid)).json()[0]["text"] == "here"


async def test_the_terminal_tool_is_advertised_apart_and_callable(serve: Serve) -> None:
    """Section 4: hidden from the tools; ``arg`` is the field the assistant's message goes into."""

    class Answering(Echo):
        @terminal
        @tool
        async def answer(self, params: Text) -> ToolOutput:
            """Grade the final message."""
            return said("graded", float(params.text == "42"), finished=True)

    client = serve(Answering)
    sid = await client.open()
    for listing in ((await client.get("/tools")).json(), (await client.get("/task_tools", sid)).json()):
        assert [entry["name"] for entry in listing["tools"]] == ["echo", "win"]
        assert listing["terminal_tool"] == {"name": "answer", "arg": "text", "description": "Grade the final message."}
    assert (await client.call(sid, "answer", {"text": "42"})).output["reward"] == 1.0
    assert (await client.call(sid, "echo", {"text": "x"})).reason == "episode_finished"


async def test_a_terminal_tool_alone_is_enough_and_may_take_nothing(serve: Serve) -> None:
    class Silent(Bare):
        @tool
        @terminal
        async def submit(self) -> ToolOutput:
            return said("done", 0.5, finished=True)

    client = serve(Silent)
    listing = (await client.get("/tools")).json()
    assert listing["tools"] == []
    assert listing["terminal_tool"] == {"name": "submit", "arg": None, "description": ""}
    assert (await client.call(await client.open(), "submit")).output["reward"] == 0.5


async def test_the_terminal_tool_runs_alone(serve: Serve) -> None:
    proceed = asyncio.Event()
    inside: list[str] = []

    class Grading(Bare):
        @tool
        async def work(self) -> ToolOutput:
            inside.append("work")
            await proceed.wait()
            inside.remove("work")
            return said()

        @terminal
        @tool
        async def answer(self) -> ToolOutput:
            return said(str(inside), 1.0, finished=True)

    client = serve(Grading)
    sid = await client.open()
    working = asyncio.create_task(client.call(sid, "work"))
    await asyncio.sleep(0.02)
    answering = asyncio.create_task(client.call(sid, "answer"))
    await asyncio.sleep(0.1)
    assert not answering.done()
    proceed.set()
    assert (await answering).text == "[]"
    assert (await working).result["ok"] is True


# --- raising -------------------------------------------------------------------------------------


class Abort(BaseException):
    """An exception that ``except Exception`` does not catch."""


@pytest.mark.parametrize(
    "raised",
    [
        ValueError("bad"),
        SystemExit(3),
        KeyboardInterrupt(),
        StopIteration("x"),
        StopAsyncIteration("x"),
        asyncio.CancelledError(),
        GeneratorExit(),
        BaseExceptionGroup("several", [KeyboardInterrupt(), ValueError("x")]),
        ExceptionGroup("several", [ValueError("x")]),
        Abort("abort"),
        TimeoutError(),
        RecursionError("deep"),
        MemoryError(),
    ],
    ids=lambda raised: type(raised).__name__,
)
async def test_any_exception_of_a_tool_is_an_error_event_of_its_call_only(serve: Serve, raised: BaseException) -> None:
    """Section 9: a tool that ends in CancelledError leaves the references' clients waiting without end."""

    class Raising(Echo):
        @tool
        def now(self) -> ToolOutput:
            raise raised

        @tool
        async def later(self) -> ToolOutput:
            await asyncio.sleep(0)
            raise raised

    client = serve(Raising)
    sid = await client.open()
    for name in ("now", "later"):
        async with asyncio.timeout(PATIENCE / 2):
            reply = await client.call(sid, name)
        assert reply.names == ["task_id", "error"]
        assert reply.error
        again = await client.call(sid, name, task_id=reply.task_id)
        assert again.events == reply.events
        assert (await client.call(sid, "echo", {"text": "well"})).text == "well"
    other = await client.open()
    assert (await client.call(other, "echo", {"text": "well"})).text == "well"
    assert (await client.get("/health")).status_code == 200


@pytest.mark.parametrize(
    ("mode", "error"),
    [
        ("none", "Internal Server Error"),
        ("exception", "ValueError: secret at /srv/answers"),
    ],
)
async def test_return_errors(serve: Serve, mode: str, error: str) -> None:
    """Section 9: the references' error events ignore the setting."""

    class Failing(Bare):
        @tool
        async def fail(self) -> ToolOutput:
            raise ValueError("secret at /srv/answers")

    client = serve(Failing, return_errors=mode)
    sid = await client.open()
    assert (await client.call(sid, "fail")).error == error


async def test_return_errors_stacktrace(serve: Serve) -> None:
    class Failing(Bare):
        @tool
        async def fail(self) -> ToolOutput:
            raise ValueError("the reason")

    client = serve(Failing, return_errors="stacktrace")
    sid = await client.open()
    lines = (await client.call(sid, "fail")).error.rstrip().split("\n")
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1] == "ValueError: the reason"
    assert any("test_tool_calls.py" in line for line in lines)


RAISED = [ValueError("bad"), SystemExit(3), asyncio.CancelledError(), Abort("abort")]


@pytest.mark.parametrize("raised", RAISED, ids=lambda raised: type(raised).__name__)
async def test_a_reading_method_that_raises_is_a_500_of_its_request_only(serve: Serve, raised: BaseException) -> None:
    """Bad input: an environment whose prompt raises."""

    def fail(self: object) -> object:
        raise raised

    paths = {"get_prompt": "/prompt", "get_messages": "/messages", "list_task_tools": "/task_tools"}
    client = serve(*(type(f"Fails_{method}", (Echo,), {method: fail}) for method in paths))
    for method, path in paths.items():
        sid = await client.open({"env_name": f"fails_{method}", "split": "train", "index": 0})
        response = await client.get(path, sid)
        assert response.status_code == 500, method
        assert response.json()["detail"]
        if isinstance(raised, ValueError):
            assert response.json() == {"detail": "ValueError: bad"}
        assert (await client.call(sid, "echo", {"text": "well"})).text == "well"


@pytest.mark.parametrize("raised", RAISED, ids=lambda raised: type(raised).__name__)
async def test_a_task_method_that_raises_is_a_500_of_its_request_only(serve: Serve, raised: BaseException) -> None:
    def fail(cls: object, *arguments: object) -> object:
        raise raised

    routes = {"list_tasks": "tasks", "num_tasks": "num_tasks", "get_task": "task", "get_task_range": "task_range"}
    client = serve(*(type(f"Fails_{method}", (Echo,), {method: classmethod(fail)}) for method in routes))
    for method, route in routes.items():
        body: dict[str, object] = {"split": "train", "index": 0} if route == "task" else {"split": "train"}
        response = await client.post(f"/fails_{method}/{route}", body)
        assert response.status_code == 500, method
        assert response.json()["detail"]
        if isinstance(raised, ValueError):
            assert response.json() == {"detail": "ValueError: bad"}
        assert (await client.get(f"/fails_{method}/splits")).status_code == 200
