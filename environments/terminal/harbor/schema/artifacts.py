"""Artifacts: the paths that are copied from the agent's environment to a separate verifier, and kept.

Invariant: neither a source nor a destination has ``..`` in it, so no artifact leaves the folder it is copied to.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Annotated

from pydantic import AfterValidator, Field, field_validator, model_validator

from .table import Table

__all__ = ["MAIN_SERVICE", "Artifact", "Source", "service_name"]

#: The service of a compose file that the agent works in.
MAIN_SERVICE = "main"
_SERVICE = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]*")
#: A file that lists what was collected.
_LISTING = "manifest.json"


def service_name(value: str) -> str:
    """Return the name of a compose service without spaces around it. Raises ``ValueError``."""
    name = value.strip()
    if _SERVICE.fullmatch(name) is None:
        raise ValueError(f"{value!r} is not the name of a service")
    return name


def _source(value: str) -> str:
    if not value or "\0" in value or ".." in PurePosixPath(value).parts:
        raise ValueError("it is a path of the container, without ..")
    return value


Source = Annotated[str, AfterValidator(_source)]


class Artifact(Table):
    """A file or folder of the container, and its place among the artifacts (by default the same path)."""

    source: Source
    destination: str | None = None
    exclude: list[str] = Field(default_factory=list[str])
    service: str | None = None

    @field_validator("service")
    @classmethod
    def _is_service(cls, value: str | None) -> str | None:
        return None if value is None else service_name(value)

    @field_validator("destination")
    @classmethod
    def _is_destination(cls, value: str | None) -> str | None:
        if not value:
            return None
        path = PurePosixPath(value)
        if "\\" in value or "\0" in value or path.is_absolute() or not path.parts or ".." in path.parts:
            raise ValueError("it is a relative path with slashes, without ..")
        if value.rstrip("/") == _LISTING:
            raise ValueError(f"{_LISTING} is the list of what was collected")
        return value

    @model_validator(mode="after")
    def _is_absolute_elsewhere(self) -> Artifact:
        if self.service not in (None, MAIN_SERVICE) and not self.source.startswith("/"):
            raise ValueError("source of another service is an absolute path")
        return self
