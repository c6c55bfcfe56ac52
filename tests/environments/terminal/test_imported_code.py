"""The search for the agent's code in the text of tests, and tasks that are turned away for it."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from ors_server import DefinitionError

from .folders import write_folder
from .parts import canary, endless, generated, generation, imported_code
from .test_grading import KEPT_OUT, VERDICTS
from .ways import PLANTED, REFUSED, SOUND


def found(text: str) -> list[tuple[int, str]]:
    return imported_code.imported_code(ast.parse(text))


FOUND = {
    "import answer\n": (1, "import answer"),
    "def test_a():\n  from app.core import run\n": (2, "import app.core"),
    "import os\nfrom . import helpers\n": (2, "import relatively"),
    "import importlib as i\ni.import_module('answer')\n": (2, "import answer by importlib.import_module"),
    "import importlib\nname = 'x'\nimportlib.import_module(name)\n": (3, "import a module by"),
    "__import__('answer')\n": (1, "import answer by __import__"),
    "from importlib import util as u\nu.spec_from_file_location('a', 'b')\n": (2, "spec_from_file_location"),
    "from importlib.machinery import SourceFileLoader as L\nL('a', 'b')\n": (2, "SourceFileLoader"),
    "import runpy\nrun = runpy.run_path\n": (2, "runpy.run_path"),
    "import sys\nsys.path.insert(0, '/x')\ntry:\n  import answer\nexcept ImportError: pass\n": (4, "import answer"),
    "import builtins\nlist(map(eval, ['1']))\n": (2, "use eval"),
    "import ctypes\nctypes.CDLL('/home/user/x.so')\n": (2, "library /home/user/x.so"),
}
CLEAN = (
    "import os, json.decoder, pytest, _pytest.monkeypatch\nfrom xml.etree import ElementTree\n",
    "try:\n  import yaml\nexcept ImportError:\n  yaml = None\n",
    "import importlib\nimportlib.import_module('json.decoder')\n",
    "import ctypes\nctypes.CDLL(None), ctypes.CDLL('libc.so.6')\n",
    "import sys, types\nsys.modules['mine'] = types.ModuleType('mine')\nimport mine\n",
    "import ast, re\nast.literal_eval('1'), re.compile('x'), compile('1', 'x', 'eval')\n",
    "def eval(text): return text\ndef test_a(): eval('x')\n",
)


@pytest.mark.parametrize("text", FOUND)
def test_code_is_found_with_its_line(text: str) -> None:
    line, words = FOUND[text]
    ((at, what),) = found(text)
    assert (at, words in what) == (line, True), what


@pytest.mark.parametrize("text", [*CLEAN, *SOUND.values(), *(text for text, _ in PLANTED.values())])
def test_sound_tests_are_taken(text: str) -> None:
    assert found(text) == []


def test_most_of_what_the_grader_refuses_is_seen_before() -> None:
    """The rest is text that only a run shows: hints, conditions, templates."""
    seen = [bool(found(text)) for text in (*REFUSED.values(), *(text for text, _ in KEPT_OUT.values()))]
    assert sum(seen) >= 25
    assert not any(found(text) for text, how in VERDICTS.values() if how == "passed")


@pytest.mark.parametrize("family", sorted(generation.FAMILIES))
def test_generated_families_import_no_code(family: str) -> None:
    for seed in range(8):
        task = generated.generated_task(family, seed)
        assert (task.tests_import_code, found(task.final_tests), found(task.initial_tests)) == ("refuse", [], [])


IMPORTING = (
    "import sys\nsys.path.insert(0, '/home/user')\nfrom answer import answer\ndef test_a(): assert answer() == 42\n"
)


def test_folders_are_turned_away_or_flagged(tmp_path: Path) -> None:
    write_folder(tmp_path, "task_sound")
    folder = write_folder(tmp_path, "task_importing", files={"test_final_state.py": IMPORTING})
    refusing = endless.EndlessSource([tmp_path], solvable_only=False)
    assert list(refusing.names) == ["task_sound"]
    (problem,) = refusing.problems
    assert problem.startswith(f"{folder}/test_final_state.py, line 3: the tests import answer")
    assert "--tests-import-code flag" in problem
    flagging = endless.EndlessSource([tmp_path], solvable_only=False, tests_import_code="flag")
    assert (set(flagging.names), flagging.problems) == ({"task_sound", "task_importing"}, [])
    assert {flagging.find(name).tests_import_code for name in flagging.names} == {"flag"}
    with pytest.raises(DefinitionError, match="--tests-import-code flag"):
        endless.EndlessSource([folder])


def test_initial_tests_may_import_what_they_like(tmp_path: Path) -> None:
    """No agent has been in the sandbox that they look at."""
    write_folder(tmp_path, "task_a", files={"test_initial_state.py": "import numpy\ndef test_a(): pass"})
    assert endless.EndlessSource([tmp_path], solvable_only=False).problems == []


def test_the_test_that_must_fail_is_drawn() -> None:
    text = '"""Tests."""\nimport os\n\n@decorated\ndef test_a():\n    pass\n\nclass TestB:\n    x = 1\n'
    made = {canary.with_canary(text, canary.name_of_canary()) for _ in range(40)}
    places = {each.index("def test_", 0) < each.index("@decorated") for each in made}
    assert (len(made), places) == (40, {True, False})
    for each in made:
        assert "@decorated\ndef test_a" in each
        names: dict[str, Any] = {"decorated": staticmethod}
        exec(compile(each, "x", "exec"), names)
        (own,) = (value for name, value in names.items() if name.startswith("test_") and name != "test_a")
        with pytest.raises(AssertionError):
            own()
    assert canary.with_canary("def (", "x") == "def ("
