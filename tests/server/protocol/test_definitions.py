"""Issue, item 2: classes that cannot be hosted are refused at the start, with a message that shows the right form."""

from collections.abc import Callable
from typing import Any, Optional

import pytest
from pydantic import BaseModel

from ors_server import (
    Blocks,
    DefinitionError,
    Environment,
    JSONObject,
    Server,
    TextBlock,
    ToolOutput,
    Toolset,
    terminal,
    tool,
)
from tests.support.environments import Bare, Echo, Text, said


def refused(*environments: Any, **keywords: Any) -> DefinitionError:
    """Return the server's error message for these environments."""
    with pytest.raises(DefinitionError) as caught:
        Server(list(environments), **keywords)
    assert isinstance(caught.value, ValueError)
    assert caught.value.cause
    assert caught.value.remedy
    assert caught.value.remedy in str(caught.value)
    return caught.value


def with_method(function: Any, name: str = "act") -> type[Bare]:
    return type("Malformed", (Bare,), {name: function})


def signature(name: str = "act") -> str:
    return f"def {name}(self, params: YourModel) -> ToolOutput"


# --- tools ---------------------------------------------------------------------------------------


def no_return(self: Any, params: Text) -> ToolOutput:
    return said()


del no_return.__annotations__["return"]


def optional_return(self: Any, params: Text) -> Optional[ToolOutput]:  # noqa: UP045
    return said()


def union_return(self: Any, params: Text) -> ToolOutput | None:
    return said()


def wrong_return(self: Any, params: Text) -> str:
    return ""


def two_parameters(self: Any, one: Text, two: Text) -> ToolOutput:
    return said()


def plain_parameter(self: Any, text: str) -> ToolOutput:
    return said()


async def untyped_parameter(self: Any, params: Any) -> ToolOutput:
    return said()


del untyped_parameter.__annotations__["params"]


def optional_parameter(self: Any, params: Text | None = None) -> ToolOutput:
    return said()


def keyword_parameters(self: Any, **params: Any) -> ToolOutput:
    return said()


@pytest.mark.parametrize(
    ("function", "cause"),
    [
        (no_return, "has no return annotation"),
        (optional_return, "returns"),
        (union_return, "returns"),
        (wrong_return, "returns str"),
        (two_parameters, "takes 2 parameters (one, two)"),
        (plain_parameter, "Parameter 'text'"),
        (untyped_parameter, "Parameter 'params'"),
        (optional_parameter, "Parameter 'params'"),
        (keyword_parameters, "'params'"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_malformed_tool_is_refused_with_the_right_signature(function: Callable[..., Any], cause: str) -> None:
    """The references ignore it silently."""
    error = refused(with_method(tool(function)))
    assert "Malformed.act" in error.cause
    assert cause in error.cause
    assert signature() in error.remedy


def test_an_annotation_that_cannot_be_resolved() -> None:
    """Section 4: a NameError at listing time in the references."""

    def act(self: Any, params: Text) -> ToolOutput:
        return said()

    act.__annotations__["params"] = "Nowhere"
    error = refused(with_method(tool(act)))
    assert "Malformed.act" in error.cause
    assert "Nowhere" in error.cause


def test_a_malformed_tool_of_a_toolset_is_refused() -> None:
    class Broken(Toolset):
        @tool
        def act(self, one: Text, two: Text) -> ToolOutput:
            return said()

    class Equipped(Echo):
        toolsets = (Broken,)

    error = refused(Equipped)
    assert "Broken.act" in error.cause
    assert signature() in error.remedy


def test_the_same_name_in_environment_and_toolset() -> None:
    class Second(Toolset):
        @tool
        def echo(self, params: Text) -> ToolOutput:
            return said()

    class Equipped(Echo):
        toolsets = (Second,)

    error = refused(Equipped)
    assert error.cause == "Tool name collision: 'echo' is defined in both the environment and toolset 'Second'"


def test_the_same_name_in_two_toolsets() -> None:
    class First(Toolset):
        @tool
        def act(self) -> ToolOutput:
            return said()

    class Second(Toolset):
        @tool
        def act(self) -> ToolOutput:
            return said()

    class Equipped(Echo):
        toolsets = (First, Second)

    error = refused(Equipped)
    assert "'act'" in error.cause
    assert "First" in error.cause
    assert "Second" in error.cause


class TwoFields(BaseModel):
    one: str
    two: str


def test_terminal_tools() -> None:
    """Section 4: at most one, one field or none, never concurrent, and a tool."""

    class Two(Bare):
        @terminal
        @tool
        def one(self) -> ToolOutput:
            return said()

        @terminal
        @tool
        def two(self) -> ToolOutput:
            return said()

    class Fields(Bare):
        @terminal
        @tool
        def answer(self, params: TwoFields) -> ToolOutput:
            return said()

    class Concurrent(Bare):
        @terminal
        @tool(concurrent=True)
        def answer(self) -> ToolOutput:
            return said()

    class Alone(Echo):
        @terminal
        def answer(self) -> ToolOutput:
            return said()

    assert "'one' and 'two'" in refused(Two).cause
    assert "2 fields" in refused(Fields).cause
    assert "concurrent" in refused(Concurrent).cause
    assert "@tool" in refused(Alone).remedy


def test_a_terminal_tool_of_a_toolset_counts() -> None:
    class Grader(Toolset):
        @terminal
        @tool
        def grade(self) -> ToolOutput:
            return said()

    class Equipped(Bare):
        toolsets = (Grader,)

        @terminal
        @tool
        def answer(self) -> ToolOutput:
            return said()

    error = refused(Equipped)
    assert "'answer'" in error.cause
    assert "'grade'" in error.cause


# --- environments --------------------------------------------------------------------------------


def test_no_tools() -> None:
    error = refused(Bare)
    assert error.cause == "Environment Bare has no tools"
    assert "@tool" in error.remedy


def test_no_splits() -> None:
    class Splitless(Echo):
        @classmethod
        def list_splits(cls) -> list[str]:
            return []

    error = refused(Splitless)
    assert error.cause == "Environment Splitless has no splits"
    assert "list_splits" in error.remedy


@pytest.mark.parametrize("splits", [[3], [None], ["train", {"name": "x"}]])
def test_an_invalid_split(splits: list[Any]) -> None:
    class Odd(Echo):
        @classmethod
        def list_splits(cls) -> list[Any]:
            return splits

    assert "list_splits" in refused(Odd).cause


def test_splits_not_implemented() -> None:
    class Splitless(Environment):
        @classmethod
        def list_tasks(cls, split: str) -> list[JSONObject]:
            return []

        def get_prompt(self) -> Blocks:
            return []

        @tool
        def act(self) -> ToolOutput:
            return said()

    error = refused(Splitless)
    assert "Splitless" in error.cause
    assert "list_splits" in str(error)


def test_no_prompt() -> None:
    class Promptless(Environment):
        @classmethod
        def list_splits(cls) -> list[str]:
            return ["train"]

        @classmethod
        def list_tasks(cls, split: str) -> list[JSONObject]:
            return []

        @tool
        def act(self) -> ToolOutput:
            return said()

    error = refused(Promptless)
    assert error.cause == "Environment Promptless implements neither get_prompt() nor get_messages()"
    assert "get_prompt" in error.remedy


def test_no_tasks() -> None:
    class Taskless(Environment):
        @classmethod
        def list_splits(cls) -> list[str]:
            return ["train"]

        def get_prompt(self) -> Blocks:
            return [TextBlock(text="x")]

        @tool
        def act(self) -> ToolOutput:
            return said()

    assert "list_tasks" in refused(Taskless).remedy


def test_no_environments() -> None:
    assert "at least one environment" in refused().cause


def test_two_of_one_name() -> None:
    class ECHO(Echo):
        pass

    error = refused(Echo, ECHO)
    assert "'echo'" in error.cause
    assert "name" in error.remedy


def test_aliases_that_clash_or_have_no_target() -> None:
    class First(Echo):
        aliases = ("a/b",)

    class Second(Echo):
        aliases = ("A/B",)

    assert "'A/B'" in refused(First, Second).cause
    assert "'nobody'" in refused(First, aliases={"x": "nobody"}).cause
    assert "'a/b'" in refused(First, Echo, aliases={"a/b": "echo"}).cause


@pytest.mark.parametrize(
    "name",
    [
        "tools",
        "Tools",
        "Call",
        "PROMPT",
        "tasks",
        "splits",
        "create",
        "delete",
        "ping",
        "health",
        "ready",
        "v1",
        "docs",
        "a/b",
        "",
    ],
)
def test_reserved_names(name: str) -> None:
    """Section 9: an environment called Tools or Call breaks bare paths in the references."""
    reserved = name

    class Named(Echo):
        @classmethod
        def name(cls) -> str:
            return reserved

    assert repr(name) in refused(Named).cause


@pytest.mark.parametrize("thing", [str, object(), 3, "echo", dict])
def test_what_is_no_environment(thing: object) -> None:
    """Section 10: TypeError, as in both SDKs."""
    with pytest.raises(TypeError):
        Server([thing])


def test_an_instance_stands_for_its_class() -> None:
    """Section 10: ``Server([MyEnvironment()])``."""
    assert Server([Echo()]).environments[0].cls is Echo


def test_a_class_whose_list_tools_is_read() -> None:
    """Section 10: ``list_tools``, ``terminal_tool`` and ``is_assistant_message_final`` for authors and their tests."""
    assert [entry.name for entry in Echo.list_tools().tools] == ["echo", "win"]
    assert Echo.terminal_tool() is None
    assert Echo.is_assistant_message_final() is False


async def test_authors_call_their_tools_without_a_server() -> None:
    """Section 10: ``_call_tool`` is what environments' own tests use."""
    environment = Echo({"id": "x"})
    outcome = (await environment._call_tool("echo", {"text": "hi"})).root  # pyright: ignore[reportPrivateUsage]
    assert outcome.ok is True
    assert outcome.output.blocks == [TextBlock(text="hi")]
    await environment._call_tool("win", {})  # pyright: ignore[reportPrivateUsage]
    refusal = (await environment._call_tool("echo", {"text": "hi"})).root  # pyright: ignore[reportPrivateUsage]
    assert refusal.ok is False
    assert refusal.reason == "episode_finished"
