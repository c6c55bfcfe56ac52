"""Attacks of one hosted environment on another, and on the server: what it sees, signals and can change."""

from __future__ import annotations

from pathlib import Path

import pytest

import ors_server
from ors_server.cluster.supervisor.control import control_folder
from tests.server.hosting.conftest import Front, can_bind


@pytest.fixture
def walk(front: Front, tmp_path: Path) -> Front:
    if not can_bind(tmp_path):
        pytest.skip("this machine does not let a process have mounts of its own")
    assert front.create("walk", "attacker").status_code == 200
    return front


def test_another_environments_process_is_out_of_reach(walk: Front) -> None:
    other, server = walk.process_of("Swim"), walk.running.process.pid
    seen = walk.call("attacker", "shell", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
    assert "Walk/server.py" in seen
    assert "Swim/server.py" not in seen
    for process in (other, server):
        said = walk.call("attacker", "shell", f"cat /proc/{process}/environ; kill -9 {process}")
        assert "No such file" in said, said
        assert Path(f"/proc/{process}").exists()
    # Its own parent is the server's program: it has seen the variables, and is not inspected.
    assert "ermission denied" in walk.call("attacker", "shell", "cat /proc/1/environ; ls /proc/1/root; kill -9 1")


def test_another_environments_folders_are_empty(walk: Front) -> None:
    for name in ("Swim", "Swim-data", "kept/files"):
        assert walk.call("attacker", "shell", f"ls -A {walk.folder / name}") == ""
    assert "ead-only" in walk.call("attacker", "shell", f"touch {walk.folder}/Swim/server.py")
    place = walk.folder / "Walk" / "place"
    undo = f"umount {walk.folder}/Swim; mount --bind {walk.folder} {place}; ls {walk.folder}/Swim {place}/Swim"
    assert "server.py" not in walk.call("attacker", "shell", f"mkdir {place}; {undo}; unshare -Urm sh -c '{undo}'")
    assert "server.py" in walk.call("attacker", "shell", f"ls {walk.folder}/Walk")


def test_sockets_of_the_server_are_not_there(walk: Front) -> None:
    server = Path(walk.call("attacker", "variable", "ORS_NODE_TABLE")).parent
    listed = walk.call("attacker", "shell", f"find {server} {control_folder()} -name '*.sock'").split()
    workers = [path for path in listed if Path(path).name.startswith("worker")]
    assert len(workers) == 1  # its own
    assert all(path.startswith(str(server)) for path in listed)
    assert "folders.json" not in walk.call("attacker", "shell", "find $(dirname $PYTHONPATH)")


def test_the_servers_program_cannot_be_changed(walk: Front) -> None:
    code = Path(ors_server.__file__).parent
    for path in (code / "attacked", "$PYTHONPATH/attacked"):
        assert "ead-only" in walk.call("attacker", "shell", f"touch {path}")
