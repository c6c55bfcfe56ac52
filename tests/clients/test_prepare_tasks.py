"""Rows for slime and Miles: of several environments, reproducible, and readable as the trainers read them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from ors_clients.errors import ConfigurationError, RequestRefused
from ors_clients.prepare_tasks import main
from ors_clients.training.config import TrainingConfiguration
from ors_clients.training.dataset import TaskRow, prepare_tasks, read_metadata

from tests.clients import slime_stand_in
from tests.clients.trainer_setup import serving, write_configuration
from tests.support.paths import RECIPES


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    with serving(tmp_path_factory.mktemp("server")) as address:
        yield address


def rows_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_the_command_writes_rows_of_several_environments(url: str, tmp_path: Path) -> None:
    environments = {"echoenvironment": {"splits": ["train", "test"]}, "stepenvironment": {}}
    config = write_configuration(tmp_path, url, environments)
    output = tmp_path / "tasks.jsonl"
    command = [sys.executable, "-m", "ors_clients.prepare_tasks", "--config", str(config), "--output", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert f"11 tasks of 2 environments in {output}" in done.stderr
    rows = rows_of(output)
    assert len(rows) == 11
    assert all(list(row) == ["prompt", "label", "metadata"] for row in rows)
    row = next(row for row in rows if row["metadata"]["task_spec"].get("target") == "reward")
    metadata = row["metadata"]
    assert row["label"] == ""
    assert row["prompt"] == [{"role": "user", "content": f"[echoenvironment:test:{metadata['task_hash']}]"}]
    assert len(metadata.pop("task_hash")) == 16
    assert metadata == {
        "env_name": "echoenvironment",
        "deployment_name": "echoenvironment",
        "server_name": "echoenvironment",
        "environment_name": "echoenvironment",
        "namespace": None,
        "split": "test",
        "index": 0,
        "task_spec": {"id": "echo-0", "target": "reward"},
    }
    assert list(tmp_path.glob("*.partial")) == []


@pytest.mark.parametrize("trainer", ["slime", "miles"])
def test_the_recipes_script_is_the_command(url: str, tmp_path: Path, trainer: str) -> None:
    config = write_configuration(tmp_path, url, {"echoenvironment": {}})
    output = tmp_path / "tasks.jsonl"
    script = RECIPES / trainer / "prepare_tasks.py"
    command = [sys.executable, str(script), "--config", str(config), "--output", str(output), "--max-tasks", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert len(rows_of(output)) == 2


def test_slime_reads_the_rows(url: str, tmp_path: Path) -> None:
    config = write_configuration(tmp_path, url, {"stepenvironment": {}})
    output = tmp_path / "tasks.jsonl"
    assert main(["--config", str(config), "--output", str(output)]) == 0
    keys: dict[str, Any] = {"input_key": "prompt", "label_key": "label", "metadata_key": "metadata"}
    samples = slime_stand_in.read_rows(output, **keys)
    assert slime_stand_in.read_rows(output, **keys, processor="a vision model's") == samples
    rows = [TaskRow.of_metadata(sample.metadata) for sample in samples]
    assert sorted(row.task.spec["number"] for row in rows) == [0, 1, 2, 3, 4]
    assert all(row.metadata == sample.metadata for row, sample in zip(rows, samples, strict=True))


def configure(url: str, tmp_path: Path, environments: dict[str, Any]) -> TrainingConfiguration:
    return TrainingConfiguration.load(write_configuration(tmp_path, url, environments))


async def test_the_same_seed_gives_the_same_rows(url: str, tmp_path: Path) -> None:
    configuration = configure(url, tmp_path, {"stepenvironment": {"splits": ["long"]}, "echoenvironment": {}})
    first, again, other = [
        [row.line for row in await prepare_tasks(configuration, max_tasks=20, seed=seed)] for seed in (1, 1, 2)
    ]
    assert len(first) == 24
    assert first == again
    assert set(first) != set(other)
    # Another environment does not change the selection of the first environment's tasks.
    alone = configure(url, tmp_path, {"stepenvironment": {"splits": ["long"]}})
    assert {row.line for row in await prepare_tasks(alone, max_tasks=20, seed=1)} <= set(first)


async def test_num_samples_goes_before_max_tasks(url: str, tmp_path: Path) -> None:
    configuration = configure(
        url, tmp_path, {"stepenvironment": {"splits": ["train", "long"], "num_samples": 3}, "echoenvironment": {}}
    )
    rows = await prepare_tasks(configuration, max_tasks=2)
    counts = {(row.environment, row.task.split): 0 for row in rows}
    for row in rows:
        counts[row.environment, row.task.split] += 1
    assert counts == {
        ("stepenvironment", "train"): 3,
        ("stepenvironment", "long"): 3,
        ("echoenvironment", "train"): 2,
    }


@pytest.mark.parametrize("limit", [None, 40])
async def test_tasks_that_are_available_by_index_only(url: str, tmp_path: Path, limit: int | None) -> None:
    configuration = configure(url, tmp_path, {"indexedenvironment": {"num_samples": limit}})
    rows = await prepare_tasks(configuration)
    assert len(rows) == len({row.task.index for row in rows}) == (limit or 1000)
    assert all(row.task.spec["number"] == row.task.index for row in rows)
    line = json.loads(rows[0].line)
    assert line["metadata"]["task_spec"]["text"] == "ä “quoted”\n"
    assert "\n" not in rows[0].line


async def test_an_environment_may_have_a_server_of_its_own(url: str, tmp_path: Path) -> None:
    configuration = configure("http://127.0.0.1:9", tmp_path, {"echoenvironment": {"base_url": url}})
    assert len(await prepare_tasks(configuration)) == 4


async def test_a_split_that_does_not_exist_is_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(RequestRefused, match="nosuchsplit"):
        await prepare_tasks(configure(url, tmp_path, {"echoenvironment": {"splits": ["nosuchsplit"]}}))


@pytest.mark.parametrize("wrong", ["none.yaml", "split"])
def test_a_failure_is_one_sentence_and_leaves_no_file(
    url: str, tmp_path: Path, wrong: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_configuration(tmp_path, url, {"echoenvironment": {"splits": ["nosuchsplit"]}})
    output = tmp_path / "tasks.jsonl"
    output.write_text("of an earlier time\n")
    chosen = tmp_path / "none.yaml" if wrong == "none.yaml" else config
    assert main(["--config", str(chosen), "--output", str(output)]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert output.read_text() == "of an earlier time\n"


def test_a_number_under_one_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--max-tasks", "0"])
    assert "over 0" in capsys.readouterr().err


# --- metadata ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metadata", "read"),
    [({"a": 1}, {"a": 1}), ('{"a": 1}', {"a": 1}), ("", {}), (None, {}), ({}, {}), ("  ", {})],
)
def test_metadata_is_a_mapping_or_its_json(metadata: Any, read: dict[str, Any]) -> None:
    assert read_metadata(metadata) == read
    assert read_metadata(metadata) is not metadata


@pytest.mark.parametrize("metadata", ["{", "[1]", "3", 3, [1]])
def test_other_metadata_is_refused(metadata: Any) -> None:
    with pytest.raises(ConfigurationError, match="neither a mapping nor JSON"):
        read_metadata(metadata)


def test_rows_of_the_cookbook_are_read() -> None:
    """Its ``prepare_tasks.py`` writes JSON into JSON, and no index."""
    row = TaskRow.of_metadata(
        read_metadata(
            json.dumps(
                {
                    "env_name": "GeneralReasoning/WhoDunit",
                    "deployment_name": "GeneralReasoning/WhoDunit",
                    "server_name": "whodunit",
                    "environment_name": "WhoDunit",
                    "namespace": "GeneralReasoning",
                    "split": "train",
                    "task_spec": {"case": 1},
                    "task_hash": "0123456789abcdef",
                }
            )
        )
    )
    assert row.task.environment == "GeneralReasoning/WhoDunit"
    assert (row.task.split, row.task.index, row.task.spec) == ("train", None, {"case": 1})
    assert row.metadata["namespace"] == "GeneralReasoning"
    assert row.metadata["environment_name"] == "WhoDunit"


@pytest.mark.parametrize("metadata", [{}, {"env_name": "a"}, {"env_name": "a", "task_spec": 1}, {"task_spec": {}}])
def test_metadata_without_a_task_says_how_to_prepare_it(metadata: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="prepare_tasks"):
        TaskRow.of_metadata(metadata)
