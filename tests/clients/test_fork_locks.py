"""A forked worker whose parent was drawing a progress bar."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator
from types import ModuleType
from typing import Any, cast

import pytest
from ors_clients.trainers.roll import fork_locks


class Lock:
    """tqdm's write lock: a lock for processes and one for threads (tqdm 4, ``std.TqdmDefaultWriteLock``)."""

    th_lock: Any = threading.RLock()

    def __init__(self) -> None:
        self.locks = [type(self).th_lock]


class Bar:
    """tqdm's class attributes."""

    monitor: Any = None

    @classmethod
    def set_lock(cls, lock: Any) -> None:
        cls._lock = lock


class DatasetsBar(Bar):
    """``datasets`` and ``huggingface_hub`` have subclasses with locks of their own."""


@pytest.fixture
def bars(monkeypatch: pytest.MonkeyPatch) -> Generator[type[Bar]]:
    """Return tqdm, the real package if installed, with new locks and 0.2 s of waiting; ``datasets`` is not loaded."""
    monkeypatch.setattr(fork_locks, "_PATIENCE", 0.2)
    monkeypatch.setattr(fork_locks, "_prepared_process", 0)
    monkeypatch.setenv("HF_DATASETS_DISABLE_PROGRESS_BARS", "0")
    monkeypatch.delitem(sys.modules, "datasets", raising=False)
    standard = ModuleType("tqdm.std")
    Lock.th_lock = threading.RLock()
    vars(standard).update(TqdmDefaultWriteLock=Lock, tqdm=Bar)
    monkeypatch.setitem(sys.modules, "tqdm.std", standard)
    Bar.set_lock(Lock())
    DatasetsBar.set_lock(threading.RLock())
    yield Bar
    Bar.monitor = None


def in_a_fork(check: Callable[[], bool]) -> int:
    """Return the exit status of a child that runs ``check``: 0 if it is true; killed after 20 s."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if check() else 2
        finally:
            os._exit(status)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -1


def locks_of(bar: Any) -> list[Any]:
    lock: Any = cast("dict[str, Any]", vars(bar))["_lock"]
    return getattr(lock, "locks", [lock])


def free(lock: Any) -> bool:
    if not lock.acquire(timeout=0.1):
        return False
    lock.release()
    return True


@pytest.fixture
def held(bars: type[Bar]) -> Generator[None]:
    """Hold both bars' locks in another thread."""
    release, ready = threading.Event(), threading.Event()

    def draw() -> None:
        with locks_of(Bar)[0], locks_of(DatasetsBar)[0]:
            ready.set()
            release.wait(60)

    thread = threading.Thread(target=draw)
    thread.start()
    ready.wait(10)
    yield
    release.set()
    thread.join()


def test_a_worker_gets_locks_that_it_can_acquire(held: None) -> None:
    def check() -> bool:
        lost = not free(locks_of(Bar)[0]) and not free(Lock.th_lock) and not free(locks_of(DatasetsBar)[0])
        fork_locks.prepare_worker()
        return lost and free(Lock.th_lock) and all(free(locks_of(bar)[0]) for bar in (Bar, DatasetsBar))

    assert in_a_fork(check) == 0


def test_free_locks_are_kept(bars: type[Bar]) -> None:
    before = [vars(bar)["_lock"] for bar in (Bar, DatasetsBar)]
    fork_locks.prepare_worker()
    assert [vars(bar)["_lock"] for bar in (Bar, DatasetsBar)] == before


def test_a_monitor_without_its_thread_is_forgotten(bars: type[Bar]) -> None:
    end = threading.Event()
    monitor = threading.Thread(target=end.wait, daemon=True)
    monitor.start()
    Bar.monitor = monitor

    def check() -> bool:
        fork_locks.prepare_worker()
        return Bar.monitor is None

    assert in_a_fork(check) == 0
    fork_locks.prepare_worker()
    assert Bar.monitor is monitor
    end.set()
    monitor.join()


def test_datasets_draws_no_bars_in_a_worker(bars: type[Bar], monkeypatch: pytest.MonkeyPatch) -> None:
    disabled: list[bool] = []
    datasets = ModuleType("datasets")
    vars(datasets)["disable_progress_bars"] = lambda: disabled.append(True)
    monkeypatch.setitem(sys.modules, "datasets", datasets)
    fork_locks.prepare_worker()
    fork_locks.prepare_worker()
    assert disabled == [True]  # once per process


def test_a_process_that_has_not_loaded_them_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_locks, "_prepared_process", 0)
    monkeypatch.delitem(sys.modules, "tqdm.std", raising=False)
    monkeypatch.delitem(sys.modules, "datasets", raising=False)
    monkeypatch.delenv("HF_DATASETS_DISABLE_PROGRESS_BARS", raising=False)
    fork_locks.prepare_worker()
    assert "tqdm.std" not in sys.modules
    assert os.environ["HF_DATASETS_DISABLE_PROGRESS_BARS"] == "1"
    monkeypatch.delenv("HF_DATASETS_DISABLE_PROGRESS_BARS")
