"""Modules, settings and programs of an agent in the folder where a Harbor verifier runs: none is paid."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import Service
from .harbor_folders import write_harbor_folder
from .harbor_module_forgeries import FORGERIES, HONEST, IN_THE_FOLDER, SOLVED
from .harbor_playing import played, prepared

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("docker_like")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the task's folder."""
    return write_harbor_folder(tmp_path_factory.mktemp("modules"), "modules", IN_THE_FOLDER)


async def test_a_solution_beside_modules_is_paid(service: Service, folder: Path) -> None:
    ((record,), _) = await prepared(service, folder)
    assert record.ready, record.problem
    assert record.left_out.own == ("/app/own.py",)
    assert {"/app/check.sh", "/app/helper.py"} <= {*record.left_out.paths}
    assert (await played(service, folder, SOLVED + HONEST)).reward == 1.0


@pytest.mark.parametrize(
    "forgery",
    [
        "an optional module",
        *(pytest.param(name, marks=pytest.mark.long) for name in FORGERIES if "optional m" not in name),
    ],
)
async def test_no_forgery_pays(service: Service, folder: Path, forgery: str) -> None:
    await prepared(service, folder)
    done = await played(service, folder, FORGERIES[forgery])
    assert (done.reward, done.finished) == (0.0, True)
