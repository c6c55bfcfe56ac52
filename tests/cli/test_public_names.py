"""The names that users rely on are those of a list, and names of 0.2 that have changed say the new one."""

from __future__ import annotations

import difflib
import importlib
import subprocess
import sys

import ors_clients
import pytest

from tests.support.paths import ROOT

LIST = ROOT / "tests" / "public_names.txt"


def test_public_names_are_those_of_the_list() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "public-names")]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    changes = [
        line
        for line in difflib.unified_diff(LIST.read_text("utf-8").splitlines(), found, lineterm="", n=0)
        if line[0] in "+-" and not line.startswith(("+++", "---"))
    ]
    assert changes == [], (
        "Public names have changed. Say so in CHANGELOG.md: old and new name of each that is gone, in the first lines "
        "of the version, and whether the old one still works. Then: .venv/bin/python scripts/public-names --write"
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("roll_atropos", "ors_clients.roll.atropos_env"),
        ("roll_groups", "ors_clients.roll.group_filter"),
        ("roll_manager", "ors_clients.roll.env_manager"),
        ("roll_start", "ors_clients.roll.start"),
        ("sync_client", "ors_clients, with Session and Environment"),
    ],
)
def test_a_module_that_has_another_name_says_it(old: str, new: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=f"ors_clients.{old} is {new}"):
        importlib.import_module(f"{ors_clients.__name__}.{old}")


def test_the_module_of_the_command_says_its_new_name() -> None:
    done = subprocess.run([sys.executable, "-m", "ors_server", "serve", "echo"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "is `python -m ors_cli`" in done.stderr
