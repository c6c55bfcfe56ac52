"""Read the secrets of a session from the ``X-Secrets`` header, the body of ``/create``, or both.

The header is base64 of a JSON object ``{name: {"value": …}}``, as both SDK clients send it; the body has
``{name: value}``, as in the specification. Where both name a secret the header takes precedence. Secrets that cannot be
read are answered with a 400 that never repeats them.

A secret that the client leaves out, or sends as an empty text, is filled from the operator's file
(``ORS_SECRETS_FILE``). An empty ``api_key`` is always filled: published environments refuse a session without one, and
a client of a self-hosted server has none. Where the file has an ``api_key``, it also replaces the client's own key of
this server, which ``openreward`` sends along under two names: the environment needs a key for sandboxes, and not that
of its client.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, cast

from ors_server.errors import DefinitionError
from ors_server.keys.credentials import bearer_token
from ors_server.keys.key import ANYONE, Key, digest_of
from ors_server.sessions.errors import InvalidSecrets

__all__ = ["LOCAL_TOKEN", "fill_secrets", "hidden_values", "read_secrets", "read_secrets_file"]

#: The key of a client that has none. It opens nothing: a self-hosted server has no accounts.
LOCAL_TOKEN = "ors-local"  # noqa: S105 - no secret

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


def fill_secrets(secrets: Mapping[str, str], file: Path | None, key: Key = ANYONE) -> dict[str, str]:
    """Fill what a client left out or sent empty. Raises ``DefinitionError`` where the file cannot be read."""
    operators = {} if file is None else read_secrets_file(file)
    filled = dict(secrets)
    if "api_key" in operators:
        for name, value in secrets.items():
            given = value.strip().encode(errors="replace")
            if digest_of(bearer_token(given) or given) == key.digest:
                filled[name] = operators["api_key"]
    for name, value in operators.items():
        filled[name] = filled.get(name) or value
    if filled.get("api_key") == "":
        filled["api_key"] = LOCAL_TOKEN
    return filled


def hidden_values(secrets: Mapping[str, str] | None) -> list[str]:
    """Return the values that no record and no log may have."""
    return [value for value in (secrets or {}).values() if value != LOCAL_TOKEN]


@cache
def read_secrets_file(file: Path) -> dict[str, str]:
    """Read lines ``NAME=VALUE``; empty lines and those that begin with ``#`` mean nothing. Raises ``DefinitionError``.

    The file is read once.
    """
    try:
        lines = file.expanduser().read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise DefinitionError(
            f"The file of secrets {file} cannot be read: {reason}", "Check ORS_SECRETS_FILE."
        ) from None
    secrets: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        name, separator, value = line.partition("=")
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if not separator or not name.strip():
            raise DefinitionError(f"{file}, line {number}, is not NAME=VALUE", "Write one secret a line.")
        secrets[name.strip()] = value.strip()
    return secrets


def _values(source: Any, where: str, form: str) -> dict[str, str]:
    if not isinstance(source, Mapping):
        raise InvalidSecrets(f"{where} is not an object", form)
    values: dict[str, str] = {}
    for name, entry in cast("Mapping[str, Any]", source).items():
        value = cast("Mapping[str, Any]", entry).get("value") if isinstance(entry, Mapping) else entry
        if not isinstance(value, str):
            raise InvalidSecrets(f"{where}: the value of {name!r} is not a string", form)
        values[name] = value
    return values
