"""Forging of verdicts of Harbor tasks: each try ends with 0, and none with an infrastructure failure."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.long.sandboxed.debian import debian_root

from .conftest import Service
from .harbor_folders import write_harbor_folder
from .harbor_forgeries import FORGERIES, VERIFIER
from .harbor_playing import played, prepared

pytestmark = [pytest.mark.long, pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("docker_like")]


@pytest.fixture(scope="module")
def debian_folder(service: Service, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a task in a Debian, all of whose files an agent can write."""
    root = debian_root(tmp_path_factory.mktemp("root"))
    command = [sys.executable, "-m", "ors_cli", "image", "import", str(root), "--name", "debian"]
    subprocess.run(command, env=os.environ | {"ORS_IMAGES": str(service.store.root)}, check=True)
    files = {**VERIFIER, "environment/Dockerfile": "FROM debian\nWORKDIR /app\n"}
    return write_harbor_folder(tmp_path_factory.mktemp("debian"), "forged", files)


async def test_the_solution_pays(service: Service, debian_folder: Path) -> None:
    await prepared(service, debian_folder)
    solved = await played(service, debian_folder, "echo 42 >/app/answer.txt", "echo '[\"a\"]' >/app/words.json")
    assert solved.reward == 1.0


@pytest.mark.parametrize("forgery", FORGERIES)
async def test_no_forgery_pays_in_a_debian(service: Service, debian_folder: Path, forgery: str) -> None:
    ((record,), _) = await prepared(service, debian_folder)
    assert record.ready, record.problem
    done = await played(service, debian_folder, FORGERIES[forgery])
    assert (done.reward, done.finished) == (0.0, True)
