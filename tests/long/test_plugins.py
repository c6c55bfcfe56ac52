"""Our plug-ins under the runners themselves: Harbor's jobs, Inspect's self-check and evaluation, verifiers' validation.

They run in the virtual environment that ``scripts/plugins-venv`` makes, without a network.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from ors_containers.runtimes.bubblewrap import BubblewrapRuntime

from tests.environments.terminal.harbor_folders import write_harbor_folder
from tests.environments.terminal.harbor_forgeries import FORGERIES, VERIFIER
from tests.long.plugins.harbor_tasks import PLAYED, REFUSED, write_tasks
from tests.support.paths import ROOT
from tests.support.virtualenvs import run_bare

pytestmark = pytest.mark.long

FOLDER = ROOT / "tests" / "long" / "plugins"
DEBIAN = os.environ.get("ORS_TEST_ROOTFS", "")
HARBOR = "ors_containers.plugins.harbor:OrsEnvironment"
#: Root may read and write every file.
AS_ROOT = {
    "test_read_file_not_allowed",
    "test_write_text_file_without_permissions",
    "test_write_binary_file_without_permissions",
}


@pytest.fixture(scope="module")
def python() -> Path:
    """Return the Python that has the runners. The first run of a machine downloads them."""
    made = run_bare("plugins-venv", timeout=3600.0)
    if made.returncode != 0:
        pytest.skip(f"the plug-ins' virtual environment cannot be made: {made.stderr.strip().splitlines()[-1]}")
    if shutil.which("bwrap") is None:
        pytest.skip(f"{BubblewrapRuntime.name} is not installed")
    return Path(made.stdout.strip())


@pytest.fixture(scope="module")
def variables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return variables with which the runners use this checkout, images of their own and no network."""
    paths = {name: str(tmp_path_factory.mktemp(name)) for name in ("images", "home")}
    own = {"ORS_IMAGES": paths["images"], "HOME": paths["home"], "ORS_IMAGE_MAP": f"{paths['home']}/images.toml"}
    source = {
        "PYTHONPATH": os.pathsep.join(map(str, [ROOT, ROOT / "containers"])),
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    return os.environ | own | source


def run(command: list[str | Path], variables: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, timeout=1200, check=False
    )  # fmt: skip


# ── Harbor ──


def play(python: Path, variables: dict[str, str], folder: Path, tasks: Path, agent: str) -> dict[str, dict[str, Any]]:
    """Run a job of Harbor; return the result of each trial by the name of its task."""
    command: list[str | Path] = [python.with_name("harbor"), "run", "-p", tasks, "-a", agent, "-n", "4", "-q", "-y"]
    finished = run([*command, "-o", folder / "jobs", "--job-name", agent, "--env", HARBOR], variables, folder)
    results = [json.loads(file.read_text()) for file in (folder / "jobs" / agent).glob("*/result.json")]
    assert results, finished.stdout[-3000:] + finished.stderr[-3000:]
    return {result["task_name"].rpartition("/")[2]: result for result in results}


@pytest.mark.parametrize(("agent", "reward"), [("oracle", 1.0), ("nop", 0.0)])
def test_harbor(python: Path, variables: dict[str, str], tmp_path: Path, agent: str, reward: float) -> None:
    played, _ = write_tasks(tmp_path)
    results = play(python, variables, tmp_path, played, agent)
    assert {name: result["exception_info"] for name, result in results.items()} == dict.fromkeys(PLAYED)
    rewards = {name: result["verifier_result"]["rewards"] for name, result in results.items()}
    assert rewards == {name: {"reward": reward} for name in PLAYED}
    if agent == "oracle":
        who = {
            file.parents[2].name.partition("__")[0]: file.read_text() for file in tmp_path.glob("jobs/*/*/*/app/who")
        }
        assert who == dict.fromkeys(PLAYED, "root\n") | {"as-user": "user\n"}


def test_harbor_pays_forgeries(python: Path, variables: dict[str, str], tmp_path: Path) -> None:
    # Harbor's own verdict on the tries that our terminal environment is tested with, where the verifier is not apart.
    if not DEBIAN:
        pytest.skip("ORS_TEST_ROOTFS names no folder with a Debian root file system")
    run([python.with_name("ors-server"), "image", "import", DEBIAN, "--name", "debian"], variables, tmp_path)
    dockerfile = {"environment/Dockerfile": "FROM debian\nWORKDIR /app\n"}
    names = {re.sub("[^a-z0-9]+", "-", name.lower()).strip("-"): name for name in FORGERIES}
    for folder, name in names.items():
        files = {**dockerfile, **VERIFIER, "solution/solve.sh": f"#!/bin/bash\n{FORGERIES[name]}\n"}
        write_harbor_folder(tmp_path / "tasks", folder, files, config=f'[task]\nname = "tests/{folder}"\n')
    results = play(python, variables, tmp_path, tmp_path / "tasks", "oracle")
    assert set(results) == set(names)
    rewards: dict[str, Any] = {
        names[name]: given and given["rewards"]
        for name, given in ((name, result["verifier_result"]) for name, result in results.items())
    }
    for name, reward in rewards.items():
        sys.stdout.write(f"{name}: {reward}\n")
    # The tries are real: most of them are paid, and some end without a verdict.
    assert sum(reward == {"reward": 1.0} for reward in rewards.values()) >= len(FORGERIES) // 2
    assert None in rewards.values()


def test_harbor_names_what_is_refused(python: Path, variables: dict[str, str], tmp_path: Path) -> None:
    _, refused = write_tasks(tmp_path)
    for name, reason in REFUSED.items():  # a job of its own: some reasons end the whole job
        command: list[str | Path] = [
            python.with_name("harbor"),
            "run",
            "-p",
            refused / name,
            "-a",
            "oracle",
            "-q",
            "-y",
        ]
        finished = run([*command, "-o", tmp_path / "jobs", "--job-name", name, "--env", HARBOR], variables, tmp_path)
        said = "".join(file.read_text() for file in (tmp_path / "jobs" / name).glob("*/exception.txt"))
        words = " ".join((finished.stdout + finished.stderr + said).replace("│", " ").split())  # of a framed traceback
        assert reason in words, (name, words[-2000:])


# ── Inspect ──


@pytest.mark.parametrize("checked", ["host", "root", "user"])
def test_inspect_self_check(python: Path, variables: dict[str, str], tmp_path: Path, checked: str) -> None:
    described: object = {"image": "host"}
    expected = AS_ROOT | {"test_exec_as_user"}  # without /etc/skel
    if checked != "host":
        if not DEBIAN:
            pytest.skip("ORS_TEST_ROOTFS names no folder with a Debian root file system")
        imported = run(
            [python.with_name("ors-server"), "image", "import", DEBIAN, "--name", "debian"], variables, tmp_path
        )
        assert imported.returncode == 0, imported.stderr
        described, expected = {"image": "debian"}, AS_ROOT
    if checked == "user":
        (tmp_path / "Dockerfile").write_text("FROM debian\nUSER 1000\nWORKDIR /home/user\n")
        described, expected = str(tmp_path / "Dockerfile"), set[str]()
    report = tmp_path / "report.xml"
    options = ["-q", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto", "-W", "ignore", f"--junit-xml={report}"]
    command: list[str | Path] = [
        python,
        "-m",
        "pytest",
        *options,
        "--rootdir",
        tmp_path,
        FOLDER / "inspect_self_check.py",
    ]
    finished = run(command, variables | {"ORS_CHECKED": json.dumps(described)}, tmp_path)
    assert report.exists(), finished.stderr[-5000:]
    cases = list(ET.parse(report).getroot().iter("testcase"))
    failed = {case.get("name") for case in cases if case.find("failure") is not None or case.find("error") is not None}
    assert len(cases) >= 44
    assert failed == expected, finished.stdout[-5000:]


def test_an_evaluation_of_inspect(python: Path, variables: dict[str, str], tmp_path: Path) -> None:
    finished = run([python, FOLDER / "inspect_task.py"], variables, tmp_path)
    assert finished.returncode == 0, finished.stderr[-5000:]
    found = json.loads(finished.stdout.splitlines()[-1])
    assert (found["status"], found["accuracy"]) == ("success", 1.0)
    assert found["said"] == ["0root\n", "1root\n", "2root\n"]


# ── verifiers ──


def test_verifiers_validates_harbor_tasks(python: Path, variables: dict[str, str], tmp_path: Path) -> None:
    """Its own reader of Harbor tasks uploads and runs the tests of each in a container, where nothing was done."""
    played, _ = write_tasks(tmp_path)
    cache = Path(variables["HOME"], ".cache", "harbor", "tests_plain")
    shutil.copytree(played / "shared", cache / "shared")
    settings = cache / "shared" / "task.toml"
    settings.write_text(settings.read_text().replace("[environment]\n", '[environment]\ndocker_image = "host"\n'))
    command: list[str | Path] = [python, "-m", "ors_containers.plugins.verifiers", "vf-validate", "--no-rich"]
    chosen = ["--taskset.id", "harbor", "--taskset.dataset", "tests/plain", "--runtime.type", "docker"]
    finished = run([*command, *chosen, "-o", tmp_path / "out"], variables, tmp_path)
    (results,) = (tmp_path / "out").glob("*/results.jsonl")
    (result,) = map(json.loads, results.read_text().splitlines())
    assert (result["error"], result["noop"]["valid"], result["noop"]["reward"]) == (None, True, 0.0), finished.stderr
