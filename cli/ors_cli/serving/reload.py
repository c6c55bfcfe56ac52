"""``ors-server serve --reload``: starts the server again when a file of its targets changes.

A process of its own serves. It is stopped as at a shutdown, and the next one started; meanwhile connections are
refused. Where the server ends by itself, because its targets do not load, the next change starts it.
"""

from __future__ import annotations

import importlib
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ors_containers.distribution import install_command
from ors_containers.linux.syscalls import end_with_parent

from ors_cli.flags import variable_of
from ors_server.hosting.errors import TargetError
from ors_server.http.listeners import listen_publicly
from ors_server.settings import Settings
from ors_server.telemetry.logs import start_logging

__all__ = ["refuse_reload", "serve_with_reload"]

logger = logging.getLogger("ors_server.reload")

#: The files whose change starts the server again; logs and databases, which an environment writes itself, do not.
_SUFFIXES = frozenset(
    {".py", ".json", ".jsonl", ".toml", ".yaml", ".yml", ".csv", ".txt", ".md", ".jinja", ".jinja2", ".sh"}
)
#: Seconds that the server gets to end beside its sessions' time.
_ENDING = 10.0
#: Milliseconds between looks at the server and at the signals.
_LOOK = 200


def refuse_reload(reason: str) -> TargetError:
    """Return the error for ``--reload`` together with something that it does not serve."""
    return TargetError(f"--reload does not work with {reason}", "Leave one of them out.")


def serve_with_reload(
    arguments: Sequence[str], targets: Sequence[str], folders: Sequence[Path], settings: Settings
) -> None:
    """Serve until Ctrl-C or SIGTERM. ``arguments`` start one server; ``folders`` are watched beside its targets.

    Raises ``PortInUse``, and ``TargetError`` where watchfiles is missing or no target has a file to watch.
    """
    try:
        importlib.import_module("watchfiles")  # an error now, and not at the first change
    except ImportError:
        remedy = f"Install it: {install_command('reload')}."
        raise TargetError("--reload needs the package watchfiles", remedy) from None
    if settings.listen is not None:
        raise refuse_reload("--listen, where a proxy keeps the port")
    watched = {path.resolve() for path in (*_places(targets), *folders)}
    if not watched:
        raise TargetError("--reload has no file to watch", "Name a folder or a file of this machine.")
    logs = start_logging(settings)
    try:
        with listen_publicly(settings.host, settings.port) as listening:
            settings = settings.model_copy(update={"port": listening.getsockname()[1]})
        _Reloader(arguments, settings).run(watched)
    finally:
        logs.stop()


class _Reloader:
    """The server's process, and the signals for it."""

    def __init__(self, arguments: Sequence[str], settings: Settings) -> None:
        self._command = [sys.executable, "-m", "ors_cli", *arguments]
        self._limit = settings.shutdown_timeout + _ENDING
        dumped: dict[str, Any] = settings.model_dump(mode="json", exclude_none=True)
        self._variables = {variable_of(name): str(value) for name, value in dumped.items()}
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = threading.Event()

    def run(self, watched: Iterable[Path]) -> None:
        """Serve until a signal."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._signalled)
        try:
            self._start()
            for changed in _changes(watched, self._stopped):
                if changed:
                    logger.info(f"Changed: {_shown(changed)}. The server is being started again.")
                    self._end()
                    self._start()
                elif self._process is not None and self._process.poll() is not None:
                    logger.error("the server has ended; a change starts it", extra={"status": self._process.returncode})
                    self._process = None
        finally:
            self._end()

    def _signalled(self, number: int, _: object) -> None:
        """Begin to stop; a second Ctrl-C ends the wait for sessions, as it does without ``--reload``."""
        if self._stopped.is_set() and self._process is not None:
            self._process.send_signal(number)
        self._stopped.set()

    def _start(self) -> None:
        if not self._stopped.is_set():
            self._process = subprocess.Popen(
                self._command,
                env={**os.environ, **self._variables},
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=partial(end_with_parent, signal.SIGTERM),
            )

    def _end(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(self._limit)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None


def _changes(watched: Iterable[Path], stopped: threading.Event) -> Iterable[list[Path]]:
    """Yield the files that changed, and every ``_LOOK`` milliseconds an empty list."""
    import watchfiles

    # Of a file the folder is watched: editors replace files.
    folders = {path if path.is_dir() else path.parent for path in watched}
    ordinary = watchfiles.DefaultFilter()  # leaves out .venv, __pycache__, the files of editors and the like

    def counts(change: Any, name: str) -> bool:
        path = Path(name)
        return path.suffix in _SUFFIXES and ordinary(change, name) and any(map(path.is_relative_to, watched))

    watch: Any = watchfiles.watch  # one of the types of its parameters is untyped
    found: set[tuple[Any, str]]
    for found in watch(
        *folders, watch_filter=counts, stop_event=stopped, debounce=400, rust_timeout=_LOOK, yield_on_timeout=True
    ):
        yield sorted({Path(name) for _, name in found})


def _places(targets: Sequence[str]) -> Iterable[Path]:
    """Return the folder of each target, or the file of a target that is one."""
    for target in targets:
        location = target if Path(target).exists() else target.rpartition(":")[0] or target
        path = Path(location)
        if path.exists():
            yield path
        elif (module := Path(location.replace(".", "/")).with_suffix(".py")).exists():
            yield module


def _shown(changed: Sequence[Path]) -> str:
    here = Path.cwd()
    names = [str(path.relative_to(here) if path.is_relative_to(here) else path) for path in changed]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
