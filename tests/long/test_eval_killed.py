"""``ors-server eval`` is killed in the middle and goes on: each episode ends once, and nothing stays behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.clients.chat_stand_in import ChatStandIn, call
from tests.support.processes import children
from tests.support.servers import executable

pytestmark = pytest.mark.long

#: Episodes wait at the gate once six have ended: those are under way when the run is killed.
ENVIRONMENT = '''
import asyncio
from pathlib import Path
from pydantic import BaseModel
from ors_server import Environment, TextBlock, ToolOutput, tool

FOLDER = Path(__file__).parent


class Answer(BaseModel):
    text: str


class Gated(Environment):
    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return [{"id": str(number)} for number in range(8)]

    def get_prompt(self):
        return [TextBlock(text=f"Task {self.task_spec['id']}")]

    @tool
    async def answer(self, params: Answer) -> ToolOutput:
        """Answer."""
        ended = FOLDER / "ended"
        while ended.exists() and len(ended.read_text().splitlines()) >= 6 and not (FOLDER / "open").exists():
            await asyncio.sleep(0.02)
        with ended.open("a") as file:
            file.write(self.task_spec["id"] + "\\n")
        return ToolOutput(blocks=[TextBlock(text="noted")], reward=1.0, finished=True)
'''


def test_each_episode_ends_once(tmp_path: Path) -> None:
    target = tmp_path / "gated"
    target.mkdir()
    (target / "environment.py").write_text(ENVIRONMENT)
    data = tmp_path / "data"
    journal = data / "evals" / "run" / "journal.jsonl"
    model = ChatStandIn(policy=lambda body: call("answer", {"text": "x"}))
    with model.serve() as base_url:
        command = [executable(), "eval", str(target), "--model", "scripted", "--base-url", base_url]
        command += ["--samples", "2", "--run", "run", "--concurrency", "1"]
        variables = {name: value for name, value in os.environ.items() if not name.startswith("ORS_")}
        variables["ORS_DATA_DIR"] = str(data)
        process = subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        deadline = time.monotonic() + 120
        # Six have ended, and the seventh has begun.
        while not journal.exists() or journal.read_text().count('{"begun"') < 7:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        servers = children(process.pid)
        assert servers
        process.send_signal(signal.SIGKILL)
        process.communicate()
        while any(Path(f"/proc/{server}").exists() for server in servers):
            assert time.monotonic() < deadline, "the server outlives the run"
            time.sleep(0.05)
        (target / "open").touch()
        resume = [executable(), "eval", "--resume", "run", "--json"]
        done = subprocess.run(resume, env=variables, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["samples"] == {"planned": 16, "scored": 16, "missing": 0}
    assert report["infrastructure"]["interrupted"] == 1
    assert Counter((target / "ended").read_text().split()) == {str(number): 2 for number in range(8)}
    # In the store, the same episodes, each once.
    listed = subprocess.run(
        [executable(), "rollouts", "list", "--run", report["id"], "--json"],
        env=variables,
        capture_output=True,
        text=True,
    )
    assert len(re.findall(r'"rollout_name": "train-\d-\d-0"', listed.stdout)) == 16, listed.stdout[:500]


def test_a_server_that_ends_ends_the_run_which_goes_on(tmp_path: Path) -> None:
    target = tmp_path / "gated"
    target.mkdir()
    ending = (
        '        if len((FOLDER / "ended").read_text().splitlines()) == 4:\n            print("no more", flush=True)\n'
    )
    ending += '            __import__("os")._exit(3)\n        return ToolOutput'
    (target / "environment.py").write_text(ENVIRONMENT.replace("        return ToolOutput", ending))
    variables = {name: value for name, value in os.environ.items() if not name.startswith("ORS_")}
    variables["ORS_DATA_DIR"] = str(tmp_path / "data")
    with ChatStandIn(policy=lambda body: call("answer", {"text": "x"})).serve() as base_url:
        command = [executable(), "eval", str(target), "--model", "scripted", "--base-url", base_url]
        command += ["--run", "run", "--concurrency", "2"]
        begun = time.monotonic()
        ended = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120)
        assert time.monotonic() - begun < 30
        assert ended.returncode == 1, ended.stderr
        assert "ended with status 3 during the run" in ended.stderr
        assert "no more" in ended.stderr
        assert "ors-server eval --resume" in ended.stderr
        (target / "open").touch()
        (target / "environment.py").write_text(ENVIRONMENT)
        resume = [executable(), "eval", "--resume", "run", "--json"]
        done = subprocess.run(resume, env=variables, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["samples"] == {"planned": 8, "scored": 8, "missing": 0}
    assert report["infrastructure"]["interrupted"] >= 1
