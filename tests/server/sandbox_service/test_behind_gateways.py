"""The sandbox service of a server with several workers: one of them has the sandboxes, and gateways find it."""

from __future__ import annotations

import asyncio
import base64
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from ors_server import Settings
from ors_server.cluster.supervisor.control import ask
from ors_server.keys.exposure import add_key
from ors_server.keys.key import Limits
from ors_server.sandboxes import sandboxes_unavailable
from tests.support.cut_connections import answered, streamed
from tests.support.events import Reply, parse_events
from tests.support.servers import Running, running

BODY = {"environment": "owner/Name", "image": "host", "machine_size": "1:1", "bucket_config": {"mount_path": "/data"}}

#: The keys of the server by their names.
KEYS: dict[str, str] = {}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Running]:
    if reason := asyncio.run(sandboxes_unavailable()):
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("sandboxes")
    for name, limits in (("anna", Limits()), ("bert", Limits(sandboxes=1, sandbox_size="1:1.5"))):
        KEYS[name] = add_key(Settings(data_dir=folder / "data"), name, limits)
    command = [sys.executable, "-m", "ors_cli", "serve", "echo", "--workers", "2", "--gateways", "2", "--port", "0"]
    variables = {"ORS_SANDBOX_SERVICE": "yes", "ORS_DATA_DIR": str(folder / "data")}
    with running(command, folder, variables=variables) as server:
        yield server


@pytest.fixture
def client(server: Running) -> Generator[httpx.Client]:
    """Return a client of the first key that opens a connection for each request, so that both gateways are used."""
    limits = httpx.Limits(max_keepalive_connections=0)
    headers = {"X-API-Key": KEYS["anna"]}
    with httpx.Client(base_url=server.url, timeout=60, trust_env=False, limits=limits, headers=headers) as client:
        yield client


def run(client: httpx.Client, sid: str, command: str, **fields: Any) -> Reply:
    response = client.post("/run", json={"cmd": command, **fields}, headers={"X-Session-ID": sid})
    assert response.status_code == 200, response.text
    return Reply(parse_events(response.content))


def output(reply: Reply) -> str:
    return base64.b64decode(reply.result["output"]).decode()


def opened(client: httpx.Client) -> str:
    reply = Reply(parse_events(client.post("/create_sandbox", json=BODY).content))
    assert reply.result == {"sid": reply.task_id}
    return reply.task_id


def test_a_sandbox_is_found_by_its_id_through_every_gateway(client: httpx.Client) -> None:
    assert client.put("/v1/files/Name/a.txt", content=b"data").json()["size"] == 4
    first, second = opened(client), opened(client)
    for sid in (first, second, first, second):
        assert output(run(client, sid, "echo x >> /tmp/count; cat /data/a.txt /tmp/count")).startswith("datax\n")
        assert client.post("/ping", headers={"X-Session-ID": sid}).json() == {"status": "ok"}
    again = run(client, first, "echo x >> /tmp/count; wc -l < /tmp/count")
    for _ in range(4):  # the result of the same command, which has run once
        assert output(run(client, first, "", task_id=again.task_id)) == output(again) == "3\n"
        creation = client.post("/create_sandbox", json={**BODY, "task_id": first})
        assert Reply(parse_events(creation.content)).result == {"sid": first}
    assert client.post("/delete_session", headers={"X-Session-ID": first}).status_code == 200
    assert client.post("/run", json={"cmd": "true"}, headers={"X-Session-ID": first}).status_code == 410
    assert client.post("/run", json={"cmd": "true"}, headers={"X-Session-ID": "unknown"}).status_code == 410
    assert client.get("/list_environments").json() == ["echoenvironment"]


def test_a_sandbox_belongs_to_its_key(server: Running, client: httpx.Client) -> None:
    sid = opened(client)
    headers = {"X-API-Key": KEYS["bert"]}
    with httpx.Client(base_url=server.url, timeout=60, trust_env=False, headers=headers) as other:
        for path in ("/ping", "/run", "/stat_file?path=/etc/passwd", "/read_file?path=/etc/passwd"):
            assert other.post(path, json={"cmd": "true"}, headers={"X-Session-ID": sid}).status_code == 410
        assert other.post("/create_sandbox", json={**BODY, "task_id": sid}).status_code == 410
        other.post("/delete_session", headers={"X-Session-ID": sid})
        assert client.post("/ping", headers={"X-Session-ID": sid}).json() == {"status": "ok"}
        large = other.post("/create_sandbox", json={**BODY, "machine_size": "1:2"})
        assert large.status_code == 400 and "'bert' allows a sandbox: 1:1.5" in large.text
        own = opened(other)
        refused = other.post("/create_sandbox", json=BODY)
        assert refused.status_code == 503 and "1 sandboxes" in refused.text
        assert other.post("/delete_session", headers={"X-Session-ID": own}).status_code == 200
        assert other.post("/delete_session", headers={"X-Session-ID": opened(other)}).status_code == 200
    assert client.post("/delete_session", headers={"X-Session-ID": sid}).status_code == 200


def test_the_worker_of_sandboxes_has_figures_and_a_page(client: httpx.Client) -> None:
    sid = opened(client)
    figures = client.get("/metrics").text.splitlines()
    for series in ('ors_worker_up{worker="2"} 1.0', 'ors_limit{limit="sandboxes",worker="2"} 1024.0'):
        assert series in figures
    assert any(line.startswith('ors_service_sandboxes{worker="2"}') for line in figures)
    with httpx.Client(base_url=client.base_url, timeout=60, trust_env=False) as browser:
        page = browser.get("/ui/login")
        found = re.search(r'name="form_token" value="([^"]+)"', page.text)
        assert found is not None
        browser.post("/ui/login", data={"form_token": found[1], "key": KEYS["anna"]})
        page = browser.get("/ui/sandboxes?worker=2")
        assert page.status_code == 200 and sid in page.text and "This is worker 2;" in page.text
        for path in ("", "/sessions", "/environments/echoenvironment", "/help"):  # it has no others
            page = browser.get(f"/ui{path}?worker=2")
            assert page.status_code == 200 and f"{path}?worker=2" not in page.text
    assert client.post("/delete_session", headers={"X-Session-ID": sid}).status_code == 200


def test_a_command_whose_client_has_gone_runs_once(client: httpx.Client) -> None:
    sid = opened(client)
    command = "echo x >> /tmp/count; sleep 2; wc -l < /tmp/count"
    with pytest.raises(httpx.ReadTimeout):
        client.post("/run", json={"cmd": command}, headers={"X-Session-ID": sid}, timeout=httpx.Timeout(60, read=0.3))
    assert output(run(client, sid, command)) == "1\n"


@pytest.mark.long
def test_the_end_of_their_worker_ends_sandboxes_and_no_session(server: Running, client: httpx.Client) -> None:
    session = client.post("/create_session").json()["sid"]
    created = client.post("/create", json={"split": "train", "index": 0}, headers={"X-Session-ID": session})
    assert created.status_code == 200
    sid = opened(client)
    with ThreadPoolExecutor(1) as pool:
        begun = threading.Event()
        command = pool.submit(streamed, client, "/run", {"cmd": "sleep 60"}, {"X-Session-ID": sid}, begun.set)
        assert begun.wait(60)
        *_, row = ask(server.port, {"command": "workers"})["workers"]
        os.kill(row["pid"], signal.SIGKILL)
        assert command.result(30).error.startswith("InfrastructureError")
    deadline = time.monotonic() + 60
    # 503 until it is started again and the gateway that is asked knows it: the next requests may go to another.
    while [answered(lambda: client.post("/create_sandbox", json={})).status_code for _ in range(8)] != [400] * 8:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    for path, body in (("/run", {"cmd": "true"}), ("/run", {"task_id": "a"}), ("/create_sandbox", {"task_id": sid})):
        assert client.post(path, json=body, headers={"X-Session-ID": sid}).status_code == 410
    assert client.post("/ping", headers={"X-Session-ID": sid}).status_code == 410
    assert client.post("/delete_session", headers={"X-Session-ID": sid}).status_code == 200
    assert client.post("/ping", headers={"X-Session-ID": session}).status_code == 200
    assert output(run(client, opened(client), "echo again")) == "again\n"
    assert Path(server.log).read_text().count("worker ended") == 1
