"""A server with several workers: where sessions live, and what is left when a process of it dies."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from ors_server.cluster.errors import ControlError
from ors_server.cluster.supervisor.control import ask
from tests.server.gateway.conftest import WIRE, Several, call, ping, reply, start_several
from tests.support.cut_connections import streamed
from tests.support.processes import children

LOST = {"detail": "Session lost: InfrastructureError: the worker that held it ended. Start a new session"}


def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


def test_sessions_are_spread_and_every_request_finds_its_own(several: Several) -> None:
    before = {row["slot"]: row["sessions"] for row in several.workers()}
    with several.client() as client:
        sids = [several.open(client) for _ in range(20)]
        for count in (1, 2):
            assert [reply(call(client, sid, text=sid)).output["metadata"]["run"] for sid in sids] == [count] * 20
        until(lambda: sum(row["sessions"] for row in several.workers()) == sum(before.values()) + 20)
        assert min(row["sessions"] - before[row["slot"]] for row in several.workers()) >= 5
        for sid in sids:
            assert client.post("/delete", headers={"X-Session-ID": sid}).json() == {"sid": sid}
            assert call(client, sid).status_code == 410


def test_an_id_of_the_clients_own_stays_with_one_worker(several: Several) -> None:
    with several.client() as client:
        for number in range(10):
            headers = {"X-Session-ID": f"mine-{number}"}
            assert client.post("/create", json={"split": "train", "index": 0}, headers=headers).status_code == 200
            for run in (1, 2, 3):
                assert reply(call(client, f"mine-{number}")).output["metadata"]["run"] == run
            client.post("/delete", headers=headers)
        assert client.post("/ping", headers={"X-Session-ID": "never heard of"}).status_code == 404


def test_listings_and_refusals_are_those_of_one_server(several: Several) -> None:
    with several.client() as client:
        assert client.get("/health").json() == {"status": "ok"}
        assert client.get("/ready").json() == {"status": "ready"}
        assert client.get("/list_environments").json() == ["wire"]
        assert client.post("/wire/num_tasks", json={"split": "train"}).json() == {"num_tasks": 2}
        assert client.get("/docs").status_code == 200
        assert client.get("/prompt").status_code == 400
        assert client.get("/_ors/state").status_code == 404
        assert client.get(httpx.URL(several.url).copy_with(raw_path=b"//health/")).json() == {"status": "ok"}
        several_ids = client.post("/ping", headers=[("X-Session-ID", "a"), ("X-Session-ID", "b")])
        assert (several_ids.status_code, several_ids.json()) == (
            400,
            {"detail": "Several X-Session-ID headers. Send one"},
        )


def test_the_death_of_a_worker_ends_its_sessions_alone_and_its_slot_serves_again(tmp_path: Path) -> None:
    with start_several(tmp_path, f"{WIRE}:Wire") as several, several.client() as client:
        sids = [several.open(client) for _ in range(12)]
        mine = {"X-Session-ID": "of a client's own"}
        assert client.post("/create", json={"split": "train", "index": 0}, headers=mine).status_code == 200
        cut: list[str] = []

        def long_call(sid: str) -> None:
            try:
                ended = reply(call(client, sid, milliseconds=20_000))
            except httpx.TransportError as error:  # before its stream was open
                cut.append(str(error))
            else:
                if ended.names[-1] == "error" and ended.error.startswith("InfrastructureError"):
                    cut.append(ended.error)

        threads = [threading.Thread(target=long_call, args=(sid,)) for sid in sids]
        for thread in threads:
            thread.start()
        until(lambda: sum(row["calls"] for row in several.workers()) == 12)
        first = several.workers()[0]
        os.kill(first["pid"], signal.SIGKILL)
        until(lambda: len(cut) == first["calls"])
        states = {sid: ping(client, sid) for sid in sids}
        lost = [response for response in states.values() if response.status_code != 200]
        assert len(lost) == len(cut) > 0
        assert all((response.status_code, response.json()) == (410, LOST) for response in lost)

        until(lambda: several.workers()[0]["state"] == "serving" and several.workers()[0]["restarts"] == 1)
        assert [ping(client, sid).status_code for sid in sids] == [each.status_code for each in states.values()]
        # An id of the client's own may have been the dead worker's: the answer says so, and not that it never existed.
        assert ping(client, mine["X-Session-ID"]).status_code in (200, 410)
        assert several.open(client)
        for sid in sids:
            client.post("/delete", headers={"X-Session-ID": sid})
        for thread in threads:
            thread.join()


def test_the_death_of_a_gateway_costs_no_session_and_no_second_run(tmp_path: Path) -> None:
    """Unkeyed calls whose gateway is killed while they run are attached to when they are repeated."""
    with start_several(tmp_path, f"{WIRE}:Wire") as several, several.client() as client:
        sids = [several.open(client) for _ in range(16)]
        answers: dict[str, int] = {}
        begun: list[str] = []
        cut: list[str] = []

        def insist(sid: str) -> None:
            while sid not in answers:
                body = {"name": "step", "input": {"text": sid, "milliseconds": 1500}}
                headers = {"X-Session-ID": sid}
                try:
                    answer = streamed(client, "/call", body, headers, lambda: begun.append(sid))
                    answers[sid] = answer.output["metadata"]["run"]
                except httpx.TransportError:
                    cut.append(sid)
                    time.sleep(0.02)

        threads = [threading.Thread(target=insist, args=(sid,)) for sid in sids]
        for thread in threads:
            thread.start()
        until(lambda: len(begun) >= 8)  # some of the calls suffice
        for gateway in several.gateways():  # one of them may have all connections
            if not cut:
                os.kill(gateway, signal.SIGKILL)
                time.sleep(0.2)
        for thread in threads:
            thread.join()
        assert cut
        assert set(answers.values()) == {1}
        assert {reply(call(client, sid, "count")).text for sid in sids} == {"1"}
        until(lambda: len(several.gateways()) == 2)


@pytest.mark.long
def test_a_stopped_worker_is_lost_after_its_lease_and_comes_back_with_its_sessions(tmp_path: Path) -> None:
    with start_several(tmp_path, f"{WIRE}:Wire", gateways=1) as several, several.client() as client:
        sids = [several.open(client) for _ in range(8)]
        first = several.workers()[0]["pid"]
        os.kill(first, signal.SIGSTOP)
        stopped = time.monotonic()
        statuses: dict[str, int] = {}
        try:
            for sid in sids:
                statuses[sid] = ping(client, sid).status_code  # the first waits until the worker counts as lost
            assert 9 < time.monotonic() - stopped < 30
            assert set(statuses.values()) == {200, 410}
            assert [several.open(client) for _ in range(4)]
        finally:
            os.kill(first, signal.SIGCONT)
        until(lambda: all(ping(client, sid).status_code == 200 for sid in sids))


@pytest.mark.long
def test_drain_replaces_a_worker_when_its_sessions_have_ended(tmp_path: Path) -> None:
    with start_several(tmp_path, f"{WIRE}:Wire", gateways=1) as several, several.client() as client:
        sids = [several.open(client) for _ in range(10)]
        first = several.workers()[0]["pid"]
        ask(several.running.port, {"command": "drain", "slots": [0], "deadline": 60})
        assert several.workers()[0]["state"] == "draining"
        time.sleep(2.5)
        others = [several.open(client) for _ in range(10)]
        assert [client.post("/ping", headers={"X-Session-ID": sid}).status_code for sid in sids + others] == [200] * 20
        assert several.workers()[0]["pid"] == first
        for sid in sids:
            client.post("/delete", headers={"X-Session-ID": sid})
        until(lambda: several.workers()[0]["pid"] not in (None, first) and several.workers()[0]["state"] == "serving")
        assert [client.post("/ping", headers={"X-Session-ID": sid}).status_code for sid in others] == [200] * 10


@pytest.mark.long
def test_without_its_supervisor_the_server_goes_on_until_its_sessions_have_ended(tmp_path: Path) -> None:
    with start_several(tmp_path, f"{WIRE}:Wire", gateways=1) as several, several.client() as client:
        sid = several.open(client)
        processes = [row["pid"] for row in several.workers()] + several.gateways()
        os.kill(several.running.process.pid, signal.SIGKILL)
        several.running.process.wait()
        until(lambda: client.get("/ready").status_code == 503)
        named = {"X-Session-ID": "a-name-of-a-client"}
        refused = [
            client.post("/create_session"),
            client.post("/create", json={"split": "train", "index": 0}, headers=named),
            client.get("/ready"),
        ]
        assert [(answer.status_code, "shutting down" in answer.text) for answer in refused] == [(503, True)] * 3
        time.sleep(6)
        assert reply(call(client, sid, text="still here")).text == "still here"
        client.post("/delete", headers={"X-Session-ID": sid})
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in processes), 30)
        with pytest.raises(ControlError):
            several.workers()


@pytest.mark.long
def test_a_new_server_on_the_port_of_a_killed_supervisor_says_what_is_there(tmp_path: Path) -> None:
    with start_several(tmp_path, f"{WIRE}:Wire", gateways=1) as several, several.client() as client:
        sid = several.open(client)
        processes = [row["pid"] for row in several.workers()] + several.gateways()
        port = several.running.port
        os.kill(several.running.process.pid, signal.SIGKILL)
        several.running.process.wait()
        command = [sys.executable, "-m", "ors_cli", "serve", f"{WIRE}:Wire", "--port", str(port), "--workers", "2"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 1
        assert "supervisor of the server there was killed; its workers" in " ".join(done.stderr.split())
        with pytest.raises(ControlError, match=rf"on port {port} was killed; its workers end"):
            ask(port, {"command": "workers"})
        assert reply(call(client, sid, text="still here")).text == "still here"
        client.post("/delete", headers={"X-Session-ID": sid})
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in processes), 30)
        with pytest.raises(ControlError, match="No server with workers"):
            ask(port, {"command": "workers"})


@pytest.mark.long
def test_servers_with_the_same_port_are_told_apart_by_their_addresses(tmp_path: Path) -> None:
    with start_several(tmp_path / "1", f"{WIRE}:Wire", workers=2, gateways=1, host="127.0.0.1") as first:
        port = first.running.port
        with start_several(tmp_path / "2", f"{WIRE}:Wire", workers=3, gateways=1, host="127.0.0.2", port=port):
            with pytest.raises(ControlError, match=r"at 127\.0\.0\.1, 127\.0\.0\.2\. .*--host"):
                ask(port, {"command": "workers"})
            for host, workers in (("127.0.0.1", 2), ("127.0.0.2", 3), ("localhost", 2)):
                assert len(ask(port, {"command": "workers"}, host)["workers"]) == workers
            with pytest.raises(ControlError, match="No server with workers"):
                ask(port, {"command": "workers"}, "127.0.0.3")
        assert len(first.workers()) == 2


def test_a_worker_that_cannot_start_ends_the_server_with_its_message(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("import no_such_module_anywhere\n")
    command = [sys.executable, "-m", "ors_cli", "serve", str(broken), "--port", "0", "--workers", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "no_such_module_anywhere" in done.stderr
    assert "before it served" in done.stderr


@pytest.mark.long
def test_a_stop_ends_sessions_with_a_reason_and_leaves_no_process(tmp_path: Path) -> None:
    with start_several(tmp_path, f"{WIRE}:Wire", gateways=1) as several, several.client() as client:
        sid = several.open(client)
        processes = [row["pid"] for row in several.workers()] + several.gateways()
        texts: list[str] = []
        thread = threading.Thread(target=lambda: texts.append(call(client, sid, milliseconds=60_000).text))
        thread.start()
        until(lambda: sum(row["calls"] for row in several.workers()) == 1)
        several.running.process.send_signal(signal.SIGTERM)
        assert several.running.process.wait(30) == 0
        thread.join(60)
        assert "the server is shutting down" in texts[0]
        assert not any(Path(f"/proc/{pid}").exists() for pid in processes)
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", several.running.port), 1)


@pytest.mark.long
def test_a_second_interrupt_ends_the_wait_for_a_teardown(tmp_path: Path) -> None:
    slow = tmp_path / "slow.py"
    slow.write_text(
        "import asyncio\n"
        "from tests.server.protocol.live_server import Wire\n\n"
        "class Slow(Wire):\n"
        "    async def teardown(self):\n"
        "        await asyncio.sleep(25)\n"
    )
    with start_several(tmp_path, slow, gateways=1) as several, several.client() as client:
        several.open(client)
        processes = [row["pid"] for row in several.workers()] + several.gateways()
        several.running.process.send_signal(signal.SIGINT)
        several.running.logged("stopping")  # signals that wait for a busy process are one
        time.sleep(2)
        assert several.running.process.poll() is None
        several.running.process.send_signal(signal.SIGINT)
        assert several.running.process.wait(15) == 0
        assert not any(Path(f"/proc/{pid}").exists() for pid in processes)


@pytest.mark.long
def test_a_supervisor_that_is_killed_at_its_start_leaves_no_process(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ors_cli", "serve", f"{WIRE}:Wire", "--port", "0", "--workers", "2"]
    for pause in (0.5, 1.0, 1.5, 2.0):
        with (tmp_path / "log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "TMPDIR": str(tmp_path)})
        time.sleep(pause)
        left = children(process.pid)
        process.kill()
        process.wait()
        until(lambda found=left: not any(Path(f"/proc/{pid}/exe").exists() for pid in found), 40)
