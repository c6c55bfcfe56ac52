"""Tune the garbage collector of a serving process, so that its pauses stay short.

CPython's collector walks every object of its oldest generation in one go. With thousands of live sessions that takes
0.1 s and more, in which the server answers no request. Calls create no reference cycles, so the collector rarely finds
anything: reference counts free all objects except those that authors tie together. So a collection walks what is new
since the last one, and what survives is frozen: each object is walked once. In generations, those of the calls under
way would be walked in each.

Frozen objects that become a cycle later are found by a *deep* collection, which walks everything. It runs when an
environment's instance lives on after its session has ended, which indicates a cycle, and when very many objects have
been frozen since the last one.

Invariant: without cycles no pause grows with the number of live sessions. Cycles are freed within ``PATIENCE`` plus one
maintenance interval.
"""

from __future__ import annotations

import contextlib
import gc
import time
import weakref
from collections.abc import Mapping
from typing import Any

__all__ = ["Collector"]

#: New objects to a collection, which walks these and no others. The requests that are answered in one turn of the loop
#: have 30 objects each: with far fewer, nearly every turn of a busy loop would end in a collection.
_NEW_OBJECTS = 12_000
#: Seconds that instances may outlive their sessions, and how many may do so at once, before a deep collection.
PATIENCE = 30.0
CROWD = 64
#: References to instances of ended sessions above which dead references are dropped.
_MANY = 4096
#: Objects frozen since the last deep collection above which another is worth its pause.
GROWTH = 2_000_000


class Collector:
    """The process's garbage collector, tuned from ``start`` to ``stop``."""

    def __init__(self) -> None:
        self._thresholds = gc.get_threshold()
        self._frozen = 0
        #: How many were frozen since then, and may have been freed meanwhile.
        self._growth = 0
        self._deep = False
        #: Instances whose sessions have ended, each with the time of the end; the earliest first.
        self._left: list[tuple[float, weakref.ref[Any]]] = []

    def start(self) -> None:
        """Freeze all objects, and those that survive a collection from now on."""
        self._thresholds = gc.get_threshold()
        gc.collect()
        gc.freeze()
        self._count_frozen()
        # Freezing empties the older generations: no collection of them is ever due.
        gc.set_threshold(_NEW_OBJECTS)
        gc.callbacks.append(self._after)

    def stop(self) -> None:
        """Restore the collector."""
        gc.callbacks.remove(self._after)
        gc.set_threshold(*self._thresholds)
        gc.unfreeze()

    def left(self, instance: Any) -> None:
        """Register an instance that the server no longer holds."""
        with contextlib.suppress(TypeError):  # a class with slots has no weak references
            self._left.append((time.monotonic(), weakref.ref(instance)))
        if len(self._left) > _MANY:
            self._drop_dead()

    def run_maintenance(self) -> None:
        """Run a deep collection if there is reason to. Call it every few seconds."""
        self._drop_dead()
        overdue = bool(self._left) and time.monotonic() - self._left[0][0] > PATIENCE
        if overdue or len(self._left) >= CROWD or self._has_grown():
            self._deep = True
            gc.unfreeze()
            gc.collect()
            self._deep = False
            self._count_frozen()
            # Instances that are still alive are referenced; no collection will change that.
            self._left.clear()

    def _drop_dead(self) -> None:
        self._left = [(since, reference) for since, reference in self._left if reference() is not None]

    def _count_frozen(self) -> None:
        self._frozen, self._growth = gc.get_freeze_count(), 0

    def _has_grown(self) -> bool:
        if self._growth > GROWTH:
            # CPython walks the frozen objects to count them: a pause, too.
            self._growth = gc.get_freeze_count() - self._frozen
        return self._growth > GROWTH

    def _after(self, phase: str, _: Mapping[str, int]) -> None:
        if phase == "stop":
            if not self._deep:  # all objects are counted after that
                self._growth += len(gc.get_objects())  # those that `freeze` freezes
            gc.freeze()
