"""The routes: an upload, its refusals, and the listings in the form that ``orwd`` reads."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import Response

from ors_server import Server, Settings
from tests.server.rollouts.support import NOON, body, message, rollout, rows, update
from tests.support.environments import Echo
from tests.support.http_client import Client

pytestmark = pytest.mark.usefixtures("database")

Start = Callable[..., Client]


@pytest.fixture
async def start(data_dir: Path) -> AsyncGenerator[Start]:
    """Return a starter of servers in this process, by default with one environment, which every bare path selects."""
    made: list[tuple[Server, Client]] = []

    def starting(*environments: Any, middleware: bool = False, **settings: Any) -> Client:
        server = Server(list(environments) or [Echo], settings=Settings(data_dir=data_dir, **settings))
        if middleware:

            async def pass_on(request: Request, call_next: Any) -> Response:
                return await call_next(request)

            server.app.add_middleware(BaseHTTPMiddleware, dispatch=pass_on)
        made.append((server, Client(server.app)))
        return made[-1][1]

    yield starting
    for server, client in made:
        await client.close()
        await server.sessions.close()
        await server.app.rollouts.close()


async def upload(client: Client, *events: object) -> httpx.Response:
    return await client.http.post("/v1/rollouts", content=body(*events))


@pytest.mark.parametrize("middleware", [False, True])
@pytest.mark.parametrize("path", ["/v1/rollouts", "/v1/rollouts/", "//v1/rollouts"])
async def test_an_upload(start: Start, data_dir: Path, middleware: bool, path: str) -> None:
    client = start(middleware=middleware)
    url, content = f"http://server{path}", body(rollout("r"), message("r", 0))
    response = await client.http.post(url, content=content, headers={"x-api-key": "k"})
    assert (response.status_code, response.json()) == (200, {"stored": 2})
    assert rows(data_dir, "SELECT id, num_messages FROM rollouts") == [("r", 1)]


async def test_a_server_without_uploads_writes_nothing(start: Start, data_dir: Path) -> None:
    client = start()
    assert (await client.get("/health")).status_code == 200
    assert (await client.get("/v1/runs")).json() == {"runs": [], "total": 0}
    for path in ("/v1/runs/none", "/v1/runs/none/rollouts"):
        response = await client.get(path)
        assert response.status_code == 404
        assert "unknown run 'none'" in response.json()["message"]
        assert response.json()["detail"] == response.json()["message"]
    assert not data_dir.exists()


async def test_only_the_path_itself_is_the_upload(start: Start, data_dir: Path) -> None:
    """A bare path selects the only environment; this route has no bare form."""
    client = start()
    for path in ("/rollouts", "/echo/rollouts", "/echo/v1/rollouts", "/v2/rollouts"):
        assert (await client.http.post(path, content=body(rollout()))).status_code == 404
    assert (await client.get("/v1/rollouts")).status_code == 405
    assert not data_dir.exists()


@pytest.mark.parametrize("middleware", [False, True])
async def test_refusals_have_both_keys(start: Start, middleware: bool) -> None:
    """``orwd`` reads ``message``, other clients ``detail``."""
    client = start(middleware=middleware, max_body=5000)
    for content, status, said in (
        (b"{", 422, "not valid"),
        (
            body(rollout(), message("r", 0, eventId="the-id", type="x")),
            422,
            "event 1 (the-id), type: Input should be",
        ),
        (b" " * 5001, 413, "larger than 5000 bytes"),
    ):
        response = await client.http.post("/v1/rollouts", content=content)
        assert response.status_code == status
        assert said in response.json()["message"]
        assert response.json()["detail"]
    for query in ("limit=-1", "limit=x", "offset=-1", "limit=1001"):
        response = await client.get(f"/v1/runs?{query}")
        assert response.status_code == 422
        assert query.partition("=")[0] in response.json()["message"]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_a_file_that_cannot_be_used_affects_uploads_only(start: Start, data_dir: Path) -> None:
    data_dir.write_text("a file")
    client = start()
    sid = await client.open()
    for response in (await upload(client, rollout()), await upload(client, rollout())):
        assert response.status_code == 503
        assert response.headers["retry-after"] == "5"
        assert "cannot be used" in response.json()["message"]
        assert str(data_dir) not in response.text
    assert (await client.call(sid, "echo", {"text": "x"})).text == "x"
    data_dir.unlink()
    data_dir.mkdir()
    (data_dir / "rollouts.sqlite3").write_bytes(b"nothing like it" * 100)
    for response in (await upload(client, rollout()), await client.get("/v1/runs")):
        assert response.status_code == 503
        assert "damaged" in response.json()["message"]
    assert (await client.call(sid, "echo", {"text": "y"})).text == "y"


async def test_runs_and_rollouts_in_pages(start: Start) -> None:
    client = start()
    for number in range(5):
        name = f"r{number}"
        events = [rollout(name, "first_run", at=NOON + number, environment="owner/env", rolloutName=f"n{number}")]
        events += [message(name, n, reward=float(number) if n else None) for n in range(number)]
        await upload(client, *events, update(name, task_index=number))
    await upload(client, rollout("other", "second%run", at=NOON + 99), message("orphan", 0))

    page = (await client.get("/v1/runs")).json()
    assert [run["name"] for run in page["runs"]] == ["second%run", "first_run"]
    assert page["total"] == 2
    first = page["runs"][1]
    assert first == {
        "id": first["id"],
        "name": "first_run",
        "num_rollouts": 5,
        "avg_rollout_reward": 20 / 3,  # of 2, 2 × 3 and 3 × 4; the others have no reward
        "avg_rollout_length": 2.0,
        "created_at": "2023-11-14T22:13:20.000+00:00",
        "updated_at": "2023-11-14T22:13:20.004+00:00",
    }
    for run in (first["id"], "first_run"):
        assert (await client.get(f"/v1/runs/{run}")).json() == first
        rollouts = (await client.get(f"/v1/runs/{run}/rollouts?limit=2&offset=1")).json()
        assert rollouts["total"] == 5
        assert [each["rolloutName"] for each in rollouts["rollouts"]] == ["n3", "n2"]
    shown = rollouts["rollouts"][0]
    assert {name: shown[name] for name in ("id", "environment", "max_reward", "num_messages", "created_at")} == {
        "id": "r3",
        "environment": "owner/env",
        "max_reward": 3.0,
        "num_messages": 3,
        "created_at": "2023-11-14T22:13:20.003+00:00",
    }
    for search, names in (
        ("first", ["first_run"]),
        ("%", ["second%run"]),
        ("_", ["first_run"]),
        ("FIRST_", ["first_run"]),
    ):
        found = (await client.http.get("/v1/runs", params={"search": search})).json()
        assert ([run["name"] for run in found["runs"]], found["total"]) == (names, 1)
    assert [run["name"] for run in (await client.get("/v1/runs?limit=1&offset=1")).json()["runs"]] == ["first_run"]


async def test_a_run_whose_name_has_slashes(start: Start) -> None:
    client = start()
    name = "team/2026/rollouts"
    await upload(client, rollout("r", name))
    run = (await client.get("/v1/runs")).json()["runs"][0]
    assert (await client.get("/v1/runs/team%2F2026%2Frollouts/rollouts")).json()["total"] == 1
    assert (await client.get(f"/v1/runs/{run['id']}")).json()["name"] == name


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_calls_are_answered_while_the_file_is_held(start: Start, data_dir: Path) -> None:
    client = start()
    sid = await client.open()
    await upload(client, rollout("r"))
    other = sqlite3.connect(data_dir / "rollouts.sqlite3", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    waiting = asyncio.create_task(upload(client, message("r", 0)))
    for number in range(20):
        assert (await client.call(sid, "echo", {"text": str(number)})).text == str(number)
    assert (await client.get("/v1/runs")).json()["total"] == 1
    assert not waiting.done()
    other.execute("ROLLBACK")
    other.close()
    assert (await waiting).json() == {"stored": 1}


async def test_the_document_describes_them(start: Start) -> None:
    document = (await start().get("/openapi.json")).json()
    operation = document["paths"]["/v1/rollouts"]["post"]
    assert {"200", "413", "422", "503"} <= set(operation["responses"])
    assert "RolloutEvent" in json.dumps(document["components"]["schemas"]["Upload"])
    assert {"/v1/runs", "/v1/runs/{run}", "/v1/runs/{run}/rollouts"} <= set(document["paths"])
