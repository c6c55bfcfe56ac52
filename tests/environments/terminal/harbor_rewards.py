"""Reward files of Harbor tasks, as verifiers write them, with the reward or the reason why there is none."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["REWARDS", "Files"]

#: The contents of ``reward.json`` and ``reward.txt``; None for a missing file.
Files = tuple[bytes | None, bytes | None]

REWARDS: Mapping[str, tuple[Files, float | str]] = {
    "a text": ((None, b"1\n"), 1.0),
    "a part": ((None, b" 0.25 "), 0.25),
    "below 0": ((None, b"-3e-1"), -0.3),
    "an object": ((b'{"reward": 0.5}', None), 0.5),
    "a number": ((b"0.75", None), 0.75),
    "one other key": ((b'{"accuracy": 1}', None), 1.0),
    "several keys": ((b'{"speed": 0.1, "reward": 0.9}', None), 0.9),
    "JSON before the text": ((b'{"reward": 0}', b"1"), 0.0),
    "true": ((b'{"reward": true}', None), 1.0),
    "no file": ((None, None), "missing"),
    "an empty text": ((None, b""), "empty"),
    "blanks": ((None, b" \n"), "empty"),
    "empty JSON": ((b"", b"1"), "empty"),
    "an empty object": ((b"{}", None), "empty"),
    "NaN": ((None, b"nan"), "not finite"),
    "NaN in JSON": ((b'{"reward": NaN}', None), "not finite"),
    "infinity": ((None, b"-inf"), "not finite"),
    "infinity in JSON": ((b'{"reward": 1e999}', None), "not finite"),
    "a number too large": ((b'{"reward": 1' + b"0" * 400 + b"}", None), "not finite"),
    "one number of several is NaN": ((b'{"reward": 1, "x": NaN}', None), "not finite"),
    "words": ((None, b"passed"), "unreadable"),
    "two numbers": ((None, b"1 1"), "unreadable"),
    "a number as a text": ((b'{"reward": "1"}', None), "unreadable"),
    "null": ((b'{"reward": null}', None), "unreadable"),
    "a list": ((b"[1]", None), "unreadable"),
    "cut JSON": ((b'{"reward": 1', b"1"), "unreadable"),
    "deep JSON": ((b"[" * 100_000, None), "unreadable"),
    "not UTF-8": ((None, b"1\xff"), "unreadable"),
    "a text above the limit": ((None, b"1" + b" " * (1 << 20)), "too large"),
    "a text at the limit": ((None, b"1" + b" " * ((1 << 20) - 1)), 1.0),
    "several keys, none of them the reward": ((b'{"speed": 1, "size": 1}', None), "ambiguous"),
}
