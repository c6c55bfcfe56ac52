"""Exceptions of an author's code: what the log keeps of them and what a client gets."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Sequence

from ors_server.errors import InfrastructureFailure, MachineBusy, OrsError, RequestError
from ors_server.hosting.errors import EnvironmentFailed
from ors_server.settings import ReturnErrors
from ors_server.telemetry.redaction import forms_of, redact_text
from ors_server.wire.encoding import NonFiniteReward

__all__ = ["as_request_error", "describe_error", "log_and_describe", "without_secrets"]

logger = logging.getLogger("ors_server.hosting.author_exceptions")


class Redacted(Exception):
    """An exception as text, its traceback included, without the values of secrets."""


def as_request_error(
    error: BaseException,
    mode: ReturnErrors,
    *,
    environment: str,
    where: str,
    sid: str | None = None,
    secrets: Sequence[str] = (),
) -> OrsError:
    """Return the error that a request gets for an exception of an environment's code.

    ``InfrastructureFailure``, ``MachineBusy`` and ``RequestError`` are returned as they are. Any other exception is
    logged and becomes ``EnvironmentFailed``.
    """
    if isinstance(error, (InfrastructureFailure, MachineBusy, RequestError)):
        return error
    told = log_and_describe(error, mode, environment=environment, where=where, sid=sid, secrets=secrets)
    return EnvironmentFailed(told)


def log_and_describe(
    error: BaseException,
    mode: ReturnErrors,
    *,
    environment: str,
    where: str,
    sid: str | None = None,
    secrets: Sequence[str] = (),
) -> str:
    """Log an exception of an environment's code, without the values of ``secrets``; return the text a client gets.

    ``where`` names the code that raised: a method, a tool.
    """
    fields = {"environment": environment, "in": where}
    error_shown = without_secrets(error, secrets)
    logger.error("environment failed", exc_info=error_shown, extra=fields if sid is None else {"sid": sid, **fields})
    return describe_error(error, mode)


def without_secrets(error: BaseException, secrets: Sequence[str]) -> BaseException:
    """Return an exception for the log: the same one, or where it tells a secret, its text without that."""
    if not secrets:
        return error
    text = "".join(traceback.format_exception(error)).encode("utf-8", "replace").decode()
    shown = redact_text(text, forms_of(secrets))
    return error if shown == text else Redacted(shown)


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
