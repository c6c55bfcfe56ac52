"""Classes that override ``_call_tool``; `robustness/test_beside_the_references` covers those of both SDKs."""

import copy
import threading
from typing import Any, cast

import openreward.environments as openreward
import pytest

from ors_server import JSONObject, RunToolOutput, ToolOutput, tool
from ors_server.protocol import RunToolError, RunToolSuccess
from tests.server.protocol import foreign
from tests.server.protocol.conftest import Serve
from tests.support.environments import Echo, said

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUntypedBaseClass=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportPrivateUsage=false


class Dynamic(Echo):
    calls = 0

    async def _call_tool(self, name: str, input: JSONObject) -> RunToolOutput:
        self.calls += 1
        if name == "made_up":
            count = cast("dict[str, Any]", input).pop("count", 0)
            return RunToolOutput(RunToolSuccess(output=said(f"{count} {self.calls}")))
        if name == "refuse":
            return RunToolOutput(RunToolError(ok=False, error="not now", reason="input_validation"))
        if name == "copy":  # an environment that runs a search copies itself
            return await copy.deepcopy(self)._call_tool("thread", {})
        return await super()._call_tool(name, input)

    @tool
    def thread(self) -> ToolOutput:
        return said(threading.current_thread().name)

    @tool
    async def lose_count(self) -> ToolOutput:
        return said("", reward=float("nan") if self.calls < 2 else 1.0, finished=True)


async def test_our_own_classes_too(serve: Serve) -> None:
    client = serve(Dynamic)
    sid = await client.open()
    assert (await client.call(sid, "made_up", {"count": 3})).text == "3 1"
    assert (await client.call(sid, "echo", {"text": "x"})).text == "x"
    assert (await client.call(sid, "thread")).text.startswith("ors-tool")
    assert (await client.call(sid, "refuse")).reason == "input_validation"
    assert (await client.call(sid, "unknown")).reason == "not_found"
    assert (await client.call(sid, "copy")).text
    assert (await client.call(sid, "win")).output["finished"] is True
    assert (await client.call(sid, "made_up")).reason == "episode_finished"


async def test_a_call_is_known_by_what_the_client_sent(serve: Serve) -> None:
    """Whatever the author changes in the input."""
    client = serve(Dynamic)
    sid = await client.open()
    first = await client.call(sid, "made_up", {"count": 3}, key="k")
    assert (await client.call(sid, "made_up", {"count": 3}, key="k")).text == first.text == "3 1"


async def test_a_finishing_result_that_cannot_be_sent_does_not_end_the_episode(serve: Serve) -> None:
    """A reward of NaN is an error, and the episode goes on; the runner behind ``super()`` agrees."""
    client = serve(Dynamic)
    sid = await client.open()
    assert (await client.call(sid, "lose_count")).error.startswith("NonFiniteReward")
    assert (await client.call(sid, "lose_count")).output["reward"] == 1.0


class Synchronous(foreign.OpenRewardGame):
    """Synchronous ``_call_tool``: the SDK's own server refuses it, because it awaits the result."""

    def _call_tool(self, name: str, input: Any) -> Any:
        success = openreward.RunToolSuccess(output=openreward.ToolOutput(blocks=[], reward=0.5))
        return openreward.RunToolOutput(success)


async def test_a_synchronous_one_runs_on_a_thread(serve: Serve) -> None:
    client = serve(Synchronous)
    assert (await client.call(await client.open(), "whatever")).output["reward"] == 0.5


class Bad(Echo):
    what: Any = None

    async def _call_tool(self, name: str, input: JSONObject) -> Any:
        return self.what


@pytest.mark.parametrize("what", [None, "text", {"ok": True}, said("bare"), RunToolSuccess(output=said("half"))])
async def test_invalid_results_of_an_override_are_errors(serve: Serve, what: Any) -> None:
    client = serve(type("Bad", (Bad,), {"what": what}))
    reply = await client.call(await client.open(), "echo", {"text": "x"})
    assert reply.error == f"TypeError: _call_tool returned {type(what).__name__}; it returns RunToolOutput"


async def test_the_sdks_method_is_replaced_on_served_instances_only(serve: Serve) -> None:
    """The SDK's method is replaced only on instances that we serve; an author's tests get the original."""

    class Passing(foreign.OpenRewardGame):
        async def _call_tool(self, name: str, input: Any) -> Any:
            return await super()._call_tool(name, input)

    client = serve(Passing)
    sid = await client.open()
    assert (await client.call(sid, "nothing")).result["error"].startswith("'nothing' is not a valid tool. Tools: ")
    outcome = await Passing({"word": "one"})._call_tool("nothing", {})
    assert outcome.root.error == "'nothing' is not a valid tool"
    won = await Passing({"word": "one"})._call_tool("guess", {"word": "one"})
    assert won.root.output.reward == 1.0
