"""Files of earlier versions work with this one: variables, rollouts, keys, images and a half-done evaluation.

`scripts/make-upgrade-fixture` made the archives, with the code of the commits that it names.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import httpx
import pytest
from ors_containers import BubblewrapRuntime, RuntimeUnavailable
from ors_containers.images import ImageStore

from ors_server.settings import Settings
from tests.clients.chat_stand_in import ChatStandIn
from tests.support.servers import served

FIXTURES = Path(__file__).with_name("fixtures")
#: 0.2.0 had neither keys nor evaluations.
LATEST = "before-0.3.0"


@pytest.fixture(params=["0.2.0", LATEST])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a folder with what a version kept."""
    return unpacked(request.param, tmp_path)


@pytest.fixture
def latest(tmp_path: Path) -> Path:
    return unpacked(LATEST, tmp_path)


def unpacked(name: str, folder: Path) -> Path:
    with tarfile.open(FIXTURES / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="tar")
    return folder


def expected_of(kept: Path) -> dict[str, Any]:
    return json.loads((kept / "expected.json").read_text("utf-8"))


def ors_server(*arguments: str | Path) -> str:
    """Run a command and return its standard output."""
    command = [sys.executable, "-m", "ors_cli", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_variables_mean_what_they_meant(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for line in (kept / "server.env").read_text("utf-8").splitlines():
        monkeypatch.setenv(*line.split("=", 1))
    expected = expected_of(kept)["settings"]
    assert len(expected) > 30
    assert json.loads(Settings().model_dump_json(include=set(expected))) == expected


@pytest.mark.long
def test_rollouts_are_listed_and_exported(kept: Path) -> None:
    expected = expected_of(kept)["rollouts"]
    assert expected["total"] >= 2
    listed = json.loads(ors_server("rollouts", "list", "--json", "--data-dir", kept / "data"))
    assert listed["total"] == expected["total"]
    # 0.2.0 had neither owners nor outcomes, and other words for none.
    facts = ("id", "run_name", "environment", "split", "max_reward", "num_messages", "finished", "created_at")
    found = {rollout["id"]: {fact: rollout[fact] for fact in facts} for rollout in listed["rollouts"]}
    assert found == {rollout["id"]: {fact: rollout[fact] for fact in facts} for rollout in expected["rollouts"]}
    ors_server("rollouts", "export", "--data-dir", kept / "data", "--output", kept / "rollouts.jsonl")
    exported = [json.loads(line) for line in (kept / "rollouts.jsonl").read_text("utf-8").splitlines()]
    assert len(exported) == expected["total"]
    uploaded = next(rollout for rollout in exported if rollout["id"] == "00000001-0000-4000-8000-000000000000")
    assert uploaded["reward"] == 1.0
    assert [message["content"] for message in uploaded["messages"]] == ["Say it.", "It: \u00e9 \U0001f600."]


def test_a_server_goes_on_with_the_data_folder(kept: Path) -> None:
    """It opens the file of rollouts for writing, which migrates it, and lists what was there."""
    expected = expected_of(kept)
    event = {"eventType": "rollout", "eventId": "00000009-0000-4000-8000-000000000000", "timestamp": 1_800_000_000_000}
    headers = {"X-API-Key": expected.get("keys", {}).get("trainer", "")}
    with served(kept, "echo") as url:
        body = {"events": [event | {"runName": "after"}]}
        added = httpx.post(f"{url}/v1/rollouts", json=body, headers=headers, timeout=60)
        assert added.status_code == 200, added.text
    listed = json.loads(ors_server("rollouts", "list", "--json", "--data-dir", kept / "data"))
    assert listed["total"] == expected["rollouts"]["total"] + 1


def test_keys_open_what_they_opened(latest: Path) -> None:
    keys = expected_of(latest)["keys"]
    (listed,) = json.loads(ors_server("keys", "list", "--json", "--data-dir", latest / "data"))
    assert listed["name"] == "trainer"
    assert {"sessions": 5, "rate": 100}.items() <= listed.items() | listed.get("limits", {}).items()
    with served(latest, "echo") as url:
        statuses = {
            name: httpx.get(f"{url}/list_environments", headers={"X-API-Key": key}).status_code
            for name, key in {**keys, "none": "nothing"}.items()
        }
    assert statuses == {"trainer": 200, "former": 401, "none": 401}


async def test_images_start_sandboxes(kept: Path) -> None:
    files: dict[str, str] = expected_of(kept)["files"]
    store = ImageStore(kept / "images", state=kept / "state")
    assert sorted(record.name for record in store.images()) == sorted(files)
    runtime = BubblewrapRuntime()
    try:
        await runtime.start()
    except RuntimeUnavailable as error:
        pytest.skip(str(error))
    try:
        for name, file in files.items():
            # The machine's /usr stands for the programs, which the archive leaves out.
            image = dataclasses.replace(store.find(name), binds=((Path("/usr"), "/usr"),))
            async with runtime.sandbox(image) as sandbox:
                assert (await sandbox.run(f"cat {file}", timeout=60)).output == b"made before\n"
    finally:
        await runtime.close()
        store.close()


@pytest.mark.long
def test_an_evaluation_goes_on(latest: Path) -> None:
    """Attempts that have ended are not played again. The endpoint is another one here, so its address is replaced."""
    half = expected_of(latest)["evaluation"]
    endpoint = ChatStandIn()
    with endpoint.serve() as url:
        journal = latest / "data" / "evals" / half["run"] / "journal.jsonl"
        journal.write_text(journal.read_text("utf-8").replace(half["base_url"], url), "utf-8")
        said = ors_server("eval", "--resume", half["run"], "--json", "--data-dir", latest / "data")
    report = json.loads(said)
    assert report["complete"] is True
    assert len(endpoint.requests) == half["samples"] - half["ended"]
    assert report["samples"]["scored"] == half["samples"]
