"""Where an author's code runs.

``async def`` is awaited on the event loop. Synchronous code must never stop the loop, so it runs on threads: on a
shared ``ThreadPool`` for our own and openreward's classes; for classes of ors-sdk, whose authors assume that nothing
of one session runs at the same time or on another thread, on one lazily started thread a session (protocol 0.1).

Invariant: a synchronous call cannot be interrupted, so ``run`` returns or raises only when it has really ended, even
when it is cancelled. Whoever waits for a run may rely on the code no longer touching the environment. The one exception
is the end of the server: a thread that then still hangs is abandoned, or the process could never exit.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import queue
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from ors_server.sandboxes import sandbox_error

__all__ = ["Execution", "LoopExecution", "PoolExecution", "SessionThreadExecution", "ThreadPool", "awaited"]

Job = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]", Callable[[], Any]]


class Escaped(RuntimeError):
    """An author's code raised what would end the loop or pass for a cancellation: ``sys.exit`` and the like."""


class ThreadPool:
    """Daemon threads started one by one as work finds none idle, up to ``size``.

    Unlike ``concurrent.futures`` these do not keep the process from exiting behind a call that never returns, and
    an idle thread ends after ``idle_seconds``.
    """

    def __init__(self, name: str, size: int, idle_seconds: float | None = 60.0) -> None:
        self._name = name
        self._size = size
        self._idle_seconds = idle_seconds
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        # Threads waiting for a job and jobs waiting for a thread. Both count under the lock, and a thread that takes
        # a job lowers both, so their difference is right at every moment.
        self._idle = 0
        self._pending = 0
        #: Set at the end of the server: nobody waits for these threads any more.
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
                    continue  # a job came between the time-out and the lock
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
        except BaseException as raised:  # noqa: BLE001 - carried to the awaiting coroutine, whatever it is
            error = contained(raised)
        with contextlib.suppress(RuntimeError):  # the loop is closed: the server has ended, and nobody waits
            loop.call_soon_threadsafe(_settle, future, result, error)


def contained(raised: BaseException) -> BaseException:
    """What is raised on the event loop in place of what an author's code raised.

    ``SystemExit`` and ``KeyboardInterrupt`` would end the loop, a future refuses ``StopIteration``, and a
    ``CancelledError`` of the author's own making would pass for the cancellation of our task. A failure of a sandbox
    is the server's own kind of failure.
    """
    if isinstance(raised, Exception) and not isinstance(raised, (StopIteration, StopAsyncIteration)):
        failure = sandbox_error(raised)
        if failure is None:
            return raised
        failure.__cause__ = raised
        return failure
    if isinstance(raised, asyncio.CancelledError):
        escaped = Escaped("the environment's code was cancelled from within (asyncio.CancelledError)")
    else:
        try:
            text = str(raised)
        except Exception:  # noqa: BLE001 - an author's __str__ may raise anything
            text = "…"
        escaped = Escaped(f"the environment's code raised {type(raised).__name__}({text})")
    escaped.__cause__ = raised
    return escaped


async def awaited(value: Awaitable[Any]) -> Any:
    """Await an author's awaitable; raises only what ``contained`` lets through, and true cancellations."""
    try:
        return await value
    except (asyncio.CancelledError, GeneratorExit) as raised:
        task = _current_task()
        if task is None or task.cancelling():
            raise  # a true cancellation, or the end of the loop
        raise contained(raised) from raised
    except BaseException as raised:  # noqa: BLE001 - whatever it is, contained() decides
        error = contained(raised)
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
    """Await a thread's future to its end; a cancellation takes effect only then, or when the pool is abandoned."""
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait((future,))
        except asyncio.CancelledError as error:
            if pool.abandoned:
                raise
            cancelled = error
    if cancelled is not None:
        future.exception()  # retrieved, so that it is not reported as lost
        raise cancelled
    return future.result()


async def _resolved(value: Any) -> Any:
    return await awaited(value) if inspect.isawaitable(value) else value


class Execution(Protocol):
    """A way to run an author's callable, synchronous or not."""

    async def run(self, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """The callable's result, awaited where it is awaitable. Raises what the callable raises."""
        ...

    def close(self) -> None:
        """No more runs will come."""
        ...


class PoolExecution:
    """Synchronous code on a pool that all sessions share."""

    def __init__(self, pool: ThreadPool) -> None:
        self._pool = pool

    async def run(self, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        if inspect.iscoroutinefunction(function):
            return await awaited(function(*arguments, **keywords))
        context = contextvars.copy_context()
        future = self._pool.submit(lambda: context.run(function, *arguments, **keywords))
        return await _resolved(await _until_done(future, self._pool))

    def close(self) -> None:
        """The pool is the server's; nothing to do."""


class SessionThreadExecution:
    """Synchronous code on a thread of its own, started when there is some; one call at a time."""

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
    """Synchronous code on the event loop: ors-sdk's own way, and the way of a test that calls tools directly."""

    async def run(self, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        try:
            value = function(*arguments, **keywords)
        except BaseException as raised:  # noqa: BLE001 - whatever it is, contained() decides
            error = contained(raised)
            raise error from error.__cause__
        return await _resolved(value)

    def close(self) -> None:
        """Nothing is held."""
