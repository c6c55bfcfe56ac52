"""Read the secrets of a session from the ``X-Secrets`` header, the body of ``/create``, or both.

The header is base64 of a JSON object ``{name: {"value": …}}``, as both SDK clients send it; the body has
``{name: value}``, as in the specification. Where both name a secret the header takes precedence. Secrets that cannot be
read are answered with a 400 that never repeats them.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any, cast

from ors_server.errors import InvalidSecrets

__all__ = ["read_secrets"]

_FORM = 'It is base64 of a JSON object, for example {"api_key": {"value": "…"}}.'


def read_secrets(header: str | None, body: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the secrets by name. Raises ``InvalidSecrets``."""
    secrets: dict[str, str] = {}
    if body:
        secrets.update(_values(body, "The body's secrets", "Send an object of names and strings."))
    if header:
        try:
            decoded = json.loads(base64.b64decode(header, validate=True))
        except (binascii.Error, ValueError, RecursionError) as error:
            raise InvalidSecrets("The X-Secrets header cannot be read", _FORM) from error
        secrets.update(_values(decoded, "The X-Secrets header", _FORM))
    return secrets


def _values(source: Any, where: str, form: str) -> dict[str, str]:
    if not isinstance(source, Mapping):
        raise InvalidSecrets(f"{where} is no object", form)
    values: dict[str, str] = {}
    for name, entry in cast("Mapping[str, Any]", source).items():
        value = cast("Mapping[str, Any]", entry).get("value") if isinstance(entry, Mapping) else entry
        if not isinstance(value, str):
            raise InvalidSecrets(f"{where}: the value of {name!r} is no string", form)
        values[name] = value
    return values
