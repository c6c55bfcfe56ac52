"""The generated source: splits, names, and families whose programs are missing."""

from __future__ import annotations

import logging
import re

import pytest

from ors_server import DefinitionError
from ors_server.hosting.errors import InvalidTask
from tests.support.paths import ROOT

from .parts import generated, generation


def source(train: int = 400, test: int = 100, *families: str) -> generated.GeneratedSource:
    return generated.GeneratedSource(lambda program: True, families=families, train_tasks=train, test_tasks=test)


def by_default() -> set[str]:
    return {name for name, family in generation.FAMILIES.items() if family.by_default}


def test_splits_are_disjoint_and_of_all_families() -> None:
    made = source()
    train = [made.name("train", index) for index in range(400)]
    test = [made.name("test", index) for index in range(100)]
    assert len({*train, *test}) == 500
    assert {name.rpartition("-")[0] for name in train} == by_default()
    # Neighbours are of different families.
    count = len(by_default())
    assert len({name.rpartition("-")[0] for name in train[:count]}) == count
    assert made.name("train", -1) == train[-1]
    for index in (400, -401):
        with pytest.raises(IndexError):
            made.name("train", index)


def test_a_task_follows_from_its_name() -> None:
    made = source()
    for index in range(0, 400, 37):
        name = made.name("train", index)
        found = made.find(name)
        assert found == source(1000, 5).find(name)
        assert found.name == name
        assert found.prompt.strip()
        assert found.solution
        assert found.near_miss


@pytest.mark.parametrize(
    "name",
    [
        *("", "nothing-000001", "csv_join", "csv_join-x", "csv_join-1/../2", "csv_join-000001 ", "csv_join-000001\n"),
        # Other spellings of the number: a task has one name.
        *("csv_join-1", "csv_join-00001", "csv_join-0000001", "csv_join-+00001"),
        *(f"csv_join-00000{chr(digit)}" for digit in (0x661, 0xFF11)),
    ],
)
def test_an_invalid_name_of_a_task_is_refused(name: str) -> None:
    with pytest.raises(InvalidTask):
        source().find(name)


def test_a_family_that_is_left_out_has_no_tasks() -> None:
    made = source(10, 5, "csv_join", "links")
    assert {made.name("train", index).rpartition("-")[0] for index in range(10)} == {"csv_join", "links"}
    with pytest.raises(InvalidTask):
        made.find("permissions-000001")


def test_families_without_their_programs_are_left_out_with_a_log_entry(caplog: pytest.LogCaptureFixture) -> None:
    needy = {name for name, family in generation.FAMILIES.items() if "git" in family.programs}
    assert needy
    with caplog.at_level(logging.WARNING):
        usable = generated.usable_families(lambda program: program != "git")
    assert set(usable) == by_default() - needy
    for name in needy:
        assert f"the family {name} are left out: the image has no git" in caplog.text


def test_a_missing_program_moves_no_index(caplog: pytest.LogCaptureFixture) -> None:
    """The same split and index are the same task on every machine; a task that cannot be played here says why."""
    with caplog.at_level(logging.WARNING):
        bare = generated.GeneratedSource(lambda program: program != "patch", train_tasks=200, test_tasks=80)
    whole = source(200, 80)
    for split in ("train", "test"):
        assert bare.count(split) == whole.count(split)
        assert [bare.name(split, index) for index in range(bare.count(split))] == [
            whole.name(split, index) for index in range(whole.count(split))
        ]
    assert "tasks of the family diff_patch are refused: the image has no patch" in caplog.text
    with pytest.raises(generated.ProgramMissing, match=r"'diff_patch-000001' needs patch, .* Install it"):
        bare.find("diff_patch-000001")
    assert bare.find("csv_join-000001") == whole.find("csv_join-000001")


def test_unknown_families_and_too_many_tasks_keep_the_server_from_starting() -> None:
    with pytest.raises(DefinitionError, match="csv_joyn"):
        source(10, 5, "csv_joyn")
    with pytest.raises(DefinitionError, match="TRAIN_TASKS"):
        source(500_001, 5, "csv_join")
    with pytest.raises(DefinitionError, match=r"No family.*Install .*git"):
        generated.GeneratedSource(lambda program: False, families=needing_programs(), train_tasks=1, test_tasks=1)


def needing_programs() -> list[str]:
    return [name for name, family in generation.FAMILIES.items() if family.programs]


@pytest.mark.parametrize("file", ["Dockerfile", "environments/terminal/Dockerfile"])
def test_an_image_is_built_with_the_programs_of_every_family(file: str) -> None:
    of_every_base = {"gzip", "iconv", "python3", "setsid", "tar"}
    needed = {program for family in generation.FAMILIES.values() for program in family.programs} - of_every_base
    lines = (ROOT / file).read_text().splitlines()
    (looked_for,) = [
        set(line.partition("which")[2].partition(">")[0].split()) for line in lines if "which bwrap" in line
    ]
    (installed,) = [set(line.split()) for line in lines if "--no-install-recommends bubblewrap" in line]
    assert needed <= looked_for
    assert needed <= installed


def test_a_family_for_tiny_models_is_served_where_it_is_named() -> None:
    """It moves no index of the tasks of all families, and the values of its splits are disjoint."""
    assert "first_steps" not in {source().name("train", index).rpartition("-")[0] for index in range(400)}
    made = source(300, 120, "first_steps")
    common = {"work", "home", "user"}
    found: dict[str, set[str]] = {}
    for split in ("train", "test"):
        solutions = [made.find(made.name(split, index)).solution or "" for index in range(made.count(split))]
        found[split] = {word for text in solutions for word in re.findall(r"\b[a-z]{4}\b|[0-9]{2}", text)} - common
    assert len(found["train"]) > 300
    assert len(found["test"]) > 100
    assert not found["train"] & found["test"] - {"echo"}
