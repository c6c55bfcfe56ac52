"""``ors-server eval`` on the command line; its runs are tested in ``tests/clients/evaluation``."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from ors_server.server import Server
from tests.clients.chat_stand_in import ChatStandIn, call
from tests.clients.evaluation.environments import Exam
from tests.clients.scripted_engine import serve_application

Command = Callable[..., Any]


@pytest.fixture(scope="module")
def addresses() -> Generator[tuple[str, str]]:
    """Return the addresses of an environments' server and of a model's endpoint."""
    Exam.reset()
    model = ChatStandIn(policy=lambda body: call("answer", {"text": "right"}))
    with serve_application(Server([Exam]).app) as url, model.serve() as base_url:
        yield url, base_url


@pytest.fixture
def evaluate(command: Command, addresses: tuple[str, str], tmp_path: Path) -> Command:
    """Return a function that evaluates with further arguments, in a data directory of its own."""

    def run(*arguments: str | Path, **new: Any) -> Any:
        fixed = ["eval", *arguments, "--data-dir", tmp_path, "--upload", "none"]
        return command(*fixed)

    return run


def test_a_run_its_report_and_a_comparison(evaluate: Command, addresses: tuple[str, str], tmp_path: Path) -> None:
    url, base_url = addresses
    model = ("--model", "scripted", "--base-url", base_url, "--split", "train")
    first = evaluate(url, *model, "--samples", "2", "--run", "one", "--report", tmp_path / "out")
    assert first.code == 0
    assert "pass@2" in first.out
    assert "100.0 %" in first.out
    assert f"The run is in {tmp_path}/evals/one." in first.err
    assert "\r" not in first.err  # no bar where standard error is not a terminal
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["pass_at_k"][0]["value"] == 1.0
    assert (tmp_path / "out" / "report.md").read_text().startswith("# one\n")

    again = evaluate("--resume", "one", "--compare", "one", "--json")
    assert again.code == 0
    assert json.loads(again.out)["comparison"]["pass_at_1"]["p"] == 1.0

    refused = evaluate("--resume", "one", "--samples", "1")
    assert refused.code == 2
    assert "samples: 2 → 1" in refused.err


def test_the_command_that_goes_on_names_the_data_directory(
    evaluate: Command, addresses: tuple[str, str], tmp_path: Path
) -> None:
    with ChatStandIn(fault=lambda body, number: 400).serve() as base_url:
        model = ("--model", "scripted", "--base-url", base_url, "--limit", "1", "--retries", "0", "--run", "one")
        outcome = evaluate(addresses[0], *model)
    assert outcome.code == 1
    assert f"Play what is missing: ors-server eval --resume one --data-dir {tmp_path}" in outcome.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["http://127.0.0.1:9"], "--model is missing"),
        (["http://127.0.0.1:9", "--model", "m"], "--base-url is missing"),
        (["--resume", "none"], "No run none"),
        (["x", "--extra", "no"], "NAME=JSON"),
        (["x", "--extra", "x=[NaN]"], "JSON does not have"),
        (["x", "--extra", "x=1e999"], "JSON does not have"),
        (["x", "--api-key", "sk-1"], "No such option"),
        (["/nowhere", "--model", "m", "--base-url", "http://127.0.0.1:9"], "cannot be served"),
    ],
)
def test_what_cannot_be_played(
    evaluate: Command, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    outcome = evaluate(*arguments)
    assert outcome.code == 2
    assert said in outcome.err


def test_the_help_teaches(command: Command) -> None:
    shown = command("eval", "--help").out
    for word in ("ORS_MODEL_API_KEY", "--max-failures", "--resume my-run --compare", "Exit status"):
        assert word in shown
