"""Requests with and without a key: who may enter, and what the others learn."""

import time
import urllib.parse
from pathlib import Path
from typing import Any

import httpx
import pytest

from ors_server import Server, Settings
from ors_server.errors import RequestError
from ors_server.http.app import OrsApp
from ors_server.http.routes.operations import OPERATIONS
from ors_server.keys.login_throttle import _BURST  # pyright: ignore[reportPrivateUsage]
from tests.server.keys.conftest import Guarded, with_key
from tests.support.environments import Echo

WRONG = "ors_" + "A" * 43


async def test_without_keys_everyone_may_play(guarded: Guarded) -> None:
    client = guarded.start()
    sid = await client.open()
    assert (await client.call(sid, "echo", {"text": "a"})).output["blocks"][0]["text"] == "a"


async def test_with_the_first_key_a_running_server_wants_one(guarded: Guarded) -> None:
    client = guarded.start()
    sid = await client.open()
    me = with_key(client, guarded.add("me"))
    refused = await client.call_response(sid, "echo", {"text": "a"})
    assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
    assert "X-API-Key" in refused.json()["detail"]
    # What was made without a key has no owner any more.
    assert (await me.call_response(sid, "echo", {"text": "a"})).status_code == 404
    assert (await me.get("/list_environments")).status_code == 200
    assert len(client.app.sessions) == 0  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue, reportUnknownArgumentType, reportUnknownMemberType]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"X-API-Key": "{}"}, 200),
        ({"X-API-Key": "  {} "}, 200),
        ({"Authorization": "Bearer {}"}, 200),
        ({"Authorization": "bearer   {}"}, 200),
        ({"X-API-Key": "", "Authorization": "Bearer {}"}, 200),
        # The one that proxies do not use decides.
        ({"X-API-Key": "{}", "Authorization": "Bearer other"}, 200),
        ({"X-API-Key": "other", "Authorization": "Bearer {}"}, 401),
        ({"Authorization": "Basic {}"}, 401),
        ({"Authorization": "{}"}, 401),
        ({"X-API-Key": "{} "[:-2]}, 401),
        ({"X-API-Key": "{} {}"}, 401),
        ({"X-API-Key": "Bearer {}"}, 401),
        ({"X-API-Key": "schlüssel ✓"}, 401),
        ({"X-API-Key": "x" * 60_000}, 401),
        ({"Cookie": "ors_key={}"}, 401),
        ({}, 401),
    ],
)
async def test_the_key_in_headers(guarded: Guarded, headers: dict[str, str], status: int) -> None:
    secret = guarded.add("me")
    client = guarded.start()
    given = [(name.encode(), value.replace("{}", secret).encode()) for name, value in headers.items()]
    response = await client.http.get("/list_environments", headers=given)
    assert response.status_code == status
    assert secret not in response.text


async def test_two_headers_of_a_name_are_refused(guarded: Guarded) -> None:
    secret = guarded.add("me")
    client = guarded.start()
    for name, form in (("X-API-Key", "{}"), ("Authorization", "Bearer {}")):
        value, wrong = form.format(secret), form.format(WRONG)
        for pair in ([value, wrong], [wrong, value], [value, value]):
            response = await client.http.get("/list_environments", headers=[(name, each) for each in pair])
            assert response.status_code == 401, (name, pair)


def every_route(app: OrsApp) -> list[tuple[str, str]]:
    """Return the methods and paths of the OpenAPI document, of the sandbox service and of FastAPI's own pages."""
    found = [
        (method.upper(), path.replace("{env_name}", "echo").replace("{owner}", "x").replace("{name}", "echo"))
        for path, methods in app.openapi()["paths"].items()
        for method in methods
    ]
    found += [(operation.method, f"{operation.prefix}/{name}") for name, operation in OPERATIONS.items()]
    found += [("GET", path) for path in ("/openapi.json", "/docs", "/redoc", "/docs/oauth2-redirect", "/unknown")]
    return sorted(set(found))


OPEN = {"/health", "/ready", "/version"}
TRICKS = ("/{}", "//{}", "/{}/", "/./{}", "/health/../{}", "/health/{}", "/version;/{}", "/%2e/{}", "/{}%2f", "/{}%00")


async def test_no_route_is_open(guarded: Guarded) -> None:
    guarded.add("me")
    client = guarded.start(sandbox_service=True)
    app: Any = client.app
    for method, path in every_route(app):
        for verb in (method, "HEAD", "OPTIONS", "PUT", "TRACE", "get", "PoSt"):
            for key in (None, WRONG):
                headers = {} if key is None else {"X-API-Key": key}
                response = await client.http.request(verb, path, headers={**headers, "X-Session-ID": "x"})
                assert (response.status_code in (401, 429)) is (path not in OPEN), (verb, path, response.status_code)
                assert verb != "HEAD" or not response.content


async def test_no_spelling_of_a_path_is_open(guarded: Guarded) -> None:
    guarded.add("me")
    client = guarded.start(sandbox_service=True)
    for name in ("list_environments", "call", "v1/runs", "openapi.json", "_ors/state", "_ors/session", "ui/../call"):
        for trick in TRICKS:
            path = urllib.parse.unquote(trick.format(name))
            status = await status_of(client.app, path)
            # Below /ui pages ask for their own log-in.
            assert status == 401 or (path.lstrip("/").startswith("ui/") and status in (303, 404)), path


@pytest.mark.parametrize("pages", [True, False])
async def test_no_operation_hides_among_the_pages(guarded: Guarded, pages: bool) -> None:
    """Their log-in is their own, so keys are not asked for below ``/ui``; an environment could be called "ui"."""
    guarded.add("me")
    app: Any = guarded.start(pages=pages).app
    for name, operation in OPERATIONS.items():
        for path in (f"/ui/{name}", f"/ui/{name}/", f"//ui/{name}"):
            assert (await status_of(app, path) == 401) is operation.per_environment, path


async def status_of(app: Any, path: str) -> int:
    """Return the status of a path as it is; httpx would normalise it."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        sent.append(message)

    scope: dict[str, Any] = {
        "type": "http",
        "method": "GET",
        "path": path,
        "query_string": b"",
        "headers": [],
        "client": None,
    }
    await app(
        {**scope, "raw_path": path.encode(), "scheme": "http", "root_path": "", "http_version": "1.1"}, receive, send
    )
    return sent[0]["status"]


async def test_a_websocket_without_a_key_is_closed(guarded: Guarded) -> None:
    secret = guarded.add("me")
    app: Any = guarded.start().app
    for headers, closed in (
        ([], True),
        ([(b"x-api-key", WRONG.encode())], True),
        ([(b"x-api-key", secret.encode())], False),
    ):
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "websocket.connect"}

        async def send(message: Any, sent: list[dict[str, Any]] = sent) -> None:
            sent.append(message)

        scope = {"type": "websocket", "path": "/ws", "headers": headers, "query_string": b"", "subprotocols": []}
        await app(scope, receive, send)
        assert (sent[0].get("code") == 1008) is closed, sent


async def test_ten_thousand_guesses(guarded: Guarded) -> None:
    secret = guarded.add("me")
    client = guarded.start()
    app: Any = client.app

    def at(address: str, key: str) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(app, client=(address, 1))
        return httpx.AsyncClient(transport=transport, base_url="http://server", headers={"X-API-Key": key})

    async with at("192.0.2.1", secret) as friend, at("192.0.2.1", WRONG) as guesser:
        assert (await friend.get("/list_environments")).status_code == 200
        seen: dict[int, int] = {}
        authenticate = app.authenticator.authenticate
        scope = {"type": "http", "client": ("192.0.2.1", 1)}
        begun = time.monotonic()
        for number in range(10_000):
            headers = {b"x-api-key": b"ors_%043d" % number}
            with pytest.raises(RequestError, match=r"key") as caught:
                authenticate({**scope, "headers": [*headers.items()]}, "/call", headers)
            seen[caught.value.status] = seen.get(caught.value.status, 0) + 1
        limit = _BURST + (time.monotonic() - begun)  # some drain away meanwhile
        assert seen[401] <= limit
        assert seen[401] + seen[429] == 10_000
        refused = await guesser.get("/list_environments")
        assert refused.status_code == 429
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        # A client that was there before goes on; another with the right key waits, as the guesser must.
        assert (await friend.get("/list_environments")).status_code == 200
        second = guarded.add("second")
        assert (await friend.get("/list_environments")).status_code == 200
        guarded.revoke("me")
        assert (await friend.get("/list_environments")).status_code == 429
    async with at("192.0.2.1", second) as neighbour, at("192.0.2.2", second) as elsewhere:
        assert (await elsewhere.get("/list_environments")).status_code == 200
        assert (await neighbour.get("/list_environments")).status_code == 429
        assert (await neighbour.get("/health")).status_code == 200


async def test_addresses_of_one_network_count_together(guarded: Guarded) -> None:
    guarded.add("me")
    app: Any = guarded.start().app
    statuses: list[int] = []
    for number in range(2 * _BURST):
        headers = {b"x-api-key": b"wrong"}
        scope = {"type": "http", "client": (f"2001:db8::{number:x}", 1), "headers": [*headers.items()]}
        with pytest.raises(RequestError, match=r"key") as caught:
            app.authenticator.authenticate(scope, "/call", headers)
        statuses.append(caught.value.status)
    assert 429 in statuses


async def test_behind_a_proxy_the_address_is_the_last_that_it_adds(guarded: Guarded, tmp_path: Path) -> None:
    secret = guarded.add("me").encode()
    server = Server([Echo], settings=Settings(data_dir=tmp_path, listen="unix:unused"))
    authenticate = server.app.authenticator.authenticate

    def status(key: bytes, forwarded: bytes) -> int:
        headers = [(b"x-api-key", key), (b"x-forwarded-for", forwarded)] if forwarded else [(b"x-api-key", key)]
        try:
            authenticate({"type": "http", "client": None, "headers": headers}, "/call", dict(headers))
        except Exception as error:  # noqa: BLE001 - its status is looked at
            return getattr(error, "status", 0)
        return 200

    # A guesser may send the header too: the proxy's entry is the last.
    guesses = [status(b"wrong%d" % number, b"10.0.0.%d, 192.0.2.1" % number) for number in range(2 * _BURST)]
    assert guesses[0] == 401
    assert guesses[-1] == 429
    assert status(secret, b"192.0.2.2") == 200
    assert status(secret, b"10.0.0.9, 192.0.2.1") == 429
    # Without the header all clients look the same, and none is kept out for another.
    assert [status(b"wrong", b"") for _ in range(2 * _BURST)] == [401] * 2 * _BURST
    assert status(secret, b"") == 200
    await server.sessions.close()
