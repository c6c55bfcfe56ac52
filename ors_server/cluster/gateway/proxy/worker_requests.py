"""Short requests of a gateway's own to its workers."""

from __future__ import annotations

import asyncio
import contextlib

from ors_server.cluster.gateway.members.workers import SILENT_AFTER, Worker
from ors_server.cluster.gateway.proxy.framing import ChunkedBody, read_response_head, unchunked
from ors_server.cluster.gateway.proxy.upstream import Upstream, connect, take_idle

__all__ = ["LONGEST", "ask", "key_lines"]

#: Bytes of a response; figures and listings take far fewer.
LONGEST = 64 * 2**20


class _Answer:
    """The receiver of one response."""

    def __init__(self) -> None:
        self._data = bytearray()
        self.response: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        self.upstream: Upstream | None = None

    def response_data(self, data: bytes) -> None:
        """Keep a part of the response; cut one that is too long."""
        self._data += data
        if len(self._data) > LONGEST:
            self._settle(0, b"")
            if self.upstream is not None:
                self.upstream.abort()

    def response_ended(self, *, keep_alive: bool) -> None:
        """Return the connection, and read the response."""
        if self.upstream is not None:
            self.upstream.release()
        head, _, body = bytes(self._data).partition(b"\r\n\r\n")
        read = read_response_head(head + b"\r\n\r\n", b"GET")
        self._settle(read.status, unchunked(body) if isinstance(read.body, ChunkedBody) else body)

    def response_lost(self) -> None:
        """Note that there is no response."""
        self._settle(0, b"")

    def pause_request(self) -> None:
        """Ignore it: the request is short."""

    def resume_request(self) -> None:
        """Ignore it."""

    def _settle(self, status: int, body: bytes) -> None:
        if not self.response.done():
            self.response.set_result((status, body))


async def ask(worker: Worker, target: str, *lines: str) -> tuple[int, bytes]:
    """Return status and body of a GET request, which may have header lines; 0 where the worker does not answer."""
    answer = _Answer()
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(SILENT_AFTER):
            answer.upstream = take_idle(worker) or await connect(worker)
            head = "\r\n".join([f"GET {target} HTTP/1.1", "host: worker", *lines, "", ""])
            try:
                answer.upstream.send(answer, b"GET", head.encode("utf-8", "surrogateescape"))
                return await answer.response
            finally:
                if not answer.response.done() or answer.response.cancelled():
                    answer.upstream.abort()
    return 0, b""


def key_lines(credential: bytes) -> list[str]:
    """Return the header lines that send a client's key to a worker."""
    return [f"x-api-key: {credential.decode('utf-8', 'surrogateescape')}"] if credential else []
