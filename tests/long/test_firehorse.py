"""OpenReward's own harness, ``firehorse-cli``, unchanged: its command plays episodes on this server.

It runs in the virtual environment that scripts/openreward-venv makes, with a scripted model
(``openreward/scripted_model.py``). It queries the server for the number of tasks, the required secrets, tasks and
tools, plays an episode for each task, and uploads the conversations.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.long.openreward.keyed_environment import KEY
from tests.long.openreward.scripted_model import scripted_model
from tests.long.test_openreward_own_tests import openreward_python as openreward_python
from tests.support.servers import served

pytestmark = pytest.mark.long

HERE = Path(__file__).resolve().parent
_client: Any = importlib.import_module("openreward")


@pytest.mark.parametrize(
    ("agent", "model", "prefix"),
    [
        ("react", "openai/scripted", "/v1"),
        ("react", "anthropic/scripted", ""),
        ("react", "openrouter/scripted", "/v1"),
        ("resum", "openai/scripted", "/v1"),
    ],
)
def test_three_episodes_of_three(
    openreward_python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, agent: str, model: str, prefix: str
) -> None:
    with served(tmp_path / "server", HERE / "openreward" / "keyed_environment.py") as server:
        with scripted_model() as url:
            command = ["--env", "Somebody/Keyed", "--agent", agent, "--model", model, "--split", "test"]
            limits = ["--max-tasks", "3", "--max-turns", "5", "--n-concurrent", "2"]
            places = ["--provider-url", f"{url}{prefix}", "--output-dir", str(tmp_path / "out")]
            finished = subprocess.run(
                [openreward_python.with_name("firehorse"), *command, *limits, *places],
                cwd=tmp_path,
                env=os.environ | variables(server),
                capture_output=True,
                text=True,
                timeout=600,
                check=False,
            )
        said = finished.stderr[-8000:]
        assert finished.returncode == 0, said
        assert "Auto-detected secret: tavily_api_key (from $TAVILY_API_KEY)" in said
        result = json.loads((tmp_path / "out" / "run_result.json").read_text())
        assert (result["n_tasks"], result["n_completed"], result["n_failed"]) == (3, 3, 0)
        assert result["avg_reward"] == 1.0
        trials = [json.loads(path.read_text()) for path in (tmp_path / "out").glob("trial_*_result.json")]
        assert sorted((trial["task_spec"]["id"], trial["final_reward"], trial["finished"]) for trial in trials) == [
            (f"test-{number}", 1.0, True) for number in range(3)
        ]
        assert KEY not in said
        # Its uploads, as its own client reads them.
        monkeypatch.setenv("OPENREWARD_API_URL", server)
        monkeypatch.setenv("OPENREWARD_SESSION_URL", server)
        client = _client.OpenReward(api_key="any")
        difficulty = client.environments.get("Somebody/Keyed").get_task_difficulty(split="test")
        assert [(task.task_index, task.max_reward, task.num_rollouts) for task in difficulty] == [
            (number, 1.0, 1) for number in range(3)
        ]
        client.rollout.close()


def variables(server: str) -> dict[str, str]:
    """Return the environment variables of a user who keeps everything on their own machine."""
    keys = ("OPENREWARD", "OPENAI", "ANTHROPIC", "OPENROUTER")
    return {
        **{f"{name}_API_KEY": "any" for name in keys},
        "TAVILY_API_KEY": KEY,
        "OPENREWARD_API_URL": server,
        "OPENREWARD_SESSION_URL": server,
        "OPENREWARD_DISABLE_UPDATE_CHECK": "1",
        "NO_PROXY": "127.0.0.1,localhost",
    }
