"""Rules for all recipes and remedies: installation from a checkout, and no key on a command line."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.paths import ROOT

RECIPES = ROOT / "clients" / "recipes"


def texts() -> Iterator[tuple[Path, str]]:
    """Return every text with installation instructions."""
    folders = [ROOT / name for name in ("clients", "containers", "docs", "environments", "ors_server")]
    files = [ROOT / "README.md", *(file for folder in folders for file in folder.rglob("*"))]
    for file in files:
        if file.suffix in (".py", ".md", ".txt", ".sh", ".yaml", ".toml"):
            yield file, file.read_text("utf-8")


def test_the_project_is_installed_from_its_checkout() -> None:
    """A package index has another project of this name, which would be installed and imported instead."""
    by_name = re.compile(r"(?<!/path/to/)ors-server\[|pip install ['\"]?ors-server")
    read = 0
    for file, text in texts():
        read += 1
        assert not by_name.findall(text), file
    assert read > 100


@pytest.mark.parametrize("recipe", sorted(folder.name for folder in RECIPES.iterdir()))
def test_a_recipe_says_how_the_project_is_installed(recipe: str) -> None:
    readme = (RECIPES / recipe / "README.md").read_text("utf-8")
    (extra,) = set(re.findall(r"pip install '/path/to/ors-server\[([a-z,]+)\]' -r requirements\.txt", readme))
    requirements = (RECIPES / recipe / "requirements.txt").read_text("utf-8")
    assert f"pip install '/path/to/ors-server[{extra}]'" in requirements
    lines = [line for line in requirements.splitlines() if not line.startswith("#")]
    assert not any(line.startswith("ors") for line in lines)


@pytest.mark.parametrize("recipe", sorted(folder.name for folder in RECIPES.iterdir()))
def test_links_have_targets(recipe: str) -> None:
    readme = RECIPES / recipe / "README.md"
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", readme.read_text("utf-8")):
        assert (readme.parent / target).exists(), target


@pytest.mark.parametrize(
    ("variables", "chosen"), [({}, []), ({"GPUS": ""}, []), ({"GPUS": "3"}, ["--num_processes", "3"])]
)
def test_trl_trains_on_all_gpus_unless_told(tmp_path: Path, variables: dict[str, str], chosen: list[str]) -> None:
    """Without a number, accelerate uses all GPUs."""
    recorder = tmp_path / "accelerate"
    recorder.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    recorder.chmod(0o755)
    surroundings = {name: value for name, value in os.environ.items() if name != "GPUS"}
    surroundings |= {"PATH": f"{tmp_path}:{os.environ['PATH']}", **variables}
    command = [RECIPES / "trl" / "run.sh", "--learning_rate", "2e-6", "--output_dir", "a folder"]
    done = subprocess.run(command, env=surroundings, capture_output=True, text=True, check=True)
    rest = ["train.py", "--config", "grpo.yaml", "--learning_rate", "2e-6", "--output_dir", "a folder"]
    assert done.stdout.splitlines() == ["launch", *chosen, *rest]
