"""Protocol 0.1, "Values": values that JSON cannot express are never dropped, never null, and never cost a rollout."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUntypedFunctionDecorator=false
# pyright: reportUntypedBaseClass=false, reportUnknownVariableType=false

import logging
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy
import openreward.environments as openreward
import ors
import pytest
from pydantic import field_serializer

from ors_server import JSONObject, TextBlock, ToolOutput, tool
from tests.server.protocol import foreign
from tests.server.protocol.conftest import Serve
from tests.support.environments import Bare, Echo, said


class Handle:
    """A value that JSON cannot express."""

    def __repr__(self) -> str:
        return "<Handle 7>"


def returning(output: ToolOutput | Callable[[], Any]) -> type[Bare]:
    """Return an environment whose tool returns this output; a function is called for each output."""

    class Returning(Bare):
        @tool
        async def give(self) -> ToolOutput:
            return output() if callable(output) else output

    return Returning


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("mode", ["none", "exception", "stacktrace"])
async def test_a_reward_that_is_not_finite_is_an_error_that_names_the_tool(
    serve: Serve, reward: float, mode: str
) -> None:
    """Never null, which clients read as "no reward"; sent whatever ``return_errors``: the tool did not raise."""
    client = serve(returning(said("x", reward)), return_errors=mode)
    sid = await client.open()
    reply = await client.call(sid, "give")
    assert reply.names == ["task_id", "error"]
    assert reply.error.startswith("NonFiniteReward: Tool 'give'")
    assert str(reward) in reply.error


@pytest.mark.parametrize("reward", [0.0, -1.5, 1e308, 5e-324, 0.1 + 0.2])
async def test_finite_rewards_are_exact(serve: Serve, reward: float) -> None:
    client = serve(returning(said("x", reward)))
    sid = await client.open()
    assert (await client.call(sid, "give")).output["reward"] == reward


async def test_metadata_nested_values_become_their_repr_and_the_log_says_so(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    output = ToolOutput(blocks=[], metadata={"deep": {"list": [Handle(), 1, None]}, "ok": [True]}, reward=0.5)
    client = serve(returning(output))
    sid = await client.open()
    with caplog.at_level(logging.WARNING, logger="ors_server"):
        given = (await client.call(sid, "give")).output
    assert given["metadata"] == {"deep": {"list": ["<Handle 7>", 1, None]}, "ok": [True]}
    assert given["reward"] == 0.5
    assert [record for record in caplog.records if record.levelno == logging.WARNING]


async def test_metadata_top_level_values_become_their_repr(serve: Serve) -> None:
    """The call has had its effects: an unusual value in the metadata must not cost the result."""
    given: Any = {"handle": Handle(), "number": 3}
    client = serve(returning(lambda: ToolOutput(blocks=[], metadata=given, reward=0.5)))
    sid = await client.open()
    output = (await client.call(sid, "give")).output
    assert output["metadata"] == {"handle": "<Handle 7>", "number": 3}
    assert output["reward"] == 0.5


async def test_metadata_floats_that_are_not_finite(serve: Serve) -> None:
    metadata: JSONObject = {"loss": float("nan"), "scores": [1.0, float("inf")]}
    client = serve(returning(ToolOutput(blocks=[], metadata=metadata)))
    sid = await client.open()
    assert (await client.call(sid, "give")).output["metadata"] == {"loss": "nan", "scores": [1.0, "inf"]}


async def test_metadata_that_contains_itself(serve: Serve) -> None:
    loop: dict[str, Any] = {"a": 1}
    loop["self"] = [loop]
    client = serve(returning(lambda: ToolOutput.model_construct(blocks=[], metadata=loop, reward=1.0, finished=False)))
    sid = await client.open()
    output = (await client.call(sid, "give")).output
    assert output["metadata"]["a"] == 1
    assert output["reward"] == 1.0


async def test_metadata_whose_repr_raises(serve: Serve) -> None:
    class Hostile:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    client = serve(returning(ToolOutput(blocks=[], metadata={"x": [Hostile()]}, reward=1.0)))
    sid = await client.open()
    assert (await client.call(sid, "give")).output["metadata"] == {"x": ["<Hostile>"]}


async def test_lone_surrogates_become_the_replacement_character(serve: Serve) -> None:
    """Output decoded with surrogateescape; in the references it ends the rollout."""
    text = b"caf\xe9".decode("utf-8", "surrogateescape") + " \ud83d!"
    metadata = {"k\udcff": "v\udcff", "list": ["\ud800"]}
    output = ToolOutput(blocks=[TextBlock(text=text, detail={"d": "\udcff"})], metadata=metadata, reward=0.5)
    client = serve(returning(output))
    sid = await client.open()
    given = (await client.call(sid, "give")).output
    assert given["blocks"] == [{"text": "caf\ufffd \ufffd!", "detail": {"d": "\ufffd"}, "type": "text"}]
    assert given["metadata"] == {"k\ufffd": "v\ufffd", "list": ["\ufffd"]}
    assert given["reward"] == 0.5


async def test_surrogate_pairs_are_joined(serve: Serve) -> None:
    client = serve(returning(said("\ud83d\ude00 and \udcff")))
    sid = await client.open()
    assert (await client.call(sid, "give")).text == "😀 and \ufffd"


async def test_lone_surrogates_in_an_error(serve: Serve) -> None:
    class Failing(Bare):
        @tool
        async def fail(self) -> ToolOutput:
            raise ValueError("bad byte \udcff")

    client = serve(Failing)
    sid = await client.open()
    assert (await client.call(sid, "fail")).error == "ValueError: bad byte \ufffd"


async def test_lone_surrogates_in_prompt_and_tasks(serve: Serve) -> None:
    class Odd(Echo):
        @classmethod
        def list_tasks(cls, split: str) -> list[JSONObject]:
            return [{"id": "\udcff"}]

    client = serve(Odd)
    assert (await client.post("/tasks", {"split": "train"})).json()["tasks"] == [{"id": "\ufffd"}]
    sid = await client.open()
    assert (await client.get("/prompt", sid)).json()[0]["text"] == "prompt of \ufffd"


async def test_lone_surrogates_in_a_tools_input(serve: Serve) -> None:
    """A model that emits half an emoji: both SDK servers run the tool, so a 422 would end the rollout only here."""
    client = serve(Echo)
    sid = await client.open()
    content = b'{"name": "echo", "input": {"text": "half \\ud83d"}}'
    response = await client.http.post("/call", content=content, headers={"X-Session-ID": sid})
    assert response.status_code == 200
    assert b"half \xef\xbf\xbd" in response.content


@pytest.mark.parametrize("value", [None, "text", {"blocks": []}, 3])
async def test_a_result_that_is_not_a_tool_output_is_an_error_that_names_the_tool(serve: Serve, value: object) -> None:
    client = serve(returning(lambda: value))
    sid = await client.open()
    error = (await client.call(sid, "give")).error
    assert error == f"TypeError: Tool 'give' returned {type(value).__name__}; a tool returns ToolOutput"


async def test_a_subclass_of_tool_output_is_one(serve: Serve) -> None:
    class Scored(ToolOutput):
        pass

    client = serve(returning(Scored(blocks=[], reward=0.25)))
    sid = await client.open()
    assert (await client.call(sid, "give")).output["reward"] == 0.25


async def test_nan_in_a_task_is_no_invalid_json(serve: Serve) -> None:
    class Loose(Echo):
        @classmethod
        def list_tasks(cls, split: str) -> list[JSONObject]:
            return [{"id": 1, "limit": float("inf"), "handle": [Handle()]}]

    response = await serve(Loose).post("/task", {"split": "train", "index": 0})
    assert response.json()["task"] == {"id": 1, "limit": "inf", "handle": ["<Handle 7>"]}


# --- values that only an assignment can set, because models do not validate it -----------------


def assigned(package: Any, **fields: Any) -> Any:
    output = package.ToolOutput(blocks=[package.TextBlock(text="x")])
    for name, value in fields.items():
        setattr(output, name, value)
    return output


class Game(foreign.OpenRewardGame):
    output: Any = None

    @openreward.tool
    async def give(self) -> openreward.ToolOutput:
        return self.output


class OrsGame(foreign.OrsGame):
    output: Any = None

    @ors.tool
    async def give(self) -> ors.ToolOutput:
        return self.output


FOREIGN = pytest.mark.parametrize(("package", "game"), [(openreward, Game), (ors, OrsGame)])


async def give(serve: Serve, game: type[Any], output: Any, **settings: Any) -> Any:
    client = serve(type("Giving", (game,), {"output": output}), **settings)
    return await client.call(await client.open(), "give")


@FOREIGN
@pytest.mark.parametrize(
    ("reward", "sent"),
    [
        (True, 1.0),
        (1, 1.0),
        (Decimal("0.1"), 0.1),
        (Fraction(1, 2), 0.5),
        (numpy.float32(0.5), 0.5),
        (numpy.int64(1), 1.0),
        (numpy.bool_(True), 1.0),
        (numpy.array(0.25), 0.25),
    ],
)
async def test_a_number_of_any_type_is_a_reward(
    serve: Serve, package: Any, game: type[Any], reward: Any, sent: float
) -> None:
    output = (await give(serve, game, assigned(package, reward=reward, finished=True))).output
    assert (type(output["reward"]), output["reward"], output["finished"]) == (float, sent, True)


@FOREIGN
@pytest.mark.parametrize(
    "reward",
    ["1", [1.0], pytest.param(10**400, id="huge"), Decimal("nan"), numpy.float32("inf"), numpy.array([1.0]), 1j],
)
async def test_a_value_that_is_not_a_number_is_not_a_reward(
    serve: Serve, package: Any, game: type[Any], reward: Any
) -> None:
    """The reference sends a text for a text, and null for NaN: a client would train on both as on no reward."""
    reply = await give(serve, game, assigned(package, reward=reward, finished=True), return_errors="none")
    assert reply.names == ["task_id", "error"]
    assert reply.error == (
        f"NonFiniteReward: Tool 'give' returned the reward of type {type(reward).__name__}; "
        "a reward must be a finite number or None"
    )


@FOREIGN
@pytest.mark.parametrize(("finished", "sent"), [(1, True), (0, False), (None, False), (numpy.bool_(True), True)])
async def test_the_end_is_true_or_false(serve: Serve, package: Any, game: type[Any], finished: Any, sent: bool) -> None:
    output = (await give(serve, game, assigned(package, reward=1.0, finished=finished))).output
    assert output["finished"] is sent


@FOREIGN
async def test_fields_that_a_subclass_adds_are_not_sent(serve: Serve, package: Any, game: type[Any]) -> None:
    """Nor fields it changes: both references send the four fields of ``ToolOutput``, whatever is returned."""

    class Graded(package.ToolOutput):
        answer: str = "the answer"

        @field_serializer("reward")
        def serialise(self, reward: float) -> float:
            return reward + 1

    class Marked(package.TextBlock):
        answer: str = "the answer"

    for metadata in (None, {"loss": float("nan")}):
        output = Graded(blocks=[Marked(text="x")], reward=0.5, metadata=metadata)
        reply = await give(serve, game, output)
        assert set(reply.output) == {"blocks", "metadata", "reward", "finished"}
        assert reply.output["reward"] == 0.5
        assert set(reply.output["blocks"][0]) == {"text", "detail", "type"}
