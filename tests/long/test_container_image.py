"""The project's image and the Space of the echo environment: built, run, and played.

Everything is real except the base image: instead of an image pulled from a registry it is a Debian 12 that
``debootstrap`` makes, kept in the cache folder for the next run. pip works offline inside the builds, from wheels
downloaded outside. Where podman or debootstrap cannot work, the tests are skipped with the program's message.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.paths import ROOT
from tests.support.servers import free_port

pytestmark = pytest.mark.long

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ors-server"
BASE = "localhost/debian-python"
SUITE = "bookworm"
BASE_PACKAGES = ("bubblewrap", "ca-certificates", "git", "make", "patch", "python3", "python3-venv", "sqlite3")
#: The Dockerfile's advice for docker, with podman's spelling of the last option.
NAMESPACES = ("seccomp=unconfined", "apparmor=unconfined", "unmask=ALL")
# podman's defaults exceed what a root without CAP_SYS_RESOURCE may set, as inside many virtual machines.
LIMITS = ("--ulimit=nofile=4096:4096", "--ulimit=nproc=4096:4096")
MEGABYTE = 10**6

PLAY = """
import json, sys
from openreward import OpenReward

environment = OpenReward().environments.get(name="echoenvironment")
task = environment.get_task(split="train", index=1)
with environment.session(task=task) as session:
    prompt = session.get_prompt()
    outputs = [session.call_tool("echo", {"text": text}) for text in ("wrong", task.task_spec["target"])]
json.dump({
    "tasks": len(environment.list_tasks("train")),
    "prompt": "".join(block.text for block in prompt),
    "steps": [(output.reward, output.finished) for output in outputs],
}, sys.stdout)
"""

PLAY_TERMINAL = """
import json, sys
from openreward import OpenReward

environment = OpenReward().environments.get(name="terminalenvironment")
with environment.session(task=environment.get_task("train", 0)) as session:
    tried = session.call_tool("bash", {"command": "test -e /data || echo no files of the server"})
    done = session.call_tool("done", {})
json.dump({"output": tried.blocks[0].text, "end": [done.reward, done.finished]}, sys.stdout)
"""

UPLOAD = """
import json, sys
from openreward import OpenReward

client = OpenReward()
recorded = client.rollout.create(run_name="kept-run", environment="echoenvironment")
client.rollout.close()
json.dump({}, sys.stdout)
"""


@dataclass
class Podman:
    """podman with a storage of its own, so that the user's images stay unchanged."""

    storage: Path
    containers: list[str] = field(default_factory=list[str])

    def run(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run one podman command. With ``check``, fail the test with podman's output if the command fails."""
        # runc, because crun does not run where version 1 and version 2 control groups are mixed.
        command = ["podman", "--root", f"{self.storage}/root", "--runroot", f"{self.storage}/run", "--runtime", "runc"]
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
        if check and done.returncode:
            pytest.fail(f"podman {' '.join(arguments)}:\n{done.stdout}{done.stderr}", pytrace=False)
        return done

    def build(self, tag: str, context: Path, *options: str) -> str:
        """Build the image that a folder describes, in the docker format, because OCI's has no health checks."""
        offline = ("--pull=never", "--build-arg", f"BASE_IMAGE={BASE}")
        self.run("build", "--format", "docker", *offline, *LIMITS, "--tag", tag, *options, str(context))
        return tag

    def start(self, image: str, port: int, *command: str, options: tuple[str, ...] = ()) -> Container:
        """Start a container with a port published on a free port of the loopback interface."""
        publish = ("--publish", f"127.0.0.1::{port}")
        started = self.run("run", "--detach", *LIMITS, *publish, *options, image, *command)
        self.containers.append(started.stdout.strip())
        return Container(self, self.containers[-1], port)

    def close(self) -> None:
        """Remove the containers and the storage."""
        for container in self.containers:
            self.run("rm", "--force", "--time", "1", container, check=False)
        mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text("utf-8").splitlines()]
        for mount in reversed(mounts):
            if Path(mount).is_relative_to(self.storage):
                subprocess.run(["umount", mount], check=True)
        shutil.rmtree(self.storage)


@dataclass
class Container:
    podman: Podman
    id: str
    port: int

    @property
    def url(self) -> str:
        return f"http://{self.podman.run('port', self.id, f'{self.port}/tcp').stdout.strip()}"

    @property
    def key(self) -> str:
        """Return the key that the container made at its start and printed once."""
        logs = self.podman.run("logs", self.id)
        (key,) = re.findall(r"export ORS_API_KEY=(\S+)", logs.stdout + logs.stderr)
        return str(key)

    def healthy(self) -> bool:
        """Run the image's health check once, because podman would need systemd timers to repeat it."""
        return self.podman.run("healthcheck", "run", self.id, check=False).returncode == 0

    def wait_until_healthy(self) -> None:
        deadline = time.monotonic() + 60
        while not self.healthy():
            if self.state("Status") != "running" or time.monotonic() > deadline:
                logs = self.podman.run("logs", self.id)
                pytest.fail(f"the container does not get healthy:\n{logs.stdout}{logs.stderr}", pytrace=False)
            time.sleep(0.5)

    def state(self, what: str) -> str:
        return self.podman.run("inspect", "--format", f"{{{{.State.{what}}}}}", self.id).stdout.strip()

    def user_of_server(self) -> int:
        """Return the user id of the container's first process."""
        script = "import os; print(os.stat('/proc/1').st_uid)"
        return int(self.podman.run("exec", self.id, "python3", "-c", script).stdout)


@pytest.fixture(scope="module")
def base_archive() -> Path:
    """Return a Debian with Python and the packages that the image installs by apt, instead of a registry's image."""
    architecture = os.uname().machine
    packages = hashlib.sha256(" ".join(BASE_PACKAGES).encode()).hexdigest()[:12]
    archive = CACHE / f"debian-{SUITE}-{packages}-{architecture}.tar"
    if not archive.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        _bootstrap(archive)
    return archive


@pytest.fixture(scope="module")
def podman(base_archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    """Return podman with the base image, after a check that it can run a container here."""
    if shutil.which("podman") is None or shutil.which("runc") is None:
        pytest.skip("podman or runc is not installed (root gets both by `make test-all`)")
    podman = Podman(tmp_path_factory.mktemp("podman"))
    try:
        imported = podman.run("import", str(base_archive), BASE, check=False)
        if imported.returncode:
            pytest.skip(f"podman cannot import an image here: {_last_line(imported.stderr)}")
        tried = podman.run("run", "--rm", *LIMITS, "--publish", "127.0.0.1::80", BASE, "true", check=False)
        if tried.returncode:
            pytest.skip(f"podman cannot run a container here: {_last_line(tried.stderr)}")
        yield podman
    finally:
        podman.close()


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory) -> Offline:
    """Return every wheel that a build needs, and the configuration that limits pip to them."""
    folder = tmp_path_factory.mktemp("offline")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    requirements = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    # The Python of the base image, whichever Python runs the tests.
    selection = ["--only-binary", ":all:", "--python-version", "3.11"]
    command = [sys.executable, "-m", "pip", "download", "--quiet", *selection, "--dest", str(folder / "wheels")]
    done = subprocess.run([*command, *requirements], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"pip cannot download the dependencies: {_last_line(done.stderr)}")
    (folder / "pip.conf").write_text("[global]\nno-index = true\nfind-links = /wheels\n", "utf-8")
    return Offline(folder / "wheels", folder / "pip.conf")


@dataclass
class Offline:
    wheels: Path
    pip_configuration: Path

    @property
    def options(self) -> tuple[str, ...]:
        """Return options for ``podman build``: pip's configuration as the Dockerfiles read it, and the folder of
        wheels.
        """
        return "--secret", f"id=pip.conf,src={self.pip_configuration}", "--volume", f"{self.wheels}:/wheels:ro"


@pytest.fixture(scope="module")
def image(podman: Podman, offline: Offline) -> str:
    return podman.build("localhost/ors-server", ROOT, *offline.options)


@pytest.fixture(scope="module", params=["its own Dockerfile", "a written Dockerfile"])
def space(
    request: pytest.FixtureRequest, podman: Podman, offline: Offline, tmp_path_factory: pytest.TempPathFactory
) -> str:
    """Return the Space of the echo environment, and of an environment that has only its ``environment.py``."""
    source = ROOT / "environments" / "echo"
    if request.param == "a written Dockerfile":
        source = tmp_path_factory.mktemp("bare") / "echo"
        source.mkdir()
        shutil.copy(ROOT / "environments" / "echo" / "environment.py", source)
    folder = tmp_path_factory.mktemp("space") / "echo"
    command = [sys.executable, "-m", "ors_cli", "deploy", "space", str(source), "--output", str(folder)]
    subprocess.run(command, check=True, capture_output=True)
    return podman.build("localhost/echo-space", folder, *offline.options)


def test_image_serves_the_bundled_environments(podman: Podman, image: str) -> None:
    container = podman.start(image, 8080)
    container.wait_until_healthy()

    assert container.user_of_server() == 1000
    _assert_that_an_episode_can_be_played(container.url, container.key)


def test_image_without_namespaces_says_so_and_serves_the_rest(podman: Podman, image: str) -> None:
    container = podman.start(image, 8080)
    container.wait_until_healthy()

    _assert_that_an_episode_can_be_played(container.url, container.key)
    assert httpx.get(f"{container.url}/list_environments").status_code == 401
    answer = httpx.get(f"{container.url}/terminalenvironment/tools", headers={"X-API-Key": container.key})
    assert answer.status_code == 404
    assert "--security-opt seccomp=unconfined" in answer.text


def test_image_isolates_episodes_of_the_terminal(podman: Podman, image: str) -> None:
    options = [word for option in NAMESPACES for word in ("--security-opt", option)]
    container = podman.start(image, 8080, options=tuple(options))
    container.wait_until_healthy()

    assert container.user_of_server() == 1000
    played = _play(PLAY_TERMINAL, container.url, container.key)
    assert "no files of the server" in played["output"]
    assert played["end"] == [0.0, True]


def test_image_has_the_programs_of_all_families(podman: Podman, image: str) -> None:
    """A family whose programs were missing would be refused, with a line in the log."""
    options = [word for option in NAMESPACES for word in ("--security-opt", option)]
    container = podman.start(image, 8080, options=tuple(options))
    container.wait_until_healthy()

    asked: dict[str, Any] = {"headers": {"X-API-Key": container.key}, "timeout": 60}
    tasks = httpx.post(f"{container.url}/terminalenvironment/tasks", json={"split": "train"}, **asked).json()["tasks"]
    first_of: dict[str, str] = {}
    for task in tasks:
        first_of.setdefault(task["id"].rpartition("-")[0], task["id"])
    assert len(first_of) == 40
    for name in first_of.values():
        asked["headers"]["X-Session-ID"] = name
        body = {"env_name": "terminalenvironment", "task_spec": {"id": name}}
        created = httpx.post(f"{container.url}/create", json=body, **asked)
        assert created.status_code == 200, created.text
        httpx.post(f"{container.url}/delete", **asked)
    logs = podman.run("logs", container.id)
    assert "the image has no" not in logs.stdout + logs.stderr


def test_image_keeps_rollouts_in_a_volume(podman: Podman, image: str) -> None:
    volume = ("--volume", "ors-data:/data")
    container = podman.start(image, 8080, options=volume)
    container.wait_until_healthy()
    _play(UPLOAD, container.url, container.key)
    key = container.key
    podman.run("stop", "--time", "60", container.id)

    again = podman.start(image, 8080, options=volume)
    again.wait_until_healthy()
    assert "ORS_API_KEY=" not in "".join((podman.run("logs", again.id).stdout, podman.run("logs", again.id).stderr))
    assert httpx.get(f"{again.url}/list_environments", headers={"X-API-Key": key}).status_code == 200
    podman.run("stop", "--time", "60", again.id)
    assert "kept-run" in podman.run("run", "--rm", *LIMITS, *volume, image, "rollouts", "list").stdout


def test_image_serves_a_folder_of_the_user(podman: Podman, image: str, tmp_path: Path) -> None:
    shutil.copy(ROOT / "environments" / "echo" / "environment.py", tmp_path)
    tmp_path.chmod(0o755)
    container = podman.start(image, 8080, "serve", "/my_env", options=("--volume", f"{tmp_path}:/my_env:ro"))
    container.wait_until_healthy()

    _assert_that_an_episode_can_be_played(container.url, container.key)


def test_image_is_small(podman: Podman, image: str) -> None:
    def size(name: str) -> int:
        return int(podman.run("image", "inspect", "--format", "{{.Size}}", name).stdout)

    # A third of it is the store of rollouts: SQLAlchemy and Alembic.
    assert size(image) - size(BASE) < 120 * MEGABYTE


def test_image_stops_at_once_and_in_order(podman: Podman, image: str) -> None:
    container = podman.start(image, 8080)
    container.wait_until_healthy()

    began = time.monotonic()
    podman.run("stop", "--time", "60", container.id)

    assert time.monotonic() - began < 30
    assert container.state("ExitCode") == "0"


def test_compose_runs_one_service_with_workers(podman: Podman, image: str, tmp_path: Path) -> None:
    """``deploy/compose/compose.yaml`` as podman-compose runs it."""
    port = free_port()
    text = (ROOT / "deploy" / "compose" / "compose.yaml").read_text("utf-8")
    # podman 4 has another word for the option; the image is there; root here may not raise limits.
    text = text.replace("systempaths=unconfined", "unmask=ALL").replace("    build: {context: ../..}\n", "")
    text = text.replace("image: ors-server", f"image: {image}").replace("nofile: 65536", "nofile: 4096")
    (tmp_path / "compose.yaml").write_text(text.replace("127.0.0.1:8080:8080", f"127.0.0.1:{port}:8080"))
    options = f"--root {podman.storage}/root --runroot {podman.storage}/run --runtime runc"
    compose = [sys.executable, "-m", "podman_compose", f"--podman-args={options}", "--file", f"{tmp_path}/compose.yaml"]

    def run(*arguments: str) -> str:
        done = subprocess.run([*compose, *arguments], capture_output=True, text=True, check=False, timeout=180)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(f"--podman-run-args={' '.join(LIMITS)}", "up", "--detach", "--no-build")
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                (key,) = re.findall(r"export ORS_API_KEY=(\S+)", run("logs"))
                headers = {"X-API-Key": key}
                url = f"http://127.0.0.1:{port}/list_environments"
                environments = httpx.get(url, headers=headers, trust_env=False).json()
                break
            except (httpx.TransportError, ValueError):
                assert time.monotonic() < deadline, run("logs")
                time.sleep(0.5)
        assert {"echoenvironment", "terminalenvironment"} <= set(environments)
        assert run("exec", "-T", "server", "ors-server", "workers", "--json").count('"serving"') == 4
    finally:
        run("down", "--volumes", "--timeout", "60")


def test_health_check_fails_without_a_server(podman: Podman, image: str) -> None:
    container = podman.start(image, 8080, "60", options=("--entrypoint", "sleep"))

    assert not container.healthy()
    assert container.state("Status") == "running"


def test_space_serves_its_environment(podman: Podman, space: str) -> None:
    container = podman.start(space, 7860)
    container.wait_until_healthy()

    assert container.user_of_server() == 1000
    _assert_that_an_episode_can_be_played(container.url, container.key)


def _assert_that_an_episode_can_be_played(url: str, key: str) -> None:
    played = _play(PLAY, url, key)
    assert played["tasks"] == 4
    assert "text='world'" in played["prompt"]
    assert played["steps"] == [[0.0, False], [1.0, True]]


def _play(program: str, url: str, key: str) -> dict[str, Any]:
    """Play by ``openreward``, in a process of its own, configured as users do it: by three variables."""
    variables = {"OPENREWARD_API_URL": url, "OPENREWARD_SESSION_URL": url, "OPENREWARD_API_KEY": key}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _bootstrap(archive: Path) -> None:
    """Write the archive of a root file system, or skip the test where that is not possible."""
    if shutil.which("debootstrap") is None:
        pytest.skip("debootstrap is not installed (root gets it by `make test-all`)")
    if os.geteuid() != 0:
        pytest.skip(f"debootstrap needs root; once root has run it, {archive} serves every user who gets a copy")
    tree = archive.with_suffix(".tree")
    partial = archive.with_suffix(".partial")
    shutil.rmtree(tree, ignore_errors=True)
    command = ["debootstrap", "--variant=minbase", f"--include={','.join(BASE_PACKAGES)}", SUITE, str(tree)]
    try:
        done = subprocess.run([*command, *_mirror()], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"debootstrap cannot make a base image: {_last_line(done.stdout + done.stderr)}")
        leave_out = ("--exclude=./var/cache/apt/*", "--exclude=./var/lib/apt/lists/*", "--exclude=./dev/*")
        subprocess.run(["tar", *leave_out, "-C", str(tree), "-cf", str(partial), "."], check=True)
        partial.rename(archive)
    finally:
        shutil.rmtree(tree, ignore_errors=True)
        partial.unlink(missing_ok=True)


def _mirror() -> list[str]:
    """Return the mirror from which apt gets this release, for machines without access to the public mirror."""
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", f"Codename: {SUITE}"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()[:1]


def _last_line(output: str) -> str:
    lines = output.strip().splitlines()
    return lines[-1] if lines else "it said nothing"
