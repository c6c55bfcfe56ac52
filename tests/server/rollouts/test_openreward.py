"""openreward's own client uploads, as in trainers, and its own ``orwd`` command lists."""

from __future__ import annotations

import importlib
import json
import subprocess
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.compat.real_clients.openreward_sdk import new_client
from tests.server.rollouts.support import rows
from tests.support.servers import Running, StartServer, executable

Command = Callable[..., Any]
_cli: Any = importlib.import_module("openreward.cli")
_models: Any = importlib.import_module("openreward.models")
_base: Any = importlib.import_module("openreward.api.rollouts.serializers.base")


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    """Turn off the query for newer clients at a package index, and proxies for the loopback device."""
    monkeypatch.setenv("OPENREWARD_DISABLE_UPDATE_CHECK", "1")
    monkeypatch.delenv("OPENREWARD_URL", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")


@pytest.fixture
def served(start_server: StartServer) -> Running:
    return start_server("echo", "--alias", "owner/Echo=echoenvironment")


@pytest.fixture
def client(served: Running) -> Generator[Any]:
    opened = new_client(served.url, asynchronous=False)
    yield opened
    opened.rollout.close()


@dataclass
class Outcome:
    """Output of a command; ``code`` is its message where it exited with one."""

    code: object
    out: str


Orwd = Callable[..., Outcome]


@pytest.fixture
def orwd(served: Running, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Orwd:
    """Return a function that runs ``orwd`` in this process: a start takes seconds, all of them the SDK's imports."""
    monkeypatch.setenv("OPENREWARD_API_URL", served.url)
    monkeypatch.setenv("OPENREWARD_API_KEY", "any")

    def run(*arguments: str) -> Outcome:
        capsys.readouterr()
        try:
            code: object = _cli.main(list(arguments))
        except SystemExit as end:
            code = end.code
        return Outcome(code, capsys.readouterr().out)

    return run


def test_every_kind_of_message_is_read_back(client: Any, served: Running, command: Command, data_dir: Path) -> None:
    """As the client's own types and those of OpenAI, Anthropic and Google, through its background thread."""
    run_info = _models.RunInfo(model_name="tiny", run_type="train", lr=1e-6)
    recorded = client.rollout.create(
        run_name="my-run",
        rollout_name="step 3",
        environment="owner/Echo",
        split="train",
        metadata={"group": 4},
        task_spec={"id": "1", "text": "hello"},
        run_info=run_info,
    )
    recorded.log(_base.SystemMessage("Be brief."))
    recorded.log(_base.UserMessage("Say hello."))
    recorded.log(_base.ReasoningItem(content="Easy.", summary="easy"), metadata={"tokens": 12})
    recorded.log(_base.ToolCall(name="echo", content='{"text": "hello"}', call_id="c1"))
    recorded.log(_base.ToolResult(content="hello", call_id="c1"), reward=0.5)
    recorded.log_openai_completions({"role": "user", "content": "Once more, \U0001f600."})
    recorded.log_anthropic_message(
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c2", "name": "echo", "input": {"text": "é"}}]}
    )
    recorded.log_openai_response({"type": "function_call_output", "call_id": "c2", "output": "é"}, reward=0.25)
    info = _models.RolloutInfo(task_index=1, temperature=0.7, duration_ms=1234)
    recorded.log(_base.AssistantMessage("Done."), reward=1.0, is_finished=True, rollout_info=info)
    client.rollout.close()

    shown = json.loads(command("rollouts", "show", recorded.event_id, "--json").out)
    messages = shown.pop("messages")
    assert {name: shown[name] for name in ("run_name", "rollout_name", "environment", "split", "task_spec")} == {
        "run_name": "my-run",
        "rollout_name": "step 3",
        "environment": "owner/Echo",
        "split": "train",
        "task_spec": {"id": "1", "text": "hello"},
    }
    assert (shown["metadata"], shown["run_info"]) == (
        {"group": 4},
        {"model_name": "tiny", "run_type": "train", "lr": 1e-6},
    )
    assert shown["rollout_info"] == {"task_index": 1, "temperature": 0.7, "duration_ms": 1234}
    assert (shown["max_reward"], shown["total_reward"], shown["finished"]) == (1.0, 1.75, True)
    assert [each["index"] for each in messages] == list(range(9))
    assert [(each["type"], each["content"], each["name"], each["call_id"], each["reward"]) for each in messages] == [
        ("system_message", "Be brief.", None, None, None),
        ("user_message", "Say hello.", None, None, None),
        ("reasoning", "Easy.", None, None, None),
        ("tool_call", '{"text": "hello"}', "echo", "c1", None),
        ("tool_result", "hello", None, "c1", 0.5),
        ("user_message", "Once more, \U0001f600.", None, None, None),
        ("tool_call", '{"text":"é"}', "echo", "c2", None),
        ("tool_result", "é", None, "c2", 0.25),
        ("assistant_message", "Done.", None, None, 1.0),
    ]
    assert (messages[2]["summary"], messages[2]["metadata"]) == ("easy", {"tokens": 12})
    # The id that the client requested from the server by the environment's alias.
    assert rows(data_dir, "SELECT environment_id FROM rollouts") == [("echoenvironment",)]
    assert "Be brief." in command("rollouts", "show", recorded.event_id[:8]).out


def test_orwd_lists_what_was_uploaded(client: Any, orwd: Orwd) -> None:
    for number in range(3):
        recorded = client.rollout.create(run_name="my-run", rollout_name=f"n{number}", environment="echoenvironment")
        recorded.log(_base.AssistantMessage("x"), reward=float(number), is_finished=True)
        time.sleep(0.002)  # the list is ordered by time
    client.rollout.close()

    listed = orwd("runs", "--search", "MY")
    assert listed.code == 0
    assert listed.out.splitlines()[1].split()[:3] == ["my-run", "3", "1.000"]
    assert "Showing 1 of 1 runs" in listed.out
    (run,) = json.loads(orwd("runs", "-o", "json").out)
    for name in (run["id"], "my-run"):
        detail = orwd("run", name)
        assert detail.code == 0
        assert "Rollouts:       3" in detail.out
        assert "Avg reward:     1.000" in detail.out
        assert "Avg length:     1.0" in detail.out
    page = orwd("rollouts", run["id"], "--limit", "2", "--offset", "1")
    assert page.code == 0
    assert [line.split()[:4] for line in page.out.splitlines()[1:3]] == [
        ["n1", "echoenvironment", "1.000", "1"],
        ["n0", "echoenvironment", "0.000", "1"],
    ]
    assert "Showing 2 of 3 rollouts" in page.out
    assert str(orwd("run", "another").code).startswith("Error 404: unknown run 'another'. ")


@pytest.mark.long
def test_orwd_shows_the_user_and_the_environments(orwd: Orwd) -> None:
    who = orwd("whoami")
    assert (who.code, who.out.splitlines()) == (0, ["Namespace: local", "ID:        local", "Type:      user"])
    for arguments in ((), ("--mine",), ("--search", "ECHO", "--limit", "1")):
        listed = orwd("list", *arguments)
        assert listed.code == 0
        assert listed.out.splitlines()[1].split() == ["local/echoenvironment", "no"]
        assert "Showing 1 of 1 environments" in listed.out
    assert "owner/Echo" in orwd("list", "--owner", "owner").out
    assert "No environments found." in orwd("list", "--owner", "nobody").out
    got = orwd("get", "owner/Echo")
    assert got.code == 0
    assert "Name:        owner/Echo" in got.out


@pytest.mark.long
def test_difficulty_and_secrets_as_the_client_reads_them(client: Any, served: Running) -> None:
    for number in range(4):
        recorded = client.rollout.create(
            run_name="run", environment="owner/Echo", split="train", variant="echoenvironment"
        )
        recorded.log(_base.ToolCall(name="echo", content='{"text": "hello"}', call_id="c1"))
        recorded.log(_base.ToolResult(content="hello", call_id="c1"), reward=number / 4, is_finished=True)
        info = _models.RolloutInfo(task_index=number % 2)
        recorded.log(_base.AssistantMessage("x" * number), rollout_info=info)
    client.rollout.close()
    asking = new_client(served.url, asynchronous=False)
    for name, options in (("owner/Echo", {}), ("any/ECHOEnvironment", {"variant": "echoenvironment"})):
        environment = asking.environments.get(name, **options)
        assert environment.list_required_secrets() == []
        found = environment.get_task_difficulty(split="train")
        assert [(task.task_index, task.avg_reward, task.num_rollouts) for task in found] == [(0, 0.25, 2), (1, 0.5, 2)]
        assert (found[0].split, found[0].variant) == ("train", "echoenvironment")
        assert [task.response_chars.p50 for task in found] == [18.0, 19.0]
    assert asking.environments.get("bare").list_required_secrets() == []
    asking.rollout.close()


@pytest.mark.long
def test_many_rollouts_at_once_in_parallel_batches(client: Any) -> None:
    """A thousand messages, which the client sends in batches over many connections."""
    recorded = [client.rollout.create(run_name="many", rollout_name=str(number)) for number in range(10)]
    for index in range(100):
        for each in recorded:
            each.log(_base.AssistantMessage(f"{index}"), reward=0.01)
    client.rollout.close()
    lines = subprocess.run([executable(), "rollouts", "export"], capture_output=True, check=True).stdout.splitlines()
    exported = {row["id"]: row for row in map(json.loads, lines)}
    assert set(exported) == {each.event_id for each in recorded}
    for row in exported.values():
        assert [message["content"] for message in row["messages"]] == [str(index) for index in range(100)]
        assert row["total_reward"] == pytest.approx(1.0, abs=1e-12)


def test_the_client_retries_an_upload_that_was_not_stored(served: Running, data_dir: Path) -> None:
    """The client retries after a 503, so nothing is lost."""
    data_dir.write_text("in the way")
    opened = new_client(served.url, asynchronous=False)
    opened.config.send_loop_config.backoff_base = 0.2
    threading.Timer(0.5, data_dir.unlink).start()
    started = time.monotonic()
    recorded = opened.rollout.create(run_name="again")
    assert time.monotonic() - started > 0.4
    recorded.log(_base.AssistantMessage("kept"))
    opened.rollout.close()
    assert rows(data_dir, "SELECT content FROM messages") == [("kept",)]
