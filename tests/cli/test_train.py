"""``ors-server train`` on the command line. The process that trains is a stand-in; tests/long/test_train.py has it."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ors_clients.learning.plan import Plan

from environments.echo import environment as module
from ors_server import DefinitionError, Environment, Split, TextBlock, ToolOutput, tool
from ors_server.server import Server
from tests.clients.scripted_engine import serve_application

Command = Callable[..., Any]

#: Answers which versions it has, and writes a report where the process that trains would.
STAND_IN = """#!/bin/sh
case "$1" in
-c) echo '{versions}' ;;
-W) shift 4; test {status} = 0 || exit {status}
   echo '{{"verdict": "as it was"}}' > "$1/report.json" ;;
esac
"""
_OTHERS = ("torch", "transformers", "datasets", "accelerate", "pydantic", "httpx", "rich", "orsd")
ALL = {"trl": "1.16.0", "vllm": "0.32.0", **dict.fromkeys(_OTHERS, "1")}


@pytest.fixture
def python(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that makes a Python of these versions."""

    def make(status: int = 0, **versions: str | None) -> Path:
        file = tmp_path / "python"
        file.write_text(STAND_IN.format(versions=json.dumps(ALL | versions), status=status))
        file.chmod(0o755)
        return file

    return make


@pytest.fixture
def echo(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Return the address of a server with the echo environment."""
    module.words.cache_clear()
    with serve_application(Server([module.EchoEnvironment]).app) as url:
        yield url
    module.words.cache_clear()


@pytest.fixture
def train(command: Command, tmp_path: Path) -> Command:
    def run(*arguments: str | Path) -> Any:
        return command("train", *arguments, "--data-dir", tmp_path)

    return run


def test_a_run_its_plan_its_report_and_its_page(
    train: Command, python: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, echo: str
) -> None:
    monkeypatch.setenv("ORS_ECHO_WORDS", "600")
    done = train(echo, "--tiny", "--python", python(), "--run", "one", "--seed", "3", "--json", tmp_path / "out.json")
    assert done.code == 0, done.err
    assert f"{echo}/ui/run?run=one" in done.out
    assert json.loads((tmp_path / "out.json").read_text()) == {"verdict": "as it was"}
    plan = json.loads((tmp_path / "trainings" / "one" / "plan.json").read_text())
    assert (plan["seed"], len(plan["train"]), len(plan["held_out"])) == (3, 600, 240)
    assert not {task["text"] for task in plan["train"]} & {task["text"] for task in plan["held_out"]}
    again = train(echo, "--tiny", "--python", python(), "--run", "one")
    assert (again.code, "There is a run one already" in again.err) == (2, True)

    (tmp_path / "trainings" / "one" / "report.json").unlink()
    killed = train("--resume", "one", "--python", python(137))
    assert (killed.code, "The process that trains ended with status 137" in killed.err) == (1, True)
    assert f"ors-server train --resume one --data-dir {tmp_path}" in killed.err


@pytest.mark.parametrize("given", ["many", "0", "-3", "1801"])
def test_a_number_of_words_that_echo_cannot_make_is_refused(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORS_ECHO_WORDS", given)
    module.words.cache_clear()
    with pytest.raises(DefinitionError, match="from 1 to 1800"):
        module.words()


def test_an_interrupted_run_says_how_it_goes_on(train: Command, python: Callable[..., Path], tmp_path: Path) -> None:
    run = tmp_path / "trainings" / "one"
    run.mkdir(parents=True)
    for name, said in (("two", "There is no run two"), ("one", "interrupted before it had a plan")):
        refused = train("--resume", name, "--python", python())
        assert (refused.code, said in refused.err) == (2, True), refused.err
    with (run / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        refused = train("--resume", "one", "--python", python())
        assert (refused.code, "trained by another process" in refused.err) == (2, True)


def test_what_is_missing_is_named_together(train: Command, python: Callable[..., Path]) -> None:
    refused = train("echo", "--tiny", "--python", python(torch=None, trl=None))
    assert refused.code == 2
    assert "it lacks torch, trl" in refused.err
    assert "scripts/trl-venv" in refused.err
    refused = train("echo", "--tiny", "--python", python(trl="1.15.2"))
    assert "it has trl 1.15.2, and 1.16.* is what the tests train with" in refused.err
    refused = train("echo", "--tiny", "--python", "/nowhere/python")
    assert "it does not run" in refused.err


def test_a_target_that_nothing_can_be_learnt_on_is_refused(
    train: Command, python: Callable[..., Path], echo: str
) -> None:
    refused = train("echo", "--python", python())
    assert (refused.code, "--tiny makes one here; --model takes a checkpoint" in refused.err) == (2, True)
    refused = train("my_env.py:Env", "--tiny", "--python", python())
    assert "--tiny knows no solutions of my_env.py:Env" in refused.err
    refused = train("echo", "--tiny", "--python", python(), "--run", "../up")
    assert "is not a name of a run" in refused.err
    # The words of TRL's fixture, four and two, are too few to measure anything.
    refused = train(echo, "--tiny", "--python", python())
    assert "has 2 held-out tasks" in refused.err
    assert "ORS_ECHO_WORDS=600 ors-server serve echo" in refused.err


# --- with a checkpoint ---------------------------------------------------------------------------


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Return a folder that is one as far as the command line looks."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


class ManySplits(Environment):
    """Splits of names that say nothing; the held-out one is of the type validation."""

    @classmethod
    def list_splits(cls) -> list[Split]:
        return [Split(name="all", type="train"), Split(name="kept", type="validation")]

    @classmethod
    def list_tasks(cls, split: str) -> list[dict[str, Any]]:
        return [{"id": f"{split}-{number}"} for number in range(30)]

    def get_prompt(self) -> list[TextBlock]:
        return [TextBlock(text="Say it")]

    @tool
    def say(self) -> ToolOutput:
        """Say it."""
        return ToolOutput(blocks=[], reward=1.0, finished=True)


class SameTasks(ManySplits):
    """Its splits have the same tasks."""

    @classmethod
    def list_tasks(cls, split: str) -> list[dict[str, Any]]:
        return [{"id": str(number)} for number in range(30)]


class OneSplit(ManySplits):
    """Nothing is held out."""

    @classmethod
    def list_splits(cls) -> list[Split]:
        return [Split(name="all", type="train")]


@pytest.fixture(scope="module")
def many_splits() -> Iterator[str]:
    """Return the address of a server with all of them."""
    with serve_application(Server([ManySplits, SameTasks, OneSplit]).app) as url:
        yield url


def test_a_checkpoint_is_trained_on_any_environment_with_a_held_out_split(
    train: Command, python: Callable[..., Path], tmp_path: Path, many_splits: str, checkpoint: Path
) -> None:
    sizes = ("--steps", "3", "--groups", "4", "--samples", "2", "--context", "2048", "--held-out-tasks", "20")
    done = train(many_splits, "--model", checkpoint, *sizes, "--python", python(), "--run", "one", "--device", "cpu")
    assert done.code == 0, done.err
    plan = Plan.from_json(json.loads((tmp_path / "trainings" / "one" / "plan.json").read_text()))
    assert (plan.model, plan.device, plan.tiny, plan.tool_calls) == (str(checkpoint), "cpu", None, "auto")
    assert (plan.train_split, plan.held_out_split, plan.environment) == ("all", "kept", "manysplits")
    assert [task.index for task in plan.train] == list(range(12))  # those that three steps of four take
    assert len(plan.held_out) == 20
    recipe = plan.recipe
    assert (recipe.episodes, recipe.context, recipe.held_out_samples) == (8, 2048, 8)
    again = train("--resume", "one", "--python", python(vllm=None))
    assert (again.code, "it lacks vllm" in again.err) == (2, True)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--held-out", "all"], "all is to be trained on and held out"),
        (["--split", "none"], "There is no split 'none'"),
        (["--held-out-tasks", "9"], "has 9 held-out tasks"),
        (["--samples", "1"], "GRPO learns from differences between episodes of the same task"),
        (["--max-tokens", "4096"], "leaves no room for a prompt"),
        (["--device", "tpu"], "--device is cuda or cpu"),
        (["--tiny"], "--tiny has a model, tasks and sizes of its own"),
        (["--resume", "one"], "Give --resume alone"),
        (["--env", "sametasks"], "30 of 30 held-out tasks are training tasks, too"),
        (["--env", "onesplit"], "No split is of the type test or validation: there are all (train)"),
    ],
)
def test_a_run_that_could_show_nothing_is_refused(
    train: Command, python: Callable[..., Path], many_splits: str, checkpoint: Path, options: list[str], said: str
) -> None:
    refused = train(many_splits, "--model", checkpoint, *options, "--python", python())
    assert (refused.code, said in refused.err) == (2, True), refused.err


def test_a_model_that_is_none_is_refused(train: Command, python: Callable[..., Path], tmp_path: Path) -> None:
    for model, said in ((tmp_path, "has no config.json"), ("no such folder", "is neither a folder nor a name on the")):
        refused = train("echo", "--model", model, "--python", python())
        assert (refused.code, said in refused.err) == (2, True), refused.err
    missing = train("echo", "--model", "some/model", "--python", python(vllm=None, trl="1.15.0"))
    assert "it lacks vllm" in missing.err
    assert "scripts/vllm-venv" in missing.err
    assert "pip install 'trl==1.16.*' 'vllm==0.32.*'" in missing.err
