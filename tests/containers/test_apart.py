"""A program apart from the rest of its user's: its processes, folders, signals and status."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from ors_containers.linux.bound_folder import REFUSED
from ors_containers.linux.isolated_program import View, apart

_PROBE = subprocess.run([*apart(View()), "true"], capture_output=True, check=False)
pytestmark = pytest.mark.skipif(_PROBE.returncode != 0, reason="this machine keeps no program apart")


def shell(command: str, view: View | None = None) -> subprocess.CompletedProcess[str]:
    program = [*apart(view or View()), "sh", "-c", command]
    return subprocess.run(program, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)


def test_folders_are_bound_hidden_and_kept_from_writing(tmp_path: Path) -> None:
    for name in ("data", "hidden", "hidden/inner", "fixed"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    view = View(
        bind=(str(tmp_path / "data"), "/orwd_data"),
        hide=[str(tmp_path / name) for name in ("hidden/inner", "hidden", "missing", "data")],
        read_only=[str(tmp_path / "fixed")],
    )
    command = f"cd {tmp_path}; cat /orwd_data/file; ls hidden data; touch hidden/new fixed/new; umount hidden fixed"
    done = shell(f"{command}; unshare -Urm umount hidden; ls hidden; cat fixed/file; touch /orwd_data/new", view)
    assert done.stdout.startswith("data")
    assert done.stdout.endswith("fixed")
    assert done.stdout.count("Read-only file system") == 2
    assert (tmp_path / "data" / "new").exists()
    assert (tmp_path / "hidden" / "file").exists()


def test_only_its_own_processes_are_seen_and_signalled() -> None:
    done = shell(f"ls /proc | grep -c '^[0-9]'; kill -9 {os.getpid()}; kill -9 -1; kill -9 1; echo alive")
    assert int(done.stdout.split()[0]) < 6
    assert done.returncode == -signal.SIGKILL or "alive" in done.stdout


def test_its_status_and_signals_are_those_of_the_command() -> None:
    assert shell("exit 7").returncode == 7
    assert shell("kill -9 $$").returncode == -signal.SIGKILL
    assert shell("kill -TERM $$").returncode == -signal.SIGTERM
    with subprocess.Popen(
        [*apart(View()), "sh", "-c", "trap 'exit 5' TERM; echo go; while :; do sleep 0.05; done"],
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.terminate()
        assert process.wait(20) == 5


def test_a_signal_is_not_lost_while_the_command_is_started() -> None:
    """Sent the moment that the command says something, when what passes signals on may not be there yet."""
    command = [*apart(View()), "sh", "-c", "trap 'exit 5' TERM; echo; while :; do sleep 0.05; done"]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(20)]
    for process in running:
        assert process.stdout is not None
        process.stdout.readline()
        process.terminate()
    try:
        assert [process.wait(60) for process in running] == [5] * len(running)
    finally:
        for process in running:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


@pytest.mark.parametrize("how", ["ends", "is killed"])
def test_all_that_it_started_ends_with_it(how: str, tmp_path: Path) -> None:
    """Also a process in a session of its own, which writes as long as it lives."""
    beat = tmp_path / "beat"
    lasting = f"setsid sh -c 'while :; do echo x >> {beat}; sleep 0.02; done' >/dev/null 2>&1 & "
    with subprocess.Popen([*apart(View()), "sh", "-c", lasting + "sleep 0.3; echo; read line"],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        process.stdout.readline()
        if how == "ends":
            process.stdin.close()
        else:
            process.kill()
        process.wait(20)
    time.sleep(0.2)
    size = beat.stat().st_size
    assert size
    time.sleep(0.2)
    assert beat.stat().st_size == size


def test_a_view_that_cannot_be_had_is_refused() -> None:
    done = shell("true", View(bind=("/no/such/folder", "/orwd_data")))
    assert done.returncode == REFUSED
    assert "/no/such/folder" in done.stdout
