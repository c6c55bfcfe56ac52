"""Run an author's code on the event loop or on threads.

``async def`` is awaited on the event loop. Synchronous code must never block the loop, so it runs on threads: on a
shared ``ThreadPool`` for classes of this package and of openreward; on one lazily started thread for each session for
classes of ors-sdk, whose authors assume that the code of a session never overlaps or changes threads (protocol 0.1).

Invariant: a synchronous call cannot be interrupted, so ``run`` returns or raises only when the call has ended, even
when ``run`` is cancelled. When it returns, the code no longer touches the environment. The only exception is the end of
the server: a thread that then still hangs is abandoned, or the process could never exit.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import queue
import threading
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, Protocol

from ors_server.sandboxes import sandbox_error

__all__ = [
    "Execution",
    "LoopExecution",
    "PoolExecution",
    "SessionThreadExecution",
    "ThreadPool",
    "awaited",
    "raise_safely",
]

Job = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]", Callable[[], Any]]


class UnsafeException(RuntimeError):
    """Stands for an author's exception that would end the loop or look like a cancellation: ``SystemExit`` and such."""


class ThreadPool:
    """Up to ``size`` daemon threads; a job starts a thread where none is idle.

    Unlike the threads of ``concurrent.futures`` they do not keep the process from exiting while a call never returns,
    and an idle thread ends after ``idle_seconds``.
    """

    def __init__(self, name: str, size: int, idle_seconds: float | None = 60.0) -> None:
        self._name = name
        self._size = size
        self._idle_seconds = idle_seconds
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        # Threads that wait for a job, and jobs that wait for a thread. Both change under the lock, and a thread that
        # takes a job decrements both, so their difference is always right.
        self._idle = 0
        self._pending = 0
        #: Set at the end of the server, which no longer waits for these threads.
        self.abandoned = False

    def submit(self, function: Callable[[], Any]) -> asyncio.Future[Any]:
        """Run ``function`` on a thread; the future belongs to the running loop."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        with self._lock:
            self._jobs.put((loop, future, function))
            self._pending += 1
            if self._pending > self._idle and self._threads < self._size:
                self._threads += 1
                self._idle += 1
                thread = threading.Thread(target=self._work, name=f"{self._name}-{self._threads}", daemon=True)
                thread.start()
        return future

    def close(self) -> None:
        """Let the threads end once they are idle."""
        with self._lock:
            for _ in range(self._threads):
                self._jobs.put(None)

    def _work(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=self._idle_seconds)
            except queue.Empty:
                job = None
            with self._lock:
                if job is None and self._pending:
                    continue  # a job arrived between the time-out and the lock
                self._idle -= 1
                if job is None:
                    self._threads -= 1
                    return
                self._pending -= 1
            self._run(*job)
            del job
            with self._lock:
                self._idle += 1

    def _run(self, loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any], function: Callable[[], Any]) -> None:
        result: Any = None
        error: BaseException | None = None
        try:
            result = function()
        except BaseException as raised:  # noqa: BLE001 - the awaiting coroutine raises it
            error = safe_exception(raised)
        with contextlib.suppress(RuntimeError):  # the loop is closed: the server has ended
            loop.call_soon_threadsafe(_settle, future, result, error)


def safe_exception(raised: BaseException) -> BaseException:
    """Return the exception to raise on the event loop for an exception of an author's code.

    ``SystemExit`` and ``KeyboardInterrupt`` would end the loop, a future refuses ``StopIteration``, and an author's
    ``CancelledError`` would look like the cancellation of the server's task. A failure of a sandbox becomes the
    server's ``InfrastructureFailure`` or ``MachineBusy``.
    """
    if isinstance(raised, Exception) and not isinstance(raised, (StopIteration, StopAsyncIteration)):
        failure = sandbox_error(raised)
        if failure is None:
            return raised
        failure.__cause__ = raised
        return failure
    if isinstance(raised, asyncio.CancelledError):
        unsafe = UnsafeException("the environment's code was cancelled from within (asyncio.CancelledError)")
    else:
        try:
            text = str(raised)
        except Exception:  # noqa: BLE001 - an author's __str__ may raise anything
            text = "…"
        unsafe = UnsafeException(f"the environment's code raised {type(raised).__name__}({text})")
    unsafe.__cause__ = raised
    return unsafe


async def awaited(value: Awaitable[Any]) -> Any:
    """Await an author's awaitable. Raises what ``raise_safely`` does."""
    try:
        return await value
    except BaseException as raised:  # noqa: BLE001 - raise_safely() replaces what must not be raised
        raise_safely(raised)


def raise_safely(raised: BaseException) -> NoReturn:
    """Raise what ``safe_exception`` returns for an exception of an author's awaitable, or a true cancellation."""
    if isinstance(raised, (asyncio.CancelledError, GeneratorExit)):
        task = _current_task()
        if task is None or task.cancelling():
            raise raised  # a true cancellation, or the end of the loop
        raise safe_exception(raised) from raised
    error = safe_exception(raised)
    raise error from error.__cause__


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.cancelled():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


async def _until_done(future: asyncio.Future[Any], pool: ThreadPool) -> Any:
    """Await a thread's future to its end. A cancellation takes effect then, or when the pool is abandoned."""
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait((future,))
        except asyncio.CancelledError as error:
            if pool.abandoned:
                raise
            cancelled = error
    if cancelled is not None:
        future.exception()  # retrieved, or asyncio would report it as lost
        raise cancelled
    return future.result()


async def _resolved(value: Any) -> Any:
    return await awaited(value) if inspect.isawaitable(value) else value


class Execution(Protocol):
    """A way to run an author's callables, synchronous or not."""

    async def run(self, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """Run a callable and return its result, awaited where it is awaitable. Raises what the callable raises."""
        ...

    def close(self) -> None:
        """Release what is held. No more runs follow."""
        ...


class PoolExecution:
    """Execution of synchronous code on a pool that all sessions share."""

    def __init__(self, pool: ThreadPool) -> None:
        self._pool = pool

    async def run(self, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        if inspect.iscoroutinefunction(function):
            return await awaited(function(*arguments, **keywords))
        context = contextvars.copy_context()
        future = self._pool.submit(lambda: context.run(function, *arguments, **keywords))
        return await _resolved(await _until_done(future, self._pool))

    def close(self) -> None:
        """Do nothing: the pool belongs to the server."""


class SessionThreadExecution:
    """Execution of synchronous code on a thread of its own, started at first use; one call at a time."""

    def __init__(self, server_pool: ThreadPool) -> None:
        self._server_pool = server_pool
        self._pool: ThreadPool | None = None

    async def run(self, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        if inspect.iscoroutinefunction(function):
            return await awaited(function(*arguments, **keywords))
        if self._pool is None:
            self._pool = ThreadPool("ors-session", 1, idle_seconds=None)
        context = contextvars.copy_context()
        future = self._pool.submit(lambda: context.run(function, *arguments, **keywords))
        return await _resolved(await _until_done(future, self._server_pool))

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()


class LoopExecution:
    """Execution of synchronous code on the event loop, as in ors-sdk, and in tests that call tools directly."""

    async def run(self, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        try:
            value = function(*arguments, **keywords)
        except BaseException as raised:  # noqa: BLE001 - safe_exception() replaces what must not be raised
            error = safe_exception(raised)
            raise error from error.__cause__
        return await _resolved(value)

    def close(self) -> None:
        """Do nothing: nothing is held."""
