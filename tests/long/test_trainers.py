"""The adapters with the real packages: atroposlib with its ``run-api``, gem, Hydra; and with checkouts of trainers.

The packages live in the virtual environment that scripts/trainers-venv makes. The tests of ``tests/clients`` run there
again without their stand-ins, then checks that need the real packages (``tests/long/trainers``), then the scripts with
which users verify their own machine. slime, Miles, ROLL and Atropos's trainer are on no package index: their drivers
run where ``ORS_SLIME_CHECKOUT``, ``ORS_MILES_CHECKOUT``, ``ORS_ROLL_CHECKOUT`` and ``ORS_ATROPOS_CHECKOUT`` name a
checkout, those of slime and Miles in the virtual environment of scripts/upstream-venv.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.virtualenvs import made_by

pytestmark = pytest.mark.long

CLIENTS = ROOT / "tests" / "clients"
ADAPTERS = (
    "test_conformance.py",
    "test_roll.py",
    "test_roll_atropos_env.py",
    "test_interception.py",
    "test_fork_locks.py",
    "test_math_verify_timeouts.py",
    "test_atropos.py",
    "test_atropos_served.py",
)
CHECKS = ("check_run_api.py", "check_roll_start.py", "check_math_verify.py")


@pytest.fixture(scope="module")
def trainers_python() -> Path:
    """Return the Python that has the packages. The first run of a machine downloads them."""
    return made_by("trainers-venv")


def run(python: Path, *arguments: str | Path) -> str:
    """Run a command there. Return its output."""
    variables = {
        "PYTHONPATH": ":".join(str(ROOT / name) for name in ("", "cli", "clients", "containers")),
        "HF_HUB_OFFLINE": "1",
        "WANDB_MODE": "disabled",
        "TOKENIZERS_PARALLELISM": "false",  # some tests fork
    }
    command = [str(python), *map(str, arguments)]
    finished = subprocess.run(
        command, cwd=ROOT, env=os.environ | variables, capture_output=True, text=True, timeout=900, check=False
    )
    print(finished.stdout[-20_000:])
    assert finished.returncode == 0, finished.stdout[-20_000:] + finished.stderr[-10_000:]
    return finished.stdout


FILES = [CLIENTS / name for name in ADAPTERS] + [ROOT / "tests" / "long" / "trainers" / name for name in CHECKS]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_with_the_real_packages(trainers_python: Path, file: Path) -> None:
    # Warnings are errors in the project's own environment; here they come from other projects' packages.
    report = run(trainers_python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore", file)
    passed = re.search(r"(\d+) passed", report)
    assert passed is not None
    assert int(passed[1]) >= 3
    assert "skipped" not in report.splitlines()[-1]


@pytest.mark.parametrize(
    ("variable", "driver", "environment", "tests"),
    [
        ("ORS_SLIME_CHECKOUT", "check_slime.py", "upstream-venv", 10),
        ("ORS_MILES_CHECKOUT", "check_miles.py", "upstream-venv", 10),
        ("ORS_ROLL_CHECKOUT", "check_roll.py", "trainers-venv", 20),
        ("ORS_ATROPOS_CHECKOUT", "check_atropos.py", "trainers-venv", 2),
    ],
)
def test_with_a_checkout_of_the_trainer(variable: str, driver: str, environment: str, tests: int) -> None:
    if not os.environ.get(variable):
        pytest.skip(f"{variable} names no checkout of the trainer, which is on no package index")
    file = ROOT / "tests" / "long" / "trainers" / driver
    report = run(made_by(environment), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore", file)
    passed = re.search(r"(\d+) passed", report)
    assert passed is not None
    assert int(passed[1]) >= tests
    assert "skipped" not in report.splitlines()[-1]


@pytest.mark.parametrize("script", ["roll-atropos/verify_atropos.py", "atropos/verify.py"])
def test_verification_scripts(trainers_python: Path, script: str) -> None:
    report = run(trainers_python, ROOT / "clients" / "recipes" / script)
    assert "All checks hold." in report
    assert "FAILED" not in report
    assert report.count("ok ") >= 7


def test_there_is_no_stand_in_where_the_packages_are(trainers_python: Path) -> None:
    program = (
        "from tests.clients import atropos_stand_in, roll_stand_in;"
        "roll_stand_in.install(); atropos_stand_in.install();"
        "import atroposlib.envs.base, gem; print(atroposlib.__file__, gem.__file__)"
    )
    assert run(trainers_python, "-c", program).count("site-packages") == 2


#: A driver of a trainer as Miles is one: its rollouts are tasks of an asynchronous actor, which logs each exception.
RAY_PROGRAM = """
import asyncio, logging, time
import ray
from ors_clients.errors import InfrastructureFailure
from ors_clients.training.sample_functions import fill_or_end, RunEnded

@ray.remote
class Manager:
    async def generate(self):
        return await asyncio.to_thread(lambda: asyncio.run(self.draw()))

    async def draw(self):
        async def fill():
            raise InfrastructureFailure("Rollouts were lost 2 times in a row")

        while True:
            task = asyncio.ensure_future(fill_or_end(None, None, fill, noticed=lambda: False))
            await asyncio.wait([task])
            try:
                return task.result()
            except Exception:
                logging.exception("a group is drawn again")

ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
manager = Manager.remote()
print("begun", flush=True)
ray.get(manager.generate.remote())
"""


@pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed (`make test-all` installs it)"
)
def test_a_run_in_an_actor_of_ray_ends_with_its_reason() -> None:
    command = [sys.executable, "-c", RAY_PROGRAM]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as driver:
        try:
            assert driver.stdout is not None
            assert driver.stdout.readline() == "begun\n"
            _, printed = driver.communicate(timeout=30)
        finally:
            driver.kill()
    assert driver.returncode == 1
    assert (
        printed.strip()
        .splitlines()[-1]
        .endswith("RunEnded: InfrastructureFailure: Rollouts were lost 2 times in a row")
    )
