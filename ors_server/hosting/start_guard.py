"""Refuse to start a server while an author's module is imported.

The import of a file that calls ``Server([MyEnv]).run()`` outside of ``if __name__ == "__main__":`` would never return,
and would listen on every interface meanwhile. ``server_files.line_that_serves`` finds the plain forms before the file
runs; this guard refuses the call itself, however the file comes to it. ``Server.run`` and ``Server.serve`` of this
package ask the guard. The guard replaces those of uvicorn, which the servers of both SDKs start.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, NoReturn

__all__ = ["ServerStarted", "refuse_while_importing", "refusing_servers"]

#: How many imports are guarded now. For the whole process: a module may start its server on a thread.
_guarded = 0


class ServerStarted(Exception):
    """An imported module tried to start a server."""


@contextmanager
def refusing_servers() -> Generator[None]:
    """Raise ``ServerStarted`` wherever a server is started within this block."""
    # Not imported above: a target that does not exist need not wait for it.
    import uvicorn

    global _guarded
    starts: list[tuple[Any, str]] = [(uvicorn, "run"), (uvicorn.Server, "run"), (uvicorn.Server, "serve")]
    originals = [(owner, name, getattr(owner, name)) for owner, name in starts]
    _guarded += 1
    try:
        for owner, name in starts:
            setattr(owner, name, _refuse)
        yield
    finally:
        _guarded -= 1
        for owner, name, original in originals:
            setattr(owner, name, original)


def refuse_while_importing() -> None:
    """Raise ``ServerStarted`` within a ``refusing_servers`` block."""
    if _guarded:
        raise ServerStarted


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise ServerStarted
