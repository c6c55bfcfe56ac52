"""Event loops on threads of their own: one for synchronous clients, one that keeps sessions alive.

A process has at most one of each, started when it is first used and never stopped: daemon threads, so that they do not
keep a process from exiting. A forked child has neither; its own are started when it uses them, and no part of its
parent's is touched, closed or ended by it.

At the end of the process each thread begins to wait in Python, without end. One that uvloop wakes after the
interpreter has ended (a timer, a connection that the server closes) ends the process with a segmentation fault: CPython
3.11's ``PyGILState_Ensure`` has no interpreter then. Where PyTorch is loaded that time is long enough to be hit.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

__all__ = ["LoopThread"]

Result = TypeVar("Result")

#: Seconds that a thread may take to leave what it is doing at the end of the process.
_PATIENCE = 1.0


class LoopThread:
    """A thread that runs an event loop. ``after_fork`` is called in every forked child."""

    def __init__(self, name: str, after_fork: Callable[[], None] | None = None) -> None:
        self._name = name
        self._after_fork = after_fork
        self._lock = threading.RLock()  # a session may be collected, and ended from here, at any moment
        self._loop: asyncio.AbstractEventLoop | None = None
        #: The loops of parent processes: to collect one would close what the parent still uses.
        self._parents: list[asyncio.AbstractEventLoop] = []
        os.register_at_fork(after_in_child=self._forked)
        atexit.register(self._park)  # before those that use the loop at the end, and so called after them

    def _forked(self) -> None:
        self._lock = threading.RLock()  # another thread may have held it
        if self._loop is not None:
            self._parents.append(self._loop)
            self._loop = None
        if self._after_fork is not None:
            self._after_fork()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop; the thread is started if need be."""
        loop = self._loop
        if loop is not None:
            return loop
        with self._lock:
            if self._loop is None:
                import uvloop  # takes a quarter off a synchronous call, and a program without such calls no time

                loop = uvloop.new_event_loop()
                threading.Thread(target=self._run, args=(loop,), name=self._name, daemon=True).start()
                self._loop = loop
            return self._loop

    def _park(self) -> None:
        """Keep the thread from its event loop. What uses the loop later gets another thread."""
        loop, self._loop = self._loop, None
        if loop is None:
            return
        parked = threading.Event()

        def park() -> None:
            parked.set()
            threading.Event().wait()

        with contextlib.suppress(RuntimeError):  # the loop was closed
            loop.call_soon_threadsafe(park)
            parked.wait(_PATIENCE)

    @staticmethod
    def _run(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()

    def run(self, work: Coroutine[Any, Any, Result], timeout: float | None = None) -> Result:
        """Run a coroutine there and wait for it, at most ``timeout`` seconds: ``TimeoutError``. Ctrl-C cancels it."""
        loop = self.loop
        if _current_loop() is loop:
            work.close()
            raise RuntimeError("a synchronous client is used on its own background thread")
        future = asyncio.run_coroutine_threadsafe(work, loop)
        try:
            return future.result(timeout)
        except BaseException:  # a time-out or Ctrl-C of the caller: the caller no longer waits for the coroutine
            future.cancel()
            raise

    def start(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Run a coroutine there and do not wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)


def _current_loop() -> asyncio.AbstractEventLoop | None:
    with contextlib.suppress(RuntimeError):
        return asyncio.get_running_loop()
    return None
