"""``ors-server settings`` and the flags made from the settings."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from typing import Any

import pytest
import typer
from ors_cli.application import application
from ors_cli.flags import PANELS, flag_of, misspelt_variables, shown, type_of, variable_of
from typer.main import get_command

from ors_server.settings import Settings
from tests.support.paths import ROOT

Command = Callable[..., Any]
ALL = list(Settings.model_fields)
FOLDERS = ["benchmarks", "cli", "clients", "containers", "docs", "environments", "ors_server", "scripts", "tests"]


def test_every_setting_has_a_group_and_a_description() -> None:
    """A new setting gets a flag automatically; its group in `--help` and its meaning must be written."""
    assert sorted(name for names in PANELS.values() for name in names) == sorted(ALL)
    assert all(field.description for field in Settings.model_fields.values())


def test_serve_has_a_flag_for_every_setting(command: Command) -> None:
    commands: Any = get_command(application)
    _, serve, _ = commands.resolve_command(typer.Context(commands), ["serve"])
    flags = {flag for parameter in serve.params for flag in parameter.opts}
    assert flags >= {flag_of(name) for name in ALL}


@pytest.mark.parametrize("name", ["serve", "host", "gateway", "node"])
def test_help_shows_what_is_used_every_day(name: str, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = command(name, "--help").out
    assert len(text.splitlines()) <= (80 if name == "serve" else 90)
    assert "--session-ttl" in text or "--port" in text
    assert "--delivered-ttl" not in text


def test_settings_are_listed_with_default_value_and_meaning(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORS_SESSION_TTL", "12.5")
    monkeypatch.setenv("ORS_SYNC_ON_LOOP", "yes")
    outcome = command("settings")
    assert outcome.code == 0
    for name, field in Settings.model_fields.items():
        for text in (flag_of(name), variable_of(name), shown(field.default), type_of(field), field.description or ""):
            assert text in outcome.out
    assert all(elsewhere in outcome.out for elsewhere in ("ORS_IMAGES", "ORS_TERMINAL_*"))
    assert outcome.out.count("now ") == 2
    assert "now 12.5" in outcome.out
    assert "now yes" in outcome.out


def test_settings_for_programs(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORS_PORT", "9")
    rows = json.loads(command("settings", "--json").out)
    assert [row["name"] for row in rows] == ALL
    assert rows[ALL.index("port")] == {
        "name": "port",
        "flag": "--port",
        "variable": "ORS_PORT",
        "type": "number",
        "default": 8080,
        "value": 9,
        "meaning": "Port to listen on; 0 picks a free one.",
        "group": "Where it listens",
    }


def test_a_variable_that_does_not_fit(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORS_PORT", "70000")
    outcome = command("settings")
    assert outcome.code == 2
    assert "the variable ORS_PORT: '70000'" in outcome.err


def test_variables_that_the_code_reads_cause_no_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables that code reads, and variables that the instructions tell users to export in their shell."""
    read = re.compile(r"""environ(?:\.get\(|\[)["'](ORS_\w+)["']|\bexport (ORS_\w+)=""")
    found: set[str] = set()
    for file in [ROOT / "README.md", *(file for folder in FOLDERS for file in (ROOT / folder).rglob("*"))]:
        if file.suffix in ("", ".md", ".py", ".sh") and file.is_file():
            found |= {name for names in read.findall(file.read_text("utf-8")) for name in names if name}
    assert {"ORS_URL", "ORS_IMAGES", "ORS_SOAK_SEED", "ORS_ENGINE_API_KEY"} <= found
    for name in [name for name in os.environ if name.upper().startswith("ORS_")]:
        monkeypatch.delenv(name)
    for name in found:
        monkeypatch.setenv(name, "8")
    assert misspelt_variables() == []


@pytest.mark.parametrize(
    ("value", "text"),
    [(900.0, "900"), (0.05, "0.05"), (268435456, "268435456"), (True, "yes"), (None, ""), ("info", "info")],
)
def test_values_are_shown_as_they_are_typed(value: object, text: str) -> None:
    assert shown(value) == text
