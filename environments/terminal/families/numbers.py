"""Family: calculations over columns and matrices of whole numbers."""

from __future__ import annotations

from .draft import Draft, breach, python, swap
from .family import Family
from .vocabulary import CITIES

__all__ = ["FAMILY"]


def _statistics(draft: Draft) -> None:
    root = draft.project()
    source = f"{root}/{draft.pick('measurements', 'samples', 'readings')}.txt"
    target = f"{root}/{draft.pick('statistics', 'summary', 'stats')}.json"
    values = [draft.number(-500, 5000) for _ in range(draft.pick(12, 20, 25, 33, 50))]
    values[0], values[1], values[2] = 9, 100, -draft.number(1, 500)
    text = "".join(draft.pick(f"{v}\n", f"{v}\n", f"  {v}\n", f"{v}\n\n", f"n/a\n{v}\n") for v in values)
    draft.file(source, "n/a\n" + text, keep=True)
    ordered = sorted(values)
    middle = len(values) // 2
    median = ordered[middle] if len(values) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
    value = {"count": len(values), "min": ordered[0], "max": ordered[-1], "sum": sum(values), "median": median}
    value_check = "* has the right value"
    numbers = f'[int(line) for line in open({source!r}) if line.strip() not in ("", "n/a")]'
    even = median != ordered[middle]
    draft.honest("JSON on many lines", swap=('"w"))', '"w"), indent=4, sort_keys=True)'))
    draft.honest("with a newline", after=f"echo >> {target}")
    draft.honest(
        "by awk",
        instead=f"grep -v n/a {source} | grep . | sort -n | awk '{{ v[NR] = $1; s += $1 }} "
        "END { m = int((NR + 1) / 2); "
        f'printf "{{\\"count\\": %d, \\"min\\": %d, \\"max\\": %d, \\"sum\\": %d, \\"median\\": %.1f}}", '
        f"NR, v[1], v[NR], s, (v[m] + v[NR + 1 - m]) / 2 }}' > {target}",
    )
    draft.say(
        draft.pick(
            f"Compute some statistics of the numbers in {source}.", f"{source} has measured values, one per line."
        ),
        "There is a whole number on each line, possibly negative, perhaps with spaces around it;",
        draft.require(
            "empty lines and lines that say n/a are to be ignored.",
            breach(
                "n/a as 0",
                value_check,
                swap=(numbers, f'[int(line.replace("n/a", "0")) for line in open({source!r}) if line.strip()]'),
            ),
            breach("negative numbers ignored", value_check, swap=('("", "n/a")]', '("", "n/a") and "-" not in line]')),
        ),
        draft.require(
            f"Write a JSON object to {target} with the keys count, min, max, sum and median.",
            breach("another key", value_check, swap=('"max":', '"maximum":')),
            breach("the max twice", value_check, swap=('"min": min(', '"min": max(')),
            breach("the sum without signs", value_check, swap=("sum(values)", "sum(map(abs, values))")),
            breach("lines counted", value_check, swap=("len(values)", f"len(open({source!r}).readlines())")),
            breach("a key left out", value_check, swap=('"count": len(values), ', "")),
            breach("a key more", value_check, swap=('"count":', '"mean": 0, "count":')),
            breach("numbers as text", value_check, swap=("len(values)", "str(len(values))")),
            breach("a list", value_check, after=f"sed -i 's/.*/[&]/' {target}"),
            breach("no JSON", value_check, after=f"tr '\"' \"'\" < {target} > ~/t; cat ~/t > {target}"),
        ),
        draft.require(
            "The median of an even number of values is the mean of the two in the middle (exactly: it may end in .5).",
            breach("the mean of all", value_check, swap=("statistics.median(", "statistics.mean(")),
            *(
                [breach("the lower of the two", value_check, swap=("statistics.median(", "statistics.median_low("))]
                if even
                else []
            ),
        ),
        draft.leave(),
    )
    draft.initial.absent(target)
    draft.final.json(target, value)
    oracle = python(
        """
        import json, statistics
        values = [int(line) for line in open(@source@) if line.strip() not in ("", "n/a")]
        json.dump({
            "count": len(values), "min": min(values), "max": max(values), "sum": sum(values),
            "median": statistics.median(values),
        }, open(@target@, "w"))
        """,
        source=source,
        target=target,
    )
    near = swap(oracle, '("", "n/a")]', '("", "n/a")]\nvalues = [abs(value) for value in values[:-1]]')
    draft.solve(oracle, near, str(value))


def _matrix(draft: Draft) -> None:
    root = draft.project()
    rows, inner, columns = (draft.number(2, 6) for _ in range(3))
    rows += rows == columns
    a = [[draft.number(-20, 99) for _ in range(inner)] for _ in range(rows)]
    b = [[draft.number(-20, 99) for _ in range(columns)] for _ in range(inner)]
    names = draft.pick(("a", "b"), ("left", "right"), ("first", "second"))
    for name, matrix in zip(names, (a, b), strict=True):
        draft.file(f"{root}/{name}.txt", "".join(" ".join(map(str, row)) + "\n" for row in matrix), keep=True)
    transposed = draft.chance(0.4)
    product = [[sum(a[i][k] * b[k][j] for k in range(inner)) for j in range(columns)] for i in range(rows)]
    shown = [list(column) for column in zip(*product, strict=True)] if transposed else product
    target = f"{root}/{draft.pick('product', 'result', 'c')}.txt"
    expected = "".join(" ".join(map(str, row)) + "\n" for row in shown)
    right = "* has the right lines"
    draft.pieces(target)
    draft.honest(
        "one number after the other",
        swap=("sum(x * y for x, y in zip(row, column))", "sum(map(lambda x, y: x * y, row, column))"),
    )
    draft.say(
        draft.pick(
            f"Multiply two matrices for me: {root}/{names[0]}.txt and {root}/{names[1]}.txt.",
            f"{root}/{names[0]}.txt and {root}/{names[1]}.txt each hold a matrix of whole numbers.",
        ),
        "Each line is a row, with the numbers separated by spaces.",
        draft.require(
            f"Compute the matrix product {names[0]} times {names[1]} (in this order)"
            f"{' and transpose it' if transposed else ''}.",
            breach("transposed or not", right, swap=(f"if {transposed}:", f"if {not transposed}:")),
            breach("another order", right, swap=("for row in a]", "for row in list(zip(*b))[:len(a)]]")),
            breach("a number that is not right", right, after=f"sed -i '1s/^/1/; 1s/^1-/-1/' {target}"),
        ),
        draft.require(
            f"Write the result to {target} in the same form,",
            breach("rows in another order", "lines of * are in order", after=f"tac {target} > ~/t; cat ~/t > {target}"),
            breach("a row left out", right, after=f"sed -i '$d' {target}"),
            breach("commas", right, after=f"sed -i 's/ /,/g' {target}"),
        ),
        draft.require(
            "with single spaces between the numbers and none at the ends of lines.",
            breach("two spaces", right, after=f"sed -i 's/ /  /' {target}"),
            breach("a space at the end", right, after=f"sed -i 's/$/ /' {target}"),
            breach("a space at the beginning", right, after=f"sed -i 's/^/ /' {target}"),
        ),
        draft.every_line(target),
        draft.leave(),
    )
    draft.result(target, expected)
    oracle = python(
        """
        def read(path):
            return [[int(number) for number in line.split()] for line in open(path)]
        a, b = read(@a@), read(@b@)
        product = [[sum(x * y for x, y in zip(row, column)) for column in zip(*b)] for row in a]
        if @transposed@:
            product = list(zip(*product))
        open(@target@, "w").write("".join(" ".join(map(str, row)) + "\\n" for row in product))
        """,
        a=f"{root}/{names[0]}.txt",
        b=f"{root}/{names[1]}.txt",
        transposed=transposed,
        target=target,
    )
    draft.solve(oracle, swap(oracle, f"if {transposed}:", f"if {not transposed}:"), expected)


def _moving(draft: Draft) -> None:
    root = draft.project()
    source = f"{root}/{draft.pick('daily', 'visitors', 'output')}.csv"
    target = source.replace(".csv", "-moving.csv")
    window = draft.number(3, 5)
    names = draft.some(CITIES, 2)
    count = draft.number(12, 20)
    series = [[draft.number(0, 900) for _ in range(count)] for _ in names]
    for values in series:  # the highest total occurs twice, at the end
        values[-2] += 5000
        values[-1] = values[-1 - window]
    lines = [f"{day},{a},{b}\n" for day, (a, b) in enumerate(zip(*series, strict=True), 1)]
    draft.file(source, f"day,{','.join(names)}\n" + "".join(lines), keep=True)
    expected = [["day", *names, "record"]]
    best = -1
    for day in range(window - 1, count):
        sums = [sum(values[day - window + 1 : day + 1]) for values in series]
        record = sum(sums) > best
        best = max(best, sum(sums))
        expected.append([str(day + 1), *map(str, sums), "yes" if record else "no"])
    right = "* has the right records"
    draft.honest("every field quoted", swap=("csv.writer(target)", "csv.writer(target, quoting=csv.QUOTE_ALL)"))
    draft.honest("a byte-order mark", swap=('"w") as', '"w", encoding="utf-8-sig") as'))
    draft.honest("plain newlines", swap=("csv.writer(target)", 'csv.writer(target, lineterminator="\\n")'))
    draft.say(
        draft.pick(f"Compute moving sums over {source}.", f"I'd like {source} smoothed by a moving sum."),
        f"The columns are day (1, 2, 3 and so on), {names[0]} and {names[1]}.",
        draft.require(
            f"Write {target} as CSV with the header day,{names[0]},{names[1]},record.",
            breach("another header", "* has the right header", after=f"sed -i 1s/record/highest/ {target}"),
            breach("no header", "* has the right header", "* has the right records", after=f"sed -i 1d {target}"),
        ),
        draft.require(
            f"For each day from day {window} on there is one record,",
            breach("the days before too", right, swap=(f"range({window}, ", "range(1, ")),
            breach("the last day left out", right, after=f"sed -i '$d' {target}"),
        ),
        draft.require(
            "in order:",
            breach(
                "backwards",
                "records of * are in order",
                after=f"(head -n 1 {target}; tail -n +2 {target} | tac) > ~/t; cat ~/t > {target}",
            ),
        ),
        draft.require(
            f"the day, and for both columns the sum of the values of that day and the {window - 1} days before it.",
            breach("one day less", right, swap=(f"rows[end - {window}:end]", f"rows[end - {window}:end - 1]")),
            breach("days counted from 0", right, swap=("writerow([end,", "writerow([end - 1,")),
            breach("the columns changed", right, swap=("in (1, 2)", "in (2, 1)")),
        ),
        draft.require(
            "The last field is yes if the total of the two sums is higher than on every earlier day of the result, and "
            "no otherwise;",
            breach("higher than the day before", right, swap=("best = max(best, sum(sums))", "best = sum(sums)")),
            breach("as high as on an earlier day", right, swap=("sum(sums) > best", "sum(sums) >= best")),
            breach("yes on all days", right, swap=("if sum(sums) > best", "if sums")),
            breach("other words", right, swap=('"yes" if', '"Yes" if')),
        ),
        draft.require(
            "on the first day of the result it is yes.",
            breach("no on the first day", right, swap=('"yes" if sum(sums) > best', '"yes" if sum(sums) > best > -1')),
        ),
        draft.leave(),
    )
    draft.initial.absent(target)
    draft.final.rows(target, expected)
    oracle = python(
        """
        import csv
        header, *rows = csv.reader(open(@source@))
        rows = [list(map(int, row)) for row in rows]
        best = -1
        with open(@target@, "w") as target:
            writer = csv.writer(target)
            writer.writerow([*header, "record"])
            for end in range(@window@, len(rows) + 1):
                part = rows[end - @window@:end]
                sums = [sum(row[column] for row in part) for column in (1, 2)]
                writer.writerow([end, *sums, "yes" if sum(sums) > best else "no"])
                best = max(best, sum(sums))
        """,
        source=source,
        target=target,
        window=window,
    )
    draft.solve(oracle, swap(oracle, f"rows[end - {window}:end]", f"rows[end - {window}:end - 1]"), str(expected))


def _integers(draft: Draft) -> None:
    root = draft.project()
    source = f"{root}/{draft.pick('numbers', 'input', 'values')}.txt"
    target = f"{root}/{draft.pick('factors', 'output', 'factored')}.txt"
    numbers = [1, 2, draft.pick(49, 121, 169), 2 ** draft.number(5, 20), draft.pick(7919, 104729, 15485863)]
    numbers += [draft.number(2, 10**6) for _ in range(draft.number(5, 10))]
    numbers = draft.shuffled(numbers)
    draft.file(source, "".join(f"{number}\n" for number in numbers), keep=True)
    lines: list[str] = []
    for number in numbers:
        rest, factors, divisor = number, list[str](), 2
        while divisor * divisor <= rest:
            power = 0
            while rest % divisor == 0:
                rest //= divisor
                power += 1
            if power:
                factors.append(f"{divisor}^{power}" if power > 1 else str(divisor))
            divisor += 1
        if rest > 1:
            factors.append(str(rest))
        kind = "prime" if factors == [str(number)] else "unit" if number == 1 else "composite"
        lines.append(f"{number}: {' * '.join(factors) or '1'} ({kind})\n")
    right = "* has the right lines"
    draft.pieces(target)
    draft.honest("counted in another way", swap=("powers[divisor] += 1", "powers.update([divisor])"))
    draft.say(
        draft.pick(f"Factorise the numbers in {source}.", f"{source} has a positive whole number on each line."),
        draft.require(
            f"Write a line for each of them to {target}, in the same order:",
            breach("backwards", "lines of * are in order", after=f"tac {target} > ~/t; cat ~/t > {target}"),
            breach("a number left out", right, after=f"sed -i '$d' {target}"),
        ),
        draft.require(
            "\n    NUMBER: FACTORS (KIND)",
            breach("no colon", right, swap=("{number}: ", "{number} ")),
            breach("other brackets", right, swap=("({kind})", "[{kind}]")),
        ),
        draft.require(
            "\nFACTORS are the prime factors in ascending order,",
            breach("descending order", right, swap=("in powers.items())", "in reversed(powers.items()))")),
            breach("1 among them", right, swap=("{factors or 1}", "1 * {factors}")),
        ),
        draft.require("joined by ' * ';", breach("joined without spaces", right, swap=('" * ".join', '"*".join'))),
        draft.require(
            "a prime that occurs more than once is written once with its exponent, like 2^3.",
            breach("no exponent of 2", right, swap=("if power > 1", "if power > 2")),
            breach("exponents of 1", right, swap=("if power > 1", "if power > 0")),
            breach("another sign", right, swap=("{prime}^{power}", "{prime}**{power}")),
        ),
        draft.require(
            "KIND is prime or composite.",
            breach("no primes", right, swap=('"prime" if powers[number] else ', "")),
            breach("other words", right, swap=('else "composite"', 'else "not prime"')),
        ),
        draft.require(
            "The number 1 gives the line '1: 1 (unit)',",
            breach("1 is composite", right, swap=('"unit" if number == 1 else ', "")),
            breach("no factor of 1", right, swap=("{factors or 1}", "{factors}")),
        ),
        "360 would give '360: 2^3 * 3^2 * 5 (composite)' and 13 would give '13: 13 (prime)'.",
        draft.every_line(target),
        draft.leave(),
    )
    draft.result(target, "".join(lines))
    oracle = python(
        """
        import collections
        with open(@target@, "w") as target:
            for number in map(int, open(@source@)):
                powers, rest, divisor = collections.Counter(), number, 2
                while rest > 1:
                    if rest % divisor == 0:
                        powers[divisor] += 1
                        rest //= divisor
                    else:
                        divisor = divisor + 1 if divisor * divisor <= rest else rest
                factors = " * ".join(f"{prime}^{power}" if power > 1 else str(prime) for prime, power in powers.items())
                kind = "unit" if number == 1 else "prime" if powers[number] else "composite"
                print(f"{number}: {factors or 1} ({kind})", file=target)
        """,
        source=source,
        target=target,
    )
    draft.solve(oracle, swap(oracle, "if power > 1", "if power > 2"), "".join(lines))


FAMILY = Family(
    "numbers",
    "Statistics, matrices, moving sums, prime factors",
    (_statistics, _matrix, _moving, _integers),
    ("python3",),
)
