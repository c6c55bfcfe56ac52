"""The tokenizer as samplers and the chat renderer see it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

__all__ = ["Tokenizer"]


class Tokenizer(Protocol):
    """The methods that this package calls; a transformers tokenizer has them, and a processor's ``tokenizer``."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Return the ids of a text."""
        ...

    def decode(
        self, token_ids: Sequence[int], *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool
    ) -> str | list[str]:
        """Return the text of ids."""
        ...

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any:
        """Return the text of a conversation."""
        ...
