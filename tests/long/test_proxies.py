"""A server behind nginx and behind HAProxy, of Debian's packages, with the configuration of ``docs/scale.md``."""

import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.protocol.live import LiveServer, live_server
from tests.support.cut_connections import streamed
from tests.support.events import Reply, parse_events
from tests.support.paths import DOCS

pytestmark = pytest.mark.long


@dataclass(frozen=True)
class Proxied:
    """A proxy in front of a server."""

    server: LiveServer
    proxy: "subprocess.Popen[bytes]"
    url: str


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _documented(kind: str) -> str:
    block = re.search(rf"```{kind}\n(.*?)```", (DOCS / "scale.md").read_text(), re.DOTALL)
    assert block is not None
    return block[1]


def nginx_command(folder: Path, port: int, server: int) -> list[str]:
    """Write the configuration of the documentation for these ports; return the command."""
    text = _documented("nginx").replace("unix:/run/ors/server.sock", f"127.0.0.1:{server}")
    text = text.replace("8080", f"127.0.0.1:{port}")
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    paths = "".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
    (folder / "nginx.conf").write_text(
        f"daemon off; pid {folder}/pid; error_log {folder}/error; worker_processes 1; events {{}}"
        f" http {{ access_log off; {paths} {text} }}"
    )
    return ["nginx", "-e", f"{folder}/error", "-c", f"{folder}/nginx.conf"]


def _haproxy(folder: Path, port: int, server: int) -> list[str]:
    text = _documented("haproxy").replace("unix@/run/ors/server.sock", f"127.0.0.1:{server}")
    (folder / "haproxy.cfg").write_text(text.replace(":8080", f"127.0.0.1:{port}"))
    return ["haproxy", "-f", f"{folder}/haproxy.cfg"]


@contextmanager
def _proxied(program: str, folder: Path) -> Generator[Proxied]:
    if shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin") is None:
        pytest.skip(f"{program} is not installed")
    with live_server(listen="tcp:127.0.0.1:0") as server:
        port = _free_port()
        command = (nginx_command if program == "nginx" else _haproxy)(folder, port, server.port)
        proxy = subprocess.Popen(command, start_new_session=True)
        try:
            url = f"http://127.0.0.1:{port}"
            end = time.monotonic() + 20
            while True:
                try:
                    httpx.get(f"{url}/health", trust_env=False).raise_for_status()
                    break
                except httpx.HTTPError:
                    assert proxy.poll() is None
                    assert time.monotonic() < end
                    time.sleep(0.05)
            yield Proxied(server, proxy, url)
        finally:
            os.killpg(proxy.pid, signal.SIGKILL)
            proxy.wait()


@pytest.fixture(scope="module", params=["nginx", "haproxy"])
def proxied(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Generator[Proxied]:
    with _proxied(request.param, tmp_path_factory.mktemp(request.param)) as proxied:
        yield proxied


def _open(url: str, sid: str) -> dict[str, str]:
    headers = {"X-Session-ID": sid}
    created = httpx.post(f"{url}/create", json={"split": "train", "index": 0}, headers=headers, trust_env=False)
    assert created.status_code == 200, created.text
    return headers


def _run(client: httpx.Client, headers: dict[str, str], **input: Any) -> int:
    response = client.post("/call", json={"name": "step", "input": input}, headers=headers)
    assert response.status_code == 200, response.text
    return int(Reply(parse_events(response.content)).output["metadata"]["run"])


def test_the_same_call_a_hundred_times_runs_a_hundred_times(proxied: Proxied) -> None:
    """Over connections that the proxy reuses, and over new ones."""
    headers = _open(proxied.url, "hundred")
    with httpx.Client(base_url=proxied.url, trust_env=False) as client:
        assert [_run(client, headers, text="x") for _ in range(100)] == list(range(1, 101))
    for run in range(101, 121):
        with httpx.Client(base_url=proxied.url, trust_env=False) as client:
            assert _run(client, headers, text="x", milliseconds=60) == run


def test_a_call_whose_client_has_gone_is_attached_to(proxied: Proxied) -> None:
    headers = _open(proxied.url, "gone")
    with httpx.Client(base_url=proxied.url, trust_env=False) as client:
        with pytest.raises(httpx.ReadTimeout):
            client.post("/call", json={"name": "step", "input": {"milliseconds": 900}}, headers=headers, timeout=0.02)
        time.sleep(0.1)
        assert _run(client, headers, milliseconds=900) == 1


@pytest.mark.parametrize("program", ["nginx", "haproxy"])
def test_calls_under_way_when_the_proxy_is_killed_run_once(program: str, tmp_path: Path) -> None:
    with _proxied(program, tmp_path) as proxied:
        sessions = [_open(proxied.url, f"killed-{number}") for number in range(20)]
        begun: list[str] = []
        cut: list[str] = []

        def call(headers: dict[str, str]) -> None:
            body = {"name": "step", "input": {"milliseconds": 5000}}
            try:
                with httpx.Client(base_url=proxied.url, timeout=60, trust_env=False) as client:
                    streamed(client, "/call", body, headers, lambda: begun.append(headers["X-Session-ID"]))
            except httpx.TransportError:
                cut.append(headers["X-Session-ID"])

        threads = [threading.Thread(target=call, args=(headers,)) for headers in sessions]
        for thread in threads:
            thread.start()
        end = time.monotonic() + 20
        while len(begun) < 20:
            assert time.monotonic() < end
            time.sleep(0.01)
        os.killpg(proxied.proxy.pid, signal.SIGKILL)
        for thread in threads:
            thread.join()
        assert len(cut) == 20
        with httpx.Client(base_url=proxied.server.url, timeout=60, trust_env=False) as client:
            assert [_run(client, headers, milliseconds=5000) for headers in sessions] == [1] * 20
