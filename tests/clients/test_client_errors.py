"""The bases of errors, as trainers rely on them."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from ors_clients import errors
from ors_clients.errors import (
    CallOutcomeUnknown,
    ClientError,
    ConfigurationError,
    DeadlineExceeded,
    InfrastructureFailure,
    NotFound,
    RequestRefused,
    SamplerFailed,
    ServerUnavailable,
    SessionLost,
    ToolFailed,
)
from ors_clients.models import Task, ToolResult
from ors_clients.transport.base import OutOfTime

from ors_server.errors import OrsError
from ors_server.protocol import ImageBlock, TextBlock

ERRORS: list[ClientError] = [
    ConfigurationError("A file is missing", "Make it."),
    NotFound("Not Found", status_code=404, detail="Not Found"),
    ToolFailed("bash", "ValueError: no"),
    ServerUnavailable("No answer", "Is it running?"),
    SessionLost("gone"),
    CallOutcomeUnknown("nobody knows"),
    SamplerFailed("no token ids"),
    OutOfTime(),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_they_can_be_handed_between_processes(error: ClientError) -> None:
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is type(error)
        assert str(again) == str(error) == error.text
        assert vars(again) == vars(error)


def test_so_can_tasks_and_results() -> None:
    result = ToolResult([TextBlock(text="a"), ImageBlock(data="", mimeType="image/png")], 0.5, True, {"a": 1})
    task = Task("env", "train", 1, {"n": 1}, "Env")
    assert pickle.loads(pickle.dumps((result, task))) == (result, task)


def test_they_are_what_python_calls_such_errors() -> None:
    assert issubclass(ConfigurationError, ValueError)
    assert issubclass(ServerUnavailable, ConnectionError)
    assert issubclass(DeadlineExceeded, TimeoutError)


def test_infrastructure_errors_have_a_base_of_their_own() -> None:
    failures: list[Any] = [ServerUnavailable, SessionLost, CallOutcomeUnknown, DeadlineExceeded, SamplerFailed]
    assert all(issubclass(kind, InfrastructureFailure) for kind in failures)
    others: list[Any] = [ConfigurationError, RequestRefused, ToolFailed]
    assert not any(issubclass(kind, InfrastructureFailure) for kind in others)


def test_every_error_is_ours_and_says_what_it_is() -> None:
    for name in errors.__all__:
        kind = getattr(errors, name)
        assert issubclass(kind, OrsError)
        assert kind.__doc__
