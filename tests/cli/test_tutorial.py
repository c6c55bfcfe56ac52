"""The tutorial: its environment, and, as a long test, each of its commands in turn."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from ors_clients.client.local_sessions import local

from tests.clients.chat_stand_in import ChatStandIn, call
from tests.support.paths import DOCS
from tests.support.servers import starting

BLOCKS = re.findall(r"```sh\n(.*?)```", (DOCS / "tutorial.md").read_text("utf-8"), re.DOTALL)


def backwards(body: dict[str, Any]) -> dict[str, Any]:
    """Answer as a model that can spell backwards."""
    found = re.search(r"the word '(\w+)'", body["messages"][0]["content"])
    assert found
    return call("answer", {"text": found[1][::-1]})


async def test_its_environment() -> None:
    found = re.search(r"<<'PYTHON'\n(.*?)PYTHON\n", BLOCKS[0], re.DOTALL)
    assert found
    names: dict[str, Any] = {"__name__": "tutorial"}
    exec(compile(found[1], "tutorial.md", "exec"), names)
    for answer, reward in {"pmal": 1.0, "lamp": 0.0}.items():
        async with local(names["Backwards"], split="train", index=0) as session:
            result = await session.call("answer", {"text": answer})
            assert (result.reward, result.finished) == (reward, True)


@pytest.mark.long
def test_each_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the blocks in their order; the server has a free port, and a scripted endpoint stands in for the model."""
    monkeypatch.setenv("ORS_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    addresses: dict[str, str] = {}

    def run(block: str) -> str:
        script = block.replace(". .venv/bin/activate", ":")
        for address, here in addresses.items():
            script = script.replace(address, here)
        ran = subprocess.run(["bash", "-euc", script], cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    write, check, serve, play, evaluate = BLOCKS
    run(write)
    assert "no required rule is broken" in run(check)
    program, command, *arguments = shlex.split(serve)
    assert (program, command) == ("ors-server", "serve")
    with starting(tmp_path) as start, ChatStandIn(policy=backwards).serve() as model:
        url = start(*arguments, cwd=tmp_path).url
        addresses.update({"http://127.0.0.1:8080": url, "http://127.0.0.1:8000/v1": model})
        assert run(play).splitlines() == ["Spell the word 'lamp' backwards, with the tool `answer`.", "1.0"]
        printed = run(evaluate)
        assert "100.0 %" in printed
        assert printed.count("backwards") >= 8  # two tasks, four samples
        assert "Spell a word backwards." in httpx.get(f"{url}/ui").text
        runs = httpx.get(f"{url}/ui/runs").text
        assert "Qwen3-0.6B" in runs
        assert "recorded-" in runs
