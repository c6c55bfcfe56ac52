"""The command as a whole: its output without arguments, its help, and its start without the web framework."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import pytest

Command = Callable[..., Any]


def test_the_version(command: Command) -> None:
    outcome = command("--version")
    assert (outcome.code, outcome.out) == (0, f"ors-server {version('ors-server')}\n")


@pytest.mark.parametrize("arguments", [["--help"], ["-h"]])
def test_help_teaches_the_first_steps(command: Command, arguments: list[str]) -> None:
    outcome = command(*arguments)
    assert outcome.code == 0
    for step in ("ors-server init my_env", "ors-server serve my_env", "ors-server serve echo"):
        assert step in outcome.out


@pytest.mark.parametrize("name", ["serve", "init", "settings", "deploy space"])
def test_every_command_shows_an_example(command: Command, name: str) -> None:
    outcome = command(*name.split(), "--help")
    assert outcome.code == 0
    assert "Example" in outcome.out
    assert f"ors-server {name}" in outcome.out


@pytest.mark.parametrize(
    ("group", "words"), [("image", "$ORS_IMAGES"), ("sandbox", "docs/sandboxes.md"), ("rollouts", "rollouts.sqlite3")]
)
def test_a_groups_help_says_what_it_is_about(command: Command, group: str, words: str) -> None:
    """More than the first sentence, which is all that the list of commands shows."""
    assert words in command(group, "--help").out
    assert words not in command("--help").out


@pytest.mark.parametrize("arguments", [[], ["serve"], ["init"], ["deploy"], ["deploy", "space"]])
def test_a_command_without_arguments_shows_its_help(command: Command, arguments: list[str]) -> None:
    outcome = command(*arguments)
    assert outcome.code == 2
    assert "Usage: ors-server" in outcome.out + outcome.err


def test_a_command_that_is_not_there(command: Command) -> None:
    outcome = command("server")
    assert outcome.code == 2
    assert "serve" in outcome.err


def test_nothing_but_serving_imports_the_web_framework() -> None:
    """`--help`, `settings`, and a target that does not load respond without FastAPI and uvicorn."""
    program = """
import sys
from ors_server.cli import main
for arguments in (["--help"], ["serve", "--help"], ["settings"], ["serve", "nothing"]):
    sys.argv = ["ors-server", *arguments]
    try:
        main()
    except SystemExit:
        pass
print(sorted({"fastapi", "starlette", "uvicorn", "httpx", "openreward", "ors"} & set(sys.modules)), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "[]"
