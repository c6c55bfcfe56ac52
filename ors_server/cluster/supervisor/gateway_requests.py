"""Requests of nodes and of commands to a cluster's gateway."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from ors_server.cluster.errors import ControlError
from ors_server.keys.cluster_key import CLUSTER_HEADER
from ors_server.keys.errors import ClusterError

__all__ = ["GatewayAddress", "ask_gateway", "host_and_port", "request"]

#: Seconds that a gateway may take to answer.
_PATIENCE = 3.0
_LONGEST = 2**22


class GatewayAddress(NamedTuple):
    """Address of a gateway."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


def host_and_port(url: str) -> tuple[str, int]:
    """Read the URL of a gateway. Raises ``ClusterError``."""
    parts = urlsplit(url if "//" in url else f"http://{url}")
    try:
        port = parts.port or 80
    except ValueError:
        port = 0
    if parts.scheme != "http" or not parts.hostname or not port:
        raise ClusterError(
            f"{url!r} is not the address of a gateway", "Write it as http://HOST:PORT, for example http://gateway:8080."
        )
    return parts.hostname, port


async def request(
    address: GatewayAddress, token: str, method: str, path: str, content: object = None
) -> tuple[int, Any]:
    """Send a request; return the status and the JSON of the response. Raises ``OSError`` and ``ValueError``."""
    body = b"" if content is None else json.dumps(content).encode()
    head = (
        f"{method} {path} HTTP/1.1\r\nhost: {address.host}\r\n{CLUSTER_HEADER.decode()}: {token}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )

    async def exchange() -> bytes:
        reader, writer = await asyncio.open_connection(address.host, address.port)
        try:
            writer.write(head.encode() + body)
            response = b""
            while data := await reader.read(2**16):
                response += data
                if len(response) > _LONGEST:
                    raise ValueError("its response is too long")
            return response
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    try:
        response = await asyncio.wait_for(exchange(), _PATIENCE)
    except TimeoutError:
        raise TimeoutError(f"no response within {_PATIENCE:g} s") from None
    head_of_response, _, content_of_response = response.partition(b"\r\n\r\n")
    try:
        reply: Any = json.loads(content_of_response)
        return int(head_of_response[9:12]), {"reason": "", "detail": "no reason"} | reply
    except (ValueError, TypeError):
        raise ValueError("what listens there is not a gateway of ors-server") from None


def ask_gateway(url: str, token: str, method: str, path: str, content: object = None) -> dict[str, Any]:
    """Send a command's request to a gateway and wait for the response. Raises ``ControlError``, ``ClusterError``."""
    address = GatewayAddress(*host_and_port(url))
    try:
        status, reply = asyncio.run(request(address, token, method, path, content))
    except (OSError, ValueError) as error:
        raise ControlError(
            f"No gateway can be reached at {url}: {error}", "Name one with --gateway http://HOST:PORT."
        ) from None
    if status != 200:
        raise ControlError(str(reply["detail"]))
    return reply
