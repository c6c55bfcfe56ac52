"""Servers as processes: measured from outside, and never left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ors_benchmarks.harness.candidates import OURS, Candidate
from ors_benchmarks.harness.machine import Observer, describe
from ors_benchmarks.harness.processes import ServerProcess, StartFailed, cores, cpu_seconds, resident_bytes
from ors_benchmarks.server.floor import FLOOR

BUSY = "print(sum(number * number for number in range(3_000_000)), flush=True); import time; time.sleep(60)"


def test_cpu_and_memory_of_a_process() -> None:
    with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        measured, fields = cpu_seconds(process.pid), Path(f"/proc/{process.pid}/stat").read_text().split()
        resident = resident_bytes(process.pid)
        process.kill()
    accounted = (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")
    assert measured > 0.01
    assert measured == pytest.approx(accounted, abs=0.03)
    assert 2**20 < resident < 2**30
    with pytest.raises(OSError):  # noqa: PT011 - several, all of which mean that it is gone
        cpu_seconds(process.pid)


@pytest.mark.parametrize("candidate", [OURS, FLOOR], ids=["ours", "floor"])
def test_a_server_starts_on_its_core_and_ends(
    candidate: Candidate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A setting of the shell would change the server from the default; this value would keep it from starting.
    monkeypatch.setenv("ORS_PORT", "none")
    started = time.monotonic()
    server = ServerProcess.start(candidate.command(sys.executable), tmp_path, cores().server, name="one")
    try:
        assert server.running
        if cores().server is not None:
            assert os.sched_getaffinity(server.pid) == {cores().server}
    finally:
        pauses = server.stop()
    assert not server.running
    if candidate is FLOOR:
        assert pauses is None
    else:
        assert pauses is not None
        assert all(started < pause.started and pause.seconds >= 0.001 for pause in pauses)


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(StartFailed, match=r"two ended at once: no such thing"):
        ServerProcess.start([sys.executable, "-c", "exit('no such thing')"], tmp_path, None, name="two")


def test_the_machine_without_names_and_paths() -> None:
    with Observer() as observer:
        machine = observer.finish(describe())
    assert machine.cores == len(os.sched_getaffinity(0))
    assert machine.others is not None
    assert 0 <= machine.others <= 1
    text = machine.model_dump_json()
    assert os.uname().nodename not in text
    assert "/" not in text
