"""Sampling without weights: tokens that spell a text, drawn as a model with random weights draws them.

Where structured output leaves one text, such a model may choose any token that goes on with it, and all are about as
likely. Turns are therefore as long as those of a real engine with random weights, and longer than the tokenizer would
write them.
"""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any, NamedTuple

from ors_benchmarks.rollout.engines.base import EngineFailed

__all__ = ["Drawn", "Vocabulary"]

#: Texts whose ways of being spelt are kept: most turns have one of a few.
_MANY = 256


class Drawn(NamedTuple):
    """Tokens, each with the log-probability of having been drawn."""

    ids: list[int]
    logprobs: list[float]


class Vocabulary:
    """The tokens of a byte-level tokenizer, by what they spell. Raises ``EngineFailed`` for another tokenizer."""

    def __init__(self, folder: Path, seed: int = 0) -> None:
        try:
            written: Any = json.loads((folder / "tokenizer.json").read_text("utf-8"))
            words: dict[str, int] = written["model"]["vocab"]
            self._ids = dict(words) | {token["content"]: token["id"] for token in written["added_tokens"]}
            end: Any = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))["eos_token"]
            #: The token that ends a turn.
            self.end = self._ids[end if isinstance(end, str) else end["content"]]
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise EngineFailed(
                f"{folder.name} has no tokenizer that can be read: {type(error).__name__}: {error}",
                "An emulated engine takes a byte-level one: tokenizer.json and tokenizer_config.json.",
            ) from None
        special = {token["content"] for token in written["added_tokens"]}
        self._longest = max(map(len, self._ids))
        #: Those a replay draws from; lower-case letters, as its expression allows.
        self._plain = [
            number for word, number in words.items() if word not in special and word.isascii() and word.islower()
        ]
        if not self._plain or any(sign not in self._ids for sign in _SIGNS):
            raise EngineFailed(f"{folder.name} has no byte-level tokenizer", "An emulated engine takes no other.")
        self._random = random.Random(seed)  # noqa: S311 - no secret
        self._ways: dict[str, list[list[tuple[int, int]]]] = {}

    def spell(self, text: str) -> Drawn:
        """Draw tokens that spell ``text``, and the one that ends the turn."""
        ways = self._ways.get(text)
        if ways is None:
            if len(self._ways) >= _MANY:
                self._ways.clear()
            ways = self._ways[text] = self._ways_of(text)
        ids: list[int] = []
        logprobs: list[float] = []
        place = 0
        while place < len(ways):
            length, token = self._random.choice(ways[place])
            ids.append(token)
            logprobs.append(-math.log(len(ways[place])))
            place += length
        return Drawn([*ids, self.end], [*logprobs, 0.0])

    def _ways_of(self, text: str) -> list[list[tuple[int, int]]]:
        """Return, for each place of a text, the lengths and ids of the tokens that go on with it."""
        signs = "".join(_SIGNS[byte] for byte in text.encode())
        return [
            [
                (end - start, token)
                for end in range(start + 1, min(start + self._longest, len(signs)) + 1)
                if (token := self._ids.get(signs[start:end])) is not None
            ]
            for start in range(len(signs))
        ]

    def babble(self, count: int) -> Drawn:
        """Draw so many tokens of any text."""
        return Drawn(self._random.choices(self._plain, k=count), [-math.log(len(self._plain))] * count)


def _signs() -> list[str]:
    """Return the letter that stands for each byte in a byte-level vocabulary (``bytes_to_unicode`` of GPT-2)."""
    plain = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = iter(range(256, 512))
    return [chr(byte if byte in plain else next(others)) for byte in range(256)]


_SIGNS = _signs()
