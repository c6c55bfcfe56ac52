"""Properties of generated tasks that hold without running them."""

from __future__ import annotations

import ast
import hashlib
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from tests.environments.terminal_families.digests import digest_of, recorded
from tests.environments.terminal_families.loading import ENVIRONMENT, load_generation, load_program
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from environments.terminal.tasks.generation import Family, GeneratedTask

DOCS = ROOT / "docs" / "terminal_tasks.md"
SEEDS = range(12)

#: Prints the digest of a family's first tasks, in a Python without any of the project's packages.
ELSEWHERE = """
import sys
sys.path[:0] = sys.argv[1:3]
from digests import digest_of
from terminal.tasks.generation import FAMILIES
for family in FAMILIES.values():
    print(family.name, digest_of(family.generate))
"""


def _family(generation: ModuleType, name: str) -> Family:
    return generation.FAMILIES[name]


@cache
def _task(family: str, seed: int) -> GeneratedTask:
    return load_generation().generate(family, seed)


def _tasks(family: str) -> list[GeneratedTask]:
    return [_task(family, seed) for seed in SEEDS]


def test_there_are_enough_families(generation: ModuleType) -> None:
    assert len(generation.FAMILIES) >= 24
    assert all(len(family.shapes) >= 2 for family in generation.FAMILIES.values())


def test_tasks_are_named_after_family_and_seed(generation: ModuleType, family: str) -> None:
    assert re.fullmatch("[a-z][a-z0-9_]*", family)
    for task in _tasks(family):
        assert task.name == f"{family}-{task.seed:06d}"
        assert (task.family, task.grading) == (family, _family(generation, family).grading)
        assert task.programs == _family(generation, family).programs


def test_unknown_families_and_negative_seeds_are_refused(generation: ModuleType) -> None:
    with pytest.raises(KeyError):
        generation.generate("no_such_family", 0)
    with pytest.raises(ValueError, match="negative"):
        generation.generate("csv_join", -1)


def test_a_task_is_the_same_each_time(generation: ModuleType, family: str) -> None:
    assert [generation.generate(family, seed) for seed in SEEDS] == _tasks(family)


def test_tasks_have_not_changed(generation: ModuleType, family: str) -> None:
    """A changed family is another data set; `digests.py FAMILY`, run as a script, records its digest."""
    assert digest_of(_family(generation, family).generate) == recorded()[family]


def test_digests_name_no_other_family(generation: ModuleType) -> None:
    assert set(recorded()) == set(generation.FAMILIES)


@pytest.mark.parametrize("interpreter", ["this", "python3.11", "python3.12", "python3.13"])
def test_tasks_are_the_same_in_every_python(interpreter: str) -> None:
    program = sys.executable if interpreter == "this" else shutil.which(interpreter)
    if program is None or subprocess.run([program, "-V"], capture_output=True).returncode:
        pytest.skip(f"this machine has no {interpreter}")
    result = subprocess.run(
        [program, "-B", "-c", ELSEWHERE, str(ENVIRONMENT.parent), str(Path(__file__).parent)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "77", "TZ": "Asia/Tokyo", "LC_ALL": "C"},
    )
    assert dict(line.split() for line in result.stdout.splitlines()) == recorded()


def test_tasks_differ(family: str) -> None:
    _assert_distinct(family, range(40))


@pytest.mark.long
def test_a_thousand_tasks_differ(family: str) -> None:
    _assert_distinct(family, range(1000))


def _assert_distinct(family: str, seeds: range) -> None:
    seen: dict[bytes, int] = {}
    for seed in seeds:
        task = _task(family, seed) if len(seeds) < 100 else load_generation().generate(family, seed)
        key = hashlib.sha256(repr((task.prompt, sorted(task.files.items()))).encode()).digest()
        assert key not in seen, f"the seeds {seen[key]} and {seed} of {family} give the same task"
        seen[key] = seed


def test_files_are_where_the_user_is(family: str) -> None:
    for task in _tasks(family):
        for path, file in task.files.items():
            assert re.fullmatch(r"/home/user(/[^/\n]+)+", path)
            assert "/../" not in path
            assert file.mode & 0o400, f"the user could not read {path}"
            # No file exists where another path needs a directory.
            assert all(task.files[str(above)].directory for above in Path(path).parents if str(above) in task.files)


def test_prompts_read_well(family: str) -> None:
    """Typical mistakes in templates: spaces, line ends, empty lines."""
    for task in _tasks(family):
        assert "/home/user/" in task.prompt
        assert task.prompt.endswith("\n")
        assert not task.prompt.endswith("\n\n")
        assert "\n\n\n" not in task.prompt
        for line in task.prompt.splitlines():
            assert line == line.rstrip(), f"{task.name}: {line!r} ends with a space"
            # Indented lines show output, which has its own rules.
            assert line.startswith("    ") or not re.search(r"\S  +\S.*\.$|[a-z]\.[A-Z][a-z]+ | ,", line), (
                f"{task.name}: {line}"
            )
        assert task.truth
        assert task.oracle != task.near_miss


def test_prompts_vary(generation: ModuleType, family: str) -> None:
    """Beyond names and numbers: each shape has several beginnings."""
    shapes = len(_family(generation, family).shapes)
    for shape in range(shapes):
        prompts = [_task(family, shape + shapes * number).prompt for number in range(12)]
        beginnings = {re.sub(r"/home/user\S*|\d+|'[^']*'", "", prompt)[:40] for prompt in prompts}
        assert len(beginnings) > 1, prompts[0]


def test_modules_of_tests_need_the_standard_library_only(family: str) -> None:
    for task in _tasks(family):
        for source in (task.initial_tests, load_program().state_tests(task.state, task.final_tests)):
            tree = ast.parse(source)
            for node in ast.walk(tree):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                assert all(name.partition(".")[0] in sys.stdlib_module_names for name in names), names
                assert not isinstance(node, ast.ImportFrom) or node.module == "__future__"
            functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
            tests = [name for name in functions if name.startswith("test_")]
            assert tests
            assert len(set(functions)) == len(functions)
            assert all(re.fullmatch("test_[a-z0-9_]+", name) for name in tests)


def test_cases_of_programs_are_drawn_and_answered_in_the_grader() -> None:
    """A program under test could read files and arguments of its grader. The tests' text is in neither.

    So no case follows from the task alone: the inputs differ with the seed of an examination.
    """
    for family in ("scripting", "debugging"):
        for task in _tasks(family):
            first, second = (_inputs(task, seed) for seed in (1, 2))
            assert len(first) >= 20, task.name
            assert first != second, task.name
            assert first == _inputs(task, 1), task.name


def _read(path: str) -> bytes:
    return Path(path).read_bytes()


def _inputs(task: GeneratedTask, seed: int) -> list[object]:
    """Return the inputs that a task's final tests give to the program, which is one that gives no answer."""
    module: dict[str, object] = {"SEED": seed, "content": _read}
    exec("from __future__ import annotations\n" + task.final_tests, module)
    inputs: list[object] = []

    class Anything(bytes):
        """Output that is equal to every other."""

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 0

    def run(*command: str, given: bytes = b"", folder: str = "/") -> tuple[int, bytes]:
        places = [Path(one) for one in command[1:] if Path(one).is_dir()]
        found = sorted((path.name, path.is_file() and path.read_bytes()) for one in places for path in one.iterdir())
        inputs.append((found or command, given))
        return 0, Anything()

    module["run"] = run
    test = module["test_drawn_cases"]
    assert callable(test)
    test()
    return inputs


def test_documentation_has_the_table(generation: ModuleType) -> None:
    assert generation.families_table() in DOCS.read_text(), "docs/terminal_tasks.md is not current"
