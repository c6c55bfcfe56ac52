"""A key of a server, and the limits of its client.

The secret of a key is 256 random bits. Only its SHA-256 is kept: a digest without a salt is enough for a secret that
cannot be guessed.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, field_validator

from ors_server.keys.machine_size import MachineSize

__all__ = ["ANYONE", "NAME", "Key", "Limits", "digest_of", "make_secret"]

#: Names of keys: each is the owner of sessions and rollouts, and stands in logs and paths.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")

Count = Annotated[int, Field(ge=1)]


class Limits(BaseModel):
    """The limits of one key over the whole server; None for no limit."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sessions: Count | None = None
    #: Calls in flight.
    calls: Count | None = None
    #: Sandboxes of the sandbox service.
    sandboxes: Count | None = None
    #: The largest ``machine_size`` of one of them: ``CPUS:GIGABYTES``.
    sandbox_size: str | None = None
    #: Requests a second.
    rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None

    @field_validator("sandbox_size")
    @classmethod
    def _check_size(cls, size: str | None) -> str | None:
        if size is not None:
            MachineSize.read(size)
        return size


@dataclass(frozen=True, slots=True, eq=False)
class Key:
    """One key. Its name is the owner of what its client makes."""

    name: str
    #: SHA-256 of the secret.
    digest: bytes = field(repr=False)
    created: str = ""
    limits: Limits = field(default_factory=Limits)
    #: The hosted environment whose process has this key: it reaches the data folder of no other one.
    environment: str = ""
    #: Whether its requests are limited; found at once, where the limits are a model.
    has_rate: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "has_rate", self.limits.rate is not None)


#: The client of a server that wants no key; it owns what has no owner.
ANYONE = Key("", b"")


def make_secret() -> str:
    """Return a new secret: 256 random bits after a prefix by which scanners find it in files."""
    return f"ors_{secrets.token_urlsafe(32)}"


def digest_of(secret: bytes) -> bytes:
    """Return the digest by which a secret is found."""
    return hashlib.sha256(secret).digest()
