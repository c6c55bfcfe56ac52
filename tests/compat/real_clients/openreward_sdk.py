"""The `openreward` client, with types: the SDK has none."""

from __future__ import annotations

import gc
import importlib
import threading
import warnings
from typing import Any

import pytest

_openreward: Any = importlib.import_module("openreward")
_errors: Any = importlib.import_module("openreward.api.errors")
_types: Any = importlib.import_module("openreward.api.environments.types")
_http: Any = importlib.import_module("openreward.api._session.http")

ToolCallError: type[Exception] = _errors.ToolCallError
ToolFailed: type[Exception] = _errors.ToolFailed
SessionTerminatedError: type[Exception] = _errors.SessionTerminatedError
ScoreGroupUnsupported: type[Exception] = _errors.ScoreGroupUnsupported
ScoreGroupFailed: type[Exception] = _errors.ScoreGroupFailed
#: An HTTP status that is not retried; has `status` and `message`.
SessionResponseError: type[Exception] = _http.SessionResponseError

#: Held while a client reads its variables: tests on another thread use another server.
_variables = threading.Lock()


def new_client(url: str, *, asynchronous: bool) -> Any:
    """Return an `AsyncOpenReward` or `OpenReward`, configured as the server's banner says: by two variables."""
    with _variables, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENREWARD_API_URL", url)
        patch.setenv("OPENREWARD_SESSION_URL", url)
        return (_openreward.AsyncOpenReward if asynchronous else _openreward.OpenReward)(api_key="the-api-key")


def new_client_without_url(*, asynchronous: bool) -> Any:
    """Return a client without a server's URL; each environment then names its own."""
    return (_openreward.AsyncOpenReward if asynchronous else _openreward.OpenReward)(api_key="the-api-key")


def task(server_name: str, environment_name: str, spec: dict[str, Any]) -> Any:
    """Return a task in the form of code that stores tasks."""
    return _types.Task(server_name=server_name, environment_name=environment_name, task_spec=spec, namespace=None)


def message(role: str, *blocks: Any) -> Any:
    return _types.Message(role=role, blocks=list(blocks))


def text(content: str) -> Any:
    return _types.TextBlock(text=content)


def reasoning(content: str) -> Any:
    return _types.ReasoningBlock(text=content)


def candidate(messages: list[Any], metadata: dict[str, Any]) -> Any:
    return _types.GroupCandidate(messages=messages, metadata=metadata)


def forget_dead_call(error: BaseException) -> None:
    """Release the error of a call on a session that the client knows to be dead.

    The client makes a coroutine for such a call and never awaits it. The error's traceback keeps the coroutine alive,
    and its warning would appear in whichever test runs when the collector frees it.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "coroutine '(resumable_sse|_do_request)' was never awaited", RuntimeWarning)
        error.__traceback__ = None
        gc.collect()
