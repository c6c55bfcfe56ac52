"""The garbage collector of a serving process: short pauses, and every instance is freed."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from ors_server.http import gc_tuning as module
from ors_server.http.gc_tuning import Collector


class Ring:
    """An instance that refers to itself, as an author may write it."""

    def __init__(self) -> None:
        self.itself = self


class Slotted:
    __slots__ = ("value",)


@pytest.fixture
def collector() -> Iterator[Collector]:
    started = Collector()
    started.start()
    yield started
    started.stop()


def ended(collector: Collector, count: int = 1) -> list[weakref.ref[Any]]:
    """Return weak references to instances of ended sessions that lived long enough to be frozen."""
    instances = [Ring() for _ in range(count)]
    gc.collect()
    for instance in instances:
        collector.left(instance)
    return [weakref.ref(instance) for instance in instances]


def alive(references: list[weakref.ref[Any]]) -> int:
    return sum(reference() is not None for reference in references)


def test_surviving_objects_are_not_traversed_again(collector: Collector) -> None:
    kept = [Ring() for _ in range(1000)]
    gc.collect()
    assert len(gc.get_objects(generation=2)) < 1000
    assert gc.get_freeze_count() > len(kept)


def test_a_burst_is_collected_in_small_portions(collector: Collector) -> None:
    sizes: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            sizes.append(sum(len(gc.get_objects(generation)) for generation in range(3)))

    gc.callbacks.append(note)
    try:
        kept = [[number] for number in range(100_000)]
    finally:
        gc.callbacks.remove(note)
    assert len(kept) == 100_000
    assert sizes
    assert max(sizes) < 20_000
    assert sum(sizes) < 110_000, "some were walked twice"


def test_a_cycle_that_a_session_leaves_is_collected(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    references = ended(collector)
    gc.collect()
    assert alive(references) == 1  # frozen: only a collection of all generations finds it
    collector.run_maintenance()
    assert alive(references) == 1  # it may still be in use for a moment
    monkeypatch.setattr(module, "PATIENCE", 0.0)
    collector.run_maintenance()
    assert alive(references) == 0


def test_many_cycles_are_collected_at_once(collector: Collector) -> None:
    references = ended(collector, module.CROWD)
    collector.run_maintenance()
    assert alive(references) == 0


def test_many_frozen_objects_cause_a_collection(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    ring = Ring()
    reference = weakref.ref(ring)
    gc.collect()
    del ring
    collector.run_maintenance()
    assert reference() is not None
    monkeypatch.setattr(module, "GROWTH", -1)
    collector.run_maintenance()
    assert reference() is None


def test_objects_that_were_freed_meanwhile_cause_none(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GROWTH", 5_000)
    deep = count_deep(monkeypatch)
    for _ in range(3):
        passing = [Ring() for _ in range(4_000)]
        gc.collect()
        while passing:
            del passing.pop().itself
        collector.run_maintenance()
    assert not deep
    kept = [Ring() for _ in range(6_000)]
    gc.collect()
    collector.run_maintenance()
    assert len(deep) == 1
    assert len(kept) == 6_000


class Leaving:
    """An instance that refers to itself, and leaves other objects when it is collected."""

    left: ClassVar[list[object]] = []

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        self.left.extend([] for _ in range(200))


def test_objects_that_finalizers_make_are_counted(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GROWTH", 5_000)
    deep = count_deep(monkeypatch)
    for _ in range(100):
        Leaving()
    gc.collect()
    collector.run_maintenance()
    Leaving.left.clear()
    assert len(deep) == 1


def test_a_deep_collection_lists_no_objects(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    ended(collector, module.CROWD)
    deep = count_deep(monkeypatch)
    monkeypatch.setattr(gc, "get_objects", None)
    collector.run_maintenance()
    monkeypatch.undo()
    assert len(deep) == 1


def count_deep(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Return a list that gets an item for each deep collection."""
    deep: list[None] = []
    unfreeze = gc.unfreeze

    def counting() -> None:
        deep.append(None)
        unfreeze()

    monkeypatch.setattr(gc, "unfreeze", counting)
    return deep


def test_an_instance_that_its_author_keeps_is_checked_once(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Ring()
    collector.left(kept)
    monkeypatch.setattr(module, "PATIENCE", 0.0)
    deep = count_deep(monkeypatch)
    collector.run_maintenance()
    collector.run_maintenance()
    assert len(deep) == 1


def test_references_to_freed_instances_do_not_accumulate(collector: Collector) -> None:
    for _ in range(3 * 4096):
        collector.left(Ring.__new__(Ring))
    assert len(collector._left) <= 4097  # pyright: ignore[reportPrivateUsage] - it has no other effect


def test_a_class_without_weak_references(collector: Collector) -> None:
    collector.left(Slotted())
    collector.run_maintenance()


def test_stopping_restores_the_garbage_collector() -> None:
    thresholds, callbacks = gc.get_threshold(), list(gc.callbacks)
    collector = Collector()
    collector.start()
    assert gc.get_threshold() != thresholds
    collector.stop()
    assert gc.get_threshold() == thresholds
    assert gc.callbacks == callbacks
    assert gc.get_freeze_count() == 0
