"""Family: one short command, for models of some ten thousand weights (`ors-server train terminal --tiny`).

Invariant: no name, word or number of a held-out task occurs in a training task.
"""

import itertools
import random

from .draft import HOME, Draft, swap
from .family import HELD_OUT_SEEDS, Family

__all__ = ["FAMILY"]

FOLDER = f"{HOME}/work"
#: Made-up words of two syllables. Without an `e` in them, none is a word of a prompt (`file`, `name`, `line`).
_SYLLABLES = [f"{first}{second}" for first, second in itertools.product("bdfgklmnprst", "aiou")]
_WORDS = [f"{first}{second}" for first, second in itertools.product(_SYLLABLES, repeat=2)]
random.Random("first steps").shuffle(_WORDS)  # noqa: S311 - tasks, not secrets
#: Every fourth word, and every fourth number, is held out.
_HELD_OUT = 4


def _words(draft: Draft, count: int) -> list[str]:
    """Return words of the task's split, the first of them another one for each of many seeds."""
    held_out = draft.seed >= HELD_OUT_SEEDS
    words = [word for place, word in enumerate(_WORDS) if (place % _HELD_OUT == 0) == held_out]
    first = words.pop(draft.seed % len(words))
    return [first, *draft.some(words, count - 1)]


def _number(draft: Draft) -> int:
    number = draft.number(3, 24) * _HELD_OUT
    return number if draft.seed >= HELD_OUT_SEEDS else number + draft.number(1, _HELD_OUT - 1)


def _empty(draft: Draft) -> None:
    root = draft.root = draft.directory(FOLDER)
    one, other = _words(draft, 2)
    draft.say(
        draft.pick(
            f"! Make the empty files {one} and {other} in {root}.",
            f"! In {root}, make the empty files {one} and {other}.",
        )
    )
    oracle = f"touch work/{one} work/{other}"
    draft.solve(oracle, swap(oracle, "touch", "mkdir"))


def _folder(draft: Draft) -> None:
    root = draft.root = draft.directory(FOLDER)
    outer, inner = _words(draft, 2)
    draft.say(
        draft.pick(
            f"! Make a folder {outer} with a folder {inner} in {root}.",
            f"! In {root}, make a folder {outer} with a folder {inner}.",
        )
    )
    oracle = f"mkdir -p work/{outer}/{inner}"
    draft.solve(oracle, swap(oracle, f"{outer}/{inner}", f"{outer} work/{inner}"))


def _word(draft: Draft) -> None:
    root = draft.root = draft.directory(FOLDER)
    name, word = _words(draft, 2)
    draft.say(
        draft.pick(
            f"! Write the word {word} and a newline into a new file {name} in {root}.",
            f"! In {root}, write the word {word} and a newline into a new file {name}.",
        )
    )
    oracle = f"echo {word} > work/{name}"
    draft.solve(oracle, swap(oracle, "echo", "printf"))


def _append(draft: Draft) -> None:
    root = draft.root = FOLDER
    [name], number = _words(draft, 1), _number(draft)
    draft.file(f"{root}/{name}", draft.text(draft.number(20, 60)))
    draft.say(
        draft.pick(
            f"! Append a line with the number {number} to the file {name} in {root}.",
            f"! In {root}, append a line with the number {number} to the file {name}.",
        )
    )
    oracle = f"echo {number} >> work/{name}"
    draft.solve(oracle, swap(oracle, ">>", ">"))


def _rename(draft: Draft) -> None:
    root = draft.root = FOLDER
    old, new = _words(draft, 2)
    draft.file(f"{root}/{old}", draft.text(draft.number(20, 60)))
    draft.say(
        draft.pick(f"! Rename the file {old} in {root} to {new}.", f"! In {root}, rename the file {old} to {new}.")
    )
    oracle = f"mv work/{old} work/{new}"
    draft.solve(oracle, swap(oracle, "mv", "cp"))


def _copy(draft: Draft) -> None:
    root = draft.root = FOLDER
    old, new = _words(draft, 2)
    draft.file(f"{root}/{old}", draft.text(draft.number(20, 60)))
    draft.say(draft.pick(f"! Copy the file {old} in {root} to {new}.", f"! In {root}, copy the file {old} to {new}."))
    oracle = f"cp work/{old} work/{new}"
    draft.solve(oracle, swap(oracle, "cp", "mv"))


FAMILY = Family(
    "first_steps",
    "One short command: make, write, append, rename, copy",
    (_empty, _folder, _word, _append, _rename, _copy),
    by_default=False,
)
