"""Errors of ors_clients.

A trainer needs to tell two of them apart. ``InfrastructureFailure`` marks the sample as not to be trained on, in the
trainer's own way. ``ToolFailed`` is an observation: its ``text`` goes to the model. The rest are mistakes in the run's
configuration and should end it. No text here ever holds a secret or an API key.
"""

from __future__ import annotations

from typing import Any

from ors_server.errors import OrsError

__all__ = [
    "CallOutcomeUnknown",
    "ClientError",
    "ConfigurationError",
    "DeadlineExceeded",
    "EvaluationError",
    "InfrastructureFailure",
    "NotAuthorized",
    "NotFound",
    "PromptTooLong",
    "RequestRefused",
    "ResponseTooLarge",
    "SamplerFailed",
    "ServerUnavailable",
    "SessionLost",
    "ToolFailed",
]


class ClientError(OrsError):
    """The root: what went wrong (``cause``) and what to do about it (``remedy``, may be empty)."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Trainers pass errors between processes; unpickling would otherwise rebuild an exception from its text.
        return _made_again, (type(self), self.args, self.__dict__)


def _made_again(kind: type[ClientError], arguments: tuple[Any, ...], state: dict[str, Any]) -> ClientError:
    error = kind.__new__(kind, *arguments)
    error.args = arguments
    error.__dict__.update(state)
    return error


class ConfigurationError(ClientError, ValueError):
    """A configuration file, setting or argument that cannot be used as it is."""


class PromptTooLong(ConfigurationError):
    """A prompt that alone reaches the limit of a rollout's tokens: there is nothing to train on."""


class EvaluationError(ConfigurationError):
    """A run of ``ors-server eval`` that cannot begin, go on or be compared."""


class RequestRefused(ClientError):
    """The server refused a request (4xx); sending it again unchanged will not help."""

    def __init__(self, cause: str, remedy: str = "", *, status_code: int = 400, detail: str = "") -> None:
        super().__init__(cause, remedy)
        #: The response's status.
        self.status_code = status_code
        #: What the server said, as text.
        self.detail_text = detail


class NotAuthorized(RequestRefused):
    """The server wants another API key, or none it was given allows this (401, 403)."""


class NotFound(RequestRefused):
    """The server has no such environment or route (404). Of a session this is ``SessionLost``."""


class ToolFailed(ClientError):
    """A tool raised instead of returning (an ``error`` event). The session is still open and may be called again."""

    def __init__(self, tool: str, text: str) -> None:
        super().__init__(f"Tool {tool!r} failed: {text}")
        #: The tool's name.
        self.tool = tool
        #: What the server said of it: what a model may be shown.
        self.message = text


class InfrastructureFailure(ClientError):
    """Something failed that is not the agent's fault. Never turn it into a reward; do not train on the sample."""


class ServerUnavailable(InfrastructureFailure, ConnectionError):
    """The server cannot be reached or answers 5xx, after every retry that was allowed."""


class SessionLost(InfrastructureFailure):
    """The session does not exist any more: deleted, expired, lost with its machine, or its set-up failed."""


class CallOutcomeUnknown(InfrastructureFailure):
    """The server did not name the call before the connection was lost, or a gateway answered in its place, and it makes
    no promise about repeated calls.

    The tool may have run once or not at all. Calling again could run it twice, so the client does not.
    """


class DeadlineExceeded(InfrastructureFailure, TimeoutError):
    """The time limit the caller gave is over. A call that was started may still run on the server."""


class ResponseTooLarge(InfrastructureFailure):
    """A response has more bytes than the client takes: it was cut, and the connection closed."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"A response has more than {limit} bytes and was cut",
            "Look at the server, or raise ORS_RESPONSE_LIMIT where responses are that large.",
        )


class SamplerFailed(InfrastructureFailure):
    """The inference engine failed, or its answer is not a generation (no token ids, lengths that differ).

    ``answered`` is the status with which it refused the request; None if it did not.
    """

    def __init__(self, cause: str, remedy: str = "", *, answered: int | None = None) -> None:
        super().__init__(cause, remedy)
        self.answered = answered
