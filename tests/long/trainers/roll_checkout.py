"""ROLL's own modules from a checkout, importable on a machine without Ray, vLLM or an accelerator.

``ORS_ROLL_CHECKOUT`` names the checkout. ROLL runs each actor in a process of Ray; here ``ray`` is a small module in
which an actor is the object itself and ``ray.get`` runs what its methods return. Other packages that ROLL imports and
no check calls (vLLM, Megatron, …) are modules whose every name is an empty class.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import os
import sys
import tempfile
import threading
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, cast

__all__ = ["CHECKOUT", "add_checkout", "loop"]

#: ROLL's checkout, or None.
CHECKOUT = Path(folder) if (folder := os.environ.get("ORS_ROLL_CHECKOUT")) else None

#: Packages that ROLL imports and that no check here calls.
STUBS = ("transfer_queue", "mcp", "mcore_adapter", "megatron", "vllm")

#: ROLL opens a log file when it is imported. The folder is removed with this process.
_logs = tempfile.TemporaryDirectory()

#: The event loop of all actors; in Ray each has its own.
loop = asyncio.new_event_loop()


class _Remote:
    """A method of an actor; ``remote`` runs it in the actors' loop and returns what ``ray.get`` waits for."""

    def __init__(self, method: Any) -> None:
        self._method = method

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        async def call() -> Any:
            result = self._method(*args, **kwargs)
            return await result if inspect.isawaitable(result) else result

        return asyncio.run_coroutine_threadsafe(call(), loop)


class _Actor:
    def __init__(self, made: Any) -> None:
        self.made = made

    def __getattr__(self, name: str) -> _Remote:
        return _Remote(getattr(self.made, name))


class _ActorClass:
    def __init__(self, kind: type) -> None:
        self.kind = kind

    def options(self, **_: Any) -> _ActorClass:
        return self

    def remote(self, *args: Any, **kwargs: Any) -> _Actor:
        async def make() -> Any:
            return self.kind(*args, **kwargs)

        return _Actor(asyncio.run_coroutine_threadsafe(make(), loop).result())


def _remote(*args: Any, **_: Any) -> Any:
    if args and isinstance(args[0], type):
        return _ActorClass(args[0])
    return args[0] if args else _remote  # a remote function, or `@ray.remote(num_cpus=…)`


def _get(reference: Any, timeout: float | None = None) -> Any:
    if isinstance(reference, list):
        return [_get(one) for one in cast("list[Any]", reference)]
    return reference.result(60)


class _Empty:
    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __class_getitem__(cls, item: Any) -> type:
        return cls


class _Stub(ModuleType):
    """A module in which every name is an empty class."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (_Empty,), {})
        setattr(self, name, made)
        return made


class _StubFinder(MetaPathFinder, Loader):
    """Finds stubs for modules of the named packages that are not installed."""

    def __init__(self, packages: Sequence[str]) -> None:
        self._packages = frozenset(packages)

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in self._packages:
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Stub(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ == "ray":
            vars(module).update(remote=_remote, get=_get)


def add_checkout(checkout: Path) -> None:
    """Put ROLL on the search path, the stand-in of Ray before an installed one, other stubs where none is installed."""
    os.environ["ROLL_LOG_DIR"] = _logs.name
    sys.path.append(str(checkout))  # after ours, because ROLL has a package `tests`, too
    absent = [name for name in STUBS if importlib.util.find_spec(name) is None]
    sys.meta_path.append(_StubFinder(absent))
    # Its actors are objects of this process, whether Ray is installed or not.
    sys.meta_path.insert(0, _StubFinder(["ray"]))
    threading.Thread(target=loop.run_forever, name="actors", daemon=True).start()
