"""Bring up an interface of this process's network namespace, and refuse networks in its routing table."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from collections.abc import Iterable

__all__ = ["block_networks", "bring_up"]

_SIOCADDRT = 0x890B
_SIOCGIFFLAGS, _SIOCSIFFLAGS = 0x8913, 0x8914
_IFF_UP = 1
_RTF_UP, _RTF_REJECT = 0x1, 0x200
#: ``struct rtentry``: padding, destination, gateway and mask (``sockaddr_in``), flags, and what is not needed here.
_ROUTE = struct.Struct("=8x 16s 16s 16s H 70x")


def bring_up(interface: str) -> None:
    """Bring up ``interface``. Raises ``OSError``."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sH22x", interface.encode(), 0)
        flags = struct.unpack_from("H", fcntl.ioctl(any_socket, _SIOCGIFFLAGS, request), 16)[0]
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH22x", interface.encode(), flags | _IFF_UP))


def block_networks(networks: Iterable[str]) -> None:
    """Make each IPv4 network unreachable, unless a narrower route leads to it. Raises ``OSError``."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for text in networks:
            network = ipaddress.IPv4Network(text)
            route = _ROUTE.pack(
                _address(network.network_address), _address(0), _address(network.netmask), _RTF_UP | _RTF_REJECT
            )
            fcntl.ioctl(any_socket, _SIOCADDRT, route)


def _address(address: ipaddress.IPv4Address | int) -> bytes:
    return struct.pack("=HH4s8x", socket.AF_INET, 0, int(address).to_bytes(4, "big"))
