"""The server's own code, and so every solution, is hidden from sandboxes that show the tree it is installed in."""

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

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts trees, and becomes another user")

_SOLUTION = "THE-SOLUTION = 42\n"
_USER = 300_000 + os.getpid() % 100_000
_PACKAGES = "lib/python3/dist-packages"


@pytest.fixture
def place() -> Iterator[Path]:
    """Create a tree like /usr with the package installed from a checkout in it; mount it on ``again``, too."""
    with tempfile.TemporaryDirectory(prefix="ors-test-") as directory:
        folder = Path(directory)
        folder.chmod(0o755)
        tree = folder / "tree"
        site = tree / _PACKAGES
        own = Path(ors_containers.__file__).resolve().parent
        shutil.copytree(own, site / own.name, ignore=shutil.ignore_patterns("__pycache__"))
        families = site / "ors_server/_bundled/terminal/families"
        for path in (
            families / "task.py",
            site / "ors_server/secret.py",
            site / "ors_clients/x.py",
            site / "ors_server-1.0.dist-info/RECORD",
            site / "orsd-2.0.dist-info/RECORD",
            tree / "src/built/pyproject.toml",
            tree / "src/built/dist/orsd-2.0-py3-none-any.whl",
            tree / "src/built/environments/terminal/task.py",
            tree / "wheels/orsd-3.0-py3-none-any.whl",
            site / "orsd-3.0.dist-info/RECORD",
            tree / "src/checkout/environments/terminal/task.py",
            tree / "local/lib/python3.99/site-packages/ors_server/other_pythons.py",
            folder / "root/usr/local/lib/python3.98/site-packages/ors_server/in_a_layer.py",
            tree / "served/tests.py",
        ):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(_SOLUTION)
        about = {"url": (tree / "src/checkout").as_uri(), "dir_info": {"editable": True}}
        # Versions up to 0.2 were installed under another name.
        (site / "ors_server-1.0.dist-info/direct_url.json").write_text(json.dumps(about))
        for version, wheel in ((2, "src/built/dist/orsd-2.0"), (3, "wheels/orsd-3.0")):
            url = (tree / f"{wheel}-py3-none-any.whl").as_uri()
            (site / f"orsd-{version}.0.dist-info/direct_url.json").write_text(json.dumps({"url": url}))
        (site / "other.py").write_text("other\n")
        (folder / "root/layer").mkdir()
        (folder / "root/layer/kept").write_text("kept\n")
        (tree / "share").mkdir()
        (tree / "share/link").symlink_to(site / "ors_server")
        (tree / "share/hard.py").hardlink_to(families / "task.py")
        (tree / "lib").chmod(0o751)
        for name in ("again", "state"):
            (folder / name).mkdir()
        os.chown(folder / "state", _USER, _USER)
        shutil.copy(Path(__file__).with_name("hidden_code.py"), folder)
        yield folder


def _look(python: str, place: Path, name: str, *, user: bool = False, mounts: str = "") -> dict[str, Any]:
    arguments = [
        python,
        f"{place}/hidden_code.py",
        f"{place}/tree/{_PACKAGES}",
        f"{place}/tree",
        f"{place}/state",
        name,
    ]
    if user:
        arguments = ["setpriv", "--reuid", str(_USER), "--regid", str(_USER), "--clear-groups", "--", *arguments]
    mounts = f"cd {place}; mount --bind tree again{mounts}"
    command = ["unshare", "--mount", "sh", "-ec", f'{mounts}; cd /; exec "$@"', "sh", *arguments]
    environment = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    if "unavailable" in said:
        pytest.skip(said["unavailable"])
    return said


@pytest.mark.parametrize("user", [False, True], ids=["root", "ordinary user"])
@pytest.mark.parametrize("name", ["bubblewrap", "apptainer"])
def test_the_servers_code_is_not_in_a_sandbox(python: str, place: Path, name: str, user: bool) -> None:
    said = _look(python, place, name, user=user)
    _check(said["said"], listed=["other.py"])
    assert not [path for path in said["shared"] if path != "/dev"]


@pytest.mark.parametrize("name", ["bubblewrap", "apptainer"])
def test_without_overlays_the_servers_code_is_still_hidden(python: str, place: Path, name: str) -> None:
    """As an ordinary user, Linux refuses an overlay of a tree with a mount below; the runtime reports it."""
    (place / "tree/twice").mkdir()
    (place / "tree/inner").mkdir()
    mounts = (
        f"; mount --bind tree/{_PACKAGES} tree/twice; mount --bind tree/{_PACKAGES}/ors_server/_bundled tree/inner; "
        "mount --rbind tree again"
    )
    said = _look(python, place, name, user=True, mounts=mounts)
    _check(said["said"])
    assert [path for path in said["shared"] if path != "/dev"] == ["/opt/again", "/opt/tree"]


def _check(said: str, listed: list[str] | None = None) -> None:
    assert "SOLUTION" not in said, said
    found, read, imported, rest = said.split("--\n")
    assert found == ""
    assert read.count("No such file or directory\n") in (3, 4), read  # a file under its second name may be empty
    assert "ModuleNotFoundError" in imported or "cannot import" in imported, imported
    assert rest.startswith("other\nother\nkept\n755 /opt/tree\n751 /opt/tree/lib\n755 /opt/tree/lib/python3\n"), rest
    if listed is not None:
        assert rest.splitlines()[6:] == listed
