"""Errors of sandboxes that clients open."""

from __future__ import annotations

from collections.abc import Sequence

from ors_server.errors import RequestError

__all__ = ["InvalidSandbox", "SandboxFileChanged", "SandboxFileError", "SandboxFileMissing", "SandboxFileShorter"]


class InvalidSandbox(RequestError):
    """A sandbox, a command or a network policy that this server does not offer; the text names the field."""


class SandboxFileError(RequestError):
    """An operation on a file of a sandbox that fails however often it is repeated."""


class SandboxFileMissing(SandboxFileError):
    """A sandbox has no file of this path."""

    status = 404


class SandboxFileChanged(SandboxFileError):
    """The pieces of a file that were written have not the size that the client commits."""

    status = 409


class SandboxFileShorter(SandboxFileError):
    """A part of a file past its end."""

    status = 416

    def __init__(self, path: str, size: int) -> None:
        super().__init__(f"{path} has {size} bytes")
        self.size = size

    @property
    def headers(self) -> Sequence[tuple[str, str]]:
        return (("X-File-Size", str(self.size)),)
