"""The name of the installation: its extras are installed from the checkout, and another project's is noticed."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from ors_containers.distribution import DISTRIBUTION, conflicting_distribution, install_command

from tests.support.paths import ROOT


def test_remedies_name_the_checkout() -> None:
    """The one spelling of the command is in the function that all remedies call."""
    assert install_command("ray") == "pip install '/path/to/ors-server[ray]'"
    packages = (ROOT / name for name in ("ors_server", "cli", "containers", "benchmarks", "clients/ors_clients"))
    spelled = [file.name for package in packages for file in package.rglob("*.py") if "ors-server[" in file.read_text()]
    assert spelled == ["distribution.py"]


def test_every_extra_of_a_remedy_exists() -> None:
    extras = set(importlib.metadata.metadata(DISTRIBUTION).get_all("Provides-Extra") or [])
    packages = (ROOT / name for name in ("ors_server", "cli", "benchmarks", "clients/ors_clients"))
    texts = (file.read_text() for package in packages for file in package.rglob("*.py"))
    named = {extra for text in texts for extra in re.findall(r"install_command\([\"'](\w+)", text)}
    assert len(named) > 5
    assert named <= extras


@pytest.fixture
def other_project(tmp_path: Path) -> Path:
    """Return a folder of packages with another project of our former name."""
    metadata = tmp_path / "ors_server-9.1.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: ors-server\nVersion: 9.1\n")
    (tmp_path / "ors_server").mkdir()
    (tmp_path / "ors_server" / "__init__.py").write_text("")
    return tmp_path


def test_another_project_of_the_name(other_project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(other_project), *sys.path])
    conflict = conflicting_distribution()
    assert conflict is not None
    assert "ors-server 9.1 is installed beside orsd" in conflict[0]
    assert "pip uninstall ors-server orsd" in conflict[1]


def test_a_command_whose_package_is_overwritten_says_so(other_project: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(other_project)}
    command = [sys.executable, "-m", "ors_cli", "sandbox", "doctor"]
    done = subprocess.run(command, cwd=other_project, env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert "The distribution ors-server 9.1 is installed beside orsd" in done.stderr
    assert "Traceback" not in done.stderr
