"""Replace the ``tqdm`` and ``datasets`` locks that a forked worker inherited in the locked state.

A fork copies a process with the forking thread alone. A lock that another thread held at that moment stays held in the
child, and the first progress bar, or the first ``datasets`` call that maps over threads, waits for it forever: Ray
workers that load a data set hang. ``prepare_worker`` is called where a worker begins to use them, once a process. It
replaces the locks that cannot be acquired, and only those: in a process without the trouble it changes nothing but that
``datasets`` draws no progress bars, which a worker's log does not need and which are what takes the locks.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from typing import Any, cast

__all__ = ["prepare_worker"]

#: How long a lock may be in use before it counts as left behind, in seconds.
_PATIENCE = 2.0

_prepared_process = 0


def prepare_worker() -> None:
    """Make ``tqdm`` and ``datasets`` safe to use in this process. Only the first call of a process does anything."""
    global _prepared_process
    if _prepared_process == os.getpid():
        return
    _prepared_process = os.getpid()
    standard: Any = sys.modules.get("tqdm.std")
    if standard is not None:  # else its locks will be made in this process
        _replace_lost_locks(standard)
    datasets: Any = sys.modules.get("datasets")
    if datasets is not None:
        datasets.disable_progress_bars()
    else:
        os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")


def _replace_lost_locks(standard: Any) -> None:
    default: Any = standard.TqdmDefaultWriteLock
    if not _can_be_had(default.th_lock):
        default.th_lock = threading.RLock()
    if not _can_be_had(getattr(default, "mp_lock", None)):
        default.mp_lock = None  # shared with processes whose bars are on other terminals
    replacement = threading.RLock()
    for bar in _with_subclasses(standard.tqdm):
        lock: Any = cast("dict[str, Any]", vars(bar)).get("_lock")
        parts: list[Any] = getattr(lock, "locks", [lock])
        if not all(_can_be_had(part) for part in parts):
            bar.set_lock(replacement)
    monitor: Any = standard.tqdm.monitor
    if monitor is not None and not monitor.is_alive():  # the fork did not copy its thread
        standard.tqdm.monitor = None


def _can_be_had(lock: Any) -> bool:
    if lock is None:
        return True
    # Not by keyword: the locks of multiprocessing and threading name the arguments differently.
    if not lock.acquire(True, _PATIENCE):
        return False
    lock.release()
    return True


def _with_subclasses(kind: type[Any]) -> Iterator[Any]:
    yield kind
    for subclass in kind.__subclasses__():
        yield from _with_subclasses(subclass)
