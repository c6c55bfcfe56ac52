"""No server is started by an import.

The import of a file that calls ``Server([MyEnv]).run()`` outside of ``if __name__ == "__main__":`` would never return,
and would listen on every interface meanwhile. ``server_calls.line_that_serves`` sees the plain forms before anything of
the file runs; here the call itself is refused, however the file comes to it.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, NoReturn

__all__ = ["ServerStarted", "refusing_servers"]


class ServerStarted(Exception):
    """What was imported has called for a server."""


@contextmanager
def refusing_servers() -> Generator[None]:
    """Meanwhile whatever starts a server raises ``ServerStarted`` in place of it."""
    # Not above: a target that names nothing need not wait for the web framework.
    import uvicorn

    from ors_server.server import Server

    # How this package and uvicorn, which both SDKs start, come to listen.
    starts: list[tuple[Any, str]] = [(Server, "run"), (Server, "serve"), (uvicorn, "run")]
    starts += [(uvicorn.Server, "run"), (uvicorn.Server, "serve")]
    originals = [(owner, name, getattr(owner, name)) for owner, name in starts]
    try:
        for owner, name in starts:
            setattr(owner, name, _refuse)
        yield
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise ServerStarted
