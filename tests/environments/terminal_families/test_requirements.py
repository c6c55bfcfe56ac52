"""Each sentence of a prompt that states a requirement has checks and false solutions; other tests play them."""

from __future__ import annotations

import re
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from ors_server.cli.tasks import requirements
from ors_server.errors import TargetError
from tests.environments.terminal_families.loading import load_alternatives, load_generation, load_requirements

if TYPE_CHECKING:
    from environments.terminal.families.requirements import Way
    from environments.terminal.generation import GeneratedTask

SEEDS = range(12)
#: Minimum of a shape's own ways, and of these with the ways of every family.
OWN, HONEST = 2, 5
#: Words of a sentence that states a requirement.
DEMANDING = re.compile(
    r"\b(must|exactly|only|never|nothing|unchanged|leave|do not|don't|keep|every line|no others?|"
    r"without|newline|sorted|in this order|in the order)\b",
    re.IGNORECASE,
)


@cache
def _tasks(family: str) -> tuple[GeneratedTask, ...]:
    return tuple(load_generation().generate(family, seed) for seed in SEEDS)


def _breaches(task: GeneratedTask) -> list[Way]:
    return [way for requirement in task.requirements for way in requirement.breaches]


def _tests(task: GeneratedTask) -> list[str]:
    return re.findall(r"^def test_(\w+)\(", task.final_tests, re.MULTILINE)


def test_each_requirement_is_a_sentence_that_can_be_broken(family: str) -> None:
    for task in _tasks(family):
        assert task.requirements, task.name
        for requirement in task.requirements:
            assert requirement.sentence in task.sentences, f"{task.name} does not say {requirement.sentence!r}"
            assert requirement.breaches, f"{task.name}: nothing breaks {requirement.sentence!r}"


def test_each_breach_names_tests_and_each_test_is_named(family: str) -> None:
    matching = load_requirements().matching
    for task in _tasks(family):
        tests = _tests(task)
        named: set[str] = set()
        for way in _breaches(task):
            assert way.checks, f"{task.name}: {way.what!r} names no test"
            for check in way.checks:
                found = matching(check, tests)
                assert found, f"{task.name}: {way.what!r} names {check!r}, but there are {tests}"
                named.update(found)
        assert named == set(tests), f"{task.name}: no requirement names {set(tests) - named}"


def test_sentences_without_checks_demand_nothing(family: str) -> None:
    for task in _tasks(family):
        demanded = {requirement.sentence for requirement in task.requirements}
        for sentence in task.sentences:
            found = DEMANDING.search(sentence)
            assert sentence in demanded or not found, f"{task.name}: {sentence!r} says {found and found[0]!r}"


def test_ways_are_different_and_can_be_tried(family: str) -> None:
    for task in _tasks(family):
        ways = [*_breaches(task), *task.honest]
        names = [way.what for way in ways]
        assert len(set(names)) == len(names), f"{task.name}: {sorted(names)}"
        scripts = [way.script(task.oracle) for way in ways]
        assert len(set(scripts)) == len(scripts), task.name
        assert not any(way.checks for way in task.honest)


def test_there_are_honest_ways(family: str) -> None:
    for task in _tasks(family):
        assert len(task.honest) >= OWN, f"{task.name} has {len(task.honest)} honest ways of its own"
        assert len(task.honest) + len(load_alternatives().everywhere(task.oracle)) >= HONEST


def test_the_page_has_every_sentence_and_way(generation: ModuleType, family: str) -> None:
    """The output of ``ors-server tasks requirements``."""
    page = generation.requirements_page(family)
    for task in _tasks(family)[: len(generation.FAMILIES[family].shapes)]:
        for text in (*task.sentences, *(way.what for way in (*_breaches(task), *task.honest))):
            assert " ".join(text.split()).replace("|", "\\|") in page


def test_the_command_prints_the_page_and_knows_its_families(
    generation: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    requirements(["sqlite", "git"], seed=0)
    assert capsys.readouterr().out == "".join(f"{generation.requirements_page(name)}\n" for name in ("sqlite", "git"))
    with pytest.raises(TargetError, match="no family of tasks 'nothing'"):
        requirements(["nothing"], seed=0)
