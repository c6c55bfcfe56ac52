"""``ors-server check`` as a command: its list, its exit status, and mistakes of the caller."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ors_cli.application import application
from ors_cli.authoring import check as command
from ors_clients.conformance.check import Report
from ors_clients.conformance.rule import Outcome, Result, Severity
from ors_clients.conformance.rules import SERVER_RULES
from ors_clients.errors import ConfigurationError

from tests.support.servers import free_port


def status(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        application(["check", *arguments])
    return int(ended.value.code or 0)


def test_the_list_has_what_each_rule_tries(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert status("--list", "--only", "limits", "--skip", "limits.head") == 0
    out = capsys.readouterr().out
    assert "limits.body" in out
    assert "limits.head" not in out
    assert "memory" in out
    assert "call.events" not in out


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--seed", "1"], "nothing to check"),
        (["http://127.0.0.1:1", "--only", "call.event"], "no rule call.event"),
        (["--list", "--skip", "calls"], "no rule calls"),
        (["ftp://host"], "not the address"),
        (["http://host:99999"], "not the address"),
        (["http://[bad"], "not the address"),
        (["http://127.0.0.1:1", "--json", "/nowhere/report.json"], "cannot be written"),
        (["http://127.0.0.1:1", "--reward-range", "1", "0"], "is empty"),
    ],
)
def test_mistakes_of_the_caller(arguments: list[str], error: str) -> None:
    with pytest.raises(ConfigurationError, match=error):
        application(["check", *arguments])


def test_a_server_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "report.json"
    assert status(f"http://user:secret@127.0.0.1:{free_port()}", "--json", str(file)) == 1
    report = json.loads(file.read_text())
    assert report["conforms"] is False
    assert "no HTTP server answers" in report["problem"]
    captured = capsys.readouterr()
    assert "secret" not in captured.out + captured.err + file.read_text()


@pytest.mark.parametrize(
    ("severity", "outcome", "statuses"),
    [
        (Severity.REQUIRED, Outcome.FAILED, (1, 1)),
        (Severity.RECOMMENDED, Outcome.FAILED, (0, 1)),
        (Severity.RECOMMENDED, Outcome.WARNED, (0, 1)),
        (Severity.OURS, Outcome.FAILED, (0, 0)),
        (Severity.RECOMMENDED, Outcome.PASSED, (0, 0)),
        (Severity.RECOMMENDED, Outcome.NOT_TRIED, (0, 0)),
    ],
)
def test_strict_also_counts_what_is_recommended(
    severity: Severity, outcome: Outcome, statuses: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def played(*_: Any) -> Report:
        rule = replace(SERVER_RULES[0], severity=severity)
        return Report("target", "echo", results=[Result(rule, outcome, "", 0.0)])

    monkeypatch.setattr(command, "_run", played)
    assert (status("http://host"), status("http://host", "--strict")) == statuses


def test_json_on_standard_output_is_alone_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert status(f"http://127.0.0.1:{free_port()}", "--json", "-") == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out)["rules"] == []
    assert "nothing was tried" in captured.err
