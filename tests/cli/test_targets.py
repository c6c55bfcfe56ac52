"""Targets of the command line: their meaning, and the error for a target without a meaning."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from ors_server.hosting.errors import TargetError
from ors_server.hosting.loading.targets import bundled_environments, load_target, load_targets
from ors_server.server import Server

WriteEnvironment = Callable[..., Path]

TWO_MORE = """

class Base(Environment):
    \"\"\"Not complete, and there for others to derive from.\"\"\"


class Second(Base):
    @classmethod
    def list_splits(cls):
        return ["train"]


class _Private(Second):
    pass
"""


def names_of(*targets: object) -> list[str]:
    return [environment.__name__ for environment in load_targets([str(target) for target in targets])]


def say(environment: type) -> str:
    """Return the response of a test environment's only tool."""
    instance = cast(Any, environment)({}, {})
    result = asyncio.run(instance._call_tool("say", {"text": "hi"}))
    return result.model_dump()["output"]["blocks"][0]["text"]


# --- every kind of target ------------------------------------------------------------------------


def test_a_folder_is_the_classes_of_its_environment_file(write_environment: WriteEnvironment) -> None:
    """In the order of their definitions, without bases and without private, imported or aliased classes."""
    folder = write_environment("talk", head="from ors_server import Environment as Imported")
    file = folder / "environment.py"
    file.write_text(file.read_text() + TWO_MORE + "\n\nDefault = Talk\n")
    assert names_of(folder) == ["Talk", "Second"]
    assert names_of(f"{folder}/") == ["Talk", "Second"]
    assert names_of(f"{folder}:Second") == ["Second"]


def test_a_file_is_its_classes(write_environment: WriteEnvironment) -> None:
    file = write_environment("talk", file="server.py") / "server.py"
    assert names_of(file) == ["Talk"]
    assert names_of(f"{file}:Talk") == ["Talk"]


@pytest.mark.parametrize("name", ["a place", "it's", "a:b", "noon: 12", "日本"])
def test_a_path_may_be_any(write_environment: WriteEnvironment, tmp_path: Path, name: str) -> None:
    folder = tmp_path / name / "talk"
    folder.parent.mkdir()
    write_environment("talk").rename(folder)
    for target in (folder, folder / "environment.py", f"{folder}:Talk", f"{folder}/environment.py:Talk"):
        assert names_of(target) == ["Talk"]


def test_the_list_of_a_file_decides(write_environment: WriteEnvironment) -> None:
    folder = write_environment("talk")
    write_environment("talk", "Other", file="other.py")
    file = folder / "environment.py"
    file.write_text(file.read_text() + "\n\nfrom other import Other\nenvironments = [Other, Talk]\n")
    assert names_of(folder) == ["Other", "Talk"]


def test_a_module_is_importable_from_the_current_folder(
    write_environment: WriteEnvironment, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_environment("shelf/talks", file="talking.py")
    monkeypatch.chdir(tmp_path)
    assert names_of("shelf.talks.talking:Talk") == ["Talk"]


def test_an_instance_and_a_nested_class_can_be_named(write_environment: WriteEnvironment) -> None:
    folder = write_environment("talk")
    file = folder / "environment.py"
    file.write_text(file.read_text() + "\n\nclass Box:\n    Inner = Talk\n\n\nready = Talk()\n")
    assert names_of(f"{folder}:Box.Inner", f"{folder}:ready") == ["Talk", "Talk"]


def test_bundled_environments_have_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert "echo" in bundled_environments()
    assert names_of("echo") == ["EchoEnvironment"]
    assert names_of("echo:EchoEnvironment") == ["EchoEnvironment"]


def test_a_folder_of_the_name_wins_over_a_bundled_environment(
    write_environment: WriteEnvironment, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_environment("echo")
    monkeypatch.chdir(tmp_path)
    assert names_of("echo") == ["Talk"]


def test_a_folder_without_environment_does_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "echo").mkdir()
    monkeypatch.chdir(tmp_path)
    assert names_of("echo") == ["EchoEnvironment"]


def test_several_targets_keep_their_order(write_environment: WriteEnvironment) -> None:
    assert names_of(write_environment("one", "One"), "echo", write_environment("two", "Two")) == [
        "One",
        "EchoEnvironment",
        "Two",
    ]


@pytest.mark.parametrize("package", ["openreward.environments", "ors"])
def test_classes_of_both_sdks_load_and_are_served(write_environment: WriteEnvironment, package: str) -> None:
    classes = load_target(str(write_environment("talk", package=package)))
    assert [hosted.name for hosted in Server(classes).environments] == ["talk"]


# --- isolation of folders --------------------------------------------------------------------------


def test_files_of_the_same_names_in_two_folders_are_isolated(
    write_environment: WriteEnvironment, tmp_path: Path
) -> None:
    """Not at the top of a module, not inside a tool that imports when it is called, and not in a package of helpers."""
    for place in ("left", "right"):
        folder = write_environment(
            place,
            head="import words.deep.down as words_down\nfrom words import here\nimport words",
            answer="' '.join([here, words.here, words_down.here, __import__('late').here])",
        )
        (folder / "words" / "deep").mkdir(parents=True)
        (folder / "words" / "__init__.py").write_text(f"here = {place!r}\n")
        # Without an __init__.py in between: a namespace package. It imports a file beside the environment in turn.
        (folder / "words" / "deep" / "down.py").write_text("from late import here\n")
        (folder / "late.py").write_text(f"here = {place + '-late'!r}\n")
    (left,) = load_target(str(tmp_path / "left"))
    (right,) = load_target(str(tmp_path / "right"))
    assert say(left) == "left left left-late left-late"
    assert say(right) == "right right right-late right-late"
    assert "words" not in sys.modules


def test_a_module_of_a_folder_is_loaded_once(write_environment: WriteEnvironment) -> None:
    folder = write_environment("talk", head="import state\nimport importlib", answer="state.value")
    (folder / "state.py").write_text("value = 0\n")
    (environment,) = load_target(str(folder))
    (again,) = load_target(f"{folder}:Talk")
    assert again is environment
    # A library that is given the plain name gets the module that the environment has.
    vars(importlib.import_module("state"))["value"] = 7
    assert say(environment) == "7"


def test_a_plain_name_in_two_folders_is_ambiguous(write_environment: WriteEnvironment) -> None:
    for place in ("left", "right"):
        folder = write_environment(place, place.title(), head="import shared_name")
        (folder / "shared_name.py").touch()
        load_target(str(folder))
    with pytest.raises(ImportError, match=r"'shared_name' is in .*left and .*right"):
        importlib.import_module("shared_name")


def test_the_standard_library_and_installed_packages_stay(write_environment: WriteEnvironment) -> None:
    """A file with the name of a standard module, and a folder of data with the name of a package, hide neither."""
    folder = write_environment(
        "talk", head="import random\nimport pytest", answer="[random.random.__name__, pytest.__name__]"
    )
    (folder / "random.py").write_text("raise RuntimeError('not this one')\n")
    (folder / "pytest").mkdir()
    (environment,) = load_target(str(folder))
    assert say(environment) == "['random', 'pytest']"
    # A library that checks for another library is not misled.
    (folder / "no_such_library").mkdir()
    (folder / "no_such_library" / "data.json").touch()
    assert importlib.util.find_spec("no_such_library") is None
    assert str(folder) not in sys.path


def test_relative_imports_work_in_a_folder_that_is_a_package(write_environment: WriteEnvironment) -> None:
    folder = write_environment("talk", head="from .words import here\nfrom . import started", answer="here + started")
    (folder / "__init__.py").write_text("started = '!'\n")
    (folder / "words.py").write_text("here = 'here'\n")
    (environment,) = load_target(str(folder))
    assert say(environment) == "here!"


# --- targets that do not load --------------------------------------------------------------------


def refusal(target: object) -> TargetError:
    with pytest.raises(TargetError) as caught:
        load_target(str(target))
    return caught.value


@pytest.mark.parametrize(
    ("target", "cause", "remedy"),
    [
        ("ech0", "There is no target 'ech0'", "Did you mean 'echo'?"),
        ("nothing", "There is no target 'nothing'", "a bundled environment (echo"),
        ("no/such/", "The folder no/such/ does not exist", "The current folder is "),
        ("no.py", "The file no.py does not exist", "The current folder is "),
        ("no.py:Class", "The file no.py does not exist", "The current folder is "),
        ("package.module", "There is no target 'package.module'", "package.module:Class"),
        ("no_such_package.x:Class", "No module named 'no_such_package'", "The current folder is "),
        (
            "json:JSONDecoder",
            "JSONDecoder in the module json is a class that does not derive from Environment",
            "Derive",
        ),
        ("json:dumps", "dumps in the module json is a function", "Derive"),
        ("echo:Nope", "environment.py has no class Nope", "It defines: EchoEnvironment."),
        ("echo:EchoEnviroment", "has no class EchoEnviroment", "Did you mean echo:EchoEnvironment?"),
        ("echo:", "'echo:' is not a target", "the name of a class"),
        (":Class", "':Class' is not a target", "the name of a class"),
        ("", "There is no target ''", "A target is a folder"),
    ],
)
def test_the_error_for_a_missing_target(
    target: str, cause: str, remedy: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    error = refusal(target)
    assert cause in error.cause
    assert remedy in error.remedy


def test_a_folder_without_environment_file(tmp_path: Path) -> None:
    assert f"`ors-server init {tmp_path}` writes one" in refusal(tmp_path).remedy
    assert "has no environment.py, server.py, app.py, main.py, env.py or __init__.py" in refusal(tmp_path).cause
    (tmp_path / "zebra.py").touch()
    assert f"Name the file: {tmp_path / 'zebra.py'}" in refusal(tmp_path).remedy
    (tmp_path / "other.py").touch()
    assert "it has other.py, zebra.py" in refusal(tmp_path).remedy


@pytest.mark.parametrize(
    ("source", "cause", "remedy"),
    [
        (
            "import no_such_thing",
            "ModuleNotFoundError: No module named 'no_such_thing' ({file}, line 1)",
            "Install what",
        ),
        ("\n\nraise ValueError('both\\nlines')", "ValueError: both\nlines ({file}, line 3)", "Correct it"),
        ("x = 1\nx = = 2", "SyntaxError: invalid syntax ({file}, line 2)", "Correct it"),
        ("import sys\nsys.exit('done')", "SystemExit: done ({file}, line 2)", "__main__"),
        ("import json\njson.loads('{')", "JSONDecodeError: Expecting property name", "Correct it"),
        ("from helper import broken", "cannot import name 'broken' from 'helper'", "Correct it"),
        ("import helper.more", "No module named 'helper.more'; 'helper' is not a package", "Install what"),
        ("import late", "ZeroDivisionError: division by zero ({folder}/late.py, line 2)", "Correct it"),
        ("from ..other import x", "attempted relative import beyond top-level package", "Correct it"),
        (
            "from ors_server import Environment",
            "{file} has no class that derives from Environment",
            "It defines no classes.",
        ),
        ("class Odd: pass", "{file} has no class that derives from Environment", "It defines: Odd."),
        ("environments = []", "The list `environments` of {file} is empty", "Put the classes"),
        ("environments = ['a']", "holds 'a', which is not an environment", "classes that derive from Environment"),
    ],
)
def test_the_error_for_a_file_that_does_not_load(source: str, cause: str, remedy: str, tmp_path: Path) -> None:
    """The author's error with the author's line, for errors of every kind."""
    file = tmp_path / "environment.py"
    echo = load_target("echo")[0].__module__
    file.write_text(source.replace("{echo}", echo))
    (tmp_path / "helper.py").touch()
    (tmp_path / "late.py").write_text("# A comment.\n1 / 0\n")
    error = refusal(tmp_path)
    assert cause.format(file=file, folder=tmp_path) in error.cause
    assert remedy in error.remedy
    assert "ors_environment_" not in str(error)


def test_a_missing_sdk_is_not_needed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("openreward", "openreward.environments"):
        monkeypatch.setitem(sys.modules, name, None)
    (tmp_path / "environment.py").write_text("from openreward.environments import Environment\n")
    assert "import the same names from ors_server" in refusal(tmp_path).remedy


def test_a_file_whose_name_is_no_module(tmp_path: Path) -> None:
    (tmp_path / "my-env.py").touch()
    assert refusal(tmp_path / "my-env.py").remedy == "Rename it to my_env.py."
    (tmp_path / "tasks.json").touch()
    assert "is not a Python file" in refusal(tmp_path / "tasks.json").cause


def test_a_package_above_the_folder_is_named_as_a_module(tmp_path: Path) -> None:
    folder = tmp_path / "my_project" / "envs"
    folder.mkdir(parents=True)
    (folder / "environment.py").write_text("from my_project.tasks import TASKS\n")
    assert "named as a module" in refusal(folder).remedy


def test_errors_of_an_installed_environment_name_its_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Author's code that is installed among the libraries is still blamed by its line."""
    installed = tmp_path / "site-packages"
    installed.mkdir()
    (installed / "installed_environment.py").write_text("import no_such_thing\n")
    standard = sysconfig.get_path("stdlib")
    places = {"stdlib": standard, "purelib": str(installed), "platlib": str(installed)}
    monkeypatch.setattr("sysconfig.get_path", places.__getitem__)
    monkeypatch.setattr(sys, "path", [str(installed), *sys.path])
    error = refusal("installed_environment:Talk")
    assert f"({installed / 'installed_environment.py'}, line 1)" in error.cause
    assert "Install what provides 'no_such_thing'" in error.remedy
