"""The garbage collector of a serving process, kept from stopping it.

CPython's collector walks every object of its oldest generation in one go. With thousands of live sessions that is
0.1 s and more in which nobody is answered. Nearly nothing here is its business: a call leaves no ring of objects
behind, so all but what authors tie together is freed by its reference count. So the oldest generation is kept small
(collected after a few rounds of the younger ones), and what survives in it is frozen: later rounds do not walk it.

What was frozen and then becomes a ring is found by a *deep* collection, which walks everything. One is made when an
environment's instance lives on after its session has ended, which is what a ring looks like, and when very much has
been frozen since the last.

Invariant: without rings no pause grows with the number of live sessions; with them, their memory is had back within
``PATIENCE`` and a housekeeping interval.
"""

from __future__ import annotations

import contextlib
import gc
import time
import weakref
from collections.abc import Mapping
from typing import Any

__all__ = ["Collector"]

#: New objects, their collections, and those of the middle generation, after which the next generation has its turn: no
#: collection walks more than some 7,000 objects, which take a slow processor 10 ms.
_THRESHOLDS = (700, 4, 1)
#: Seconds that instances may live on after their sessions, and how many at once, before a deep collection.
PATIENCE = 30.0
CROWD = 64
#: References to ended sessions' instances after which the dead ones among them are dropped.
_MANY = 4096
#: Objects frozen since the last deep collection that make another worth its pause.
GROWTH = 2_000_000


class Collector:
    """Sets the process's collector up from ``start`` to ``stop``."""

    def __init__(self) -> None:
        self._thresholds = gc.get_threshold()
        self._frozen = 0
        #: Instances whose sessions have ended, and when; the first to end first.
        self._left: list[tuple[float, weakref.ref[Any]]] = []

    def start(self) -> None:
        """Freeze everything there is and keep the oldest generation small."""
        self._thresholds = gc.get_threshold()
        gc.collect()
        gc.freeze()
        # Of what is left, which is nothing: CPython puts the oldest generation off until it has grown by a quarter of
        # what it held after its last collection.
        gc.collect()
        self._frozen = gc.get_freeze_count()
        gc.set_threshold(*_THRESHOLDS)
        gc.callbacks.append(self._after)

    def stop(self) -> None:
        """Give the collector back as it was."""
        gc.callbacks.remove(self._after)
        gc.set_threshold(*self._thresholds)
        gc.unfreeze()

    def left(self, instance: Any) -> None:
        """The server holds this instance no longer."""
        with contextlib.suppress(TypeError):  # a class with slots that does without weak references, and without rings
            self._left.append((time.monotonic(), weakref.ref(instance)))
        if len(self._left) > _MANY:
            self._drop_dead()

    def run_maintenance(self) -> None:
        """Collect deeply if there is reason to; to be called every few seconds."""
        self._drop_dead()
        overdue = bool(self._left) and time.monotonic() - self._left[0][0] > PATIENCE
        if overdue or len(self._left) >= CROWD or gc.get_freeze_count() - self._frozen > GROWTH:
            gc.unfreeze()
            gc.collect()
            gc.collect()  # as above: the first one has frozen what it left
            self._frozen = gc.get_freeze_count()
            # What is still alive is held by somebody, and no collection will change that.
            self._left.clear()

    def _drop_dead(self) -> None:
        self._left = [(since, reference) for since, reference in self._left if reference() is not None]

    @staticmethod
    def _after(phase: str, info: Mapping[str, int]) -> None:
        if phase == "stop" and info["generation"] == 2:
            gc.freeze()
