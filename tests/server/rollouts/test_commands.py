"""``ors-server rollouts``: the listing, the conversation, and the files for training."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NoReturn

import httpx
import pytest
from sqlalchemy.exc import OperationalError

from ors_server.rollouts.export import row_of
from ors_server.rollouts.storing.writer import RolloutWriter
from tests.server.rollouts.support import NOON, at, body, message, rollout, stored, update
from tests.support.servers import StartServer, executable

Command = Callable[..., Any]


def fill(folder: Path, *events: object) -> None:
    async def upload() -> None:
        writer = RolloutWriter(at(folder))
        await writer.store(body(*events))
        await writer.close()

    asyncio.run(upload())


@pytest.fixture
def filled(data_dir: Path) -> Path:
    """Store two runs of two environments whose tasks have nothing in common."""
    call = {"type": "tool_call", "name": "bash", "callId": "c1"}
    fill(
        data_dir,
        rollout("aaaa-1", "one", environment="owner/env", split="train", task_spec={"id": 7}, run_info={"lr": 0.1}),
        message("aaaa-1", 0, "Be brief.", type="system_message"),
        message("aaaa-1", 1, "List\r\nfiles [bold]now[/bold].", type="user_message"),
        message("aaaa-1", 2, "thinking it over", type="reasoning", summary="in short"),
        message("aaaa-1", 3, '{"command": "ls", "deep": [1]}', **call),
        message("aaaa-1", 4, "red \x1b[31m bell \x07", type="tool_result", callId="c1", reward=0.25, metadata={"n": 1}),
        message("aaaa-1", 5, "done", reward=1.0, isFinished=True),
        update("aaaa-1", task_index=7),
        rollout("aaaa-2", "one", at=NOON + 60_000, rolloutName="second"),
        rollout("bbbb-1", "two", at=NOON + 120_000, task_spec={"id": "text", "more": None}, metadata={"x": [1, "2"]}),
        message("bbbb-1", 0, "hello"),
    )
    return data_dir


def test_the_listing(command: Command, filled: Path) -> None:
    outcome = command("rollouts", "list")
    assert outcome.code == 0
    heading, *lines = outcome.out.splitlines()
    assert heading.split() == ["Id", "Run", "Name", "Environment", "Reward", "Messages", "Created", "(UTC)"]
    assert [line.split()[:2] for line in lines[:3]] == [["bbbb-1", "two"], ["aaaa-2", "one"], ["aaaa-1", "one"]]
    assert re.split(r"\s{2,}", lines[2]) == ["aaaa-1", "one", "-", "owner/env", "1.25", "6", "2023-11-14 22:13"]
    assert lines[-1] == f"1–3 of 3 rollouts in {filled}."
    assert "2–2 of 2" in command("rollouts", "list", "--run", "one", "--offset", "1").out


def test_recorded_sessions_fit_into_80_columns(
    command: Command, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    fill(data_dir, rollout("aaaa-1", "recorded-2026-11-23", environment="environment"))
    heading, line, *_ = command("rollouts", "list").out.splitlines()
    assert "Name" not in heading
    assert re.split(r"\s{2,}", line)[:3] == ["aaaa-1", "recorded-2026-11-23", "environment"]


def test_the_listing_for_programs(command: Command, filled: Path) -> None:
    listed = json.loads(command("rollouts", "list", "--json", "--run", "one", "--limit", "1").out)
    assert listed["total"] == 2
    assert listed["rollouts"] == [
        {
            "id": "aaaa-2",
            "run_id": listed["rollouts"][0]["run_id"],
            "run_name": "one",
            "rollout_name": "second",
            "environment": None,
            "variant": None,
            "split": None,
            "reward": None,
            "passed": None,
            "max_reward": None,
            "total_reward": None,
            "num_messages": 0,
            "finished": False,
            "created_at": "2023-11-14T22:14:20.000+00:00",
            "verdict_mark": None,
            "counterpart": None,
            "regrade": None,
        }
    ]


def test_a_conversation(command: Command, filled: Path) -> None:
    out = command("rollouts", "show", "aaaa-1").out
    for words in (
        "owner/env",
        "1.25 (highest of one message 1); finished",
        '{"id": 7}',
        '{"task_index": 7}',
        "Be brief.",
        "List\nfiles [bold]now[/bold].",
        "in short\nthinking it over",
        "Tool call  bash  c1",
        '  "command": "ls",\n',
        "Tool result  c1  reward 0.25",
        "red ␛[31m bell ␇",
        '{"n": 1}',
        "Assistant  reward 1  finished",
    ):
        assert words in out
    assert "\x1b[31m" not in out
    places = [
        out.index(word) for word in ("System ", "User ", "Reasoning ", "Tool call ", "Tool result ", "Assistant ")
    ]
    assert places == sorted(places)


def test_a_rollout_by_the_beginning_of_its_id(command: Command, filled: Path) -> None:
    shown = json.loads(command("rollouts", "show", "bb", "--json").out)
    assert shown == {row["id"]: row for row in stored(filled)}["bbbb-1"]
    several = command("rollouts", "show", "aaaa")
    assert several.code == 2
    assert several.err.startswith("Error: Several rollouts begin with 'aaaa'.\n")
    none = command("rollouts", "show", "cccc")
    assert none.code == 2
    assert "There is no rollout 'cccc'." in none.err


def test_nothing_stored(command: Command, data_dir: Path) -> None:
    assert command("rollouts", "list").out == f"None of 0 rollouts in {data_dir}.\n"
    assert json.loads(command("rollouts", "list", "--json").out) == {"rollouts": [], "total": 0}
    for arguments in (("show", "a"), ("export",)):
        outcome = command("rollouts", *arguments)
        assert outcome.code == 2
        assert f"There are no rollouts in {data_dir}." in outcome.err
    assert not data_dir.exists()


def test_an_unknown_run(command: Command, filled: Path) -> None:
    for arguments in (("list",), ("export",)):
        outcome = command("rollouts", *arguments, "--run", "three")
        assert outcome.code == 2
        assert "unknown run 'three'." in outcome.err


def test_a_damaged_file(command: Command, data_dir: Path) -> None:
    data_dir.mkdir()
    (data_dir / "rollouts.sqlite3").write_bytes(b"nothing like it" * 100)
    outcome = command("rollouts", "list")
    assert outcome.code == 2
    assert f"The file of rollouts in {data_dir} cannot be used: it is damaged or no SQLite file.\n" in outcome.err


def test_export_as_json_lines(command: Command, filled: Path, tmp_path: Path) -> None:
    """Standard output gets the same as a file: a row for each rollout, the oldest first, with free parts as JSON."""
    output = tmp_path / "rollouts.jsonl"
    outcome = command("rollouts", "export", "--output", output)
    assert (outcome.code, outcome.out) == (0, "")
    assert f"Wrote 3 rollouts to {output}." in outcome.err
    lines = [json.loads(line) for line in output.read_text("utf-8").splitlines()]
    assert lines == [row_of(each) for each in stored(filled)]
    assert [line["id"] for line in lines] == ["aaaa-1", "aaaa-2", "bbbb-1"]
    assert lines[0]["task_spec"] == '{"id": 7}'
    assert lines[0]["messages"][4]["metadata"] == '{"n": 1}'
    to_pipe = subprocess.run([executable(), "rollouts", "export", "--run", "one"], capture_output=True, check=True)
    assert [json.loads(line) for line in to_pipe.stdout.splitlines()] == lines[:2]
    assert to_pipe.stderr == b""


def test_export_as_parquet(command: Command, filled: Path, tmp_path: Path) -> None:
    parquet: Any = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    output = tmp_path / "rollouts.parquet"
    assert command("rollouts", "export", "-o", output).code == 0
    table = parquet.read_table(output)
    assert table.to_pylist() == [row_of(each) for each in stored(filled)]
    assert str(table.schema.field("max_reward").type) == "double"
    assert table.schema.field("variant").type == "string"  # although no row has a value
    assert command("rollouts", "export", "--run", "two", "--format", "parquet", "-o", tmp_path / "two").code == 0
    assert parquet.read_table(tmp_path / "two").num_rows == 1


def test_parquet_in_several_row_groups(
    command: Command, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parquet: Any = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    monkeypatch.setattr("ors_server.rollouts.export._ROW_GROUP", 1000)
    fill(data_dir, *(event for n in range(10) for event in (rollout(f"r{n}"), message(f"r{n}", 0, "x" * 400))))
    output = tmp_path / "rollouts.parquet"
    assert command("rollouts", "export", "-o", output).code == 0
    assert parquet.ParquetFile(output).num_row_groups == 4
    assert parquet.read_table(output).column("id").to_pylist() == [f"r{n}" for n in range(10)]


def test_parquet_needs_a_file_and_its_package(
    command: Command, filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "Parquet cannot go to standard output." in command("rollouts", "export", "--format", "parquet").err
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    outcome = command("rollouts", "export", "-o", tmp_path / "rollouts.parquet")
    assert outcome.code == 2
    assert "pip install '/path/to/ors-server[parquet]'" in outcome.err
    assert list(tmp_path.glob("*rollouts.parquet*")) == []


def test_an_export_that_fails_leaves_what_was_there(
    command: Command, filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object) -> NoReturn:
        raise OperationalError("SELECT nothing", {}, sqlite3.OperationalError("no such column: nothing"))

    output = tmp_path / "rollouts.jsonl"
    output.write_text("before")
    with monkeypatch.context() as patch:
        patch.setattr("ors_server.rollouts.queries.conversations.messages_of", broken)
        assert command("rollouts", "export", "-o", output).code == 2
    assert output.read_text() == "before"
    assert [path.name for path in tmp_path.iterdir() if path != filled] == ["rollouts.jsonl"]
    outcome = command("rollouts", "export", "-o", tmp_path / "none" / "rollouts.jsonl")
    assert outcome.code == 2
    assert "cannot be written: No such file or directory." in outcome.err


def test_a_link_is_kept_and_its_target_written(command: Command, filled: Path, tmp_path: Path) -> None:
    target, link = tmp_path / "elsewhere" / "rollouts.jsonl", tmp_path / "link.jsonl"
    target.parent.mkdir()
    link.symlink_to("elsewhere/rollouts.jsonl")
    for _ in range(2):  # without a file, and with one
        assert command("rollouts", "export", "-o", link).code == 0
        assert link.is_symlink()
        assert len(target.read_text("utf-8").splitlines()) == 3
    assert list(target.parent.iterdir()) == [target]


def test_a_pipe_is_kept_and_written(command: Command, filled: Path, tmp_path: Path) -> None:
    """A device is not replaced by a file, either: for /dev/null that would damage the machine."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        (tmp_path / "link").symlink_to(pipe)
        for path in (pipe, tmp_path / "link"):
            assert command("rollouts", "export", "-o", path).code == 0
            assert pipe.is_fifo()
            assert len(os.read(reader, 65536).splitlines()) == 3
    finally:
        os.close(reader)


@pytest.mark.parametrize("messages", [1, 200], ids=["less than a buffer", "more"])
def test_standard_output_that_cannot_be_written(data_dir: Path, messages: int) -> None:
    fill(data_dir, *(rollout(f"r{n}") for n in range(3)), *(message("r0", n, "x" * 1000) for n in range(messages)))
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run([executable(), "rollouts", "export"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr == (
        "Error: Standard output cannot be written: No space left on device.\nName a file elsewhere with --output.\n"
    )


def test_a_closed_pipe_is_not_an_error(data_dir: Path) -> None:
    fill(data_dir, *(rollout(f"r{n}") for n in range(5)), *(message("r0", n, "x" * 5000) for n in range(60)))
    done = subprocess.run(
        ["bash", "-c", '"$0" rollouts export | head -c 4', executable()], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ('{"id', "")


def test_commands_beside_a_running_server(command: Command, start_server: StartServer, data_dir: Path) -> None:
    served = start_server("echo")
    url = f"{served.url}/v1/rollouts"
    assert httpx.post(url, content=body(rollout("r"), message("r", 0)), trust_env=False, timeout=60).json() == {
        "stored": 2
    }
    with closing(sqlite3.connect(data_dir / "rollouts.sqlite3", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")  # as the server does while it writes
        assert "1–1 of 1" in command("rollouts", "list").out
    exported = subprocess.run([executable(), "rollouts", "export"], capture_output=True, check=True)
    assert json.loads(exported.stdout) == row_of(stored(data_dir)[0])
    served.process.kill()
    served.process.wait(15)
    assert "1–1 of 1" in command("rollouts", "list").out
