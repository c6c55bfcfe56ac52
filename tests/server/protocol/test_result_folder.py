"""Folders of results on disk: those of dead servers are removed, those of live servers never."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

import pytest

from ors_server.sessions.calls.result_folder import ResultFolder

_SCRIPT = """
import sys
from ors_server.sessions.calls.result_folder import ResultFolder
folder = ResultFolder()
(folder.path / "0").write_text("a result")
print(folder.path, flush=True)
sys.stdin.read()
"""
#: A PID namespace of its own, as a container has.
_APART = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]

Start = Callable[[Sequence[str]], tuple[subprocess.Popen[str], Path]]


@pytest.fixture(autouse=True)
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set one folder for temporary files for all servers of a test."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def start() -> Generator[Start]:
    """Start processes that keep a folder, behind a command; end the remaining ones afterwards."""
    with contextlib.ExitStack() as stack:

        def run(command: Sequence[str]) -> tuple[subprocess.Popen[str], Path]:
            process = stack.enter_context(
                subprocess.Popen(
                    [*command, sys.executable, "-c", _SCRIPT],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            stack.callback(process.kill)
            assert process.stdout is not None
            return process, Path(process.stdout.readline().strip())

        yield run


def own_pid_namespace() -> Sequence[str]:
    """Return the command that runs a process in its own namespace; skip the test where that is not allowed."""
    if shutil.which("unshare") is None or subprocess.run([*_APART, "true"], capture_output=True).returncode:
        pytest.skip("process spaces cannot be made here (unshare --pid)")
    return _APART


@pytest.mark.parametrize("where", ["beside", "own_pid_namespace"])
def test_the_folder_of_a_live_server_stays(start: Start, shared: Path, where: str) -> None:
    """Also where the two servers cannot see each other's process ids, in both directions."""
    command: Sequence[str] = own_pid_namespace() if where == "own_pid_namespace" else ()
    _, theirs = start(command)
    ours = ResultFolder()
    try:
        _, third = start(command)
        assert (theirs / "0").read_text() == "a result"
        assert ours.path.is_dir()
        assert sorted(shared.iterdir()) == sorted([theirs, ours.path, third])
    finally:
        ours.remove()
    assert not ours.path.exists()


@pytest.mark.parametrize("where", ["beside", "own_pid_namespace"])
def test_the_folder_of_a_killed_server_is_removed(start: Start, where: str) -> None:
    process, theirs = start(own_pid_namespace() if where == "own_pid_namespace" else ())
    process.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 10
    while theirs.exists():  # `unshare` ends before the process that it started
        assert time.monotonic() < deadline
        ResultFolder().remove()


def test_files_of_other_programs_are_left_alone(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Links and files of that name are not results' folders, and a folder that cannot be opened is left alone."""
    treasure = tmp_path_factory.mktemp("treasure")
    (treasure / "kept").touch()
    (shared / "ors-server-results-link").symlink_to(treasure)
    (shared / "ors-server-results-file").touch()
    (shared / "ors-results-1-old").mkdir()
    ResultFolder().remove()
    assert {path.name for path in shared.iterdir()} == {
        "ors-server-results-link",
        "ors-server-results-file",
        "ors-results-1-old",
    }
    assert (treasure / "kept").exists()


def test_many_servers_that_start_at_once_keep_their_folders() -> None:
    """Each server examines the others' folders while they are being created."""
    script = "\n".join(
        [
            "import os, sys, time",
            "from ors_server.sessions.calls.result_folder import ResultFolder",
            "sys.stdin.readline()",
            "kept = [ResultFolder() for _ in range(20)]",
            "time.sleep(0.3)",
            "print(sum(folder.path.is_dir() for folder in kept), flush=True)",
        ]
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    assert [process.communicate(timeout=60)[0].strip() for process in processes] == ["20"] * 4


@pytest.mark.skipif(os.geteuid() != 0, reason="only root opens what others may not")
def test_only_this_user_may_read_it() -> None:
    folder = ResultFolder()
    try:
        assert folder.path.stat().st_mode & 0o077 == 0
    finally:
        folder.remove()
