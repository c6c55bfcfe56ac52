"""Exceptions of an author's code: what the log keeps of them and what a client gets."""

from __future__ import annotations

import logging
import traceback

from ors_server.encoding import NonFiniteReward
from ors_server.errors import EnvironmentFailed, InfrastructureFailure, MachineBusy, OrsError, RequestError
from ors_server.settings import ReturnErrors

__all__ = ["as_request_error", "describe_error", "log_and_describe"]

logger = logging.getLogger("ors_server.hosting.author_exceptions")


def as_request_error(
    error: BaseException, mode: ReturnErrors, *, environment: str, where: str, sid: str | None = None
) -> OrsError:
    """Return the error that a request gets for an exception of an environment's code.

    ``InfrastructureFailure``, ``MachineBusy`` and ``RequestError`` are returned as they are. Any other exception is
    logged and becomes ``EnvironmentFailed``.
    """
    if isinstance(error, (InfrastructureFailure, MachineBusy, RequestError)):
        return error
    return EnvironmentFailed(log_and_describe(error, mode, environment=environment, where=where, sid=sid))


def log_and_describe(
    error: BaseException, mode: ReturnErrors, *, environment: str, where: str, sid: str | None = None
) -> str:
    """Log an exception of an environment's code in full; return the text that a client gets.

    ``where`` names the code that raised: a method, a tool.
    """
    fields = {"environment": environment, "in": where}
    logger.error("environment failed", exc_info=error, extra=fields if sid is None else {"sid": sid, **fields})
    return describe_error(error, mode)


def describe_error(error: BaseException, mode: ReturnErrors) -> str:
    """Describe an exception as far as ``mode`` lets a client see it."""
    if isinstance(error, NonFiniteReward):
        return f"NonFiniteReward: {error}"  # in every mode: clients look for it, and it reveals no environment code
    if mode == "none":
        return "Internal Server Error"  # the text of openreward, which its tests compare; the log has the exception
    if mode == "stacktrace":
        return "".join(traceback.format_exception(error))  # which handles a __str__ that raises
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - an author's __str__ may raise anything; the client must still get an answer
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
