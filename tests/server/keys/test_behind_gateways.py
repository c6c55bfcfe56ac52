"""Keys of a server with two workers behind two gateways."""

import http.client
import os
import signal
import socket
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ors_server import Settings
from ors_server.cluster.gateway.proxy.framing import read_head
from ors_server.cluster.gateway.routing.auth import Guard, Visitor
from ors_server.cluster.supervisor.control import ask
from ors_server.http.routes.operations import OPERATIONS
from ors_server.keys.exposure import add_key
from ors_server.keys.file import changed, keys_file
from ors_server.keys.key import Limits
from ors_server.keys.keys import Keys
from ors_server.keys.login_throttle import _BURST  # pyright: ignore[reportPrivateUsage]
from tests.server.gateway.conftest import WIRE, ping
from tests.support.cut_connections import answered
from tests.support.servers import Running, running_workers


class Fortress:
    """The server, and its keys."""

    def __init__(self, running: Running, settings: Settings) -> None:
        self.running = running
        self.settings = settings

    def client(self, secret: str = "", address: str = "127.0.0.1", *, keep: bool = True) -> httpx.Client:
        """Return a client at an address of this machine; without ``keep`` each request has a connection of its own."""
        return httpx.Client(
            base_url=self.running.url,
            headers={"X-API-Key": secret} if secret else {},
            transport=httpx.HTTPTransport(
                local_address=address, limits=httpx.Limits(max_keepalive_connections=None if keep else 0)
            ),
            timeout=30,
        )

    def add(self, name: str, **limits: Any) -> str:
        return add_key(self.settings, name, Limits(**limits))


@pytest.fixture(scope="module")
def fortress(tmp_path_factory: pytest.TempPathFactory) -> Generator[Fortress]:
    """Start it on the loopback device; it has a key from the start."""
    folder = tmp_path_factory.mktemp("fortress")
    settings = Settings(data_dir=folder / "data")
    add_key(settings, "first")
    with running_workers(folder, f"{WIRE}:Wire") as running:
        yield Fortress(running, settings)


def open_session(client: httpx.Client, sid: str | None = None) -> str:
    sid = sid or str(client.post("/create_session").json()["sid"])
    created = client.post("/create", json={"split": "train", "index": 0}, headers={"X-Session-ID": sid})
    assert created.status_code == 200, created.text
    return sid


def call(client: httpx.Client, sid: str) -> httpx.Response:
    return client.post("/call", json={"name": "step", "input": {}}, headers={"X-Session-ID": sid})


def test_every_route_wants_a_key(fortress: Fortress) -> None:
    paths = [f"{operation.prefix}/{name}" for name, operation in OPERATIONS.items()]
    paths += ["/openapi.json", "/docs", "/metrics", "/v1/runs", "/v1/environments", "/wire/tools", "/"]
    with fortress.client(fortress.add("routes")) as keyed, fortress.client() as client:
        sid = open_session(keyed)
        for path in paths:
            tries = [(method, path, sid) for method in ("GET", "POST", "HEAD", "OPTIONS")]
            tries += [("POST", spelt, "chosen") for spelt in (f"/{path}", f"{path}/", path.replace("e", "%65"))]
            for method, spelt, given in tries:
                response = client.request(method, spelt, headers={"X-Session-ID": given})
                is_open = path in ("/health", "/ready", "/version")
                assert response.status_code == 401 or is_open, (method, spelt, response)
        assert client.get("/health").json() == {"status": "ok"}
        assert client.get("/version").status_code == 200
        for path in ("/_ors/state", "/_ors/session", "/_ors/nodes", "/_ors/drain", "/%5fors/state"):
            assert client.get(path).status_code == 404  # as with a key
            assert keyed.get(path).status_code == 404
        assert call(keyed, sid).status_code == 200
    # As they are: httpx would normalise them.
    for path in ("/./_ors/state", "/x/../_ors/state", "//_ors/state", "/_ors", "/_ors%2fstate/", "/health/../v1/runs"):
        raw = http.client.HTTPConnection("127.0.0.1", fortress.running.port)
        raw.request("GET", path)
        status = raw.getresponse().status
        raw.close()
        assert status in (401, 404), path


def test_sessions_belong_to_their_key(fortress: Fortress) -> None:
    with fortress.client(fortress.add("a")) as mine, fortress.client(fortress.add("b")) as yours:
        placed, chosen = open_session(mine), open_session(mine, "chosen")
        for sid in (placed, chosen):
            assert call(mine, sid).status_code == 200
            assert (call(yours, sid).status_code, call(yours, sid).json()) == (
                404,
                {"detail": "Active environment not found"},
            )
        # The same id of another key is another session.
        assert open_session(yours, "chosen") == "chosen"
        assert yours.post("/delete", headers={"X-Session-ID": "chosen"}).status_code == 200
        assert call(mine, chosen).status_code == 200


def test_a_guesser_keeps_no_other_address_out(fortress: Fortress) -> None:
    secret = fortress.add("guessed")
    with (
        fortress.client(secret, "127.0.0.2") as friend,
        fortress.client(address="127.0.0.2", keep=False) as guesser,
        fortress.client(secret, "127.0.0.3", keep=False) as elsewhere,
    ):
        sid = open_session(friend)
        statuses: list[int] = []
        for number in range(6 * _BURST):
            path = ("/list_environments", "/create_session")[number % 2]  # the second is the gateway's own
            response = guesser.request(
                ("GET", "POST")[number % 2], path, headers={"X-API-Key": f"guess-{number}-{'x' * 20}"}
            )
            statuses.append(response.status_code)
        assert set(statuses) == {401, 429}
        assert statuses.count(401) <= 2 * _BURST + 20  # each gateway counts, and some drain away meanwhile
        # Its address is kept out, with the right key too; a connection that was let in before goes on.
        late = [guesser.get("/list_environments", headers={"X-API-Key": secret}) for _ in range(8)]
        assert 429 in [response.status_code for response in late]
        assert call(friend, sid).status_code == 200
        assert guesser.get("/health").status_code == 200
        assert [elsewhere.get("/list_environments").status_code for _ in range(8)] == [200] * 8


def test_an_open_path_does_not_vouch_for_a_key(tmp_path: Path) -> None:
    """A guesser that first asks for /version with each guess is counted all the same."""
    guard, visitor = Guard(Keys(tmp_path / "none")), Visitor("192.0.2.1")
    refused = 0
    for number in range(3 * _BURST):
        for path, status in (("/version", b"200"), ("/call", b"401")):
            head = read_head(f"GET {path} HTTP/1.1\r\nhost: x\r\nx-api-key: guess-{number}\r\n\r\n".encode())
            answer = guard.admit(head, visitor, path)
            if answer is None:
                guard.note(visitor, b"HTTP/1.1 " + status + b" Reason\r\n")
            else:
                assert answer.startswith(b"HTTP/1.1 429 ")
                refused += 1
    assert refused >= 2 * _BURST - 1


def test_limits_count_over_all_workers(fortress: Fortress) -> None:
    with fortress.client(fortress.add("limited", sessions=3)) as client:
        sessions = [open_session(client) for _ in range(3)]
        sid = str(client.post("/create_session").json()["sid"])
        for _ in range(4):
            refused = client.post("/create", json={"split": "train", "index": 0}, headers={"X-Session-ID": sid})
            assert refused.status_code == 503
            assert "3 sessions at once" in refused.json()["detail"]
        client.post("/delete", headers={"X-Session-ID": sessions[0]})
        open_session(client, sid)


def test_a_revoked_key_is_out_of_every_process(fortress: Fortress) -> None:
    secret = fortress.add("leaver")
    clients = [fortress.client(secret) for _ in range(6)]
    sessions = [open_session(client) for client in clients]
    with changed(keys_file(fortress.settings)) as keys:
        keys[:] = [key for key in keys if key.name != "leaver"]
    time.sleep(0.1)  # as `keys revoke` does
    for client, sid in zip(clients, sessions, strict=True):
        assert call(client, sid).status_code == 401
        assert client.post("/create_session").status_code == 401
        client.close()


def test_a_request_without_end_is_refused(fortress: Fortress) -> None:
    with socket.create_connection(("127.0.0.1", fortress.running.port)) as sock:
        sock.sendall(b"POST /call HTTP/1.1\r\nhost: x\r\ncontent-length: 100000000\r\nx-session-id: x\r\n\r\n{")
        sock.settimeout(10)
        sock.sendall(b" " * 65_536)
        # The refusal may wait for the body; it never is anything else.
        sock.shutdown(socket.SHUT_WR)
        received = b""
        while data := sock.recv(65_536):
            received += data
        assert received[9:12] in (b"", b"401")


def test_what_happened_to_a_session_only_its_owner_learns(fortress: Fortress) -> None:
    with fortress.client(fortress.add("victim")) as client, fortress.client() as stranger:
        sid = open_session(client)
        rows = ask(fortress.running.port, {"command": "workers"})["workers"]
        for row in rows:
            os.kill(row["pid"], signal.SIGKILL)
        statuses: set[int] = set()
        deadline = time.monotonic() + 30
        while True:
            assert time.monotonic() < deadline, statuses
            assert ping(stranger, sid).status_code == 401
            status = ping(client, sid).status_code
            statuses.add(status)
            if status == 410:
                break
        deadline = time.monotonic() + 60
        while answered(lambda: client.get("/health")).status_code != 200:  # others of this module go on
            assert time.monotonic() < deadline
            time.sleep(0.2)
