"""The values of ``--secret`` in what a run writes and uploads: ``[redacted]`` takes their place.

A tool may print them, and an error may quote them. The model reads what the environment says, unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ors_server.telemetry.redaction import forms_of, redact_text, redact_value

__all__ = ["Redaction"]


class Redaction:
    """Replaces secrets, also where they are JSON within a text. Values of less than four characters stay."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._forms = forms_of(secrets)

    def text(self, text: str) -> str:
        """Return a text without secrets."""
        return redact_text(text, self._forms) if self._forms else text

    def value(self, value: Any) -> Any:
        """Return a JSON value without secrets in its texts, names and numbers."""
        return redact_value(value, self._forms) if self._forms else value
