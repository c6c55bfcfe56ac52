"""A killed worker of a server with several: its sandboxes are gone soon, those of the other worker stay."""

from __future__ import annotations

import json
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from ors_containers.linux.leases import state_directory
from ors_containers.linux.limits.proc_stat import process_status

from ors_server.cluster.supervisor.control import ask
from tests.support.cut_connections import answered
from tests.support.events import Reply, parse_events
from tests.support.processes import processes
from tests.support.servers import running

pytestmark = pytest.mark.usefixtures("isolated")

_SESSIONS = 6


def _until(condition: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)


def _sleepers(seconds: str) -> int:
    return len(processes(lambda arguments: arguments == f"sleep\0{seconds}\0".encode()))


def _owner_of(worker: int) -> Path:
    """Return the folder of a worker's leases: that of the launcher which is the worker's child."""
    for described in state_directory().glob("owners/*/owner.json"):
        for launcher, _ in json.loads(described.read_text())["processes"]:
            try:
                if process_status(launcher).parent == worker:
                    return described.parent
            except OSError:
                continue
    raise AssertionError(f"worker {worker} has no sandboxes")


def _held(owner: Path) -> tuple[list[int], list[Path]]:
    """Return the processes and the existing control groups that an owner's leases name."""
    leases: list[dict[str, Any]] = [json.loads(path.read_text().splitlines()[-1]) for path in owner.glob("*.lease")]
    leases.append(json.loads((owner / "owner.json").read_text()))
    processes = [process for lease in leases for process, _ in lease["processes"]]
    groups = [Path(group) for lease in leases for group in lease["groups"]]
    return processes, [group for group in groups if group.is_dir()]


def _run(client: httpx.Client, sid: str, command: str) -> str:
    """Return the output of a command in a session's sandbox."""
    content = json.dumps({"name": "bash", "input": {"command": command}})
    while (response := client.post("/call", content=content, headers={"X-Session-ID": sid})).status_code == 503:
        time.sleep(0.2)  # set-up is still running
    return Reply(parse_events(response.content)).text


@pytest.mark.long
def test_the_sandboxes_of_a_killed_worker_are_gone_within_seconds(tmp_path: Path, images: Path) -> None:
    command = [sys.executable, "-m", "ors_cli", "serve", "terminal", "--port", "0", "--workers", "2"]
    variables = {
        "ORS_DATA_DIR": str(tmp_path / "data"),
        "ORS_IMAGES": str(images),
        "ORS_TERMINAL_FAMILIES": "csv_join",
        "ORS_TERMINAL_TRAIN_TASKS": "4",
    }
    seconds = [f"1000.{secrets.randbelow(10**9)}" for _ in range(_SESSIONS)]  # each names its session's process
    with (
        running(command, tmp_path, variables=variables) as server,
        httpx.Client(base_url=server.url, timeout=60, trust_env=False) as client,
    ):
        sids = [str(client.post("/create_session").json()["sid"]) for _ in range(_SESSIONS)]
        for sid, its in zip(sids, seconds, strict=True):
            created = client.post("/create", json={"split": "train", "index": 0}, headers={"X-Session-ID": sid})
            assert created.status_code == 200, created.text
            _run(client, sid, f"sleep {its} > /dev/null 2>&1 &")
        _until(lambda: all(_sleepers(its) == 1 for its in seconds), 60)
        rows: list[dict[str, Any]] = []

        def all_are_reported() -> bool:
            rows[:] = ask(server.port, {"command": "workers"})["workers"]
            return sum(row["sessions"] for row in rows) == _SESSIONS

        _until(all_are_reported, 60)
        assert min(row["sessions"] for row in rows) > 0, "all sessions are in one worker: no test of the other"
        for row in rows:
            assert "/reservations\n" in Path(f"/proc/{row['pid']}/maps").read_text(), "it shares no table"
        victim, other = (_owner_of(row["pid"]) for row in rows)
        processes, groups = _held(victim)
        others_processes, others_groups = _held(other)

        os.kill(rows[0]["pid"], signal.SIGKILL)

        def nothing_is_left() -> bool:
            return not (
                victim.exists()
                or any(Path(f"/proc/{process}").exists() for process in processes)
                or any(group.exists() for group in groups)
            )

        _until(nothing_is_left, 20)
        states = [
            answered(lambda sid=sid: client.post("/ping", headers={"X-Session-ID": sid})).status_code for sid in sids
        ]
        assert sorted(set(states)) == [200, 410]
        assert states.count(410) == rows[0]["sessions"]
        for sid, its, state in zip(sids, seconds, states, strict=True):
            assert _sleepers(its) == (state == 200)
            if state == 200:
                assert _run(client, sid, "echo here").startswith("here")
        assert all(Path(f"/proc/{process}").exists() for process in others_processes)
        assert all(group.is_dir() for group in others_groups)
        server.logged("freed the sandboxes of dead workers")
