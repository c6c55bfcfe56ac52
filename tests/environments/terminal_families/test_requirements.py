"""Each sentence of a prompt that demands something can be broken, and each task can be solved in several ways."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from tests.environments.terminal_families.loading import load_generation
from tests.environments.terminal_families.mutators import MUTATORS
from tests.environments.terminal_families.ways import EVERYWHERE, Drafted, drafted, filled

DOCS = Path(__file__).parents[3] / "docs" / "terminal_tasks.md"
SEEDS = range(12)
#: Minimum of a shape's own other solutions, and of these with those of every task.
OWN, HONEST = 1, 6
#: Words of a sentence that states a requirement.
DEMANDING = re.compile(
    r"\b(must|exactly|only|never|nothing|unchanged|leave|do not|don't|keep|every line|no others?|"
    r"without|newline|sorted|in this order|in the order)\b",
    re.IGNORECASE,
)
#: Sentences of every family on the ends of lines; the mutators of new files break them.
LINE_ENDS = re.compile(r"(Every line ends with|End each line|Terminate every line)[^.]*newline")


@cache
def _tasks(family: str) -> tuple[Drafted, ...]:
    return tuple(drafted(family, seed) for seed in SEEDS)


def test_each_demand_is_a_sentence_that_can_be_broken(family: str) -> None:
    for one in _tasks(family):
        assert one.task.demands, one.task.name
        for demand in one.task.demands:
            assert demand in one.task.sentences, f"{one.task.name} does not say {demand!r}"
            assert one.forbidden.get(demand) or LINE_ENDS.search(demand), f"{one.task.name}: nothing breaks {demand!r}"


def test_sentences_without_demands_demand_nothing(family: str) -> None:
    for one in _tasks(family):
        *sentences, last = one.task.sentences
        said = {allowance.sentence for allowance in one.task.allowances}
        for sentence in (*sentences, last):
            found = DEMANDING.search(sentence)
            whole = sentence in one.task.demands or sentence in said or f" {one.task.root} " in f"{sentence} "
            assert whole or not found, f"{one.task.name}: {sentence!r} says {found and found[0]!r}"


def test_ways_are_different(family: str) -> None:
    for one in _tasks(family):
        ways = [way for ways in one.forbidden.values() for way in ways] + [*one.honest]
        scripts = [(way.script, way.solved) for way in ways]
        assert len(set(scripts)) == len(scripts), f"{one.task.name}: {sorted(way.what for way in ways)}"


def test_each_way_is_of_some_task(family: str) -> None:
    """No entry of the tables is dead: each sentence is said, and each passage is in an oracle."""
    shapes = len(load_generation().FAMILIES[family].shapes)
    module = __import__(f"tests.environments.terminal_families.solutions.{family}", fromlist=["FORBIDDEN"])
    said = {demand for one in _tasks(family) for demand in one.task.demands}
    more = [drafted(family, seed) for seed in range(100, 100 + 8 * shapes)]
    said |= {demand for one in more for demand in one.task.demands}
    for name, sentences in module.FORBIDDEN.items():
        for sentence in sentences:
            begin = filled(sentence.partition("«")[0], {}).strip()
            assert any(demand.strip().startswith(begin) for demand in said), f"{name}: no task says {sentence!r}"


def test_there_are_other_solutions(family: str) -> None:
    for one in _tasks(family):
        assert len(one.honest) >= OWN, f"{one.task.name} has {len(one.honest)} other solutions of its own"
        assert len(one.honest) + len(EVERYWHERE) >= HONEST


def mutators_table() -> str:
    """Return the table of mutators in docs/terminal_tasks.md: those that a sentence may allow, and all others."""
    tasks = [family.generate(seed) for family in load_generation().FAMILIES.values() for seed in range(24)]
    said = {allowance.kind: allowance.sentence for task in reversed(tasks) for allowance in task.allowances}
    rows = ["| if the prompt says | these mutants earn 1 |", "|---|---|"]
    for kind in dict.fromkeys(kind for kind, _ in MUTATORS.values() if kind):
        names = "; ".join(name for name, (own, _) in MUTATORS.items() if own == kind)
        rows.append(f"| {said[kind]} | {names} |")
    never = "; ".join(name for name, (kind, _) in MUTATORS.items() if not kind)
    return "\n".join(rows) + f"\n\nNo prompt allows: {never}.\n"


def test_the_documentation_lists_the_mutators() -> None:
    assert mutators_table() in DOCS.read_text(), f"docs/terminal_tasks.md should have:\n{mutators_table()}"
