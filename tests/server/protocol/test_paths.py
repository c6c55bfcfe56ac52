"""Paths that result from base URLs with a trailing slash, and environments whose names are not ASCII."""

import itertools
from collections.abc import Awaitable, Callable, Generator
from typing import Any

import pytest
from fastapi import FastAPI, Request, Response

from ors_server import Server
from tests.server.protocol.conftest import Serve
from tests.server.protocol.live import LiveServer, live_server
from tests.support.environments import Echo
from tests.support.events import parse_events
from tests.support.http_client import Client

ROUTES: list[tuple[str, str, object]] = [
    ("GET", "/health", None),
    ("GET", "/tools", None),
    ("GET", "/echo/tools", None),
    ("POST", "/echo/tasks", {"split": "train"}),
    ("POST", "/create", {"split": "train", "index": 0}),
    ("POST", "/ping", None),
    ("GET", "/prompt", None),
    ("GET", "/echo/task_tools", None),
    ("POST", "/call", {"name": "echo", "input": {"text": "x"}}),
    ("POST", "/echo/call", {"name": "echo", "input": {"text": "x"}}),
    ("POST", "/delete", None),
    ("GET", "/v1/environments/me/echo", None),
    ("GET", "/openapi.json", None),
]
SHAPES: dict[str, Callable[[str], str]] = {
    "leading": lambda path: f"/{path}",
    "many leading": lambda path: f"////{path}",
    "trailing": lambda path: f"{path}/",
    "both": lambda path: f"/{path}/",
}


async def ask(client: Client, method: str, path: str, body: object, sid: str = "s") -> Any:
    """Send a request with the path as given: an ordinary client would normalise it."""
    url = client.http.base_url.copy_with(raw_path=path.encode())
    return await client.http.request(method, url, json=body, headers={"X-Session-ID": sid})


@pytest.mark.parametrize("middleware", [False, True], ids=["plain", "middleware"])
async def test_surplus_slashes_change_nothing(middleware: bool) -> None:
    server = Server([Echo])
    if middleware:
        add_middleware(server.app)
    client = Client(server.app)
    for shape, shaped in SHAPES.items():
        for method, path, body in ROUTES:
            response = await ask(client, method, shaped(path), body, shape)
            assert response.status_code == 200, (shape, path, response.text)
    await server.sessions.close()
    await client.close()


def add_middleware(app: FastAPI) -> None:
    @app.middleware("http")
    async def nothing(  # pyright: ignore[reportUnusedFunction]
        request: Request, following: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        return await following(request)


MISSING = [
    ("GET", "/nothing/"),
    ("GET", "//nothing"),
    ("POST", "/tools/"),
    ("GET", "/call/"),
    ("GET", "/typo/tools/"),
    ("GET", "/"),
    ("GET", "//"),
    ("GET", "///"),
    ("GET", "/echo/"),
    ("GET", "/echo//tools"),
    ("GET", "/echo/tools/more/"),
    ("POST", "/echo/ping/"),
]


async def test_an_unknown_path_is_an_error_and_not_a_redirect(serve: Serve) -> None:
    """A client that follows a redirect may send its POST again as a GET, or without its body."""
    client = serve(Echo)
    for method, path in MISSING:
        response = await ask(client, method, path, None)
        assert response.status_code in (404, 405), (path, response.headers)
        assert "location" not in response.headers
        assert "detail" in response.json()


@pytest.fixture(scope="module")
def server() -> Generator[LiveServer]:
    with live_server() as running:
        yield running


async def test_on_a_socket(server: LiveServer) -> None:
    """Some parsers read `//ping` as a host's name."""
    async with server.connect() as connection:
        await connection.request("POST", "//create", {"split": "train", "index": 0}, "s")
        assert (await connection.response()).status == 200
        for path in ("//ping", "/ping/", "///ping/"):
            await connection.request("POST", path, None, "s")
            assert (await connection.response()).status == 200, path
        await connection.request("POST", "//wire/call/?x=1", {"name": "count", "input": {}}, "s")
        assert parse_events((await connection.response()).body)[-1].name == "end"


@pytest.mark.parametrize("prefix", ["/", "//"])
async def test_mounted_with_a_surplus_slash(prefix: str) -> None:
    server = Server([Echo])
    parent = FastAPI()
    parent.mount("/ors", server.app)
    client = Client(parent)
    for path in ("tools", "tools/", "echo/tools"):
        response = await ask(client, "GET", f"/ors{prefix}{path}", None)
        assert response.status_code == 200, path
    await server.sessions.close()
    await client.close()


# --- names that are not ASCII --------------------------------------------------------------------


class Unicode(Echo):
    """An environment with a name that is not ASCII."""

    @classmethod
    def name(cls) -> str:
        return "Ünïcode"


async def deployed(client: Client, value: bytes) -> list[str]:
    """Return the names of the tools of the environment that a deployment's header selects."""
    response = await client.http.get("/tools", headers=[(b"X-Deployment", value)])
    assert response.status_code == 200, response.text
    return [entry["name"] for entry in response.json()["tools"]]


async def test_x_deployment_is_found_in_utf_8_and_in_latin_1(serve: Serve) -> None:
    """HTTP says Latin-1, and most clients send UTF-8."""

    class Other(Echo):
        @classmethod
        def list_splits(cls) -> list[str]:
            return ["others"]

    client = serve(Other, Unicode)
    names = ["Ünïcode", "ünïcode", "ÜNÏCODE", "owner/Ünïcode", "Öwner/ünïcode"]
    for value, encoding in itertools.product(names, ["utf-8", "latin-1"]):
        headers = [(b"X-Deployment", value.encode(encoding))]
        response = await client.http.get("/splits", headers=headers)
        assert response.status_code == 200, (value, encoding, response.text)
        assert [split["name"] for split in response.json()] == ["train", "test"]
        sid = f"{names.index(value)} {encoding}"
        headers.append((b"X-Session-ID", sid.encode()))
        created = await client.http.post("/create", json={"split": "train", "index": 0}, headers=headers)
        assert created.status_code == 200, (value, encoding, created.text)
        assert (await client.get("/other/prompt", sid)).status_code == 409


async def test_an_unknown_one_is_named_as_it_was_written(serve: Serve) -> None:
    class Other(Echo):
        pass

    response = await serve(Other, Unicode).http.get("/tools", headers=[(b"X-Deployment", "Überall".encode())])
    assert response.status_code == 404
    assert "Überall" in response.json()["detail"]


async def test_bytes_in_neither_encoding_do_not_fail(serve: Serve) -> None:
    """With one environment hosted, any unknown name selects it."""
    assert await deployed(serve(Unicode), b"\xff\xfe\x80") == ["echo", "win"]


async def test_the_path_and_the_body_find_it_too(serve: Serve) -> None:
    client = serve(Echo, Unicode)
    for path in ("/ünïcode/tools", "/ÜNÏCODE/tools", "/%C3%9Cn%C3%AFcode/tools"):
        assert (await client.get(path)).status_code == 200
    assert (await client.create("s", {"env_name": "Ünïcode", "split": "train", "index": 0})).status_code == 200
    assert (await client.get("/Ünïcode/prompt", "s")).status_code == 200
    assert (await client.get("/echo/prompt", "s")).status_code == 409
