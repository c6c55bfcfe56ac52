"""The SDK that a class was written for, and the methods that its author overrode.

The server hosts classes of ``ors_server``, ``openreward`` and ``ors-sdk`` without importing either SDK: the module of
a class's base identifies its SDK. The default methods of an SDK are never called, because their caches leak between
subclasses (protocol 0.1); only overridden methods count.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

__all__ = [
    "Dialect",
    "dialect_of",
    "is_environment_class",
    "is_sdk_class",
    "is_server_class",
    "overrides",
    "sdk_environment",
]


class Dialect(Enum):
    """The SDK whose behaviour a class relies on."""

    OWN = "ors_server"
    OPENREWARD = "openreward"
    ORS = "ors-sdk"


_BASES = {"ors_server": Dialect.OWN, "openreward": Dialect.OPENREWARD, "ors": Dialect.ORS}
_BASE_NAMES = frozenset({"Environment", "Toolset"})


def _sdk_of(base: type) -> Dialect | None:
    if base.__name__ not in _BASE_NAMES:
        return None
    return _BASES.get(base.__module__.partition(".")[0])


def dialect_of(cls: type) -> Dialect:
    """Return the SDK of the class's base; ``OWN`` for a class that only has the methods of an environment."""
    for base in cls.__mro__:
        dialect = _sdk_of(base)
        if dialect is not None:
            return dialect
    return Dialect.OWN


def sdk_environment(cls: type) -> type | None:
    """Return the SDK's ``Environment`` that a class derives from, if it derives from one."""
    return next((base for base in cls.__mro__ if base.__name__ == "Environment" and _sdk_of(base) is not None), None)


def is_environment_class(candidate: Any) -> bool:
    """Return whether this is an author's class that derives from one of the three ``Environment`` bases."""
    if not isinstance(candidate, type) or _sdk_of(candidate) is not None:
        return False
    return sdk_environment(candidate) is not None


def is_server_class(candidate: Any) -> bool:
    """Return whether this is the ``Server`` of one of the three packages, or a class derived from it."""
    return isinstance(candidate, type) and any(
        base.__name__ == "Server" and is_sdk_class(base) for base in candidate.__mro__
    )


def is_sdk_class(cls: type) -> bool:
    """Return whether one of the three packages defines the class, and not an author."""
    return cls.__module__.partition(".")[0] in _BASES


def overrides(cls: type, name: str) -> bool:
    """Return whether the author defined ``name``, and not only a base class of an SDK."""
    for base in cls.__mro__:
        if name in base.__dict__:
            return base is not object and _sdk_of(base) is None
    return False
