"""The wrong keys that came from each address: after a few, none from there is looked at for a while.

A key of 256 bits cannot be guessed; the limit keeps clients that try from using up the server.
"""

from __future__ import annotations

import ipaddress
import logging
import time
from collections import OrderedDict

__all__ = ["LoginThrottle"]

logger = logging.getLogger("ors_server.keys")

#: Wrong keys that an address may send at once, and those a second after that.
_BURST, _RATE = 20, 1 / 3
#: Addresses that are remembered; that of the oldest guess goes first.
_REMEMBERED = 10_000


class LoginThrottle:
    """The wrong keys of each address, as a bucket that drains: an IPv6 address counts by its network."""

    def __init__(self) -> None:
        #: Level of the bucket, and when it had it.
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._levels)

    def pause(self, address: str) -> float:
        """Return the seconds after which a key from this address is looked at again; zero for now."""
        level = self._level(_network(address), time.monotonic())
        return max(0.0, (level - _BURST + 1) / _RATE)

    def add(self, address: str) -> None:
        """Count a wrong key."""
        network, now = _network(address), time.monotonic()
        level = self._level(network, now) + 1
        self._levels[network] = (level, now)
        self._levels.move_to_end(network)
        if len(self._levels) > _REMEMBERED:
            self._levels.popitem(last=False)
        if level > _BURST - 1 >= level - 1:
            logger.warning("many wrong keys; more from there are refused for a while", extra={"address": network})

    def _level(self, network: str, now: float) -> float:
        level, since = self._levels.get(network, (0.0, now))
        level -= (now - since) * _RATE
        if level > 0:
            return level
        self._levels.pop(network, None)
        return 0.0


def _network(address: str) -> str:
    if ":" not in address:
        return address
    try:
        found = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    return str(found.ipv4_mapped or ipaddress.IPv6Network((found, 64), strict=False))
