"""The routes of the hot path, declared once.

``table`` binds them to their handlers; the OpenAPI document (``documentation``) and the names that no environment may
have are made from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel

from ors_server.protocol import (
    Blocks,
    CreateSession,
    GetTask,
    GetTaskRange,
    ListTasks,
    ListToolsOutput,
    Message,
    NumTasks,
    ScoreGroup,
    Split,
    ToolCall,
)
from ors_server.rollouts.uploads import Upload
from ors_server.sandbox_service.requests import CreateSandbox, NetworkPolicy, RunCommand

__all__ = ["OPERATIONS", "RESERVED_NAMES", "Header", "Operation", "Stored", "Tag"]

Tag = Literal["server", "metrics", "environments", "sessions", "episodes", "rollouts", "sandboxes"]
#: A request header that an operation reads: ``X-Deployment``, ``X-Session-ID``, ``Idempotency-Key``.
Header = Literal["deployment", "session_id", "key"]


class Stored(BaseModel):
    """The answer to an upload: how many of its events are stored, including those that were stored before."""

    stored: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One route, named by the last segment of its path."""

    method: Literal["GET", "POST"]
    tag: Tag
    #: Whether the name of an environment may stand before it.
    per_environment: bool = False
    #: The path before it where no environment's name stands there.
    prefix: str = ""
    headers: tuple[Header, ...] = ()
    #: Parameters of the query, with their types.
    query: Mapping[str, Any] = field(default_factory=dict[str, Any])
    body: type[BaseModel] | None = None
    #: The type of the JSON response; None for an event stream.
    returns: Any = None
    #: Its content type where it is neither.
    content_type: str = ""
    #: Error responses by status.
    errors: Mapping[int, str] = field(default_factory=dict[int, str])


_NO_SESSION_ID = {400: "No X-Session-ID, or a header that cannot be read"}
_GONE = {
    **_NO_SESSION_ID,
    404: "Unknown session or environment",
    409: "The session belongs to another environment",
    410: "The session has ended",
    503: "Still starting; retry",
}
_NOT_FOUND = {400: "Invalid split, index, task, header or session id", 404: "Unknown environment"}
_UNSTORED = {413: "The upload is too large", 503: "Cannot be stored now; send it again"}


def _server(returns: Any, errors: Mapping[int, str] = {}) -> Operation:
    return Operation(method="GET", tag="server", returns=returns, errors=errors)


def _environment(method: Literal["GET", "POST"], returns: Any, body: type[BaseModel] | None = None) -> Operation:
    return Operation(
        method=method,
        tag="environments",
        per_environment=True,
        headers=("deployment",),
        body=body,
        returns=returns,
        errors=_NOT_FOUND,
    )


def _session(errors: Mapping[int, str], body: type[BaseModel] | None = None) -> Operation:
    return Operation(
        method="POST", tag="sessions", headers=("session_id",), body=body, returns=dict[str, str], errors=errors
    )


def _episode(
    method: Literal["GET", "POST"], returns: Any, body: type[BaseModel] | None = None, *more: Header
) -> Operation:
    return Operation(
        method=method,
        tag="episodes",
        per_environment=True,
        headers=("session_id", *more),
        body=body,
        returns=returns,
        errors=_GONE,
    )


def _sandbox(
    returns: Any,
    body: type[BaseModel] | None = None,
    query: Mapping[str, Any] | None = None,
    errors: Mapping[int, str] | None = None,
) -> Operation:
    return Operation(
        method="POST",
        tag="sandboxes",
        headers=("session_id",),
        query=query or {},
        body=body,
        returns=returns,
        errors={**_SANDBOX, **(errors or {})},
    )


_SANDBOX = {
    400: "It is not available, or not from this server",
    410: "The sandbox has ended",
    501: "This server has no sandbox service",
}
_NO_FILE = {404: "No such file"}
_PART = {"path": str, "offset": int}

OPERATIONS: dict[str, Operation] = {
    "health": _server(dict[str, str]),
    "ready": _server(dict[str, str], {503: "It takes no new sessions"}),
    "version": _server(dict[str, str | None]),
    "metrics": Operation(method="GET", tag="metrics", content_type="text/plain", errors={404: "Metrics are off"}),
    "list_environments": _server(list[str]),
    "tools": _environment("GET", ListToolsOutput),
    "splits": _environment("GET", list[Split]),
    "tasks": _environment("POST", dict[str, Any], ListTasks),
    "num_tasks": _environment("POST", dict[str, int], NumTasks),
    "task": _environment("POST", dict[str, Any], GetTask),
    "get_task": _environment("POST", dict[str, Any], GetTask),
    "task_range": _environment("POST", dict[str, Any], GetTaskRange),
    "get_task_range": _environment("POST", dict[str, Any], GetTaskRange),
    "create_session": Operation(method="POST", tag="sessions"),
    "create": _session({**_NOT_FOUND, 503: _GONE[503]}, CreateSession),
    "delete": _session(_NO_SESSION_ID),
    "delete_session": _session(_NO_SESSION_ID),
    "ping": _session({**_NO_SESSION_ID, 404: _GONE[404], 410: _GONE[410]}),
    "prompt": _episode("GET", Blocks),
    "messages": _episode("GET", list[Message]),
    "task_tools": _episode("GET", ListToolsOutput),
    "call": _episode("POST", None, ToolCall, "key"),
    "score_group": _episode("POST", None, ScoreGroup),
    "rollouts": Operation(method="POST", tag="rollouts", prefix="/v1", body=Upload, returns=Stored, errors=_UNSTORED),
    "create_sandbox": Operation(
        method="POST",
        tag="sandboxes",
        body=CreateSandbox,
        errors={400: "A sandbox that this server cannot have", 503: "Too many sandboxes; retry", 501: _SANDBOX[501]},
    ),
    "run": _sandbox(None, RunCommand, errors={503: "Too many commands; retry"}),
    "stat_file": _sandbox(dict[str, Any], query={"path": str, "sha256": int}, errors=_NO_FILE),
    "read_file": _sandbox(bytes, query={**_PART, "length": int}, errors={**_NO_FILE, 416: "Past the end"}),
    "write_file": _sandbox(
        dict[str, Any],
        query={**_PART, "mkdirs": int, "commit": int, "size": int},
        errors={409: "What was written has another size"},
    ),
    "set_network": _sandbox(dict[str, str], NetworkPolicy),
}

#: First path segments that the server answers itself: an environment of such a name could not be reached. Three
#: of the last four are FastAPI's, and below /ui are the pages.
RESERVED_NAMES = frozenset(operation.prefix.strip("/") or name for name, operation in OPERATIONS.items()) | {
    "docs",
    "openapi.json",
    "redoc",
    "ui",
}
