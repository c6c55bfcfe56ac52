"""The server that the rollout benchmark starts: for each SDK, with delays and timing."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
from ors_benchmarks.harness.candidates import SDKS, Candidate
from ors_benchmarks.rollout.servers import NoEnvironment, ServedElsewhere, StartedServer, played_environment
from ors_clients.errors import ToolFailed
from starlette.types import Receive, Scope, Send

from ors_server import Server, ToolOutput, tool
from tests.clients.scripted_engine import serve_application
from tests.support.environments import Echo

SERVERS = [replace(candidate, requirements=()) for candidate in SDKS]

#: Synchronous, with a set-up, a toolset and an inherited tool.
SLOW = '''
import time
from ors_server import Environment, TextBlock, ToolOutput, Toolset, tool

def output(text): return ToolOutput(blocks=[TextBlock(text=text)], reward=None, finished=False)

class More(Toolset):
    @tool
    def far(self) -> ToolOutput:
        """Of a toolset."""
        return output("far")

class _Base(Environment):
    @tool
    def near(self) -> ToolOutput:
        """Inherited."""
        return output("near")

class Other(_Base):
    toolsets = (More,)
    @classmethod
    def list_splits(cls): return ["train"]
    @classmethod
    def list_tasks(cls, split): return [{}]
    def get_prompt(self): return [TextBlock(text="go")]

class Slow(Other):
    @classmethod
    def list_splits(cls): return ["train"]
    @classmethod
    def list_tasks(cls, split): return [{}]
    def setup(self): time.sleep(0.1)
    def get_prompt(self): return [TextBlock(text="go")]
'''


@pytest.mark.parametrize(
    "candidate",
    [
        pytest.param(candidate, id=candidate.name, marks=[] if candidate is SERVERS[0] else [pytest.mark.long])
        for candidate in SERVERS
    ],
)
async def test_every_sdk_hosts_the_same_echo(candidate: Candidate, tmp_path: Path) -> None:
    server = StartedServer(candidate, "echo", 0.05, tmp_path, None)
    async with (
        server.running() as served,
        played_environment(served.url, "ours", environment=None, split=None, count=100) as (environment, tasks),
    ):
        assert len(tasks) == 8
        assert environment.task(1)["target"] == "world"
        session = environment.session(1)
        await session.__aenter__()
        try:
            [tool] = await session.tools()
            assert tool.name == "echo"
            [message] = await session.messages()
            assert "with the text world to finish" in str(message.blocks)
            began = time.monotonic()
            wrong = await session.call("echo", {"text": "hello"})
            assert time.monotonic() - began >= 0.05
            right = await session.call("echo", {"text": "world"})
        finally:
            await session.close()
        assert (wrong.text, wrong.reward, wrong.finished) == ("hello is not the word.", 0.0, False)
        assert (right.text, right.reward, right.finished) == ("That is the word.", 1.0, True)
    facts = served.facts
    assert not served.died
    assert facts.environment_seconds is not None
    assert 0.095 <= facts.environment_seconds < 30  # timers of the event loop may be early by a millisecond
    assert facts.peak_mib is not None
    assert facts.peak_mib > 10


@pytest.mark.long
async def test_synchronous_tools_toolsets_and_set_ups_are_timed_once(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    server = StartedServer(SERVERS[0], str(tmp_path / "slow.py"), 0.2, tmp_path, None)
    async with (
        server.running() as served,
        played_environment(served.url, "ours", environment="slow", split="train", count=1) as (environment, _),
    ):
        session = environment.session(0)
        await session.__aenter__()
        try:
            assert sorted(tool.name for tool in await session.tools()) == ["far", "near"]
            assert (await session.call("near", {})).text == "near"
            assert (await session.call("far", {})).text == "far"
        finally:
            await session.close()
    # Once for the set-up and once for each tool, although both are inherited by another environment.
    assert served.facts.environment_seconds is not None
    assert 0.5 <= served.facts.environment_seconds < 1.1


@pytest.mark.parametrize(("environment", "split"), [("nothing", None), (None, "nothing")])
async def test_what_the_server_does_not_have(environment: str | None, split: str | None, tmp_path: Path) -> None:
    async with StartedServer(SERVERS[0], "echo", 0.0, tmp_path, None).running() as served:
        with pytest.raises(NoEnvironment, match="'nothing'"):
            async with played_environment(served.url, "ours", environment=environment, split=split, count=1):
                pass


async def test_nothing_is_known_of_a_server_elsewhere() -> None:
    async with ServedElsewhere("http://127.0.0.1:9").running() as served:
        pass
    assert served.facts.environment_seconds is None
    assert served.facts.cpu_seconds is None


class Failing(Echo):
    """``Echo`` with a tool that has a bug."""

    @tool
    def fail(self) -> ToolOutput:
        raise KeyError("a bug")


@pytest.mark.parametrize("client", ["ours", "openreward"])
async def test_both_clients_send_the_key_and_classify_failures(client: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORS_API_KEY", "sesame")
    app, keys = Server([Failing]).app, list[bool]()

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            keys.append(any(b"sesame" in value for _, value in scope["headers"]))
        await app(scope, receive, send)

    with serve_application(guarded) as url:
        async with played_environment(url, client, environment=None, split=None, count=1) as (environment, _):
            session = environment.session(0)
            await session.__aenter__()
            try:
                assert (await session.call("echo", {"text": "hello"})).text == "hello"
                wrong = await session.call("echo", {"no text": 1})
                with pytest.raises(ToolFailed, match="a bug"):
                    await session.call("fail", {})
            finally:
                await session.close()
    assert wrong.error is not None
    assert all(keys)
    assert len(keys) > 5
