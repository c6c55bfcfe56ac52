"""Requests to the process that works on layers, and its answers, as they arrive at the other side."""

from __future__ import annotations

import errno

import pytest
from ors_containers.errors import ImageTooLarge
from ors_containers.layers.copying import CopySource, CopyTarget, SelectedFile
from ors_containers.layers.messages import (
    Answer,
    CopyFiles,
    CopyFolder,
    Failure,
    Operation,
    Remove,
    Request,
    Result,
    Unpack,
    Unsquash,
    Write,
    Written,
    decode_answer,
    encode_answer,
)
from ors_containers.layers.writer import Entry
from ors_containers.linux.confinement.user_namespaces import IdMap

_ENTRIES = [Entry("a/é", "file", b"\x00\xff", mode=0o640, user=3), Entry("b", "link", source="a")]
_FILE = SelectedFile("x", "file", "/x", 0o644, 1, 2, 3, "digest")
OPERATIONS: list[Operation] = [
    Write("/layer", _ENTRIES, ["/below"], 7, {"a": (0o755, 1, 2)}),
    Unpack("/a.tar", "member", "/layer", [], 0, "sha256:0"),
    CopyFolder("/source", "/layer", 1, "home/user", 1000, 1000),
    CopyFiles("/layer", ["/below"], [CopySource("x", [_FILE], ["/l"], "*")], CopyTarget("/x", 1, None, 0o755), True, 9),
    Unsquash("/a.sif", "/layer", "unsquashfs", 4096, 0),
    Remove("/layer"),
]


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: type(operation).__name__)
def test_a_request_arrives_as_it_was_sent(operation: Operation) -> None:
    request = Request(4711, IdMap("helper", users=100_000, groups=200_000, size=65536), operation)
    arrived = Request.decode(request.encode())
    assert arrived == request
    assert type(arrived.operation) is type(operation)


@pytest.mark.parametrize("answer", [Written(5), Result(7, 2), Failure("StoreFailed", "full", "Make room")])
def test_an_answer_arrives_as_it_was_sent(answer: Answer) -> None:
    line = encode_answer(answer)
    assert line.count("\n") == 1
    arrived = decode_answer(line.encode())
    assert (type(arrived), arrived) == (type(answer), answer)


def test_a_failure_is_the_error_that_it_was() -> None:
    refused = Failure("ImageTooLarge", "10 bytes", "Raise the limit").error()
    assert isinstance(refused, ImageTooLarge)
    assert (refused.cause, refused.remedy) == ("10 bytes", "Raise the limit")
    failed = Failure("OSError", "No space left on device", "", errno.ENOSPC, "/layer").error()
    assert isinstance(failed, OSError)
    assert (failed.errno, failed.filename) == (errno.ENOSPC, "/layer")
