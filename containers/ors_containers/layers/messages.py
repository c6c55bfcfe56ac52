"""The requests to the process that works on layers, and its answers: one line of JSON each.

Nothing here is slow to import: the process reads its request with it before it knows what it will need.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ors_containers import errors
from ors_containers.errors import SandboxError
from ors_containers.layers.leaving_out import LeftOut
from ors_containers.layers.writer import Entry
from ors_containers.linux.confinement.user_namespaces import IdMap

if TYPE_CHECKING:
    from ors_containers.layers.copying import CopySource, CopyTarget

__all__ = [
    "Answer",
    "CopyFiles",
    "CopyFolder",
    "Failure",
    "Keep",
    "LeaveOut",
    "Operation",
    "Remove",
    "Request",
    "Result",
    "Share",
    "Unpack",
    "Unsquash",
    "Write",
    "Written",
    "decode_answer",
    "encode_answer",
]


class Write(NamedTuple):
    """Write entries into a layer (``writer.write_layer``)."""

    folder: str
    entries: Sequence[Entry]
    below: Sequence[str]
    limit: int
    defaults: Mapping[str, tuple[int, int, int]]


class Unpack(NamedTuple):
    """Unpack a tar archive, or its ``member`` (``tar.unpack_layer``)."""

    archive: str
    member: str
    folder: str
    below: Sequence[str]
    limit: int
    digest: str


class CopyFolder(NamedTuple):
    """Copy a folder (``tar.copy_layer``)."""

    source: str
    folder: str
    limit: int
    home: str
    home_user: int
    home_group: int


class CopyFiles(NamedTuple):
    """Copy files of a context or of other layers (``copying.write_copies``)."""

    folder: str
    below: Sequence[str]
    sources: Sequence[CopySource]
    target: CopyTarget
    owners: bool
    limit: int


class Unsquash(NamedTuple):
    """Unpack the squashfs at byte ``begin`` of a file."""

    archive: str
    folder: str
    program: str
    begin: int
    limit: int


class Remove(NamedTuple):
    """Remove a tree."""

    folder: str


class Keep(NamedTuple):
    """Copy a layer (``tree.clean_layer``) whose folder is ``source``, relative to the directory ``descriptor``."""

    descriptor: int
    source: str
    folder: str


class LeaveOut(NamedTuple):
    """Remove files of a layer (``leaving_out.leave_out``)."""

    folder: str
    rules: LeftOut
    below: Sequence[str]


class Share(NamedTuple):
    """Share the files of a layer (``sharing.share_layer``)."""

    folder: str
    pool: str
    since: float


Operation = Write | Unpack | CopyFolder | CopyFiles | Unsquash | Remove | Keep | LeaveOut | Share
_OPERATIONS: dict[str, type[Operation]] = {
    kind.__name__: kind for kind in (Write, Unpack, CopyFolder, CopyFiles, Unsquash, Remove, Keep, LeaveOut, Share)
}


class Request(NamedTuple):
    """An operation, the process that wants it, and the ids that its files get."""

    server: int
    mapping: IdMap
    operation: Operation

    def encode(self) -> bytes:
        """Return the request as JSON."""
        name = type(self.operation).__name__
        fields = self.operation._asdict()
        if isinstance(self.operation, Write):
            fields["entries"] = [
                (path, kind, base64.b64encode(content).decode(), *others)
                for path, kind, content, *others in self.operation.entries
            ]
        mapping = self.mapping._asdict()
        return json.dumps({"server": self.server, "mapping": mapping, "name": name, "fields": fields}).encode()

    @classmethod
    def decode(cls, data: bytes) -> Request:
        """Read a request."""
        read = json.loads(data)
        name, fields = read["name"], read["fields"]
        if name == "Write":
            fields["entries"] = [
                Entry(path, kind, base64.b64decode(content), *others)
                for path, kind, content, *others in fields["entries"]
            ]
            fields["defaults"] = {path: tuple(owner) for path, owner in fields["defaults"].items()}
        if name == "LeaveOut":
            fields["rules"] = LeftOut(*fields["rules"])
        if name == "CopyFiles":
            from ors_containers.layers.copying import CopySource, CopyTarget, SelectedFile

            fields["sources"] = [
                CopySource(source, [SelectedFile(*file) for file in files], *others)
                for source, files, *others in fields["sources"]
            ]
            fields["target"] = CopyTarget(*fields["target"])
        return cls(read["server"], IdMap(**read["mapping"]), _OPERATIONS[name](**fields))


class Written(NamedTuple):
    """Bytes that a long operation has written so far."""

    size: int


class Result(NamedTuple):
    """The end of an operation: bytes written, entries of an archive that were left out, the digest of a layer."""

    size: int
    skipped: int = 0
    digest: str = ""


class Failure(NamedTuple):
    """An operation that failed: the class of the error and its text, or the number of an error of the system."""

    kind: str
    cause: str
    remedy: str = ""
    errno: int = 0
    file: str = ""

    def error(self) -> Exception:
        """Return the error."""
        if self.kind == "OSError":
            return OSError(self.errno, self.cause, self.file)
        kind: type[SandboxError] = getattr(errors, self.kind)
        return kind(self.cause, self.remedy)


Answer = Written | Result | Failure
_ANSWERS: dict[str, type[Answer]] = {kind.__name__: kind for kind in (Written, Result, Failure)}


def encode_answer(answer: Answer) -> str:
    """Return an answer as a line of JSON."""
    return json.dumps([type(answer).__name__, *answer]) + "\n"


def decode_answer(line: bytes) -> Answer:
    """Read a line."""
    name, *fields = json.loads(line)
    made: Any = _ANSWERS[name](*fields)
    return made
