"""A server that reports on its own process, for ``ors-server check TARGET``.

``python -m ors_server.leak_probe TARGET`` serves the target on a free port of the loopback device and prints its
address. It answers each line of standard input with one line of JSON: the teardowns that ran and what they raised, the
threads, child processes and open files of the process, and the fields of tasks that clients must not get. It ends with
the end of standard input.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ors_server.errors import OrsError
from ors_server.hosting.author_exceptions import describe_error
from ors_server.hosting.catalogue import HostedEnvironment
from ors_server.hosting.dialects import overrides
from ors_server.hosting.loading.targets import building_of_authors_code, load_targets
from ors_server.hosting.task_source import names_in
from ors_server.server import Server
from ors_server.settings import Settings

__all__ = ["Teardowns", "main", "state"]

#: Beginnings of the names of threads that this package and its libraries keep.
_OWN_THREADS = ("MainThread", "ors-", "asyncio_", "AnyIO", "observed")

#: The declaration of the fields that clients must not get.
_PRIVATE = "private_task_fields"


class Teardowns:
    """Counts the teardowns of classes, each instance's nested ones once."""

    def __init__(self, classes: Sequence[type]) -> None:
        self.count = 0
        #: The exceptions that teardowns raised.
        self.raised: list[str] = []
        #: Environments with a teardown of their author's own.
        self.counted: list[str] = []
        self._lock = threading.Lock()
        self._under_way: set[int] = set()
        for cls in classes:
            if overrides(cls, "teardown"):
                self.counted.append(_name(cls))
                self._count_in(cls)

    def _count_in(self, cls: Any) -> None:
        original: Callable[..., Any] = cls.teardown
        if hasattr(original, "_observed"):  # inherited from another class that is served
            return

        def begin(instance: object) -> bool:
            with self._lock:
                outermost = id(instance) not in self._under_way
                self._under_way.add(id(instance))
                self.count += outermost
            return outermost

        def end(instance: object, outermost: bool) -> None:
            if outermost:
                with self._lock:
                    self._under_way.discard(id(instance))

        def note(error: Exception, outermost: bool) -> None:
            if outermost:
                self.raised.append(describe_error(error, "exception"))

        @functools.wraps(original)
        async def on_loop(self: Any) -> Any:
            outermost = begin(self)
            try:
                return await original(self)
            except Exception as error:
                note(error, outermost)
                raise
            finally:
                end(self, outermost)

        @functools.wraps(original)
        def in_thread(self: Any) -> Any:
            outermost = begin(self)
            try:
                return original(self)
            except Exception as error:
                note(error, outermost)
                raise
            finally:
                end(self, outermost)

        wrapped: Any = on_loop if inspect.iscoroutinefunction(original) else in_thread
        wrapped._observed = True
        cls.teardown = wrapped


def _name(cls: Any) -> str:
    return str(cls.name()).lower()


def state(teardowns: Teardowns, hosted: Sequence[HostedEnvironment]) -> dict[str, Any]:
    """Return what this process holds now."""
    return {
        "teardowns": teardowns.count,
        "raised": list(teardowns.raised),
        "counted": teardowns.counted,
        "threads": sorted(thread.name for thread in threading.enumerate() if not thread.name.startswith(_OWN_THREADS)),
        "children": _children(),
        "files": _open_files(),
        "private": {_name(each.cls): sorted(names_in(each.cls, _PRIVATE)) for each in hosted},
        "withheld": {_name(each.cls): sorted(each.tasks.withheld) for each in hosted},
        "misspelt": {_name(each.cls): _misspelt(each.cls) for each in hosted},
    }


def _misspelt(cls: type) -> list[str]:
    """Return the attributes of a class that are named almost as its declaration of private fields."""
    return difflib.get_close_matches(_PRIVATE, [name for name in dir(cls) if name != _PRIVATE], cutoff=0.8)


def _children() -> list[str]:
    found: list[str] = []
    for task in Path("/proc/self/task").glob("*/children"):
        try:
            numbers = task.read_text().split()
        except OSError:  # the thread has ended
            continue
        for number in numbers:
            try:
                found.append(Path(f"/proc/{number}/comm").read_text().strip())
            except OSError:
                continue
    return sorted(found)


def _open_files() -> list[str]:
    found: list[str] = []
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            path = str(descriptor.readlink())
        except OSError:
            continue
        if path.startswith("/") and not path.startswith(("/dev/", "/proc/")):
            found.append(path)
    return sorted(found)


def main(targets: Sequence[str]) -> None:
    """Serve until standard input ends. Raises what ``ors-server serve`` raises."""
    classes = load_targets(targets)
    teardowns = Teardowns(classes)
    with building_of_authors_code():
        # Its address, keys and records are its own, whatever the surroundings say.
        settings = Settings(host="127.0.0.1", port=0, listen=None, keys_file=None, record=False)
        server = Server(classes, settings=settings)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what environments print is not an answer

    def listen() -> None:
        for _ in sys.stdin:
            print(json.dumps(state(teardowns, server.environments)), file=answers, flush=True)
        os.kill(os.getpid(), signal.SIGTERM)

    def ready(url: str) -> None:
        print(url, file=answers, flush=True)
        threading.Thread(target=listen, name="observed", daemon=True).start()

    server.serve(on_ready=ready)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except OrsError as error:
        sys.exit(f"{error.cause.rstrip('.')}. {error.remedy}".strip())
