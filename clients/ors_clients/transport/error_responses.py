"""Convert an HTTP response that is not a success to the caller's error.

No error repeats a secret: the API key and the session's secrets are redacted in the server's text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any, cast

from ors_clients.errors import (
    ClientError,
    NotAuthorized,
    NotFound,
    RequestRefused,
    ServerUnavailable,
    SessionLost,
)
from ors_clients.transport.base import Response
from ors_clients.transport.json_codec import read_json

__all__ = ["FINAL", "REFUSED_INPUTS", "detail_of", "redact", "refusal", "retry_after"]

#: How the detail of a failed machine begins: the server will not retry.
FINAL = "InfrastructureError"
#: Refusals of a call that are about what the model wrote: 400, too large, invalid.
REFUSED_INPUTS = (400, 413, 422)
#: Seconds a server may ask to be left alone for, at most.
_LONGEST_PAUSE = 60.0
#: What stands in the place of a secret, and how long a secret must be to be looked for.
_REDACTED, _SHORTEST_SECRET = "[secret]", 4
#: Characters of a server's text that an error repeats.
_LONGEST_DETAIL = 2000


def refusal(response: Response, url: str, *, session: bool, secrets: Collection[str]) -> ClientError:
    """Return the error for a response of the server at ``url``.

    With ``session``, the request was a session's: a 404 or 410 then means that it is gone.
    """
    status = response.status
    detail = detail_of(response, secrets)
    if status in (401, 403):
        return NotAuthorized(
            f"The server refuses this client ({status}): {detail}",
            "Give the server's key as api_key, or set ORS_API_KEY.",
            status_code=status,
            detail=detail,
        )
    if detail.startswith(FINAL):
        return SessionLost(detail) if session else ServerUnavailable(detail)
    if session and (status == 410 or (status == 404 and not _names_a_path(detail))):
        return SessionLost(
            f"The session is gone ({status}): {detail}",
            "It was deleted, or idle for longer than the server allows.",
        )
    if status == 404:
        return NotFound(detail, f"The server is {url}.", status_code=status, detail=detail)
    if 400 <= status < 500 and status != 429:
        return RequestRefused(f"The server refuses the request ({status}): {detail}", status_code=status, detail=detail)
    if status == 500 and session:
        return SessionLost(f"The environment failed: {detail}", "The server's log says more.")
    return ServerUnavailable(f"The server answers {status}: {detail}", "The server's log says more.")


def detail_of(response: Response, secrets: Collection[str] = ()) -> str:
    """Return the text of an error response as one line without these secrets."""
    text = response.body.decode("utf-8", "replace")
    try:
        value: Any = read_json(response.body)
    except ValueError:
        value = text
    if isinstance(value, dict):
        body = cast("dict[str, Any]", value)
        value = body.get("detail", body.get("message", text))
    if isinstance(value, list):  # FastAPI's; what each problem repeats of the input is left out
        value = "; ".join(_problem(entry) for entry in cast("list[Any]", value))
    detail = " ".join(redact(str(value), secrets).split())
    return detail if len(detail) <= _LONGEST_DETAIL else detail[:_LONGEST_DETAIL] + " …"


def _problem(entry: Any) -> str:
    if not isinstance(entry, dict):
        return str(entry)
    problem = cast("dict[str, Any]", entry)
    return f"{'.'.join(str(part) for part in problem.get('loc', ()))}: {problem.get('msg', 'invalid')}"


def redact(text: str, secrets: Collection[str]) -> str:
    """Return a text without these secrets, also where it has them as JSON writes them, or with their lines in one."""
    forms = {form for secret in secrets for form in _forms(secret) if len(form) >= _SHORTEST_SECRET}
    if not forms:
        return text
    longest_first = sorted(forms, key=len, reverse=True)  # a secret may be a part of another
    return re.sub("|".join(map(re.escape, longest_first)), _REDACTED, text)


def _forms(secret: str) -> tuple[str, ...]:
    """Return the ways in which servers repeat a value."""
    escaped = (json.dumps(secret, ensure_ascii=ascii)[1:-1] for ascii in (True, False))
    return (secret, *escaped, repr(secret)[1:-1], " ".join(secret.split()))


def _names_a_path(detail: str) -> bool:
    """Return whether a 404 is about a route or an environment, and not about the session."""
    return detail == "Not Found" or detail.lower().startswith("unknown environment")


def retry_after(response: Response) -> float | None:
    """Seconds the server asks for; None where it does not, or names a date."""
    value = response.headers.get("retry-after", "")
    try:
        return min(_LONGEST_PAUSE, max(0.0, float(value)))
    except ValueError:
        return None
