"""The command as a whole: its output without arguments, its help, and its start without the web framework."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer
from ors_cli.application import application
from ors_cli.measuring.bench import bench
from typer.main import get_command

Command = Callable[..., Any]


def test_the_version(command: Command) -> None:
    outcome = command("--version")
    assert (outcome.code, outcome.out) == (0, f"ors-server {version('orsd')}\n")


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


def test_the_list_of_commands_imports_none_of_them() -> None:
    program = """
import sys
from ors_cli.application import application
try:
    application(["--help"])
except SystemExit:
    pass
loaded = {name.partition(".")[0] for name in sys.modules} & {"pydantic", "sqlalchemy", "httpx", "asyncio"}
print(sorted(loaded | {name for name in sys.modules if name.startswith("ors_")}))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "['ors_cli', 'ors_cli.application', 'ors_cli.lazy_commands']"


@pytest.mark.parametrize("group", [application, bench], ids=["ors-server", "bench"])
def test_a_line_of_the_list_is_the_first_sentence_of_its_commands_help(group: typer.Typer) -> None:
    commands: Any = get_command(group)
    for name, listed in commands.commands.items():
        _, command, _ = commands.resolve_command(typer.Context(commands), [name])
        assert command.help.split("\n\n")[0].replace("\n", " ") == listed.help


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("ro", {"rollouts"}), ("eval --top", {"--top-p"})],
)
def test_shells_complete_commands_and_options(typed: str, offered: set[str]) -> None:
    words = f"ors-server {typed}"
    variables = {"_ORS_SERVER_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    done = subprocess.run(
        [str(Path(sys.executable).with_name("ors-server"))],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert set(done.stdout.split()) == offered, done


def test_nothing_but_serving_imports_the_web_framework() -> None:
    """`--help`, `settings`, and a target that does not load respond without FastAPI and uvicorn."""
    program = """
import sys
from ors_cli import main
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
