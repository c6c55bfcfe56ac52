"""A node that stops, and a cable that is cut: 3 s without new sessions, 10 s until its sessions are lost."""

import contextlib
import http.server
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Generator
from typing import Any

import httpx
import pytest

from tests.server.cluster.conftest import LOST, Cluster, client, open_session, ping, pinged, rows, until

pytestmark = pytest.mark.long


def timed_ping(url: str, sid: str) -> tuple[float, Any]:
    """Send a ping until it is answered; return the seconds it took, and the answer."""
    begun = time.monotonic()
    with client(url) as connection:
        response = pinged(connection, sid)  # the first ends with the lease: clients send it again
        return time.monotonic() - begun, response.json()


def test_a_node_that_freezes_and_comes_back_keeps_its_sessions(cluster: Cluster) -> None:
    gateway = cluster.gateway()
    one = cluster.node("one", gateway.url)
    cluster.node("two", gateway.url)
    with client(gateway.url) as connection:
        sids = [open_session(connection) for _ in range(10)]
        until(lambda: sum(row["sessions"] for row in rows(gateway.url)) == 10)
        pid = next(row["pid"] for row in rows(gateway.url) if row["node"] == "one")
        os.kill(one.process.pid, signal.SIGSTOP)
        os.kill(pid, signal.SIGSTOP)
        states: dict[str, tuple[float, Any]] = {}

        def wait(sid: str) -> None:
            states[sid] = timed_ping(gateway.url, sid)

        threads = [threading.Thread(target=wait, args=(sid,)) for sid in sids]
        for thread in threads:
            thread.start()
        time.sleep(4)
        placed = [open_session(connection) for _ in range(6)]
        assert LOST not in [answer for _, answer in states.values()], "new sessions wait for the lease"
        assert [ping(connection, sid) for sid in placed] == [200] * 6
        for thread in threads:
            thread.join()
        lost = [sid for sid, (_, answer) in states.items() if answer == LOST]
        assert lost
        assert len(lost) < 10
        assert all(8 < states[sid][0] < 13 for sid in lost)
        assert all(states[sid][0] < 1 for sid in sids if sid not in lost)
        assert [row["node"] for row in rows(gateway.url)] == ["two"]
        os.kill(one.process.pid, signal.SIGCONT)
        os.kill(pid, signal.SIGCONT)
        until(lambda: [ping(connection, sid) for sid in sids] == [200] * 10)


class Cable:
    """A way to a node, through which nothing passes once it is cut; connections stay open."""

    def __init__(self) -> None:
        self.whole = threading.Event()
        self.whole.set()
        self._ports: dict[int, int] = {}
        self._sockets: list[socket.socket] = []

    def port(self, port: int) -> int:
        """Return the port of this end for one at the other end."""
        if port not in self._ports:
            listening = self._keep(socket.create_server(("127.0.0.1", 0)))
            self._ports[port] = listening.getsockname()[1]
            threading.Thread(target=self._accept, args=(listening, port), daemon=True).start()
        return self._ports[port]

    def _keep(self, sock: socket.socket) -> socket.socket:
        self._sockets.append(sock)
        return sock

    def _accept(self, listening: socket.socket, port: int) -> None:
        while True:
            try:
                near = self._keep(listening.accept()[0])
            except OSError:
                return
            self.whole.wait()
            try:
                far = self._keep(socket.create_connection(("127.0.0.1", port)))
            except OSError:
                near.close()
                continue
            for source, target in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=(source, target), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(2**16):
                self.whole.wait()
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.whole.set()
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads it
            sock.close()


@pytest.fixture
def cable() -> Generator[Cable]:
    cable = Cable()
    yield cable
    cable.close()


@contextlib.contextmanager
def registering_through(cable: Cable, gateway: str) -> Generator[str]:
    """Yield the URL at which a node joins a gateway that reaches its workers through the cable."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            message = json.loads(self.rfile.read(int(self.headers["content-length"])))
            cable.whole.wait()
            for member in message["members"]:
                member[2] = f"tcp:127.0.0.1:{cable.port(int(member[2].rpartition(':')[2]))}"
            token = {"x-ors-cluster": self.headers["x-ors-cluster"]}
            reply = httpx.post(f"{gateway}{self.path}", json=message, headers=token, trust_env=False)
            with contextlib.suppress(OSError):  # the node no longer waits
                self.send_response(reply.status_code)
                self.end_headers()
                self.wfile.write(reply.content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        cable.whole.set()
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_cut_cable_is_noticed_and_a_new_one_reaches_the_sessions_again(cluster: Cluster, cable: Cable) -> None:
    gateway = cluster.gateway()
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(registering_through(cable, gateway.url))
        connection = stack.enter_context(client(gateway.url))
        join = ["--join", url, "--advertise", "127.0.0.1"]
        cluster.start("node", *join, "echo", ORS_SHUTDOWN_TIMEOUT="1").logged("node serves")
        until(lambda: connection.post("/create_session").status_code == 200)
        sid = connection.post("/create_session").json()["sid"]
        content = {"split": "train", "index": 0}
        assert connection.post("/create", json=content, headers={"X-Session-ID": sid}).status_code == 200
        assert ping(connection, sid) == 200
        cable.whole.clear()
        seconds, answer = timed_ping(gateway.url, sid)
        assert answer == LOST
        assert 8 < seconds < 30
        assert connection.post("/create_session").status_code == 503
        assert timed_ping(gateway.url, sid)[0] < seconds / 4, "no later request waits"
        cable.whole.set()
        until(lambda: ping(connection, sid) == 200)
        until(lambda: connection.post("/create_session").status_code == 200)
