"""The table of needs: read from the source, and what of it is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from ors_server.checkouts.report import Host, rows_of
from ors_server.checkouts.sources import Sources
from ors_server.checkouts.system_needs import Needs, read_needs

SOURCE = '''
"""Files lie at /orwd_data, says this documentation."""
from pathlib import Path
from openai import AsyncOpenAI
from openreward import AsyncOpenReward, SandboxBucketConfig, SandboxSettings

IMAGE = "generalreasoning/python-ds:3.12-tools"
DATA = Path("/orwd_data/tasks.parquet")

class Walk:
    size = "1:4"

    def __init__(self, task_spec, secrets={}):
        secrets["openai_api_key"], secrets.get("api_key"), self.secrets.get("other")
        self.one = SandboxSettings(
            environment="Owner/Walk", image=IMAGE, machine_size=self.size, block_network=True,
            bucket_config=SandboxBucketConfig(mount_path="/data"),
        )
        self.two = SandboxSettings(
            environment=name(), image=f"swerebench/{task_spec['id']}:latest", machine_size="nvidia-l4",
            sidecars=[dict(name="db", image="postgres:16")],
        )
        self.three = SandboxSettings(image=task_spec["image"], machine_size="1000:2")
'''


def needs_of(folder: Path) -> Needs:
    (folder / "server.py").write_text("import walk\n")
    (folder / "walk.py").write_text(SOURCE)
    (folder / "test_agent.py").write_text('import requests\nprint("/orwd_data/other")\n')
    return read_needs(Sources(folder, folder / "server.py"))


def test_needs_are_read_from_the_program_and_what_it_imports(tmp_path: Path) -> None:
    needs = needs_of(tmp_path)
    assert set(needs.images) == {
        "generalreasoning/python-ds:3.12-tools",
        "swerebench/*:latest",
        "postgres:16",
        "*",
    }
    assert set(needs.sizes) == {"1:4", "nvidia-l4", "1000:2"}
    assert needs.data == {"tasks.parquet": "walk.py:8"}
    assert set(needs.secrets) == {"openai_api_key", "api_key", "other"}
    assert set(needs.judges) == {"openai"}
    assert set(needs.environments) == {"Owner/Walk", "*"}
    assert (len(needs.buckets), len(needs.open_network), len(needs.sidecars)) == (1, 1, 1)
    assert not needs.network


def test_each_missing_need_comes_with_its_remedy(tmp_path: Path) -> None:
    needs = needs_of(tmp_path)
    data = tmp_path / "data"
    data.mkdir()

    def missing_image(image: str) -> tuple[str, str] | None:
        return None if image.startswith("general") else ("not in the store", f"ors-server image pull {image}")

    def remedies() -> dict[str, str]:
        host = Host("Walk", data, False, frozenset({"openai_api_key"}), {}, missing_image)
        return {row.wanted.partition(" (")[0]: row.remedy for row in rows_of(needs, host) if row.there is False}

    first = remedies()
    assert first.pop("/orwd_data").startswith("Add --data Walk=DIR")
    assert first.pop("postgres:16") == "ors-server image pull postgres:16"
    assert "--secrets-file" in first.pop("other")
    assert "OPENAI_BASE_URL" in first.pop("a model, by openai")
    assert set(first) == {"nvidia-l4", "1000:2 CPU:GB"}

    (data / "other").touch()
    assert remedies()["/orwd_data"] == f"Copy tasks.parquet into {data}."
    (data / "tasks.parquet").touch()
    assert "/orwd_data" not in remedies()


@pytest.mark.parametrize(
    ("read", "offered", "states"),
    [
        (["exa_key", "EXA_KEY"], {"EXA_KEY"}, [True, True]),
        (["exa_key", "EXA_KEY"], {"exa_key"}, [True, True]),
        (["exa_key"], {"EXA_KEY"}, [False]),
        (["exa_key", "EXA_KEY"], {"EXA"}, [False, False]),
    ],
)
def test_a_secret_is_there_where_the_program_reads_its_other_spelling(
    read: list[str], offered: set[str], states: list[bool], tmp_path: Path
) -> None:
    needs = Needs(secrets=dict.fromkeys(read, "env.py:1"))

    def missing_image(image: str) -> tuple[str, str] | None:
        raise AssertionError(image)

    host = Host("Walk", tmp_path, False, frozenset(offered), {}, missing_image)
    assert [row.there for row in rows_of(needs, host)] == states
