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


def test_help_has_a_short_form(command: Command) -> None:
    outcome = command("-h")
    assert outcome.code == 0
    assert outcome.out == command("--help").out


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
