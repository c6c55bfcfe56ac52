"""Text that spells a control token, kept from becoming one.

What an environment says is anybody's text: a page of the web, a file, the tokenizer's own configuration. A tokenizer
makes the one token that ends a turn of ``<|im_end|>`` wherever it stands, so a tool's output could forge a turn of the
model, and ``<|image|>`` an image that is not there. So the two are separated before they become one text: in what
messages say, each spelling of a control token is replaced by a random mark; the chat template writes
its frame around it; and where the ids are made, the mark becomes the ids of the text as ordinary text. The model reads
what was said, character for character. A text without such a spelling is encoded in one piece, exactly as it would be.

Control tokens are the tokenizer's special ones, and every other one that it was given in the form ``<|…|>``, as some
models write their roles. Those that models use inside of a turn (``<think>``, ``<tool_call>``) are not. Where a
template's marks are ordinary text there is nothing to tell them by.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import secrets
from collections.abc import Iterator, Mapping
from typing import Any, cast

from ors_server.wire.texts import replace_surrogates

__all__ = ["ControlTokens", "any_of", "control_texts"]

#: How roles and ends of turns begin that a tokenizer does not call special (DeepSeek's with a full-width bar).
_BARS = ("<|", "<\uff5c")


class ControlTokens:
    """The control tokens of one tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._texts = sorted(set(control_texts(tokenizer)), key=len, reverse=True)  # a text may begin with another
        self._spelled = any_of(self._texts) if self._texts else None
        self._mark = f"Control{secrets.token_hex(8)}Token"
        self._marks = re.compile(f"{self._mark}([0-9]+)x")
        self._numbers = {text: number for number, text in enumerate(self._texts)}
        self._plain: dict[int, list[int]] = {}

    def hidden(self, value: Any) -> Any:
        """Messages, tools or a text with a mark in the place of each spelling, and no lone surrogates."""
        if isinstance(value, str):
            value = replace_surrogates(value)
            if self._spelled is None:
                return value
            return self._spelled.sub(lambda found: f"{self._mark}{self._numbers[found[0]]}x", value)
        if isinstance(value, list):
            return [self.hidden(item) for item in self._whole(cast("list[Any]", value))]
        if isinstance(value, Mapping):
            entries = cast("Mapping[str, Any]", value)
            return {self.hidden(key): self.hidden(entry) for key, entry in entries.items()}
        return value

    def _whole(self, items: list[Any]) -> list[Any]:
        """Return a list in which texts that spell a control token together, as parts of a content may, are one text."""
        whole: list[Any] = []
        for texts, run in itertools.groupby(items, _is_text):
            parts = list(run)
            if texts and len(parts) > 1 and self._spelled is not None:
                said = [part["text"] for part in parts]
                if len(self._spelled.findall("".join(said))) != sum(len(self._spelled.findall(text)) for text in said):
                    parts = [{**parts[0], "text": "".join(said)}]
            whole += parts
        return whole

    def encode(self, text: str) -> tuple[list[int], str]:
        """Return the ids of a text with marks, and the text with the marks replaced."""
        pieces = self._marks.split(text)
        if len(pieces) == 1:
            return self._encode(text), text
        ids: list[int] = []
        for place, piece in enumerate(pieces):
            if place % 2:
                ids += self._ids_of(int(piece))
                pieces[place] = self._texts[int(piece)]
            elif piece:
                ids += self._encode(piece)
        return ids, "".join(pieces)

    def _ids_of(self, number: int) -> list[int]:
        """Return the ids of a control token's text as ordinary text: the first that spell it."""
        if number not in self._plain:
            text = self._texts[number]
            ways = [ids for ids in self._ways(text) if not self._controls(ids)]
            exact = [ids for ids in ways if self._decode(ids) == text]
            self._plain[number] = (exact or ways or [[]])[0]
        return self._plain[number]

    def _ways(self, text: str) -> Iterator[list[int]]:
        yield self._encode(text[:1]) + self._encode(text[1:])
        with contextlib.suppress(TypeError, ValueError, NotImplementedError):  # what transformers alone can do
            # Needed where a tokenizer puts a blank before each text.
            yield self._tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        yield [id for character in text for id in self._encode(character)]

    def _controls(self, ids: list[int]) -> bool:
        return self._spelled is not None and any(self._spelled.fullmatch(self._decode([id])) for id in ids)

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def _is_text(part: Any) -> bool:
    return isinstance(part, Mapping) and isinstance(cast("Mapping[str, Any]", part).get("text"), str)


def any_of(texts: list[str]) -> re.Pattern[str]:
    """Return a pattern of these texts, in groups by their first letters: some tokenizers have a thousand."""
    groups: dict[str, list[str]] = {}
    for text in texts:
        groups.setdefault(text[:2], []).append(re.escape(text[2:]))
    return re.compile("|".join(f"{re.escape(first)}(?:{'|'.join(rests)})" for first, rests in groups.items()))


def control_texts(tokenizer: Any) -> Iterator[str]:
    """Yield the texts of the control tokens of a tokenizer."""
    texts: list[str] = [str(text) for text in getattr(tokenizer, "all_special_tokens", ())]
    added: Mapping[int, Any] = getattr(tokenizer, "added_tokens_decoder", {})
    for token in added.values():
        text = str(getattr(token, "content", token))
        if getattr(token, "special", False) or text.startswith(_BARS):
            texts.append(text)
    # A letter or a line break is not a mark, even where a tokenizer has made it a special token.
    return (text for text in texts if len(text.strip()) > 1)
