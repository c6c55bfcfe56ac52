"""``Server.app``: an ordinary FastAPI application that can be wrapped, mounted, documented and imported lazily."""

import asyncio
import importlib
import importlib.resources
import inspect
import subprocess
import sys
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Any

import pytest
from fastapi import FastAPI, Request, Response
from starlette.applications import Starlette
from starlette.middleware.gzip import GZipMiddleware
from starlette.routing import Mount
from starlette.types import ASGIApp, Receive, Scope, Send

from ors_server import Server, Settings, ToolOutput, tool
from tests.server.protocol.conftest import Serve
from tests.support.environments import Echo, Number, said
from tests.support.http_client import Client

ROUTES: list[tuple[str, str, object]] = [
    ("GET", "/health", None),
    ("GET", "/version", None),
    ("GET", "/list_environments", None),
    ("GET", "/tools", None),
    ("GET", "/echo/splits", None),
    ("POST", "/echo/tasks", {"split": "train"}),
    ("POST", "/num_tasks", {"split": "train"}),
    ("POST", "/task", {"split": "train", "index": 0}),
    ("POST", "/echo/get_task_range", {"split": "train"}),
    ("POST", "/create_session", None),
    ("POST", "/create", {"split": "train", "index": 0}),
    ("POST", "/ping", None),
    ("GET", "/prompt", None),
    ("GET", "/echo/messages", None),
    ("GET", "/task_tools", None),
    ("POST", "/echo/call", {"name": "echo", "input": {"text": "hi"}}),
    ("POST", "/call", {"name": "echo", "input": {"text": "hi"}}),
    ("POST", "/score_group", {"candidates": []}),
    ("POST", "/delete", None),
    ("POST", "/delete_session", None),
    ("GET", "/v1/environments/me/echo", None),
]


class Slow(Echo):
    @classmethod
    def name(cls) -> str:
        return "Echo"

    @tool
    async def wait(self, params: Number) -> ToolOutput:
        await asyncio.sleep(params.number / 1000)
        return said("waited")

    async def score_group(self, candidates: object) -> list[float]:
        return []


class Stamp:
    """A plain ASGI middleware."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def stamped(message: object) -> None:
            assert isinstance(message, dict)
            if message["type"] == "http.response.start":
                message["headers"].append((b"x-stamp", b"asgi"))  # pyright: ignore[reportUnknownMemberType]
            await send(message)  # pyright: ignore[reportUnknownArgumentType]

        await self.app(scope, receive, stamped)


def wrapped(kind: str) -> Server:
    """Return a server with middleware that a user has added to its application."""
    server = Server([Slow], settings=Settings(max_body=4096, heartbeat=0.05))
    if kind == "asgi":
        server.app.add_middleware(Stamp)
    elif kind == "function":

        @server.app.middleware("http")
        async def stamp(  # pyright: ignore[reportUnusedFunction]
            request: Request, following: Callable[[Request], Awaitable[Response]]
        ) -> Response:
            response = await following(request)
            response.headers["x-stamp"] = "function"
            return response

    return server


@pytest.mark.parametrize("kind", ["none", "asgi", "function"])
async def test_every_route_goes_through_a_users_middleware(kind: str) -> None:
    """Also the routes that are answered in front of FastAPI where there is no middleware."""
    server = wrapped(kind)
    client = Client(server.app)
    for method, path, body in ROUTES:
        response = await (client.get(path, "s") if method == "GET" else client.post(path, body, "s"))
        assert response.status_code == 200, (path, response.text)
        assert response.headers.get("x-stamp") == (None if kind == "none" else kind), path
    await server.sessions.close()
    await client.close()


@pytest.mark.parametrize("kind", ["asgi", "function"])
async def test_the_answers_are_the_same_through_middleware(kind: str) -> None:
    """Errors included: the behaviour does not depend on a request's way through the server."""
    plain, server = wrapped("none"), wrapped(kind)
    clients = [Client(plain.app), Client(server.app)]
    requests: list[tuple[str, str, object, str | None]] = [
        ("POST", "/create", {"split": "train", "index": 9}, "s"),
        ("POST", "/create", {"split": "trian", "index": 0}, "s"),
        ("POST", "/create", {"split": "train"}, "s"),
        ("POST", "/create", {"split": "train", "index": 0}, None),
        ("POST", "/create", {"split": "train", "index": 0}, "s"),
        ("POST", "/call", {"name": "nothing", "input": {}}, "unknown"),
        ("POST", "/call", {"name": "echo"}, "s"),
        ("POST", "/call", {"name": "echo", "input": {}, "extra": 1}, "s"),
        ("POST", "/call", {"name": "echo", "input": {"text": "x"}, "task_id": "never"}, "s"),
        ("POST", "/typo/call", {"name": "echo", "input": {}}, "s"),
        ("GET", "/typo/prompt", None, "s"),
        ("GET", "/prompt", None, None),
        ("GET", "/prompt", None, "s"),
        ("POST", "/call", {"name": "x" * 5000, "input": {}}, "s"),
        ("GET", "/call", None, "s"),
        ("POST", "/delete", None, "s"),
        ("GET", "/prompt", None, "s"),
    ]
    for method, path, body, sid in requests:
        answers = [
            await (client.get(path, sid) if method == "GET" else client.post(path, body, sid)) for client in clients
        ]
        assert answers[0].status_code == answers[1].status_code, path
        assert answers[0].json() == answers[1].json() if "json" in answers[0].headers["content-type"] else True
        assert answers[0].headers["content-type"] == answers[1].headers["content-type"]
    for client, each in zip(clients, (plain, server), strict=True):
        await client.close()
        await each.sessions.close()


@pytest.mark.parametrize("kind", ["none", "asgi", "function"])
async def test_a_slow_call_streams_through_middleware(kind: str) -> None:
    server = wrapped(kind)
    client = Client(server.app)
    sid = await client.open()
    async with client.stream("/call", {"name": "wait", "input": {"number": 400}}, sid) as stream:
        assert (await stream.event()).name == "task_id"
        assert (await stream.reply()).text == "waited"
        assert stream.parser.comments >= 2
    await server.sessions.close()
    await client.close()


async def test_compression_leaves_events_readable() -> None:
    server = Server([Slow])
    server.app.add_middleware(GZipMiddleware, minimum_size=10)
    client = Client(server.app)
    sid = await client.open()
    assert (await client.call(sid, "echo", {"text": "x" * 100_000})).text == "x" * 100_000
    await server.sessions.close()
    await client.close()


@pytest.mark.parametrize("framework", ["fastapi", "starlette"])
async def test_mounted_under_a_prefix(framework: str) -> None:
    server = Server([Slow])
    if framework == "fastapi":
        parent = FastAPI()
        parent.mount("/ors", server.app)
    else:
        parent = Starlette(routes=[Mount("/ors", app=server.app)])
    client = Client(parent)
    for method, path, body in ROUTES:
        path = f"/ors{path}"
        response = await (client.get(path, "s") if method == "GET" else client.post(path, body, "s"))
        assert response.status_code == 200, (path, response.text)
    assert (await client.get("/ors/typo/tools")).json()["detail"].startswith("unknown environment 'typo'")
    await server.sessions.close()
    await client.close()


async def test_two_servers_in_one_application() -> None:
    class Other(Echo):
        pass

    servers = [Server([Echo]), Server([Other])]
    parent = Starlette(routes=[Mount("/one", app=servers[0].app), Mount("/two", app=servers[1].app)])
    client = Client(parent)
    assert (await client.get("/one/list_environments")).json() == ["echo"]
    assert (await client.get("/two/list_environments")).json() == ["other"]
    assert (await client.post("/one/create", {"split": "train", "index": 0}, "s")).status_code == 200
    assert (await client.post("/two/ping", None, "s")).status_code == 404
    for server in servers:
        await server.sessions.close()
    await client.close()


async def test_a_user_may_add_routes() -> None:
    server = Server([Echo])

    @server.app.get("/mine")
    async def mine() -> dict[str, str]:  # pyright: ignore[reportUnusedFunction]
        return {"mine": "yes"}

    client = Client(server.app)
    assert (await client.get("/mine")).json() == {"mine": "yes"}
    await client.close()


async def test_the_api_is_documented(serve: Serve) -> None:
    """Section 1: ``/docs``, ``/redoc`` and ``/openapi.json``; every route is in the document, with its body."""
    client = serve(Echo)
    for path in ("/docs", "/redoc"):
        page = await client.get(path)
        assert page.status_code == 200
        assert "text/html" in page.headers["content-type"]
    document = (await client.get("/openapi.json")).json()
    paths = document["paths"]
    per_environment = {
        "/call": "post",
        "/score_group": "post",
        "/prompt": "get",
        "/messages": "get",
        "/task_tools": "get",
        "/tools": "get",
        "/splits": "get",
        "/tasks": "post",
        "/num_tasks": "post",
        "/task": "post",
        "/get_task": "post",
        "/task_range": "post",
        "/get_task_range": "post",
    }
    for path, method in per_environment.items():
        assert method in paths[path], path
        assert method in paths["/{env_name}" + path], path
    for path in ("/create_session", "/create", "/delete", "/delete_session", "/ping"):
        assert "post" in paths[path]
    for path in ("/health", "/ready", "/version", "/list_environments", "/v1/environments/{owner}/{name}"):
        assert "get" in paths[path]
    body = paths["/call"]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    assert body.rpartition("/")[2] == "ToolCall"
    assert set(document["components"]["schemas"]["ToolCall"]["properties"]) == {"name", "input", "task_id"}
    headers = [entry["name"] for entry in paths["/call"]["post"]["parameters"]]
    assert "X-Session-ID" in headers


def test_importing_the_package_imports_no_web_framework() -> None:
    """The authoring API is for environments' own tests and for tools that only read classes."""
    code = (
        "from ors_server import Environment, tool, terminal, Toolset, ToolOutput, InfrastructureFailure, Message\n"
        "from ors_server import DefinitionError, Split, flatten_messages, OrsError, TextBlock, ImageBlock\n"
        "import sys\n"
        "print([name for name in ('fastapi', 'starlette', 'uvicorn', 'sse_starlette', 'httptools', 'typer')"
        " if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("package", ["ors_server", "ors_clients", "ors_containers", "ors_benchmarks", "ors_cli"])
def test_every_package_has_its_types_and_version(package: str) -> None:
    module: Any = importlib.import_module(package)
    if package not in ("ors_benchmarks", "ors_cli"):  # neither is a library
        assert module.__version__ == version("orsd")
    assert (importlib.resources.files(package) / "py.typed").is_file()


def test_run_takes_what_it_takes_in_the_sdks() -> None:
    """Section 10: ``Server.run(host="0.0.0.0", port=8080)``, ``Server(environments, return_errors=…)``."""
    run = inspect.signature(Server.run).parameters
    assert {name: run[name].default for name in ("host", "port")} == {"host": "0.0.0.0", "port": 8080}
    assert list(inspect.signature(Server.__init__).parameters)[1:3] == ["environments", "return_errors"]


def test_the_whole_authoring_surface_is_there() -> None:
    """Section 10: the common names of both SDKs, and those of openreward alone."""
    import ors_server

    names = """Environment Server tool Toolset ToolOutput TextBlock ImageBlock Blocks Split ToolSpec ListToolsOutput
        RunToolOutput RunToolSuccess RunToolError ToolCall CreateSession JSONObject JSONValue terminal TerminalToolSpec
        Message MessageBlocks Role ReasoningBlock ToolCallBlock ToolResultBlock GroupCandidate GroupScore
        SUPPORTED_MESSAGE_BLOCK_TYPES flatten_messages InfrastructureFailure ListTasks NumTasks GetTask GetTaskRange
        InfrastructureError __version__"""
    for name in names.split():
        assert getattr(ors_server, name) is not None
        assert name in ors_server.__all__
    with pytest.raises(AttributeError, match="nothing_like_it"):
        ors_server.nothing_like_it  # noqa: B018
