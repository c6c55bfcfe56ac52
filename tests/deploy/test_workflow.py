"""The workflow of the forge runs the tests with the versions that pyproject.toml names."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from typing import Any

import yaml
from packaging.requirements import Requirement

from tests.support.paths import ROOT

WORKFLOW: dict[str, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text("utf-8"))
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
PYTHONS = [found[1] for each in PROJECT["classifiers"] if (found := re.fullmatch(r".* :: Python :: (3\.\d+)", each))]


def test_every_python_of_the_metadata_is_tested() -> None:
    job = WORKFLOW["jobs"]["test"]
    assert job["strategy"]["matrix"]["python"] == PYTHONS
    assert job["container"]["image"] == "python:${{ matrix.python }}-bookworm"
    assert job["steps"][-1]["run"] == "make test"
    assert PROJECT["requires-python"] == f">={PYTHONS[0]}"


def test_the_lowest_versions_are_those_of_the_metadata() -> None:
    job = WORKFLOW["jobs"]["lowest-versions"]
    assert job["container"]["image"] == f"python:{PYTHONS[0]}-bookworm"
    assert any("scripts/lowest-versions > build/lowest.txt" in step.get("run", "") for step in job["steps"])
    installed, tested = (step["run"] for step in job["steps"][-2:])
    assert 'PIP_CONSTRAINT="$PWD/build/lowest.txt" .venv/bin/pip install' in installed
    assert all((ROOT / word).exists() for word in tested.split() if word.startswith("tests/"))
    command = [sys.executable, str(ROOT / "scripts" / "lowest-versions")]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    extras = (wanted for name, wanted in PROJECT["optional-dependencies"].items() if name not in ("dev", "tests"))
    wanted = [Requirement(text) for text in [*PROJECT["dependencies"], *(each for extra in extras for each in extra)]]
    assert sorted(text.partition("==")[0] for text in printed) == sorted(requirement.name for requirement in wanted)
    for requirement in wanted:
        (version,) = (text.partition("==")[2] for text in printed if text.startswith(f"{requirement.name}=="))
        assert f">={version}" in str(requirement)
        assert version in requirement.specifier
