"""Tasks and episodes on the servers of ``openreward`` and ``ors-sdk`` with the functions that play on ours."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ors_clients.trainers import slime
from ors_clients.training.config import TrainingConfiguration
from ors_clients.training.dataset import prepare_tasks

from tests.clients import slime_stand_in
from tests.clients.slime_stand_in import Sample
from tests.clients.trainer_setup import call, make_arguments, speaker, write_configuration
from tests.clients.workshop import Site, sites

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def workshops(tmp_path_factory: pytest.TempPathFactory) -> Generator[dict[str, Site]]:
    with sites(tmp_path_factory.mktemp("sites")) as running:
        yield running


@pytest.mark.parametrize("kind", ["own", "openreward", "ors-sdk"])
async def test_tasks_and_episodes(
    workshops: dict[str, Site], kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slime_stand_in.install(monkeypatch)
    environments = {"workshop": {"splits": ["train", "test"], "secrets": {"key": "of the run"}}}
    file = write_configuration(tmp_path, workshops[kind].url, environments)
    rows = await prepare_tasks(TrainingConfiguration.load(file))
    assert sorted(row.task.spec["subject"] for row in rows) == sorted(
        f"{split}-{number}" for split in ("train", "test") for number in range(5)
    )
    turns = (call("work", text="a") + call("whisper"), call("fail"), "Nothing.", call("finish", reward=0.25))
    with speaker(*turns).serve() as engine:
        args: SimpleNamespace = make_arguments(file, engine)
        row: dict[str, Any] = json.loads(rows[0].line)
        sample = Sample(index=0, prompt=row["prompt"], label=row["label"], metadata=row["metadata"])
        await slime.generate(args, sample, {"max_new_tokens": 500})
        await slime.close()
    assert sample.status == Sample.Status.COMPLETED, sample.metadata
    assert sample.reward == 0.75
    assert f"Work on {rows[0].task.spec['subject']}." in engine.tokenizer.decode(engine.prompts[0])
    assert "of the run" in sample.response
    assert sample.metadata["num_failed_tool_calls"] == 1
    await workshops[kind].until("torn-down", rows[0].task.spec["subject"])
