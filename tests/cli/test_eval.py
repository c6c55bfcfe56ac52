"""``ors-server eval`` on the command line; its runs are tested in ``tests/clients/evaluation``."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from ors_clients.evaluation.run import RunOptions
from ors_clients.evaluation.settings import EvaluationSettings
from ors_clients.evaluation.summary import Prices

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


def test_every_option_reaches_the_run(command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An option sets the field of its parameter's name: those of the settings, and those of one run of them."""
    reached: list[Any] = []

    def run(given: dict[str, Any], plan: RunOptions, *_: Any, **__: Any) -> int:
        reached.extend((given, plan))
        return 0

    monkeypatch.setattr("ors_cli.measuring.eval.run", run)
    settings = {
        "environment": "a",
        "split": "b",
        "tasks": "0-9",
        "limit": 3,
        "model": "m",
        "base_url": "http://x",
        "api": "sglang",
        "tool_calls": "json",
        "temperature": 0.0,
        "top_p": 0.5,
        "seed": 4,
        "max_tokens": 5,
        "context": 6,
        "tokenizer": "t",
        "thinking": True,
        "system_prompt": "s",
        "drop_reasoning": True,
        "stream": True,
        "samples": 7,
        "reward": "last",
        "success_at": 0.5,
        "max_turns": 8,
        "max_tool_output": 9,
        "episode_timeout": 10.0,
        "secrets": ("K", "L"),
        "extra": {"x": [1], "y": "z"},
        "target": "echo",
    }
    options = {
        "name": "n",
        "concurrency": 2,
        "retries": 1,
        "max_failures": 0.5,
        "ks": (1, 2),
        "compare": "c",
        "upload": "none",
        "key_variable": "V",
        "request_timeout": 11.0,
        "quiet": True,
    }
    flags = {
        "environment": "--env",
        "secrets": "--secret",
        "name": "--run",
        "ks": "--k",
        "key_variable": "--api-key-env",
    }
    words = ["eval", "echo", "--extra", "x=[1]", "--extra", "y=z", "--price-in", "1", "--data-dir", str(tmp_path)]
    for name, value in {**settings, **options}.items():
        for each in value if isinstance(value, tuple) else [value]:
            flag = flags.get(name, f"--{name.replace('_', '-')}")
            words += [] if name in ("target", "extra") else [flag] if each is True else [flag, str(each)]
    assert command(*words).code == 0
    given, plan = reached
    assert given == settings
    assert {name: getattr(plan, name) for name in options} == options
    assert plan.prices == Prices(1.0, None)
    assert {field.name for field in fields(EvaluationSettings)} == settings.keys()


@pytest.mark.parametrize("failed", [False, True])
def test_a_run_whose_numbers_do_not_stand_ends_with_1(
    evaluate: Command, addresses: tuple[str, str], failed: bool
) -> None:
    url, base_url = addresses
    Exam.loses = lambda question, answer: failed and question == 0
    words = ["--model", "m", "--base-url", base_url, "--split", "train", "--limit", "2", "--retries", "0"]
    try:
        assert evaluate(url, *words, "--run", f"failed-{failed}").code == int(failed)
    finally:
        Exam.reset()
