"""Requests through httpx: proxies, HTTP/2, certificates and authentication that ``sockets`` does not support.

    client = AsyncClient("https://host", transport="httpx")  # HTTPS_PROXY, SSL_CERT_FILE and so on are read

    make = lambda: httpx.AsyncClient(proxy="http://proxy:3128", cert="client.pem")
    client = AsyncClient("https://host", transport=HttpxTransport("https://host", make))

A request costs several times the processor time of ``sockets``, which is therefore the default.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ors_clients.errors import ResponseTooLarge
from ors_clients.transport.base import ConnectionLost, OutOfTime, Request, Response

if TYPE_CHECKING:
    import httpx

__all__ = ["HttpxTransport"]

#: Seconds to connect in, and that an open event stream may be silent.
_CONNECT_LIMIT, _SILENCE = 15.0, 60.0


class HttpxTransport:
    """Requests to ``base_url`` through clients that ``make`` makes, one for each event loop.

    Without ``make`` the clients read their proxies and certificates from the environment, use HTTP/2 where the package
    ``h2`` is installed, open as many connections as there are requests, and keep an idle connection for a second. Give
    your own clients ``httpx.Limits(keepalive_expiry=1)`` too, unless the server is ours or your own gateway's: a call
    on a connection that the server has just closed is lost.
    """

    threads = True

    def __init__(self, base_url: str, make: Callable[[], httpx.AsyncClient] | None = None) -> None:
        self._base_url = base_url.rstrip("/")
        self._make = make or _client_of_environment
        self._clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient] = (
            weakref.WeakKeyDictionary()
        )

    async def exchange(self, request: Request, on_data: Callable[[bytes], None] | None = None) -> Response:
        """Send a request and wait for its response (``Transport``)."""
        import httpx

        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            client = self._clients[loop] = self._make()
        headers = [item for block in request.headers for item in block.items]
        limit = None if request.deadline is None else max(0.001, request.deadline - time.monotonic())
        timeout = httpx.Timeout(limit, connect=_CONNECT_LIMIT)
        message = client.build_request(
            request.method,
            self._base_url + request.target,
            headers=[(name, value.encode()) for name, value in headers],  # pyright: ignore[reportArgumentType] - bytes are taken too
            content=request.body if request.method == "POST" else None,
            timeout=timeout,
        )
        try:
            async with asyncio.timeout(limit):
                response = await _begun(client.send(message, stream=True, follow_redirects=False), request.first_byte)
                try:
                    return await _read(response, on_data, request.limit)
                finally:
                    await response.aclose()
        except TimeoutError:
            raise OutOfTime from None
        except httpx.ReadTimeout:
            raise OutOfTime from None
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise ConnectionLost(f"no connection: {error}", sent=False) from None
        except (httpx.TransportError, httpx.DecodingError) as error:
            raise ConnectionLost(f"the connection was lost: {error}", sent=True) from None

    async def close(self) -> None:
        """Close this event loop's client."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose()


def _client_of_environment() -> httpx.AsyncClient:
    import httpx

    from ors_clients.transport.bounded_httpx import BoundedAsyncClient

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=1.0)
    return BoundedAsyncClient(http2=find_spec("h2") is not None, limits=limits)


async def _begun(sending: Awaitable[httpx.Response], limit: float | None) -> httpx.Response:
    """Wait for the head of the response."""
    late = asyncio.timeout(limit)
    try:
        async with late:
            return await sending
    except TimeoutError:
        if not late.expired():
            raise
        raise ConnectionLost("the response did not begin in time", sent=True) from None


async def _read(response: httpx.Response, on_data: Callable[[bytes], None] | None, limit: int) -> Response:
    from ors_clients.transport.bounded_httpx import read_body

    names = {name.lower(): value for name, value in response.headers.items()}
    events = names.get("content-type", "").lower().startswith("text/event-stream")
    if on_data is not None and response.status_code == 200 and events:
        pieces = response.aiter_bytes()  # decompressed: some gateways compress though the request forbids it
        received = 0
        while True:
            late = asyncio.timeout(_SILENCE)
            try:
                async with late:
                    piece = await anext(pieces)
            except StopAsyncIteration:
                break
            except TimeoutError:
                if not late.expired():
                    raise
                raise ConnectionLost(f"the event stream was silent for {_SILENCE:.0f} s", sent=True) from None
            received += len(piece)
            if received > limit:
                raise ResponseTooLarge(limit)
            on_data(piece)
        return Response(200, names, b"")
    return Response(response.status_code, names, await read_body(response, limit))
