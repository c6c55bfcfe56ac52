"""A Harbor folder prepared, played and graded by a user who is not root: with ids of its own, and with one alone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT

from .harbor_folders import write_harbor_folder
from .harbor_module_forgeries import FORGERIES, IN_THE_FOLDER, SOLVED

pytestmark = [pytest.mark.long, pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")]

#: Used by this run only: other tests may run on the machine at the same time.
_USER = 400_000 + os.getpid() % 100_000
_PARTS = (".", "benchmarks", "cli", "clients", "containers")
#: The checkout and its packages may lie where only their owner can look.
_MOUNTS = (
    "set -e; mount --bind $2 $1/checkout; mount --bind $3 $1/packages; "
    "for name in passwd subuid subgid; do mount --bind $1/$name /etc/$name; done; "
    'exec setpriv --reuid $4 --regid $4 --clear-groups -- $5 $1/checkout/tests/environments/terminal/$6 "$7"'
)
_WAYS = {
    "solved": [SOLVED],
    "nothing": ["true"],
    "written": ["mkdir -p /logs/verifier; echo 1 >/logs/verifier/reward.json"],
    "a module": [FORGERIES["the test runner"]],
}


@pytest.fixture
def place() -> Iterator[Path]:
    """Make a folder that every user can look into, with a home of the user and a task."""
    with tempfile.TemporaryDirectory(prefix="ors-test-") as directory:
        folder = Path(directory)
        folder.chmod(0o755)
        for name in ("checkout", "packages", "home"):
            (folder / name).mkdir(mode=0o755)
        os.chown(folder / "home", _USER, _USER)
        write_harbor_folder(folder / "tasks", "ordinary", IN_THE_FOLDER)
        yield folder
    shutil.rmtree(f"/tmp/ors-containers-{_USER}", ignore_errors=True)


@pytest.mark.parametrize("ids", ["one id", "a range"])
def test_a_task_is_prepared_played_and_graded(python: str, place: Path, ids: str) -> None:
    if ids == "a range" and shutil.which("newuidmap") is None:
        pytest.skip("newuidmap is missing (Debian: apt install uidmap)")
    passwd = f"{Path('/etc/passwd').read_text()}ordinary:x:{_USER}:{_USER}::{place}/home:/bin/sh\n"
    (place / "passwd").write_text(passwd)
    for file, first in (("subuid", 700_000), ("subgid", 800_000)):
        (place / file).write_text(f"ordinary:{first}:65536\n" if ids == "a range" else "")
    arguments = (ROOT, sysconfig.get_path("purelib"), _USER, python, "ordinary_harbor.py", json.dumps(_WAYS))
    path = ":".join(f"{place}/checkout/{part}" for part in _PARTS)
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", _MOUNTS, "sh", str(place), *map(str, arguments)],
        cwd="/",
        env={
            "PATH": os.environ["PATH"],
            "HOME": f"{place}/home",
            "PYTHONPATH": f"{path}:{place}/packages",
            "PYTHONDONTWRITEBYTECODE": "1",
            "ORS_IMAGES": f"{place}/home/images",
            "ORS_TERMINAL_TASKS": f"{place}/tasks",
        },
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    if "unavailable" in said:
        pytest.skip(said["unavailable"])
    (record,) = said["prepared"]["tasks"]
    assert record["ready"], record
    assert said["rewards"] == {"solved": 1.0, "nothing": 0.0, "written": 0.0, "a module": 0.0}
    assert said["owners"] == [_USER]
    # What docs/harbor.md says is not limited there.
    assert not said["holds"]["memory"]
    assert not said["holds"]["pids"]
