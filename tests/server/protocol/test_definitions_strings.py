"""Mistakes in a class's attributes, such as a string where a list is meant, which would be read letter by letter."""

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import pytest

from ors_server import DefinitionError, JSONObject, Server, Split
from tests.server.protocol.conftest import Serve
from tests.support.environments import Echo


def refused(*environments: Any, **keywords: Any) -> DefinitionError:
    """Return the server's error message for these environments."""
    with pytest.raises(DefinitionError) as caught:
        Server(list(environments), **keywords)
    assert caught.value.cause
    assert caught.value.remedy
    return caught.value


def with_attribute(name: str, value: object) -> type[Echo]:
    """Return an environment with one attribute replaced."""
    return type("Slip", (Echo,), {name: value})


def returning(name: str, value: object) -> type[Echo]:
    """Return an environment with a class method that returns this value."""

    def give(cls: Any) -> object:
        return value

    method: Any = classmethod(give)
    return with_attribute(name, method)


# --- strings -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["private_task_fields", "aliases"])
@pytest.mark.parametrize("value", ["answer", b"answer", 3, [3], [None], [["answer"]]], ids=repr)
def test_a_string_where_a_list_of_names_is_expected(name: str, value: object) -> None:
    """`("answer")` is a string: its letters would be the private fields, and the answer public."""
    error = refused(with_attribute(name, value))
    assert f"Slip.{name}" in error.cause
    assert repr(value) in str(error)


def test_the_remedy_shows_the_comma() -> None:
    assert 'private_task_fields = ("answer",)' in refused(with_attribute("private_task_fields", "answer")).remedy
    assert 'aliases = ("owner/Name",)' in refused(with_attribute("aliases", "owner/Name")).remedy


@pytest.mark.parametrize("value", [("answer",), ["answer"], {"answer"}, frozenset(["answer"])], ids=repr)
async def test_any_collection_of_names_is_taken(serve: Serve, value: object) -> None:
    class Guarded(Echo):
        @classmethod
        def list_tasks(cls, split: str) -> list[JSONObject]:
            return [{"question": "?", "answer": "gold"}]

    client = serve(type("Guarded", (Guarded,), {"private_task_fields": value}))
    response = await client.post("/task", {"split": "train", "index": 0})
    assert "gold" not in response.text
    assert response.json()["task"]["question"] == "?"


# --- splits --------------------------------------------------------------------------------------


@pytest.mark.parametrize("splits", ["train", b"train", 3], ids=repr)
def test_splits_that_are_not_a_list(splits: object) -> None:
    error = refused(returning("list_splits", splits))
    assert "Slip.list_splits" in error.cause
    assert '["train"' in error.remedy.replace("'", '"')


@pytest.mark.parametrize(
    "splits",
    [["train", "train"], ["train", Split(name="train", type="test")], ["a", "b", "a"]],
    ids=["names", "mixed", "apart"],
)
def test_a_split_twice(splits: list[Any]) -> None:
    """The second split would be unreachable."""
    error = refused(returning("list_splits", splits))
    assert "list_splits" in error.cause
    assert splits[0] in error.cause


def test_names_in_two_cases_are_two_splits() -> None:
    assert [split.name for split in Server([returning("list_splits", ["train", "Train"])]).environments[0].splits] == [
        "train",
        "Train",
    ]


# --- toolsets and aliases ------------------------------------------------------------------------


@pytest.mark.parametrize("value", [[3], 3, ["Tools"], "Tools", [None], [object()]], ids=repr)
def test_toolsets_that_are_not_classes(value: object) -> None:
    error = refused(with_attribute("toolsets", value))
    assert "Slip" in error.cause
    assert "toolsets" in error.cause


@pytest.mark.parametrize("alias", ["", "tools", "TOOLS", "call", "v1", "health"])
@pytest.mark.parametrize("where", ["class", "server"])
def test_an_alias_that_could_not_be_reached(alias: str, where: str) -> None:
    """No environment may have such a name."""
    error = refused(with_attribute("aliases", (alias,))) if where == "class" else refused(Echo, aliases={alias: "echo"})
    assert repr(alias) in error.cause
    assert "alias" in error.cause.lower()


def test_an_alias_of_owner_and_name_is_taken() -> None:
    hosted = Server([with_attribute("aliases", ("owner/Name", "other"))], aliases={"third": "slip"}).environments[0]
    assert hosted.aliases == ["owner/Name", "other", "third"]


# --- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a?b", "a#b", "a%b", "100%", "a\nb", "a\x00b", "tab\t", "a\x7fb", "\x1b[31m"])
def test_a_name_that_no_path_can_hold(name: str) -> None:
    error = refused(returning("name", name))
    assert repr(name) in error.cause
    assert error.remedy.startswith("Leave out ")


@pytest.mark.parametrize("name", ["Ünïcode", "my env", "v1.5", "a-b_c~d", "日本"])
async def test_a_name_that_a_path_can_hold(serve: Serve, name: str) -> None:
    client = serve(returning("name", name), Echo)
    assert (await client.get(f"/{name}/tools")).status_code == 200
    assert (await client.get("/list_environments")).json() == [name.lower(), "echo"]


@pytest.mark.parametrize("name", [None, 3, b"echo"])
def test_a_name_that_is_not_a_string(name: object) -> None:
    assert "name" in refused(returning("name", name)).cause


# --- methods -------------------------------------------------------------------------------------


def forgotten_splits(self: Any) -> list[str]:
    return ["train"]


def forgotten_name(self: Any) -> str:
    return "slip"


def forgotten_tasks(self: Any, split: str) -> list[JSONObject]:
    return [{}]


async def forgotten_tasks_async(self: Any, split: str) -> list[JSONObject]:
    return [{}]


def forgotten_count(self: Any, split: str) -> int:
    return 1


def forgotten_get(self: Any, split: str, index: int) -> JSONObject:
    return {}


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("list_splits", forgotten_splits),
        ("name", forgotten_name),
        ("list_tasks", forgotten_tasks),
        ("list_tasks", forgotten_tasks_async),
        ("num_tasks", forgotten_count),
        ("get_task", forgotten_get),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_forgotten_classmethod(name: str, function: Callable[..., Any]) -> None:
    error = refused(with_attribute(name, function))
    assert f"Slip.{name}" in error.cause
    assert "@classmethod" in str(error)


def test_a_static_method_is_accepted() -> None:
    """A static method can be called on the class."""

    class Static(Echo):
        @staticmethod
        def list_splits() -> list[str]:  # pyright: ignore[reportIncompatibleMethodOverride]
            return ["train"]

    assert Server([Static]).environments[0].splits[0].name == "train"


def leave(cls: Any) -> list[str]:
    sys.exit(0)


async def leave_later(cls: Any) -> list[str]:
    await asyncio.sleep(0)
    sys.exit(0)


@pytest.mark.parametrize("function", [leave, leave_later])
def test_splits_that_would_end_the_process(function: Callable[..., Any]) -> None:
    """A server that ends silently looks like a server that was stopped."""
    method: Any = classmethod(function)
    error = refused(with_attribute("list_splits", method))
    assert "Slip.list_splits" in error.cause
    assert "SystemExit" in error.cause


def test_a_name_that_would_end_the_process() -> None:
    method: Any = classmethod(leave)
    error = refused(with_attribute("name", method))
    assert "name" in error.cause
    assert "SystemExit" in error.cause


def test_an_interrupt_is_not_the_environments_failure() -> None:
    """Ctrl-C while the splits are listed is not the environment's failure."""

    def interrupted(cls: Any) -> list[str]:
        raise KeyboardInterrupt

    method: Any = classmethod(interrupted)
    environment = with_attribute("list_splits", method)
    with pytest.raises(KeyboardInterrupt):
        Server([environment])
