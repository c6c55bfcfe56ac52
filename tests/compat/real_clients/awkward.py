"""Texts that some implementation altered on the wire: a tool sends them, and a test knows what has to arrive."""

from __future__ import annotations

import sys

_WHITE_SPACE = [chr(code) for code in range(sys.maxunicode + 1) if chr(code).isspace()]


def _texts() -> dict[str, str]:
    mebibyte = 2**20
    texts = {
        "empty": "",
        "one mebibyte": "".join(f"{number:07d}\n" for number in range(mebibyte // 8)),
        # Long enough that any cut of a reasonable size falls into white space, which parsers strip.
        "spaces": " " * 200_000,
        "newlines": "\n" * 100_000,
        "white space of all kinds": "".join(character * 9_000 for character in _WHITE_SPACE),
        "indented": "".join(" " * (number % 61) + f"line {number}\n" for number in range(6_000)),
        # Each of these characters ends a line for some parser.
        "line ends": "a\nb\rc\r\nd\u2028e\u2029f\x85g\vh\fi\x1cj\x1dk\x1el" * 3_000,
        "emoji": "👩‍👩‍👧‍👦🏴‍☠️🇩🇪e\u0301" * 5_000,
        "control characters": "".join(map(chr, range(32))) * 1_500 + "\x7f\x80\x9f",
        "invisible": "\ufeff\u200b\u200e\ufffe\uffff\U0010ffff" * 6_000,
        "backslashes": '\\"\\u0041\\\\n' * 9_000,
        "event stream": "event: end\r\ndata: {}\r\n\r\n: ping\r\n" * 3_000,
    }
    # Characters of two, three and four bytes, moved by each number of bytes that a cut can be off.
    texts |= {f"long, moved by {offset}": "x" * offset + "é€😀\u3000\xa0" * 20_000 for offset in range(8)}
    return texts


#: Texts that a tool sends and a client must receive, character for character.
TEXTS = _texts()

#: Texts that JSON cannot carry, and the texts that arrive instead.
REPLACED = {
    "lone high surrogate": ("a\ud83db", "a\ufffdb"),
    "lone low surrogate": ("\ude00", "\ufffd"),
    "surrogates in the wrong order": ("\ude00\ud83d", "\ufffd\ufffd"),
    "both halves apart": ("\ud83d\ude00", "😀"),
    "long": (("surrogateescape \udcff " * 10_000), ("surrogateescape \ufffd " * 10_000)),
}
