"""A verdict in a result's metadata: kept with the record, never sent to a client, and bounded."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

import openreward.environments as openreward  # pyright: ignore[reportMissingTypeStubs]
import ors
import pytest

from ors_server import Blocks, JSONObject, RunToolOutput, Server, Settings, TextBlock, ToolOutput, tool
from ors_server.http.app import OrsApp
from ors_server.protocol import VERDICT, GroupScore
from ors_server.rollouts.verdicts import MOST_TESTS, Verdict, read_verdict, split_verdict, split_verdict_of
from tests.server.rollouts.support import message, rollout, stored
from tests.support.environments import Bare
from tests.support.http_client import Client

HIDDEN = "assert 8080 == 80, the hidden test"
VERDICTS: JSONObject = {
    "summary": "1 of 2 tests passes",
    "tests": [{"name": "test_port", "outcome": "failed", "output": HIDDEN}, {"name": "test_user", "outcome": "passed"}],
    "output": "printed",
}
METADATA: JSONObject = {VERDICT: VERDICTS, "steps": 3}


class Graded(Bare):
    """Results with a verdict, alone and beside other metadata."""

    @tool
    async def graded(self) -> ToolOutput:
        return ToolOutput(blocks=[TextBlock(text="done")], metadata=METADATA, reward=0.5)

    @tool
    async def alone(self) -> ToolOutput:
        return ToolOutput(blocks=[], metadata={VERDICT: {"output": self.secrets["key"]}}, reward=0.25, finished=True)

    async def score_group(self, candidates: Any) -> list[GroupScore]:
        return [GroupScore(reward=1.0, metadata=METADATA) for _ in candidates]


class Overriding(Graded):
    """The same by a method that gets every call."""

    async def _call_tool(self, name: str, input: Mapping[str, Any]) -> RunToolOutput:
        return await super()._call_tool(name, input)

    def get_prompt(self) -> Blocks:
        return []


@pytest.fixture
async def client(data_dir: Path) -> AsyncGenerator[Client]:
    server = Server([Graded, Overriding], settings=Settings(data_dir=data_dir, record=True))
    client = Client(server.app)
    yield client
    await client.close()
    await finish(server.app)


async def finish(app: OrsApp) -> None:
    """End a server as its lifespan does."""
    await app.sessions.close()
    assert app.recorder is not None
    app.recorder.close()
    await app.rollouts.close()


async def recorded(client: Client, folder: Path) -> list[dict[str, Any]]:
    """End the server and return what it has stored."""
    assert isinstance(client.app, OrsApp)
    await finish(client.app)
    return stored(folder)


@pytest.mark.parametrize("environment", ["graded", "overriding"])
async def test_a_verdict_is_recorded_and_not_sent(client: Client, data_dir: Path, environment: str) -> None:
    task = {"env_name": environment, "split": "train", "index": 0, "secrets": {"key": "secret-0123456789"}}
    sid = await client.open(task)
    sent = [await client.call(sid, name) for name in ("graded", "alone")]
    metadata = [each.output["metadata"] for each in sent]
    assert metadata == [{"steps": 3}, None]
    candidates: Any = [{"messages": [{"role": "user", "blocks": []}]}]
    scored = await client.post("/score_group", {"candidates": candidates}, sid)
    assert HIDDEN not in scored.text
    await client.post("/delete", sid=sid)
    (found,) = await recorded(client, data_dir)
    results = [each for each in found["messages"] if each["type"] == "tool_result"]
    assert [each["verdict"] for each in results[:2]] == [VERDICTS, {"output": "[redacted]"}]
    assert results[0]["metadata"]["metadata"] == {"steps": 3}
    assert "metadata" not in (results[1]["metadata"] or {})
    assert found["total_reward"] == 0.75


@pytest.mark.parametrize("dialect", [openreward, ors], ids=["openreward", "ors"])
def test_the_results_of_other_packages_have_it_taken_off_too(dialect: Any) -> None:
    output = dialect.ToolOutput(blocks=[], metadata=dict(METADATA), reward=1.0, finished=True)
    shown, kept = split_verdict_of(output)
    assert type(shown) is type(kept) is type(output)
    assert (shown.metadata, shown.reward, shown.finished) == ({"steps": 3}, 1.0, True)
    assert kept.metadata == METADATA
    assert output.metadata == METADATA


async def test_an_upload_may_carry_one(client: Client, data_dir: Path) -> None:
    events = [
        rollout("r"),
        message("r", 0, type="tool_result", metadata=METADATA),
        message("r", 1, metadata={VERDICT: 5}),
    ]
    assert (await client.post("/v1/rollouts", {"events": events})).status_code == 200
    (found,) = stored(data_dir)
    assert [(each["metadata"], each["verdict"]) for each in found["messages"]] == [
        ({"steps": 3}, VERDICTS),
        (None, None),
    ]


NONE: Any = [None, 5, "text", [], [VERDICTS], {}, {"tests": "x"}, {"tests": [1, None, {}]}, {"tests": {"name": "x"}}]


@pytest.mark.parametrize("value", NONE, ids=repr)
def test_what_is_no_verdict_is_none_and_is_taken_off_all_the_same(value: Any) -> None:
    assert read_verdict(value) is None
    assert split_verdict({VERDICT: value}) == (None, None)
    output = ToolOutput(blocks=[], metadata={VERDICT: value, "a": 1})
    shown, kept = split_verdict_of(output)
    assert (shown.metadata, kept) == ({"a": 1}, None)


def test_what_fits_stays_where_the_rest_does_not() -> None:
    tests: Any = [
        {"name": "a", "outcome": "failed", "output": 5},
        {"name": 5, "outcome": "passed"},
        {"name": "b", "outcome": ["passed"]},
        {"name": "c\ud800", "outcome": "x" * 100, "output": "\ud800"},
    ]
    found = read_verdict(
        {"summary": ["x"], "tests": tests, "output": "\udc00", "left_out": {"passed": -1, 5: 5, "x": 1}}
    )
    assert found is not None
    assert found.as_json() == {
        "tests": [
            {"name": "a", "outcome": "failed"},
            {"name": "c\ufffd", "outcome": "x" * 20, "output": "\ufffd"},
        ],
        "output": "\ufffd",
        "left_out": {"x": 1},
    }


def test_a_verdict_is_bounded_and_counts_what_it_leaves_out() -> None:
    passed = [{"name": "n" * 10_000, "outcome": "passed", "output": "o" * 10_000_000}] * 2000
    failed = [{"name": f"bad {number}", "outcome": "failed", "output": "x" * 10_000} for number in range(10)]
    found = read_verdict({"summary": "s" * 10_000, "tests": [*passed, *failed], "output": "é" * 10_000_000})
    assert found is not None
    assert len(json.dumps(found.as_json())) < 500_000
    assert found.counts == {"passed": 2000, "failed": 10}
    assert len(found.tests) == MOST_TESTS
    assert [test.name for test in found.tests if test.outcome == "failed"] == [f"bad {number}" for number in range(10)]
    assert read_verdict(found.as_json()) == found  # as it is written, so it is read
    assert found.without_texts() == Verdict(left_out={"passed": 2000, "failed": 10})
