"""Listening sockets: the port that clients reach, or a private address for a proxy in front of the server.

A private address is written ``unix:PATH`` or ``tcp:HOST:PORT``. A Unix socket is the cheaper of the two, and only the
user of the server can connect to it. Its file is locked while the server lives: a file that a killed server has left
is replaced, and that of a living one is an address in use.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Generator
from pathlib import Path

from ors_containers.linux.file_locks import create_lock

from ors_server.errors import DefinitionError
from ors_server.http.addresses import parse_address
from ors_server.http.errors import PortInUse

__all__ = ["listen_privately", "listen_publicly", "url_of"]

_BACKLOG = 4096
#: Seconds before the first probe of an idle connection, between probes, and their number.
_KEEP_ALIVE = (
    (socket.TCP_KEEPIDLE, 10),
    (socket.TCP_KEEPINTVL, 5),
    (socket.TCP_KEEPCNT, 4),
)
#: Longest path of a Unix socket in bytes (``sun_path`` of Linux, with its final zero byte).
_LONGEST_PATH = 107


@contextlib.contextmanager
def listen_publicly(host: str, port: int) -> Generator[socket.socket]:
    """Listen on a port, 0 for a free one. Raises ``PortInUse`` and ``DefinitionError``."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
            sock.listen(_BACKLOG)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortInUse(
                    f"Port {port} on {host} is in use", "Choose another with --port, or --port 0 for any free one."
                ) from None
            raise DefinitionError(
                f"Cannot listen on {host} port {port}: {error.strerror or error}", "Check --host and --port."
            ) from None
        sock.set_inheritable(True)
        yield sock


@contextlib.contextmanager
def listen_privately(address: str) -> Generator[socket.socket]:
    """Listen at ``unix:PATH`` or ``tcp:HOST:PORT``. Raises ``PortInUse`` and ``DefinitionError``."""
    at = parse_address(address)
    with _listen_on_path(Path(at.path).absolute()) if at.path else listen_publicly(at.host, at.port) as sock:
        if not at.path:
            _notice_lost_machines(sock)
        yield sock


def _notice_lost_machines(sock: socket.socket) -> None:
    """End the connections of machines that are no longer there: nothing else limits how long they are idle."""
    for option, value in _KEEP_ALIVE:
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # accepted connections inherit all of them


@contextlib.contextmanager
def _listen_on_path(path: Path) -> Generator[socket.socket]:
    if len(os.fsencode(path)) > _LONGEST_PATH:
        raise DefinitionError(
            f"{path} is too long for a Unix socket", f"Choose a path of at most {_LONGEST_PATH} bytes."
        )
    with contextlib.ExitStack() as stack:
        try:
            lock_path = path.with_name(f"{path.name}.lock")
            lock = create_lock(lock_path)
            if lock is None:
                raise PortInUse(f"Another server listens at {path}", "Choose another path.")
            stack.callback(os.close, lock)
            stack.callback(lock_path.unlink, missing_ok=True)
            if path.is_socket():
                path.unlink()  # of a server that was killed
            sock = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            mask = os.umask(0o177)
            try:
                sock.bind(str(path))
            finally:
                os.umask(mask)
            stack.callback(path.unlink, missing_ok=True)
            sock.listen(_BACKLOG)
            sock.set_inheritable(True)
        except PortInUse:
            raise
        except OSError as error:
            raise DefinitionError(
                f"Cannot listen at {path}: {error.strerror or error}",
                "Name a path in a folder that exists and that this user may write.",
            ) from None
        yield sock


def url_of(sock: socket.socket, host: str) -> str:
    """Return the address of a listening socket: a URL, or ``unix:PATH``."""
    name = sock.getsockname()
    if sock.family == socket.AF_UNIX:
        return f"unix:{name}"
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{name[1]}"
