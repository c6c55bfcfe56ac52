"""The environments that Harbor's runner is measured with, and the task that it plays."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from ors_benchmarks.harness.control_groups import ProcessorTime
from ors_benchmarks.harness.http11 import Failure
from ors_benchmarks.harness.processes import without_settings
from ors_server.errors import OrsError

__all__ = ["CANDIDATES", "Candidate", "HarborMissing", "NotHere", "Opened", "harbor", "play", "write_task"]

_ROOT = Path(__file__).resolve().parents[3]
#: The image's name in podman's storage and in our store.
_IMAGE = "localhost/ors-bench:latest"
#: Seconds for one job.
_PATIENCE = 3600.0
_TASK = {
    "task.toml": (
        f'schema_version = "1.3"\n[task]\nname = "bench/answer"\n'
        f'[environment]\ndocker_image = "{_IMAGE}"\ncpus = 1\nmemory_mb = 512\nstorage_mb = 256\n'
    ),
    "instruction.md": "Write 42 into /app/answer.\n",
    "environment/.keep": "",
    "solution/solve.sh": "#!/bin/bash\nmkdir -p /app\necho 42 > /app/answer\n",
    "tests/test.sh": '#!/bin/bash\n[ "$(cat /app/answer)" = 42 ]\necho $((1 - $?)) > /logs/verifier/reward.txt\n',
}


class HarborMissing(OrsError):
    """The virtual environment with Harbor cannot be made."""


class NotHere(Exception):
    """A candidate does not work on this machine; the text is the reason."""


@cache
def harbor() -> Path:
    """Return the Python that has Harbor; it is made if need be. Raises ``HarborMissing``."""
    made = subprocess.run([_ROOT / "scripts" / "plugins-venv"], stdout=subprocess.PIPE, text=True, check=False)
    if made.returncode != 0:
        raise HarborMissing(
            "The virtual environment with Harbor cannot be made", "The lines above say what pip or Python lacks."
        )
    return Path(made.stdout.strip())


class Opened(NamedTuple):
    """The part of a job that a candidate decides."""

    #: Options of ``harbor run``.
    options: Sequence[str | Path]
    variables: Mapping[str, str] = {}


class Candidate:
    """An environment of Harbor."""

    name: str
    title: str

    def open(self, root: Path, folder: Path) -> Opened:
        """Take the image in. Raises ``NotHere``.

        Args:
            root: The folder of the image's root file system.
            folder: Takes what this candidate keeps between jobs.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Remove what ``open`` has left outside its folder."""

    def version(self) -> Mapping[str, str]:
        """Return the versions of the programs behind it."""
        return {}


class Ours(Candidate):
    """Our docker-like containers, by the plug-in of ``docs/plugins.md``."""

    name = "ours"
    title = "--env ours"

    def open(self, root: Path, folder: Path) -> Opened:
        """Import the image into a store of its own."""
        variables = {"ORS_IMAGES": str(folder / "images"), "ORS_IMAGE_MAP": str(folder / "images.toml")}
        _succeed([harbor().with_name("ors-server"), "image", "import", root, "--name", _IMAGE], variables)
        return Opened(("--env", "ors_containers.plugins.harbor:OrsEnvironment"), variables)


class Podman(Candidate):
    """Harbor's own environment for podman. It does not seal a task itself: a compose file does."""

    name = "podman"
    title = "--env podman"

    def open(self, root: Path, folder: Path) -> Opened:
        """Import the image into podman's storage, and write the settings with which podman starts containers here."""
        if shutil.which("podman") is None:
            raise NotHere("podman is not installed")
        archive, sealed, settings = folder / "root.tar", folder / "sealed.yaml", folder / "containers.conf"
        _succeed(["tar", "-C", root, "-cf", archive, "."])
        _succeed(["podman", "import", archive, _IMAGE])
        archive.unlink()
        sealed.write_text("services:\n  main:\n    network_mode: none\n")
        variables = {"CONTAINERS_CONF": str(settings)}
        problem = ""
        for runtime in ("", 'runtime = "runc"\n'):  # crun refuses hybrid control groups
            settings.write_text(
                f'[engine]\ncgroup_manager = "cgroupfs"\n{runtime}'
                '[containers]\ndefault_ulimits = ["nofile=4096:4096", "nproc=1024:1024"]\n'
            )
            try:
                _succeed(["podman", "run", "--rm", "--network", "none", _IMAGE, "true"], variables)
            except NotHere as error:
                problem = str(error)
            else:
                # Without --no-delete podman-compose removes the image after the first trial.
                return Opened(("--env", "podman", "--no-delete", "--extra-docker-compose", sealed), variables)
        raise NotHere(problem)

    def close(self) -> None:
        """Remove the image from podman's storage."""
        subprocess.run(["podman", "rmi", "--force", _IMAGE], capture_output=True, check=False)

    def version(self) -> Mapping[str, str]:
        """Return the version of podman."""
        said = subprocess.run(["podman", "--version"], capture_output=True, text=True, check=False)
        return {"podman": said.stdout.split()[-1]}


class Floor(Candidate):
    """Harbor's own share of a trial: an environment that runs nothing."""

    name = "floor"
    title = "Harbor itself"

    def open(self, root: Path, folder: Path) -> Opened:
        """Do nothing: there is no image."""
        return Opened(("--env", "ors_benchmarks.harbor.script_null_environment:NullEnvironment"))


CANDIDATES: Sequence[Candidate] = (Ours(), Podman(), Floor())


def write_task(folder: Path) -> Path:
    """Write the task that all of them play; return its folder."""
    for name, text in _TASK.items():
        path = folder / "answer" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "answer"


def play(opened: Opened, task: Path, trials: int, at_once: int, counted: ProcessorTime, folder: Path) -> None:
    """Play the task so often with Harbor's oracle, in one job. Raises ``Failure`` where a trial is not rewarded with 1.

    Args:
        opened: The environment.
        task: The folder of ``write_task``.
        trials: The trials of the job.
        at_once: The trials at once.
        counted: Counts the job's processor time.
        folder: Takes the job's files; it is new.
    """
    python = harbor()
    command: list[str | Path] = [python.with_name("harbor"), "run", "-p", task, "-a", "oracle", *opened.options]
    command += ["-k", str(trials), "-n", str(at_once), "-q", "-y", "-o", folder, "--job-name", "job"]
    own = {
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(map(str, (_ROOT / "benchmarks", _ROOT / "containers", _ROOT))),
    }
    variables = without_settings() | own | dict(opened.variables)
    try:
        subprocess.run(
            command, env=variables, preexec_fn=counted.enter, capture_output=True, timeout=_PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        raise Failure(f"a job was not done after {_PATIENCE:g} s") from None
    results: list[dict[str, Any]] = [json.loads(file.read_text()) for file in folder.glob("job/*/result.json")]
    rewards: list[Any] = [result["verifier_result"] and result["verifier_result"]["rewards"] for result in results]
    if (right := rewards.count({"reward": 1.0})) != trials:
        said = [result["exception_info"]["exception_message"] for result in results if result["exception_info"]]
        raise Failure(f"{right} of {trials} trials were rewarded: {(said or ['Harbor did not start'])[0][-160:]}")


def _succeed(command: Sequence[str | Path], variables: Mapping[str, str] | None = None) -> None:
    """Run a command. Raises ``NotHere`` with its last line if it fails."""
    done = subprocess.run(
        command, env=without_settings() | dict(variables or {}), capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise NotHere(f"{command[0]} failed: {(done.stderr.strip().splitlines() or ['it said nothing'])[-1][:200]}")
