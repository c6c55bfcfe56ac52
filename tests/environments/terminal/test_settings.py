"""The environment's variables: read, checked, documented."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest

from ors_server import DefinitionError

from .parts import FOLDER, settings


def test_every_variable_is_documented_with_its_default_and_its_words() -> None:
    text = (FOLDER / "README.md").read_text()
    rows = dict(re.findall(r"\| `ORS_TERMINAL_(\w+)` \| (.*)\|", text))
    assert set(rows) == {name.upper() for name in settings.TerminalSettings.model_fields}
    for name, field in settings.TerminalSettings.model_fields.items():
        default, _, words = rows[name.upper()].partition("|")
        assert field.description is not None
        assert words.strip() in field.description
        shown: Any = field.default
        expected = str(shown).lower() if isinstance(shown, bool) else str(shown)
        assert default.strip() in (expected, expected.removesuffix(".0")), name


def test_variables_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ORS_TERMINAL_TASKS", f"{tmp_path}/a:{tmp_path}/b")
    monkeypatch.setenv("ORS_TERMINAL_FAMILIES", "csv_join, links")
    monkeypatch.setenv("ORS_TERMINAL_OUTPUT", "1000")
    read = settings.read_settings()
    assert read.folders == (tmp_path / "a", tmp_path / "b")
    assert read.family_names == ("csv_join", "links")
    assert read.limits.output == 4000


@pytest.mark.parametrize(
    ("name", "value"), [("STEPS", "0"), ("COMMAND_TIMEOUT", "soon"), ("MEMORY", "1"), ("CPU", "-1")]
)
def test_a_value_that_does_not_fit_names_its_variable(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"ORS_TERMINAL_{name}", value)
    with pytest.raises(DefinitionError, match=f"ORS_TERMINAL_{name} is '{value}'"):
        settings.read_settings()


def test_a_misspelt_variable_is_reported(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("ORS_TERMINAL_STEP", "3")
    with caplog.at_level(logging.WARNING):
        settings.read_settings()
    assert "did you mean ORS_TERMINAL_STEPS?" in caplog.text
