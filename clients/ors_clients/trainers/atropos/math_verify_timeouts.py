"""``math_verify``'s time-outs on other threads than the main one.

Its ``parse`` and ``verify`` bound their work with ``signal.alarm``, which Python allows on the main thread only:
anywhere else they raise ``ValueError``. Atropos environments run here on the thread of an event loop of their own, and
many of them, GSM8K's among them, score with ``math_verify``. ``bound_math_verify`` gives its time-outs another way for
such threads: a timer raises the same error in the thread that computes. As with the alarm the work itself is stopped,
between two instructions of Python; a single operation of C code, like an immense power, is waited for by both. To leave
the work to a helper thread would not stop it, and a process for each answer would cost more than its score. On the main
thread the alarm stays.

Source: math_verify 0.9.0, ``utils.py`` (the decorator), ``parser.py``, ``grader.py``, ``metric.py`` (its users).
"""

from __future__ import annotations

import ctypes
import functools
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any

__all__ = ["bound_math_verify"]

_Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def bound_math_verify() -> None:
    """Let ``math_verify`` work on every thread of this process. Without the package this does nothing, nor the second
    time."""
    try:
        expired: type[BaseException] = import_module("math_verify.errors").TimeoutException
        original: Any = import_module("math_verify.utils").timeout
    except (ImportError, AttributeError):
        return  # not installed, or another version: an environment that uses it will say what is wrong
    if getattr(original, "bounds_threads", False):
        return
    replacement = _on_every_thread(original, expired)
    # Its modules import the decorator by name.
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "math_verify" and getattr(module, "timeout", None) is original:
            vars(module)["timeout"] = replacement


def _on_every_thread(original: Callable[..., _Decorator], expired: type[BaseException]) -> Callable[..., _Decorator]:
    """Return the function that makes ``math_verify``'s decorator, for every thread."""

    @functools.wraps(original)
    def timeout(timeout_seconds: int | None = 10) -> _Decorator:
        alarmed = original(timeout_seconds)
        if timeout_seconds is None or timeout_seconds <= 0:
            return alarmed

        def decorator(function: Callable[..., Any]) -> Callable[..., Any]:
            with_alarm = alarmed(function)

            @functools.wraps(function)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                if threading.current_thread() is threading.main_thread():
                    return with_alarm(*args, **kwargs)
                return _within(timeout_seconds, expired, functools.partial(function, *args, **kwargs))

            return wrapper

        return decorator

    vars(timeout)["bounds_threads"] = True
    return timeout


def _within(seconds: float, expired: type[BaseException], work: Callable[[], Any]) -> Any:
    """Return the result of ``work``; raise ``expired`` in it, in this thread, if it takes longer."""
    thread = threading.get_ident()
    lock = threading.Lock()
    over = raised = False

    def expire() -> None:
        nonlocal raised
        with lock:
            if not over:
                raised = True
                _raise_in(thread, expired)

    timer = threading.Timer(seconds, expire)
    timer.daemon = True  # the process may exit meanwhile
    timer.start()
    try:
        return work()
    finally:
        timer.cancel()
        with lock:
            over = True
        if raised:
            # The work may have ended in the same moment: what is still to be raised must not hit whatever comes next.
            _raise_in(thread, None)


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    """Let a thread raise ``error`` at its next instruction. None: take back what it has not raised yet."""
    raised = None if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), raised)
