"""The contract for a server that is not root: with a range of ids in /etc/subuid, and with its own id alone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ors_containers
import pytest

#: A user of this run only: limits without control groups count by user, and other runs may have the same tests.
_USER = 200_000 + os.getpid() % 100_000
_RUNNING = 'exec setpriv --reuid "$1" --regid "$1" --clear-groups -- "$2" "$3" "$4" "$5" "$6"'
pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can become another user; the others are ordinary anyway"
)
NAMES = ("bubblewrap", pytest.param("apptainer", marks=pytest.mark.long))
_OWN_FILES = "set -e; for name in passwd subuid subgid; do mount --bind $0/$name /etc/$name; done; "


@pytest.fixture
def sources() -> Iterator[Path]:
    """Copy the package and the script to where every user may read them."""
    package = Path(ors_containers.__file__).resolve().parent
    with tempfile.TemporaryDirectory(prefix="ors-test-") as directory:
        copy = Path(directory)
        copy.chmod(0o755)
        shutil.copytree(package, copy / package.name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(Path(__file__).with_name("ordinary.py"), copy)
        passwd = f"{Path('/etc/passwd').read_text()}ordinary:x:{_USER}:{_USER}::/nonexistent:/bin/sh\n"
        for name, text in {
            "passwd": passwd,
            "subuid": "ordinary:700000:65536\n",
            "subgid": "ordinary:800000:65536\n",
        }.items():
            (copy / name).write_text(text)
        yield copy
    shutil.rmtree(f"/tmp/ors-containers-{_USER}", ignore_errors=True)


def _run(python: str, sources: Path, ids: str, what: str, name: str) -> dict[str, Any]:
    if ids == "a range":
        if shutil.which("newuidmap") is None:
            pytest.skip("newuidmap is missing (Debian: apt install uidmap)")
        command = ["unshare", "--mount", "sh", "-c", _OWN_FILES + _RUNNING, str(sources)]
    else:
        command = ["sh", "-c", _RUNNING, "sh"]
    done = subprocess.run(
        [*command, str(_USER), python, str(sources / "ordinary.py"), str(sources), what, name],
        cwd="/",
        env={"PATH": os.environ["PATH"], "PYTHONWARNINGS": "error", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    if "unavailable" in said:
        pytest.skip(said["unavailable"])
    assert any(("/etc/subuid, shared" if ids == "a range" else "one user only") in note for note in said["notes"])
    assert not list(Path(f"/tmp/ors-containers-{_USER}/owners").iterdir()), "a lease was left behind"
    return said


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("ids", ["one id", pytest.param("a range", marks=pytest.mark.long)])
def test_the_contract_holds(python: str, sources: Path, ids: str, name: str) -> None:
    said = _run(python, sources, ids, "checks", name)
    assert [check for check in said["checks"] if check[1] == "failed"] == []
    # Without control groups of its own, the runtime has to report so.
    skipped = [check for check in said["checks"] if check[1] == "skipped"]
    assert len(skipped) == 1 + sum(not said["holds"][limit] for limit in ("memory", "pids"))
    assert any("hard links to files in layers of more than" in check[2] for check in skipped)


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("ids", ["one id", "a range"])
def test_an_agent_that_may_signal_every_process_prevents_nothing(
    python: str, sources: Path, ids: str, name: str
) -> None:
    assert _run(python, sources, ids, "attacks", name)["attacks"] == {}


@pytest.mark.parametrize("ids", ["one id", "a range"])
def test_an_examination_never_leads_to_the_interpreter(python: str, sources: Path, ids: str) -> None:
    said = _run(python, sources, ids, "examinations", "bubblewrap")["examinations"]
    assert said.pop("/bin/echo") == "0 -c import os; os.fchmod(os.open('/proc/self/exe', 0), 0o4755)"
    assert said == {
        "/proc/self/exe": "70 ",
        "/tmp/script": "70 ",
        "/nothing": "127 /nothing: No such file or directory",
        "/tmp/text": "126 /tmp/text: Permission denied",
    }


@pytest.mark.parametrize("ids", ["one id", "a range"])
def test_docker_like_containers(python: str, sources: Path, ids: str) -> None:
    owned, full, refused, seen, *rest = list(
        _run(python, sources, ids, "containers", "bubblewrap")["containers"].values()
    )[1:]
    assert owned.endswith("5\n" if ids == "a range" else "chown: changing ownership of '/x': Invalid argument\n0\n")
    assert "No space left on device" in full
    assert refused.splitlines()[-1] == "1"
    assert "permission denied" in refused
    assert seen.splitlines()[-1] == "1"
    assert not [line for line in seen.splitlines() if line.startswith("/")]
    *rest, as_root, as_5, recorded, frozen = rest
    assert recorded == "[['/bin/cat'], ['/kept/file'], [], ['/none'], [], []]"
    owner = 5 if ids == "a range" else 0
    assert frozen == f"kept\n{owner} 700\n0\n1\n0\n0\nsocket.gaierror: [Errno -2] Name or service not known\n"
    assert rest == ["70", "124 True"]
    assert as_root == "0\nin apart\n"
    assert as_5.startswith("5\nin apart\n" if ids == "a range" else "No command can run as 5: this machine gives a")


@pytest.mark.parametrize("ids", ["one id", "a range"])
@pytest.mark.parametrize("name", NAMES)
def test_hard_links_of_small_layers_are_whole(python: str, sources: Path, ids: str, name: str) -> None:
    said = _run(python, sources, ids, "links", name)
    assert said["hard links"] == "small layers"
    outside = said["links"].pop("a file outside")
    assert outside == "1.0", "a copy followed a link of the image to the machine's files"
    assert said["links"].pop("hidden files") == "", "what is kept from sandboxes was copied"
    assert said["links"].pop("small") == said["links"].pop("large") != "", "copies changed what a sandbox sees"
    assert list(said["links"].values()) == ["passed", "passed", "passed", "skipped"]
