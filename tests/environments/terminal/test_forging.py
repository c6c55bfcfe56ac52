"""The agent's processes cannot forge the output of the tests' programs, however they run beside them."""

from __future__ import annotations

import asyncio
import ctypes
import dataclasses
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import ors_containers
import pytest
from ors_containers import Limits
from ors_containers.graders.portable_python import Toolset

from .conftest import RUNTIMES, Service
from .forging import FORMS, module_of, setup_of
from .parts import FOLDER, grading

LIMITS = Limits(memory=256 * 2**20, disk=64 * 2**20, pids=64)
TRIES = 3


async def forged(service: Service, form: str, kind: str, *, root: bool = False) -> grading.Verdict:
    """Return the verdict on one try."""
    tools = await service.toolset()
    image = service.runtime.host_image()
    image = dataclasses.replace(image, binds=(*image.binds, tools.bind))
    if root:
        image = dataclasses.replace(image, user=0, group=0, user_name="root")
    sandbox = await service.open(image, LIMITS)
    try:
        tried = FORMS[form]
        result = await sandbox.run(setup_of(tried, kind), timeout=20)
        assert result.exit_status == 0, result
        return await grading.run_tests(sandbox, tools, module_of(tried, kind), live=kind == "live", timeout=30)
    finally:
        await sandbox.stop()


def scopes_signals() -> bool:
    """Return whether the launcher blocks the agent's signals to examinations here."""
    create_ruleset, version = 444, 1
    return os.geteuid() == 0 and ctypes.CDLL(None).syscall(create_ruleset, None, 0, version) >= 6


CHANCES = [(name, kind) for name, form in FORMS.items() for kind in form.kinds]
#: One form of every kind; the others are played by `make test-all`.
QUICK = {
    ("stdout", "live"),
    ("exit status of a shell", "live"),
    ("temporary files", "live"),
    ("a terminal", "live"),
    ("an argument, through a pipe", "live"),
    ("an argument, by a descriptor", "live"),
    ("a temporary folder handed on, read", "live"),
    *([("a program within a shell command", "live")] if scopes_signals() else []),
    ("memory", "frozen"),
    ("files", "frozen"),
    ("descriptors", "same"),
}
#: Forms with a defence that does not need scoped signals.
UNSCOPED = [(form, kind) for form, kind in CHANCES if not FORMS[form].scoped]
EARNS_NOTHING = ("failed", "killed", "timed out")


@pytest.mark.asyncio(loop_scope="module")
async def test_no_forgery_earns_a_reward(service: Service) -> None:
    assert set(CHANCES) >= QUICK
    verdicts = await asyncio.gather(*(forged(service, form, kind) for form, kind in QUICK))
    assert [verdict for verdict in verdicts if verdict.how not in EARNS_NOTHING] == []


@pytest.mark.long
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("root", [False, True], ids=["the user", "root"])
@pytest.mark.parametrize(("form", "kind"), CHANCES if scopes_signals() else UNSCOPED)
async def test_no_forgery_earns_a_reward_in_many_tries(service: Service, form: str, kind: str, root: bool) -> None:
    verdicts = await asyncio.gather(*(forged(service, form, kind, root=root) for _ in range(TRIES)))
    assert [verdict for verdict in verdicts if verdict.how not in EARNS_NOTHING] == []


#: A user with ids in /etc/subuid, as far as a process and its children can see.
_OWN_FILES = 'set -e; for name in passwd subuid subgid; do mount --bind "$0/$name" /etc/$name; done; exec "$@"'


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("name", RUNTIMES)
@pytest.mark.parametrize("ids", ["one id", "a range"])
def test_no_forgery_earns_a_reward_where_the_server_is_an_ordinary_user(
    toolset: Toolset, python: str, ids: str, name: str
) -> None:
    if ids == "a range" and shutil.which("newuidmap") is None:
        pytest.skip("newuidmap is missing (Debian: apt install uidmap)")
    user = str(300_000 + os.getpid() % 100_000)
    # A group stops the services, which needs more than one id.
    chances = [(form, kind) for form, kind in UNSCOPED if (ids == "a range") == bool(FORMS[form].service)]
    with tempfile.TemporaryDirectory(prefix="ors-test-") as directory:
        copy = Path(directory)
        copy.chmod(0o755)
        package = Path(ors_containers.__file__).resolve().parent
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(package, copy / package.name, ignore=ignored)
        shutil.copytree(FOLDER, copy / "terminal", ignore=ignored)
        (copy / "terminal" / "__init__.py").touch()
        (copy / "forms").mkdir()
        (copy / "forms" / "__init__.py").touch()
        for file in ("forging.py", "overhearing.py"):
            shutil.copy(Path(__file__).with_name(file), copy / "forms")
        shutil.copy(Path(__file__).with_name("ordinary_forging.py"), copy)
        passwd = f"{Path('/etc/passwd').read_text()}ordinary:x:{user}:{user}::/nonexistent:/bin/sh\n"
        (copy / "passwd").write_text(passwd)
        for file, first in (("subuid", 700_000), ("subgid", 800_000)):
            (copy / file).write_text(f"ordinary:{first}:65536\n" if ids == "a range" else "")
        arguments = [python, copy / "ordinary_forging.py", copy, toolset.folder, name, json.dumps(chances)]
        done = subprocess.run(
            [
                *("unshare", "--mount", "sh", "-c", _OWN_FILES, str(copy)),
                *("setpriv", "--reuid", user, "--regid", user, "--clear-groups", "--", *map(str, arguments)),
            ],
            cwd="/",
            env={"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=600,
        )
    shutil.rmtree(f"/tmp/ors-containers-{user}", ignore_errors=True)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    if "unavailable" in answer:
        pytest.skip(answer["unavailable"])
    assert any(("/etc/subuid, shared" if ids == "a range" else "one user only") in note for note in answer["notes"])
    assert len(answer["said"]) == len(chances)
    assert [said for said in answer["said"] if said[2] not in EARNS_NOTHING] == []
