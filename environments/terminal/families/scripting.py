"""Family: programs to write, which then have to pass cases that the agent has not seen.

A case is arguments and standard input; the functions in this module compute the right answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .draft import Draft, breach, swap
from .family import Family
from .vocabulary import DEPARTMENTS, PRODUCTS, WORDS

__all__ = ["FAMILY"]


#: A sentence about the program, and false solutions: what is wrong, a passage of the code, its replacement.
_Rule = tuple[str, list[tuple[str, str, str]]]


def _program(
    draft: Draft,
    rules: list[_Rule],
    example: tuple[Sequence[str], str],
    hidden: list[tuple[Sequence[str], str]],
    answer: Callable[[Sequence[str], str], str],
    code: str,
) -> None:
    """Write the task. ``code`` is Python that uses ``arguments`` and ``lines``.

    The near miss is the first replacement of a rule.
    """
    root = draft.project()
    name = f"{draft.pick('tool', 'run', 'convert', 'calc', 'filter')}-{draft.pick(*WORDS)}"
    path = f"{root}/{name}{draft.pick('', '.sh', '.run')}"
    arguments, given = example
    shown = " ".join([path, *arguments])
    draft.file(f"{root}/README", f"{draft.prose(6)}\n")
    case, executable = "hidden case *", "program is executable"
    draft.say(
        draft.pick(
            "Write me a small command-line program.", "I need a little script.", "Please write a script for me."
        ),
        draft.require(
            f"It must be an executable file at {path} (with a suitable #! line: bash, sh, awk, python3 or whatever you "
            "find installed) that is started directly under this path.",
            breach("not executable", executable, case, after=f"chmod -x {path}"),
            breach("no #! line", case, after=f"sed -i '1s/.*/# A program/' {path}"),
            breach("another name", executable, case, after=f"mv {path} {path}.py"),
            breach("a link to it", executable, after=f"mv {path} ~/program && ln -s ~/program {path}"),
        ),
        *(
            draft.require(text, *(breach(what, case, swap=(old, new)) for what, old, new in wrong))
            for text, wrong in rules
        ),
    )
    indented = "".join(f"    {line}\n" for line in answer(arguments, given).splitlines())
    if given:
        lines = "".join(f"    {line}\n" for line in given.splitlines())
        draft.say(f"Given this on standard input:\n\n{lines}\n{shown} prints:\n\n{indented}")
    else:
        draft.say(f"For example, {shown} prints:\n\n{indented}")
    words = "import io\nshown, sys.stdout = sys.stdout, io.StringIO()\n"
    draft.say(
        draft.require(
            "Every line of the output ends with a newline",
            breach(
                "no newline at the end",
                case,
                swap=(code, f"{words}{code}\nshown.write(sys.stdout.getvalue().rstrip('\\n'))\nshown.flush()"),
            ),
            breach(
                "lines that end otherwise",
                case,
                swap=("import sys\n", "import sys\nsys.stdout.reconfigure(newline='\\r\\n')\n"),
            ),
        ),
        draft.require(
            "and there is nothing else on standard output.",
            breach("a word at first", case, swap=("import sys\n", "import sys\nprint('Hello')\n")),
            breach("a word at last", case, swap=(code, f"{code}\nprint('done')")),
            breach("a blank line at last", case, swap=(code, f"{code}\nprint()")),
        ),
        draft.require("The exit status is 0.", breach("another status", case, swap=(code, f"{code}\nsys.exit(3)"))),
        draft.require(
            "I will try it with other input of this kind.",
            breach(
                "the answer of the example",
                case,
                instead=f"cat > {path} <<'END'\n#!/bin/sh\ncat <<'ANSWER'\n{answer(arguments, given)}ANSWER\nEND\n"
                f"chmod +x {path}\n",
            ),
        ),
    )
    draft.initial.absent(path)
    draft.final.test(executable, f"assert os.access({path!r}, os.X_OK)\ncontent({path!r})")
    cases = [example, *hidden]
    draft.final.cases([path], [(args, text, answer(args, text)) for args, text in cases])
    start = f'#!/bin/sh\\nexec {path}.real "$@"\\n'
    draft.honest(
        "a program that starts another", after=f"mv {path} {path}.real && printf '{start}' > {path} && chmod 755 {path}"
    )
    draft.honest("for oneself", after=f"chmod 700 {path}")
    draft.honest("words on standard error", swap=("import sys\n", "import sys\nprint('note', file=sys.stderr)\n"))
    draft.honest(
        "another interpreter's path", after=f"sed -i '1s!.*!#!/usr/bin/python3!' {path}".replace("#!/usr", "#\\!/usr")
    )
    draft.honest(
        "all printed at once",
        swap=(code, f"{words}{code}\nshown.write(sys.stdout.getvalue())\nshown.flush()"),
    )
    oracle = (
        f"cat > {path} <<'END'\n#!/usr/bin/env python3\nimport sys\narguments = sys.argv[1:]\n"
        f"lines = [] if arguments else sys.stdin.read().splitlines()\n{code}\nEND\nchmod +x {path}\n"
    )
    _, old, new = next(wrong[0] for _, wrong in rules if wrong)
    draft.solve(oracle, swap(oracle, old, new), " ".join(text for text, _ in rules))


def _roman(value: int) -> str:
    text = ""
    for number, letters in (
        (1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"), (50, "L"), (40, "XL"), (10, "X"),
        (9, "IX"), (5, "V"), (4, "IV"), (1, "I"),
    ):  # fmt: skip
        text += letters * (value // number)
        value %= number
    return text


def _arguments(draft: Draft) -> None:
    """Write tasks about numbers as arguments."""
    kind = draft.pick("duration", "base", "roman", "gcd", "size")
    word = draft.pick(*WORDS)
    if kind == "duration":
        separator = draft.pick(":", "-", "/")
        rules: list[_Rule] = [
            (
                "It takes one argument, a number of seconds from 0 to 999999, and prints it as hours, minutes and "
                f"seconds joined by {separator!r},",
                [
                    ("days left out", "n // 3600:02d", "n // 3600 % 24:02d"),
                    ("another separator", f":02d}}{separator}{{n // 60", ":02d}.{n // 60"),
                ],
            ),
            (f"followed by a space and the word {word}.", [("no space", f"02d}} {word}'", f"02d}}{word}'")]),
            (
                "Minutes and seconds always have two digits, hours as many as they need but at least two.",
                [
                    ("hours of one digit", "n // 3600:02d", "n // 3600"),
                    ("seconds of one digit", "n % 60:02d", "n % 60"),
                ],
            ),
        ]
        cases = [str(n) for n in (59, 3600, 86399, draft.number(360000, 999999), 0)]
        code = (
            "n = int(arguments[0])\n"
            f"print(f'{{n // 3600:02d}}{separator}{{n // 60 % 60:02d}}{separator}{{n % 60:02d}} {word}')"
        )
        first = str(draft.number(1000, 9999))

        def answer(arguments: Sequence[str], _: str) -> str:
            n = int(arguments[0])
            return f"{n // 3600:02d}{separator}{n // 60 % 60:02d}{separator}{n % 60:02d} {word}\n"

        _program(draft, rules, ([first], ""), [([case], "") for case in cases], answer, code)
    elif kind == "base":
        base = draft.pick(3, 5, 7, 9, 12)
        letters = " (with the small letters a and b as the digits ten and eleven)" if base == 12 else ""
        digit = f"'0123456789ab'[n % {base}]"
        rules = [
            (
                f"It takes one argument, a whole number from 0 to 1000000000, and prints it in base {base}{letters},",
                [
                    ("nothing for 0", "digits or '0'", "digits"),
                    ("digits backwards", f"{digit} + digits", f"digits + {digit}"),
                    *([("capital letters", "789ab", "789AB")] if letters else []),
                ],
            ),
            (f"a space and {word}.", [("no word", f", '{word}')", ")")]),
        ]

        def in_base(arguments: Sequence[str], _: str) -> str:
            n, digits = int(arguments[0]), ""
            while n:
                digits = "0123456789ab"[n % base] + digits
                n //= base
            return f"{digits or '0'} {word}\n"

        code = (
            "n, digits = int(arguments[0]), ''\nwhile n:\n"
            f"    digits = '0123456789ab'[n % {base}] + digits\n    n //= {base}\nprint(digits or '0', '{word}')"
        )
        cases = [str(n) for n in (0, base, base - 1, 10**9, draft.number(1000, 10**6))]
        _program(
            draft,
            rules,
            ([str(draft.number(20, 500))], ""),
            [([case], "") for case in cases],
            in_base,
            code,
        )
    elif kind == "roman":
        rules = [
            (
                "It takes one or more arguments, whole numbers from 1 to 3999, and prints a line for each:",
                [("the first only", "for argument in arguments", "for argument in arguments[:1]")],
            ),
            (
                "the number in Roman numerals in capital letters,",
                [("IIII for IV", " IV ", " IIII "), ("small letters", "{text}:", "{text.lower()}:")],
            ),
            (
                f"a colon, and the number itself with {word} and a hyphen in front.",
                [("no hyphen", f":{word}-", f":{word}"), ("a space after the colon", "{text}:", "{text}: ")],
            ),
        ]

        def romans(arguments: Sequence[str], _: str) -> str:
            return "".join(f"{_roman(int(n))}:{word}-{n}\n" for n in arguments)

        code = (
            "table = zip((1000, 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1), 'M CM D CD C XC L XL X IX V IV "
            "I'.split())\n"
            "table = list(table)\nfor argument in arguments:\n    n, text = int(argument), ''\n"
            "    for number, letters in table:\n        text += letters * (n // number)\n        n %= number\n"
            f"    print(f'{{text}}:{word}-{{argument}}')"
        )
        hidden = [[str(draft.number(1, 3999)) for _ in range(count)] for count in (1, 3, 5)]
        hidden += [["4", "9", "40", "90", "400", "900"], ["3999", "1"]]
        _program(
            draft,
            rules,
            ([str(draft.number(10, 99)), str(draft.number(1000, 2000))], ""),
            [(case, "") for case in hidden],
            romans,
            code,
        )
    elif kind == "gcd":
        rules = [
            (
                "It takes two or more arguments, positive whole numbers, and prints two lines:",
                [
                    ("one line", "math.gcd(*n)))", "math.gcd(*n)), end=' ')"),
                    ("two numbers only", "map(int, arguments)", "map(int, arguments[:2])"),
                ],
            ),
            (
                f"their greatest common divisor after the text {word}=",
                [("the smallest number", "math.gcd(*n)", "min(n)"), ("a colon", f"'{word}='", f"'{word}: '")],
            ),
            (
                f"and their least common multiple after the text {word.upper()}=.",
                [
                    ("the product", "math.lcm(*n)", "math.prod(n)"),
                    ("small letters", f"'{word.upper()}='", f"'{word}='"),
                ],
            ),
        ]

        def divisors(arguments: Sequence[str], _: str) -> str:
            numbers = [int(n) for n in arguments]
            a, multiple = 0, 1
            for n in numbers:
                a, multiple = _gcd(a, n), multiple * n // _gcd(multiple, n)
            return f"{word}={a}\n{word.upper()}={multiple}\n"

        code = f"import math\nn = list(map(int, arguments))\nprint('{word}=' + str(math.gcd(*n)))\n"
        code += f"print('{word.upper()}=' + str(math.lcm(*n)))"
        factor = draft.number(2, 12)
        hidden = [[str(factor * draft.number(1, 60)) for _ in range(count)] for count in (2, 3, 4, 6)]
        hidden += [["7", "7"], ["1", str(draft.number(2, 99))]]
        _program(
            draft,
            rules,
            ([str(factor * 4), str(factor * 6)], ""),
            [(case, "") for case in hidden],
            divisors,
            code,
        )
    else:
        rules = [
            (
                "It takes one argument, a number of bytes from 0 to 10^15, and prints it as a whole number of the "
                "largest unit of B, KiB, MiB, GiB and TiB (each 1024 times the one before) of which there is at least "
                "one,",
                [
                    ("1024 bytes", "n >= 1024", "n > 1024"),
                    ("units of a thousand", "n // 1024", "n // 1000"),
                    ("no TiB", ", 'TiB'", ""),
                ],
            ),
            (
                "rounded down, as in '3 MiB',",
                [
                    ("rounded up", "n // 1024", "-(-n // 1024)"),
                    ("no space", "print(n, units[0],", "print(str(n) + units[0],"),
                ],
            ),
            (f"and behind it a space and the word {word}.", [("no word", f", '{word}')", ")")]),
            ("0 is '0 B'.", [("no number for 0", "print(n,", "print(n or '',")]),
        ]

        def size(arguments: Sequence[str], _: str) -> str:
            n, units = int(arguments[0]), ["B", "KiB", "MiB", "GiB", "TiB"]
            while n >= 1024 and len(units) > 1:
                n, units = n // 1024, units[1:]
            return f"{n} {units[0]} {word}\n"

        code = (
            "n, units = int(arguments[0]), ['B', 'KiB', 'MiB', 'GiB', 'TiB']\nwhile n >= 1024 and len(units) > 1:\n"
            f"    n, units = n // 1024, units[1:]\nprint(n, units[0], '{word}')"
        )
        cases = [str(n) for n in (0, 1023, 1024, 1048576, draft.number(10**9, 10**12), 10**15)]
        _program(
            draft,
            rules,
            ([str(draft.number(2000, 900000))], ""),
            [([case], "") for case in cases],
            size,
            code,
        )


def _gcd(a: int, b: int) -> int:
    while b:
        a, b = b, a % b
    return a


def _filter(draft: Draft) -> None:
    """Write tasks about lines on standard input."""
    kind = draft.pick("caesar", "runs", "every", "longest")
    key = draft.number(2, 11)
    word = draft.pick(*WORDS)

    def lines(count: int) -> str:
        return "".join(" ".join(draft.pick(*WORDS) for _ in range(draft.number(1, 4))) + "\n" for _ in range(count))

    if kind == "caesar":
        rules: list[_Rule] = [
            (
                "It reads lines from standard input and prints each of them encrypted: every letter is replaced by the "
                f"one {key} places later in the alphabet,",
                [
                    ("one place more", f"low[{key}:] + low[:{key}]", f"low[{key + 1}:] + low[:{key + 1}]"),
                    ("letters before", f"low[{key}:] + low[:{key}]", f"low[-{key}:] + low[:-{key}]"),
                ],
            ),
            (
                "starting again at a after z,",
                [("the last letters left", f" + low[:{key}]", f" + low[-{key}:]")],
            ),
            ("capitals as capitals.", [("capitals left", f"up[{key}:] + up[:{key}]", "up")]),
            (
                "All other characters stay.",
                [("spaces left out", "line.translate(table)", "line.translate(table).replace(' ', '')")],
            ),
            (
                f"After the last line it prints one more line: {word}.",
                [
                    ("no last line", f"\nprint('{word}')", ""),
                    ("it comes first", "for line in", f"print('{word}')\nfor line in"),
                ],
            ),
        ]

        def answer(_: Sequence[str], given: str) -> str:
            out = ""
            for c in given:
                base = 97 if c.islower() else 65
                out += chr((ord(c) - base + key) % 26 + base) if c.isalpha() else c
            return f"{out}{word}\n"

        code = (
            "import string\nlow, up = string.ascii_lowercase, string.ascii_uppercase\n"
            f"table = str.maketrans(low + up, low[{key}:] + low[:{key}] + up[{key}:] + up[:{key}])\n"
            f"for line in lines:\n    print(line.translate(table))\nprint('{word}')"
        )
        hidden = [lines(3), "Xyz, Zebra! 42\n", lines(1).upper(), ""]
        example = lines(1).capitalize() + lines(1)
    elif kind == "runs":
        rules = [
            (
                "It reads lines from standard input and prints each run of equal neighbouring lines as one line:",
                [("sorted first", "groupby(lines)", "groupby(sorted(lines))")],
            ),
            (
                f"the number of lines in the run, a space, {word}, a space and the line.",
                [
                    ("no number", "print(count, ", "print("),
                    ("the word last", f"print(count, '{word}', line)", f"print(count, line, '{word}')"),
                ],
            ),
            (
                "The last line printed is 'runs:', a space and the number of runs.",
                [
                    ("the number of lines", "print('runs:', len(runs))", "print('runs:', len(lines))"),
                    ("no last line", "\nprint('runs:', len(runs))", ""),
                ],
            ),
        ]

        def answer(_: Sequence[str], given: str) -> str:
            runs: list[list[str]] = []
            for line in given.splitlines():
                if runs and runs[-1][0] == line:
                    runs[-1].append(line)
                else:
                    runs.append([line])
            return "".join(f"{len(run)} {word} {run[0]}\n" for run in runs) + f"runs: {len(runs)}\n"

        code = (
            "import itertools\nruns = [(len(list(group)), line) for line, group in itertools.groupby(lines)]\n"
            f"for count, line in runs:\n    print(count, '{word}', line)\nprint('runs:', len(runs))"
        )
        few = draft.some(WORDS, 3)
        hidden = ["".join(f"{draft.pick(*few)}\n" for _ in range(count)) for count in (9, 15, 1)] + [""]
        example = "".join(f"{line}\n" for line in (few[0], few[0], few[1], few[0]))
        hidden[0] = f"{few[2]}\n{few[1]}\n{few[2]}\n" + hidden[0]
    elif kind == "every":
        step, start = draft.number(2, 4), draft.number(1, 3)
        nth = ("second", "third", "fourth")[step - 2]
        rules = [
            (
                f"It reads lines from standard input and prints line number {start} and every {nth} line after it "
                f"(lines {start}, {start + step}, {start + 2 * step} and so on, counting from 1),",
                [
                    ("one line later", f"[{start} - 1::{step}]", f"[{start}::{step}]"),
                    ("every line", f"::{step}]", "::1]"),
                ],
            ),
            ("each with its line number in front,", [("counted from 0", "enumerate(lines, 1)", "enumerate(lines)")]),
            (
                f"separated by {word!r} with one space on each side.",
                [("no word", f"number, '{word}', line", "number, line"), ("no spaces", "line)", "line, sep='')")],
            ),
            (
                f"If no line is printed, it prints the single line: no {word}",
                [("nothing where there is no line", f"\nif not found:\n    print('no {word}')", "")],
            ),
        ]

        def answer(_: Sequence[str], given: str) -> str:
            found = [
                (n, line) for n, line in enumerate(given.splitlines(), 1) if n >= start and (n - start) % step == 0
            ]
            return "".join(f"{n} {word} {line}\n" for n, line in found) or f"no {word}\n"

        code = (
            f"found = list(enumerate(lines, 1))[{start} - 1::{step}]\nfor number, line in found:\n"
            f"    print(number, '{word}', line)\nif not found:\n    print('no {word}')"
        )
        hidden = [lines(step * 4), lines(start), "", lines(step * 2 + 1)]
        example = lines(start + 2 * step)
    else:
        rules = [
            (
                "It reads lines from standard input and prints the longest line (the first of them, if several are "
                "equally long),",
                [
                    ("the last of them", "max(lines, key=len)", "max(reversed(lines), key=len)"),
                    ("the last in order", "max(lines, key=len)", "max(lines)"),
                ],
            ),
            (
                f"and below it a line with the length of that line in characters and the word {word}, separated by a "
                "space.",
                [
                    ("the length with its newline", "len(longest), ", "len(longest) + 1, "),
                    ("no word", f"len(longest), '{word}'", "len(longest)"),
                ],
            ),
            (
                f"If there is no input at all, it prints only the line: 0 {word}",
                [
                    ("an empty line before it", f"print('0 {word}')", f"print('\\n0 {word}')"),
                    ("nothing", f"\nelse:\n    print('0 {word}')", ""),
                ],
            ),
        ]

        def answer(_: Sequence[str], given: str) -> str:
            found = given.splitlines()
            if not found:
                return f"0 {word}\n"
            longest = max(found, key=len)
            return f"{longest}\n{len(longest)} {word}\n"

        code = (
            "if lines:\n    longest = max(lines, key=len)\n    print(longest)\n"
            f"    print(len(longest), '{word}')\nelse:\n    print('0 {word}')"
        )
        hidden = [lines(6), "", "aa\nbb\ncc\n", "a\n\nbbb\nccc\n"]
        example = lines(4)
    _program(draft, rules, ([], example), [([], text) for text in hidden], answer, code)


def _table(draft: Draft) -> None:
    """Write tasks about a table on standard input."""
    word = draft.pick(*DEPARTMENTS)
    separator, spoken = draft.pick((",", "commas"), (";", "semicolons"), (":", "colons"))
    least = draft.number(5, 60)
    all_lines = "sum(sums.values())"
    rules: list[_Rule] = [
        (
            f"It reads lines of the form NAME{separator}QUANTITY{separator}PRICE from standard input, where the fields "
            f"are separated by {spoken}, QUANTITY is a whole number and PRICE has exactly two decimals.",
            [("the quantity left out", "int(quantity) * ", "")],
        ),
        (
            "Lines that are empty or begin with # are to be ignored.",
            [
                ("empty lines not ignored", "if line and not", "if not"),
                ("other lines not ignored", "line and not line.startswith('#')", "line"),
            ],
        ),
        (
            "It adds up QUANTITY times PRICE for each NAME",
            [("the last line of a name", "sums.get(name, 0) + ", "")],
        ),
        (
            f"and prints, for every name whose sum is at least {least}.00,",
            [
                ("more than that", f"cents >= {least} * 100", f"cents > {least} * 100"),
                ("every name", f" if cents >= {least} * 100", ""),
            ],
        ),
        (
            "the name, a space and the sum with two decimals,",
            [
                ("a colon", "{name} {cents // 100}", "{name}: {cents // 100}"),
                ("decimals without a zero", "{cents % 100:02d}", "{cents % 100}"),
            ],
        ),
        (
            "sorted by name in byte order.",
            [
                ("as they come", "sorted(sums.items())", "sums.items()"),
                (
                    "capitals like small letters",
                    "sorted(sums.items())",
                    "sorted(sums.items(), key=lambda item: item[0].lower())",
                ),
            ],
        ),
        (
            f"Then follows a last line: the word {word}, a space, and the sum over all lines (also of names that are "
            "not shown), with two decimals.",
            [
                ("shown names only", all_lines, "sum(cents for _, cents in rows)"),
                ("no last line", f"rows.append(('{word}', {all_lines}))\n", ""),
            ],
        ),
    ]

    def answer(_: Sequence[str], given: str) -> str:
        sums: dict[str, int] = {}
        for line in given.splitlines():
            if line and not line.startswith("#"):
                name, quantity, price = line.split(separator)
                sums[name] = sums.get(name, 0) + int(quantity) * int(price.replace(".", ""))
        rows = [(name, cents) for name, cents in sorted(sums.items()) if cents >= least * 100]
        rows.append((word, sum(sums.values())))
        return "".join(f"{name} {cents // 100}.{cents % 100:02d}\n" for name, cents in rows)

    def table(count: int) -> str:
        names = draft.some(PRODUCTS, 4)
        text = ""
        for _ in range(count):
            text += draft.pick("", "", "", "\n", f"# {draft.pick(*names)}\n")
            text += separator.join(
                [draft.pick(*names), str(draft.number(1, 9)), f"{draft.number(0, 30)}.{draft.number(10, 99)}"]
            )
            text += "\n"
        return text

    code = (
        "sums = {}\nfor line in lines:\n    if line and not line.startswith('#'):\n"
        f"        name, quantity, price = line.split('{separator}')\n"
        "        sums[name] = sums.get(name, 0) + int(quantity) * int(price.replace('.', ''))\n"
        f"rows = [(name, cents) for name, cents in sorted(sums.items()) if cents >= {least} * 100]\n"
        f"rows.append(('{word}', sum(sums.values())))\n"
        "for name, cents in rows:\n    print(f'{name} {cents // 100}.{cents % 100:02d}')"
    )
    exact = separator.join(["zeta", "1", f"{least}.00"]) + "\n" + separator.join(["Zeta", "1", "0.05"]) + "\n"
    mixed = "".join(separator.join([name, "1", f"{least}.05"]) + "\n" for name in ("beta", "alpha", "Zeta"))
    hidden = [table(8), exact, "", "# nothing\n\n", table(20), mixed]
    example = table(4).replace("\n\n", "\n").lstrip("\n")
    _program(draft, rules, ([], example), [([], text) for text in hidden], answer, code)


FAMILY = Family("scripting", "Write a program that passes hidden cases", (_arguments, _filter, _table), ("python3",))
