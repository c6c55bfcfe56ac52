"""The values of ``--secret`` in what a run writes and uploads: ``[redacted]`` takes their place.

A tool may print them, and an error may quote them. The model reads what the environment says, unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from ors_server.redaction import forms_of

__all__ = ["Redaction"]

_REDACTED = "[redacted]"


class Redaction:
    """Replaces secrets, also where they are JSON within a text. Values of less than four characters stay."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._forms = [form.decode("utf-8", "replace") for form in forms_of(secrets)]

    def text(self, text: str) -> str:
        """Return a text without secrets."""
        for form in self._forms:
            text = text.replace(form, _REDACTED)
        return text

    def value(self, value: Any) -> Any:
        """Return a JSON value without secrets in its texts and keys."""
        if not self._forms:
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            items = cast("Mapping[Any, Any]", value).items()
            return {self.value(key): self.value(held) for key, held in items}
        if isinstance(value, Sequence):
            return [self.value(item) for item in cast("Sequence[Any]", value)]
        return value
