"""``toolset_name`` of ``/create``: the built-in toolsets of openreward, on classes of openreward."""

# pyright: reportMissingTypeStubs=false

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import openreward.environments as openreward
import pytest
from openreward.api.sandboxes.types import RunResult

from ors_server.errors import MachineBusy
from tests.server.protocol.conftest import Serve

CREATE = {"split": "train", "index": 0}


class Machine:
    """A sandbox that returns its command."""

    async def run(self, cmd: str, **_: Any) -> Any:
        return RunResult(output=f"ran {cmd}", return_code=0)


class Bench(openreward.Environment):
    """An environment with a sandbox and a tool whose name a toolset also has."""

    torn_down = 0

    def __init__(self, task_spec: Any = {}, secrets: dict[str, str] = {}) -> None:  # noqa: B006 - openreward's signature
        super().__init__(task_spec, secrets)
        self.sandbox: Any = Machine()

    @classmethod
    def list_splits(cls) -> list[Any]:
        return ["train"]

    @classmethod
    def list_tasks(cls, split: str) -> list[Any]:
        return [{"id": "1"}]

    def get_prompt(self) -> Any:
        return [openreward.TextBlock(text="prompt")]

    def teardown(self) -> Any:
        type(self).torn_down += 1

    @openreward.tool
    def bash(self) -> openreward.ToolOutput:
        """Run the environment's own bash."""
        return openreward.ToolOutput(blocks=[openreward.TextBlock(text="own")])

    @openreward.terminal
    @openreward.tool
    def answer(self) -> openreward.ToolOutput:
        """End the episode."""
        return openreward.ToolOutput(blocks=[openreward.TextBlock(text="done")], reward=1.0, finished=True)


class Bare(Bench):
    def __init__(self, task_spec: Any = {}, secrets: dict[str, str] = {}) -> None:  # noqa: B006 - openreward's signature
        super().__init__(task_spec, secrets)
        self.sandbox = None


class Busy(Bench):
    """Has no capacity for its first instance."""

    built = 0

    def __init__(self, task_spec: Any = {}, secrets: dict[str, str] = {}) -> None:  # noqa: B006 - openreward's signature
        super().__init__(task_spec, secrets)
        type(self).built += 1
        number = type(self).built

        async def run(cmd: str, **_: Any) -> Any:
            return RunResult(output=f"instance {number}", return_code=0)

        self.sandbox = SimpleNamespace(run=run)

    def setup(self) -> Any:
        if self.built == 1:
            raise MachineBusy("no room", "Wait.", retry_after=0.05)


async def test_its_tools_replace_those_of_the_same_name(serve: Serve) -> None:
    client = serve(cast("Any", Bench))
    plain = await client.open(CREATE)
    sid = await client.open({**CREATE, "toolset_name": "claude-code"})
    listed = (await client.get("/task_tools", sid)).json()
    names = [tool["name"] for tool in listed["tools"]]
    assert sorted(names) == ["bash", "edit", "glob", "grep", "read", "todo_write", "write"]
    assert listed["terminal_tool"]["name"] == "answer"
    assert (await client.call(sid, "bash", {"command": "ls"})).text.startswith("ran ls")
    assert (await client.call(plain, "bash", {})).text == "own"
    assert [tool["name"] for tool in (await client.get("/task_tools", plain)).json()["tools"]] == ["bash"]
    # The episode's end applies to them, too.
    assert (await client.call(sid, "answer", {})).output["reward"] == 1.0
    assert (await client.call(sid, "bash", {"command": "ls"})).reason == "episode_finished"


@pytest.mark.parametrize(
    "name", ["backsearch", "claude-code", "cli", "codex", "gemini-cli", "hermes", "openclaw", "web"]
)
async def test_each_toolset_lists_its_tools(serve: Serve, name: str) -> None:
    client = serve(cast("Any", Bench))
    sid = await client.open({**CREATE, "toolset_name": name})
    response = await client.get("/task_tools", sid)
    assert response.status_code == 200
    assert len(response.json()["tools"]) >= 1


async def test_an_environment_without_a_sandbox_is_400(serve: Serve) -> None:
    """OpenReward's harness looks for the word in a 400 and goes on without the toolset."""
    client = serve(cast("Any", Bare))
    before = Bare.torn_down
    response = await client.create("s", {**CREATE, "toolset_name": "codex"})
    assert response.status_code == 400
    assert "sandbox" in response.json()["detail"]
    assert Bare.torn_down == before + 1
    assert (await client.post("/ping", sid="s")).status_code == 404
    await client.open(CREATE, sid="s")


@pytest.mark.parametrize("name", ["", "nothing", "Codex", "../codex", "__class__", "x" * 5000])
async def test_unknown_names_are_400(serve: Serve, name: str) -> None:
    client = serve(cast("Any", Bench))
    response = await client.create("s", {**CREATE, "toolset_name": name})
    assert response.status_code == 400
    assert "valid options are ['backsearch', 'claude-code'" in response.json()["detail"]
    assert (await client.post("/ping", sid="s")).status_code == 404


async def test_the_same_request_again_has_the_same_toolset(serve: Serve) -> None:
    client = serve(cast("Any", Bench))
    body = {**CREATE, "toolset_name": "codex"}
    for _ in range(2):
        assert (await client.create("s", body)).status_code == 200
    for other in ("cli", None):
        assert (await client.create("s", {**CREATE, "toolset_name": other})).status_code == 400


async def test_a_new_instance_has_a_new_toolset(serve: Serve) -> None:
    """After an instance without capacity, calls must not reach its sandbox."""
    client = serve(cast("Any", Busy))
    sid = await client.open({**CREATE, "toolset_name": "codex"})
    assert (await client.call(sid, "bash", {"command": "ls"})).text.startswith("instance 2")


class Counting(Bench):
    """Receives every call except those of the session's toolset."""

    async def _call_tool(self, name: str, input: Any) -> Any:
        result: Any = await super()._call_tool(name, input)
        result.root.output.blocks.append(openreward.TextBlock(text="counted"))
        return result


async def test_a_toolset_bypasses_the_environments_call_tool(serve: Serve) -> None:
    """As in openreward's server; both share the end of the episode."""
    client = serve(Counting)
    plain = await client.open(CREATE)
    assert (await client.call(plain, "bash")).text == "owncounted"
    sid = await client.open({**CREATE, "toolset_name": "codex"})
    assert "ran " in (ran := (await client.call(sid, "bash", {"command": "ls"})).result)["output"]["blocks"][0]["text"]
    assert len(ran["output"]["blocks"]) == 1
    assert (await client.call(sid, "answer")).text == "donecounted"
    assert (await client.call(sid, "bash", {"command": "ls"})).reason == "episode_finished"
