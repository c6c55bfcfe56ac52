"""Family: programs to write, which then have to pass cases that are drawn for each examination.

Each kind of program has a function that draws a case and one that returns the right output. The oracle is a program
made of the latter. The prompt says how large the input gets, from the numbers with which it is drawn.
"""

import inspect
import math
import random
import string
from collections.abc import Callable, Sequence

from .checks import Case
from .draft import Draft, swap
from .family import Family
from .vocabulary import DEPARTMENTS, PRODUCTS, WORDS

#: The most arguments, lines, characters of a line, and characters of a name.
_ARGUMENTS, _LINES, _LENGTH, _NAME = 40, 300, 400, 60
_LIMITS = (
    f"There are at most {_LINES} lines of at most {_LENGTH} characters, all of them complete; all text is ASCII, "
    "with tabs and the ends of lines as control characters."
)


def _program(
    draft: Draft,
    sentences: Sequence[str],
    near_miss: tuple[str, str],
    draw: Callable[..., Case],
    material: Sequence[object],
    answer: Callable[..., str],
    cases: Sequence[Case],
    **values: object,
) -> None:
    """Write the task; the first of ``cases``, which are judged always, is the example."""
    root = draft.project()
    name = f"{draft.pick('tool', 'run', 'convert', 'calc', 'filter')}-{draft.pick(*WORDS)}"
    path = f"{root}/{name}{draft.pick('', '.sh', '.run')}"
    arguments, given = cases[0]
    example = answer(arguments, given, **values)
    draft.file(f"{root}/README", f"{draft.prose(6)}\n")
    draft.say(
        draft.pick(
            "Write me a small command-line program.", "I need a little script.", "Please write a script for me."
        ),
        f"! It must be an executable file at {path} (with a suitable #! line: bash, sh, awk, python3 or whatever you "
        "find installed) that is started directly under this path.",
        *(f"! {sentence}" for sentence in sentences),
    )
    given_text = "".join(f"    {line}".rstrip() + "\n" for line in given.splitlines())
    shown = f"{' '.join([path, *arguments])} prints:\n\n" + "".join(f"    {line}\n" for line in example.splitlines())
    draft.say(f"Given this on standard input:\n\n{given_text}\n{shown}" if given else f"For example, {shown}")
    draft.say(
        "! Every line of the output ends with a newline",
        "! and there is nothing else on standard output.",
        "! The exit status is 0.",
        *((_LIMITS,) if given else ()),
        "! I will try it with other input of this kind.",
    )
    draft.form(path, "any", sentence="How the program is written is up to you.")
    draft.mode(path, "executable")
    draft.final.drawn(path, draw, answer, material=material, always=cases, **values)
    source = inspect.getsource(answer)
    call = f"{answer.__name__}(sys.argv[1:], sys.stdin.read(), **{values!r})"
    imports = "import string\n" if "string." in source else ""
    oracle = (
        f"cat > {path} <<'END'\n#!/usr/bin/env python3\n{imports}import sys\n\n\n{source}\n\n"
        f"sys.stdout.write({call})\nEND\nchmod +x {path}\n"
    )
    draft.solve(oracle, swap(oracle, *near_miss))


def a_number(numbers: random.Random, turn: int, most: int) -> Case:
    return [str(numbers.randrange(10 ** numbers.randrange(1, len(str(most)) + 1)) % (most + 1))], ""


def some_numbers(numbers: random.Random, turn: int, count: int, most: int) -> Case:
    """Return up to ``count`` numbers, in the first case as many."""
    count = numbers.randrange(1, numbers.choice((6, count + 1))) if turn else count
    return [str(numbers.randrange(1, most + 1)) for _ in range(count)], ""


def some_multiples(numbers: random.Random, turn: int, count: int) -> Case:
    """Return two to ``count`` numbers from 1 to 999 whose least common multiple is below 10^18: half of the cases come
    near to that, the others have many arguments."""
    factor = numbers.choice((1, 2, 6, 15, 101))
    found = [factor * numbers.randrange(1, 999 // factor + 1) for _ in range(2)]
    least = math.lcm(*found)
    for _ in range(200):
        one = factor * numbers.randrange(1, 999 // factor + 1) if turn % 2 else numbers.choice(found)
        if len(found) < count and math.lcm(least, one) < 10**18:
            found.append(one)
            least = math.lcm(least, one)
    return [str(one) for one in numbers.sample(found, len(found))], ""


def some_lines(numbers: random.Random, turn: int, words: list[str], most: int, longest: int) -> Case:
    """Return lines, few of them different: words, or any characters; some are empty, or equal except for capitals, or
    have spaces at their ends. One case has the most lines, one the longest, one what ``echo`` does not print; in three
    the lines are equal except for their ends, and in one all are equal."""
    few: list[str] = []
    for _ in range(4):
        line = numbers.choice((" ", "  ", ", ")).join(numbers.sample(words, numbers.randrange(1, 5)))
        spaces = "".join(numbers.choice((" ", "\t")) for _ in range(numbers.randrange(3)))
        length = longest if turn == 1 else numbers.randrange(1, numbers.choice((40, longest + 1)))
        odd = "".join(numbers.choice([*map(chr, range(32, 127)), "\t"]) for _ in range(length))
        options = (line, line.title(), f"{spaces}{line}{spaces}", f"{numbers.randrange(100)}: {line}!", "", odd)
        few.append(odd if turn == 1 else numbers.choice(options))
    few.append(few[0].swapcase())
    if turn == 2:
        few = ["-n", "-e", "-E", "\t", " x\t", "\\t\\c", "%s", "*", "'", '"$HOME`']
    if 3 <= turn < 6:
        few = [f"{few[0][:40]}{end}" for end in ("", " ", "\t", " \t", "\t ")]
    count = most if turn == 0 else numbers.randrange(1, numbers.choice((16, 16, most + 1)))
    if turn == 2:
        return [], "".join(f"{line}\n" for line in numbers.sample(few, numbers.randrange(1, 1 + len(few))))
    return [], "".join(f"{few[0] if turn == 6 else numbers.choice(few)}\n" for _ in range(count))


def duration(arguments: list[str], given: str, word: str, separator: str) -> str:
    n = int(arguments[0])
    return separator.join([f"{n // 3600:02d}", f"{n // 60 % 60:02d}", f"{n % 60:02d}"]) + f" {word}\n"


def _duration(draft: Draft) -> None:
    separator, word = draft.pick(":", "-", "/"), draft.pick(*WORDS)
    sentences = (
        "It takes one argument, a number of seconds from 0 to 999999, and prints it as hours, minutes and seconds "
        f"joined by {separator!r},",
        f"followed by a space and the word {word}.",
        "Minutes and seconds always have two digits, hours as many as they need but at least two.",
    )
    edges = (draft.number(1000, 9999), 0, 59, 3600, 86399, 359999, 360000, 999999)
    _program(
        draft, sentences, ("n // 3600:02d", "n // 3600 % 24:02d"),
        a_number, [999999], duration, [([str(n)], "") for n in edges], word=word, separator=separator,
    )  # fmt: skip


def in_base(arguments: list[str], given: str, word: str, base: int) -> str:
    n, digits = int(arguments[0]), ""
    while n:
        digits = "0123456789ab"[n % base] + digits
        n //= base
    return f"{digits or '0'} {word}\n"


def _base(draft: Draft) -> None:
    base, word = draft.pick(3, 5, 7, 9, 12), draft.pick(*WORDS)
    letters = " (with the small letters a and b as the digits ten and eleven)" if base == 12 else ""
    sentences = (
        f"It takes one argument, a whole number from 0 to 1000000000, and prints it in base {base}{letters},",
        f"a space and {word}.",
    )
    edges = (draft.number(20, 500), 0, base, base - 1, 10**9)
    _program(
        draft, sentences, ("digits or '0'", "digits"), a_number, [10**9], in_base, [([str(n)], "") for n in edges],
        word=word, base=base,
    )  # fmt: skip


def roman(arguments: list[str], given: str, word: str) -> str:
    values = (1000, 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1)
    letters = ("M", "CM", "D", "CD", "C", "XC", "L", "XL", "X", "IX", "V", "IV", "I")
    shown = ""
    for argument in arguments:
        n, text = int(argument), ""
        for value, letter in zip(values, letters, strict=True):
            text += letter * (n // value)
            n %= value
        shown += f"{text}:{word}-{argument}\n"
    return shown


def _roman(draft: Draft) -> None:
    word = draft.pick(*WORDS)
    sentences = (
        f"It takes one to {_ARGUMENTS} arguments, whole numbers from 1 to 3999, and prints a line for each:",
        "the number in Roman numerals in capital letters,",
        f"a colon, and the number itself with {word} and a hyphen in front.",
    )
    edges = [
        [str(draft.number(10, 99)), str(draft.number(1000, 2000))],
        ["4", "9", "40", "90", "400", "900"],
        ["3999", "1"],
    ]
    _program(
        draft, sentences, ('"IV"', '"IIII"'), some_numbers, [_ARGUMENTS, 3999], roman, [(edge, "") for edge in edges],
        word=word,
    )  # fmt: skip


def divisors(arguments: list[str], given: str, word: str) -> str:
    greatest, multiple = 0, 1
    for n in map(int, arguments):
        a, b = multiple, n
        while b:
            a, b = b, a % b
        multiple = multiple * n // a
        while n:
            greatest, n = n, greatest % n
    return f"{word}={greatest}\n{word.upper()}={multiple}\n"


def _divisors(draft: Draft) -> None:
    factor, word = draft.number(2, 12), draft.pick(*WORDS)
    sentences = (
        f"It takes two to {_ARGUMENTS} arguments, whole numbers from 1 to 999, and prints two lines:",
        f"their greatest common divisor after the text {word}=",
        f"and their least common multiple (below 10^18) after the text {word.upper()}=.",
    )
    edges = [[str(factor * 4), str(factor * 6)], ["7", "7"], ["1", str(draft.number(2, 99))], ["6", "10", "15"]]
    _program(
        draft, sentences, ("multiple * n // a", "multiple * n"),
        some_multiples, [_ARGUMENTS], divisors, [(edge, "") for edge in edges], word=word,
    )  # fmt: skip


def size(arguments: list[str], given: str, word: str) -> str:
    n, units = int(arguments[0]), ["B", "KiB", "MiB", "GiB", "TiB"]
    while n >= 1024 and len(units) > 1:
        n, units = n // 1024, units[1:]
    return f"{n} {units[0]} {word}\n"


def _size(draft: Draft) -> None:
    word = draft.pick(*WORDS)
    sentences = (
        "It takes one argument, a number of bytes from 0 to 10^15, and prints it as a whole number of the largest unit "
        "of B, KiB, MiB, GiB and TiB (each 1024 times the one before) of which there is at least one,",
        "rounded down, as in '3 MiB',",
        f"and behind it a space and the word {word}.",
        f"0 is '0 B {word}'.",
    )
    edges = [draft.number(2000, 900000), 0, 1, 10**15]
    edges += [1024**power + more for power in (1, 2, 3, 4) for more in (-1, 0)]
    _program(
        draft, sentences, ("n >= 1024", "n > 1024"), a_number, [10**15], size, [([str(n)], "") for n in edges],
        word=word,
    )  # fmt: skip


def caesar(arguments: list[str], given: str, word: str, key: int) -> str:
    low, up = string.ascii_lowercase, string.ascii_uppercase
    return given.translate(str.maketrans(low + up, low[key:] + low[:key] + up[key:] + up[:key])) + f"{word}\n"


def _caesar(draft: Draft) -> None:
    key, word, words = draft.number(2, 11), draft.pick(*WORDS), draft.some(WORDS, 8)
    sentences = (
        "It reads lines from standard input and prints each of them encrypted: every letter is replaced by the one "
        f"{key} places later in the alphabet,",
        "starting again at a after z,",
        "capitals as capitals.",
        "All other characters stay.",
        f"After the last line it prints one more line: {word}.",
    )
    texts = (f"{words[0].title()} {words[1]}\n{words[2]}\n", "Xyz, Zebra! 42\n", "")
    _program(
        draft, sentences, ("low[:key] + up", "low[:0] + up"),
        some_lines, [words, _LINES, _LENGTH], caesar, [([], text) for text in texts], word=word, key=key,
    )  # fmt: skip


def runs(arguments: list[str], given: str, word: str) -> str:
    found: list[list[str]] = []
    for line in given.splitlines():
        if found and found[-1][0] == line:
            found[-1].append(line)
        else:
            found.append([line])
    return "".join(f"{len(run)} {word} {run[0]}\n" for run in found) + f"runs: {len(found)}\n"


def _runs(draft: Draft) -> None:
    word, words = draft.pick(*WORDS), draft.some(WORDS, 8)
    sentences = (
        "It reads lines from standard input and prints each run of equal neighbouring lines as one line:",
        f"the number of lines in the run, a space, {word}, a space and the line.",
        "The last line printed is 'runs:', a space and the number of runs.",
    )
    a, b = words[:2]
    _program(
        draft, sentences, ("given.splitlines()", "sorted(given.splitlines())"),
        some_lines, [words, _LINES, _LENGTH], runs,
        [([], text) for text in (f"{a}\n{a}\n{b}\n{a}\n", f"{b}\n{a}\n\n\n{b}\n", "")], word=word,
    )  # fmt: skip


def every(arguments: list[str], given: str, word: str, step: int, start: int) -> str:
    lines = list(enumerate(given.splitlines(), 1))
    return "".join(f"{number} {word} {line}\n" for number, line in lines[start - 1 :: step]) or f"no {word}\n"


def _every(draft: Draft) -> None:
    step, start, word, words = draft.number(2, 4), draft.number(1, 3), draft.pick(*WORDS), draft.some(WORDS, 8)
    nth = ("second", "third", "fourth")[step - 2]
    sentences = (
        f"It reads lines from standard input and prints line number {start} and every {nth} line after it (lines "
        f"{start}, {start + step}, {start + 2 * step} and so on, counting from 1),",
        "each with its line number in front,",
        f"separated by {word!r} with one space on each side.",
        f"If no line is printed, it prints the single line: no {word}",
    )
    texts = ("".join(f"{one}\n" for one in words[:count]) for count in (start + step, 1, start - 1, 8, 0))
    _program(
        draft, sentences, (' or f"no {word}', ' or f"'), some_lines, [words, _LINES, _LENGTH],
        every, [([], text) for text in texts], word=word, step=step, start=start,
    )  # fmt: skip


def longest(arguments: list[str], given: str, word: str) -> str:
    lines = given.splitlines()
    if not lines:
        return f"0 {word}\n"
    found = max(lines, key=len)
    return f"{found}\n{len(found)} {word}\n"


def _longest(draft: Draft) -> None:
    word, words = draft.pick(*WORDS), draft.some(WORDS, 8)
    sentences = (
        "It reads lines from standard input and prints the longest line (the first of them, if several are equally "
        "long),",
        f"and below it a line with the length of that line in characters and the word {word}, separated by a space.",
        f"If there is no input at all, it prints only the line: 0 {word}",
    )
    texts = ("".join(f"{one}\n" for one in words[:4]), "aa\nbb\ncc\n", "a\n\nbbb\nccc\nbb\n", "\n", "")
    _program(
        draft, sentences, ("max(lines", "max(lines[::-1]"),
        some_lines, [words, _LINES, _LENGTH], longest, [([], text) for text in texts], word=word,
    )  # fmt: skip


def sums(arguments: list[str], given: str, word: str, separator: str, least: int) -> str:
    found: dict[str, int] = {}
    for line in given.splitlines():
        if line and not line.startswith("#"):
            name, quantity, price = line.split(separator)
            found[name] = found.get(name, 0) + int(quantity) * int(price.replace(".", ""))
    rows = [(name, cents) for name, cents in sorted(found.items()) if cents >= least * 100]
    rows.append((word, sum(found.values())))
    return "".join(f"{name} {cents // 100}.{cents % 100:02d}\n" for name, cents in rows)


def a_table(
    numbers: random.Random, turn: int, names: list[str], separator: str, least: int, most: int, longest: int
) -> Case:
    """Return rows. In one case there are the most, in one the longest names; the sums of two names are just large
    enough and just too small."""
    few = numbers.sample(names, 4)
    few += [f"{few[0]} {few[1]}", f"{few[2]}#2", few[3].swapcase(), f"{few[0]} !", f"{few[0]}!"]
    letters = "abcXYZ0189 #!"
    few.append("x" + "".join(numbers.choice(letters) for _ in range(longest - 2 if turn == 1 else 5)) + "!")
    lines: list[str] = []
    for _ in range(most if turn == 0 else numbers.randrange(numbers.choice((20, 20, most)))):
        price = f"{numbers.randrange(numbers.choice((31, 2000)))}.{numbers.randrange(100):02d}"
        row = separator.join([numbers.choice(few), str(numbers.randrange(1, numbers.choice((10, 2000)))), price])
        lines += numbers.choice(([row], [row], [row], ["", row], [f"# {few[0]}", row]))
    for name, cents in (("just Enough", least * 100), ("not enough", least * 100 - 1)):
        parts = sorted(numbers.sample(range(1, cents), 5))
        for begin, end in zip([0, *parts], [*parts, cents], strict=True):
            lines.append(f"{name}{separator}1{separator}{(end - begin) // 100}.{(end - begin) % 100:02d}")
    return [], "".join(f"{line}\n" for line in lines[-most:])


def _table(draft: Draft) -> None:
    """Write tasks about a table on standard input."""
    word, names = draft.pick(*DEPARTMENTS), [*draft.some(PRODUCTS, 8), "Zeta", "Alpha"]
    separator, spoken = draft.pick((",", "commas"), (";", "semicolons"), (":", "colons"))
    least = draft.number(5, 60)
    sentences = (
        f"It reads lines of the form NAME{separator}QUANTITY{separator}PRICE from standard input, where the fields are "
        f"separated by {spoken}, NAME has at most {_NAME} letters, digits, spaces and characters ! and #, but no space "
        "at its ends, QUANTITY is a whole number and PRICE has exactly two decimals, and both are below 2000.",
        "Lines that are empty or begin with # are to be ignored.",
        "It adds up QUANTITY times PRICE for each NAME",
        f"and prints, for every name whose sum is at least {least}.00,",
        "the name, a space and the sum with two decimals,",
        "sorted by name in byte order.",
        f"Then follows a last line: the word {word}, a space, and the sum over all lines (also of names that are not "
        "shown), with two decimals.",
    )

    def table(*rows: tuple[str, int, str]) -> Case:
        return [], "".join(separator.join([name, str(quantity), price]) + "\n" for name, quantity, price in rows)

    names_of_three = zip(("beta", "alpha", "Zeta", "beta"), (2, 3, 1, 1), strict=True)
    cases: list[Case] = [
        table(
            *(
                (draft.pick(*names[:3]), draft.number(1, 9), f"{draft.number(9, 30)}.{draft.number(10, 99)}")
                for _ in "abcd"
            )
        ),
        table(("zeta", 1, f"{least}.00"), ("Zeta", 1, "0.05")),
        table(*((name, quantity, f"{least}.05") for name, quantity in names_of_three)),
        ([], "# nothing\n\n"),
        ([], ""),
    ]
    _program(
        draft, sentences, ("int(quantity) * ", ""), a_table, [names, separator, least, _LINES, _NAME], sums, cases,
        word=word, separator=separator, least=least,
    )  # fmt: skip


def _arguments(draft: Draft) -> None:
    """Write tasks about numbers as arguments."""
    draft.pick(_duration, _base, _roman, _divisors, _size)(draft)


def _filter(draft: Draft) -> None:
    """Write tasks about lines on standard input."""
    draft.pick(_caesar, _runs, _every, _longest)(draft)


FAMILY = Family("scripting", "Write a program that passes drawn cases", (_arguments, _filter, _table), ("python3",))
