"""Exports loaded by Hugging Face's ``datasets``, in the virtual environment that scripts/trl-venv makes."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ors_server.rollouts.export import row_of
from ors_server.rollouts.storing.writer import RolloutWriter
from tests.server.rollouts.support import NOON, at, body, message, rollout, stored
from tests.support.servers import executable
from tests.support.virtualenvs import made_by

pytestmark = pytest.mark.long

SCRIPT = """
import json, sys
from datasets import load_dataset
for kind, path in (("parquet", sys.argv[1]), ("json", sys.argv[2])):
    print(json.dumps(load_dataset(kind, data_files=path, split="train", cache_dir=sys.argv[3]).to_list(), default=str))
"""


def test_datasets_loads_both_formats(tmp_path: Path) -> None:
    """Rollouts of environments whose tasks have nothing in common."""
    python = made_by("trl-venv")
    data_dir = tmp_path / "data"

    async def fill() -> None:
        writer = RolloutWriter(at(data_dir))
        for number in range(40):
            name = f"r{number}"
            spec: dict[str, Any] = {"id": number} if number % 2 else {"id": "text", "more": [1, None]}
            call = message(name, 0, "{}", type="tool_call", name="bash", callId="c", metadata={name: 1})
            said = message(name, 1, "x" * 2000, reward=number / 3, isFinished=True)
            await writer.store(body(rollout(name, at=NOON + number, task_spec=spec), call, said))
        await writer.close()

    asyncio.run(fill())
    outputs = [tmp_path / "rollouts.parquet", tmp_path / "rollouts.jsonl"]
    for output in outputs:
        subprocess.run([executable(), "rollouts", "export", "--data-dir", data_dir, "-o", output], check=True)
    loaded = subprocess.run(
        [python, "-c", SCRIPT, *map(str, outputs), str(tmp_path / "cache")],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert loaded.returncode == 0, loaded.stderr
    expected = [row_of(each) for each in stored(data_dir)]
    parquet, lines = map(json.loads, loaded.stdout.splitlines()[-2:])
    assert parquet == expected
    # datasets converts times in JSON to timestamps.
    for rows in (lines, expected):
        for row in rows:
            for timed, key in ((row, "created_at"), *((said, "sent_at") for said in row["messages"])):
                timed[key] = str(timed[key])[:10]
    assert lines == expected
