"""Nodes behind gateways: placement, joins and leaves, and what is left when a part dies."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ors_server.keys.cluster_key import ClusterKey
from tests.server.cluster.conftest import (
    KEY,
    LOST,
    WIRE,
    Cluster,
    client,
    create,
    free_port,
    open_session,
    ping,
    pinged,
    rows,
    until,
)


def test_nodes_join_serve_and_leave(cluster: Cluster) -> None:
    first, second = cluster.gateway(), cluster.gateway()
    one = cluster.node("one", first.url, second.url)
    cluster.node("two", first.url, second.url)
    with client(first.url) as a, client(second.url) as b:
        sids = [open_session(a) for _ in range(12)]
        assert [ping(b, sid) for sid in sids] == [200] * 12
        until(lambda: sum(row["sessions"] for row in rows(second.url)) == 12)
        held = {row["node"]: row["sessions"] for row in rows(second.url)}
        assert min(held.values()) >= 1
        # SIGTERM: the sessions get ORS_SHUTDOWN_TIMEOUT seconds, and new ones go elsewhere.
        one.process.terminate()
        until(lambda: "draining" in {row["state"] for row in rows(first.url)} or len(rows(first.url)) == 1)
        assert ping(a, open_session(a)) == 200
        assert one.process.wait(30) == 0
        assert [row["node"] for row in rows(first.url)] == ["two"]
        # Until the gateway has been there for a while, a place that it does not know may be that of a node to come.
        until(lambda: all(ping(a, sid) != 503 for sid in sids))
        states = [pinged(a, sid) for sid in sids]
        assert sum(state.status_code == 200 for state in states) == held["two"]
        assert all(state.json() == LOST for state in states if state.status_code != 200)


@pytest.mark.long
def test_a_gateway_that_starts_again_loses_no_session(cluster: Cluster) -> None:
    port = free_port()
    gateway = cluster.gateway(port)
    cluster.node("one", gateway.url)
    with client(gateway.url) as connection:
        sid = open_session(connection)
        assert create(connection, "of a client's own").status_code in (200, 503)
        until(lambda: create(connection, "of a client's own").status_code == 200)
    gateway.process.kill()
    gateway.process.wait()
    again = cluster.gateway(port)
    with client(again.url) as connection:
        seen = set[int]()

        def lives(which: str) -> bool:
            seen.add(status := ping(connection, which))
            return status == 200

        until(lambda: lives(sid))
        until(lambda: lives("of a client's own"))
        assert seen <= {200, 503}, "a session was said to be lost"


@pytest.mark.long
def test_a_killed_node_ends_its_sessions_alone(cluster: Cluster) -> None:
    gateway = cluster.gateway()
    one = cluster.node("one", gateway.url)
    cluster.node("two", gateway.url)
    with client(gateway.url) as connection:
        sids = [open_session(connection) for _ in range(10)]
        until(lambda: sum(row["sessions"] for row in rows(gateway.url)) == 10)
        held = {row["node"]: row for row in rows(gateway.url)}
        one.process.kill()
        os.kill(held["one"]["pid"], signal.SIGKILL)
        until(lambda: sum(ping(connection, sid) == 410 for sid in sids) == held["one"]["sessions"], 5)
        assert sum(ping(connection, sid) == 200 for sid in sids) == held["two"]["sessions"]
        until(lambda: [row["node"] for row in rows(gateway.url)] == ["two"])
        again = cluster.node("one", gateway.url)
        assert f"slots={held['one']['slot']}-{held['one']['slot']}" in again.log.read_text(), "its slot is its name's"


@pytest.mark.long
def test_the_workers_of_a_killed_supervisor_keep_their_sessions(cluster: Cluster) -> None:
    gateway = cluster.gateway()
    node = cluster.node("one", gateway.url)
    with client(gateway.url) as connection:
        sid = open_session(connection)
        node.process.kill()
        until(lambda: {row["state"] for row in rows(gateway.url)} == {"silent"})
        assert ping(connection, sid) == 200
        assert connection.post("/create_session").status_code == 503
        # A new supervisor takes other slots while they are in use.
        cluster.node("one", gateway.url)
        other = open_session(connection)
        assert [ping(connection, each) for each in (sid, other)] == [200, 200]
        connection.post("/delete", headers={"X-Session-ID": sid})


def test_a_worker_serves_gateways_alone_and_has_no_key(cluster: Cluster) -> None:
    gateway = cluster.gateway()
    node = cluster.node("one", gateway.url)
    token = ClusterKey(KEY.encode()).gateway_token
    [worker] = re.findall(r"serving url=(\S+)", node.log.read_text())
    with client(worker) as stranger:
        for headers in ({}, {"X-ORS-Gateway": "wrong"}, {"X-ORS-Gateway": ""}):
            refused = stranger.get("/health", headers=headers)
            assert refused.status_code == 403
            assert "ORS_CLUSTER_KEY" in refused.json()["detail"]
        assert stranger.get("/health", headers={"X-ORS-Gateway": token}).status_code == 200
    with client(gateway.url) as outside:
        # Neither harms the connection to the worker, which other clients use after it.
        assert outside.get("/list_environments", headers={"X-ORS-Gateway": "wrong"}).status_code == 200
        assert outside.get("/list_environments").status_code == 200
        assert outside.get("/_ors/nodes").status_code == 404
        wrong = outside.get("/_ors/nodes", headers={"X-ORS-Cluster": "wrong"})
        assert (wrong.status_code, "ORS_CLUSTER_KEY" in wrong.json()["detail"]) == (403, True)
    pid = rows(gateway.url)[0]["pid"]
    for process in (node.process.pid, pid, gateway.process.pid):
        assert KEY.encode() not in Path(f"/proc/{process}/cmdline").read_bytes()
    environment = Path(f"/proc/{pid}/environ").read_bytes()
    assert KEY.encode() not in environment
    assert token.encode() not in environment
    for log in (node.log, gateway.log):
        assert KEY not in log.read_text()
        assert token not in log.read_text()


def run(*arguments: str, key: str | None = KEY, seconds: float = 60) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ORS_")}
    if key is not None:
        environment["ORS_CLUSTER_KEY"] = key
    command = [sys.executable, "-m", "ors_cli", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds, check=False)


@pytest.mark.long
def test_what_cannot_join_says_why(cluster: Cluster) -> None:
    gateway = cluster.gateway()
    cluster.node("one", gateway.url)
    for key, words in (
        (None, "no cluster key"),
        ("short", "fewer than 16"),
        ("x" * 20, "key of this gateway is another"),
    ):
        done = run("node", "--join", gateway.url, "--name", "other", WIRE, key=key)
        assert (done.returncode, words in done.stderr) == (2, True), done.stderr
    twin = run("node", "--join", gateway.url, "--name", "one", WIRE)
    assert (twin.returncode, "Another node named one" in twin.stderr) == (2, True), twin.stderr
    assert "is not the address of a gateway" in run("node", "--join", "ftp://nowhere", WIRE).stderr
    assert run("gateway", "--port", "0", key=None).returncode == 2
    assert "No gateway can be reached" in run("workers", "--gateway", f"http://127.0.0.1:{free_port()}").stderr


@pytest.mark.long
def test_a_node_waits_for_gateways_and_says_so(cluster: Cluster) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    folder_url = f"http://127.0.0.1:{port}"
    node = subprocess.Popen(
        [sys.executable, "-m", "ors_cli", "node", "--join", folder_url, "--name", "early", WIRE],
        env={**os.environ, "ORS_CLUSTER_KEY": KEY, "ORS_SHUTDOWN_TIMEOUT": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert node.stderr is not None
    try:
        until(lambda: "cannot be reached" in (node.stderr.readline() if node.stderr else ""))
        node.send_signal(signal.SIGSTOP)  # the gateway is asked before the node finds it
        gateway = cluster.gateway(port)
        with client(gateway.url) as connection:
            assert connection.get("/health").status_code == 503
            assert connection.post("/create_session").status_code == 503
            node.send_signal(signal.SIGCONT)
            assert ping(connection, open_session(connection)) == 200
    finally:
        node.send_signal(signal.SIGCONT)
        node.terminate()
        node.wait(20)
        node.stderr.close()


@pytest.mark.long
def test_drain_replaces_the_workers_of_a_node(cluster: Cluster) -> None:
    gateway = cluster.gateway()
    cluster.node("one", gateway.url)
    before = rows(gateway.url)[0]["pid"]
    assert "There is no slot and no node two" in run("drain", "two", "--gateway", gateway.url).stderr
    done = run("drain", "one", "--gateway", gateway.url)
    assert (done.returncode, "one" in done.stdout) == (0, True), done.stderr
    until(lambda: rows(gateway.url)[0]["pid"] not in (before, None))
    until(lambda: rows(gateway.url)[0]["state"] == "serving")
    with client(gateway.url) as connection:
        assert ping(connection, open_session(connection)) == 200


@pytest.mark.long
def test_an_id_of_a_clients_own_stays_where_it_is_when_nodes_join_and_leave(cluster: Cluster) -> None:
    gateway = cluster.gateway()
    cluster.node("one", gateway.url)
    with client(gateway.url) as connection:
        sids = [f"mine-{number}" for number in range(12)]
        until(lambda: create(connection, sids[0]).status_code == 200)
        assert all(create(connection, sid).status_code == 200 for sid in sids)
        two = cluster.node("two", gateway.url, workers=2)
        assert [ping(connection, sid) for sid in sids] == [200] * 12
        assert all(create(connection, sid).status_code == 200 for sid in sids), "the same session again"
        assert sum(row["sessions"] for row in rows(gateway.url)) == 12
        later = [f"later-{number}" for number in range(12)]
        assert all(create(connection, sid).status_code == 200 for sid in later)
        until(lambda: sum(row["sessions"] for row in rows(gateway.url)) == 24)
        on_two = sum(row["sessions"] for row in rows(gateway.url) if row["node"] == "two")
        assert on_two > 0
        assert ping(connection, "never heard of") in (404, 410)
        two.process.terminate()
        assert two.process.wait(30) == 0
        assert [ping(connection, sid) for sid in sids] == [200] * 12
        assert sum(ping(connection, sid) == 410 for sid in later) == on_two
        lost = next(sid for sid in later if ping(connection, sid) == 410)
        assert create(connection, lost).status_code == 200, "a new session of the same id"


@pytest.mark.long
def test_a_stop_ends_all_nodes_at_once_when_their_sessions_have_ended(cluster: Cluster) -> None:
    """Slurm ends a job so: nodes must not be replaced, nor wait for each other."""
    gateway = cluster.gateway()
    nodes = [cluster.node(name, gateway.url, ORS_SHUTDOWN_TIMEOUT="0.1") for name in ("one", "two")]
    assert "There is no node three" in run("drain", "three", "--stop", "--gateway", gateway.url).stderr
    with client(gateway.url) as connection:
        sids = [open_session(connection) for _ in range(8)]
        stopping = threading.Thread(
            target=run, args=("drain", "--all", "--stop", "--wait", "--deadline", "60", "--gateway", gateway.url)
        )
        stopping.start()
        until(lambda: connection.post("/create_session").status_code == 503)
        time.sleep(2)
        assert [ping(connection, sid) for sid in sids] == [200] * 8
        assert stopping.is_alive()
        for sid in sids:
            connection.post("/delete", headers={"X-Session-ID": sid})
        stopping.join(60)
        assert not stopping.is_alive()
        assert [node.process.wait(30) for node in nodes] == [0, 0]
        assert rows(gateway.url) == []
