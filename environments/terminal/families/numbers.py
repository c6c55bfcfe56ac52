"""Family: calculations over columns and matrices of whole numbers."""

from .draft import Draft, python, swap
from .family import Family
from .vocabulary import CITIES


def _statistics(draft: Draft) -> None:
    root = draft.project()
    source = f"{root}/{draft.pick('measurements', 'samples', 'readings')}.txt"
    target = f"{root}/{draft.pick('statistics', 'summary', 'stats')}.json"
    # All different and of an even number, so that there are two in the middle.
    values = [9, 100, -draft.number(1, 500), *draft.some(range(101, 5000), draft.pick(9, 17, 23, 31, 47))]
    text = "".join(draft.pick(f"{v}\n", f"{v}\n", f"  {v}\n", f"{v}\n\n", f"n/a\n{v}\n") for v in values)
    draft.file(source, "n/a\n" + text)
    draft.say(
        draft.pick(
            f"Compute some statistics of the numbers in {source}.", f"{source} has measured values, one per line."
        ),
        "There is a whole number on each line, possibly negative, perhaps with spaces around it;",
        "! empty lines and lines that say n/a are to be ignored.",
        f"! Write a JSON object to {target} with the keys count, min, max, sum and median.",
        "! The median of an even number of values is the mean of the two in the middle (exactly: it may end in .5).",
    )
    draft.form(target, "json")
    oracle = python("""
        import json, statistics
        values = [int(line) for line in open(@source@) if line.strip() not in ("", "n/a")]
        json.dump({
            "count": len(values), "min": min(values), "max": max(values), "sum": sum(values),
            "median": statistics.median(values),
        }, open(@target@, "w"))
        """)
    near = swap(oracle, '("", "n/a")]', '("", "n/a")]\nvalues = [abs(value) for value in values[:-1]]')
    draft.solve(oracle, near)


def _matrix(draft: Draft) -> None:
    root = draft.project()
    rows, inner, columns = (draft.number(2, 6) for _ in range(3))
    rows += rows == columns
    a = [[draft.number(-20, 99) for _ in range(inner)] for _ in range(rows)]
    b = [[draft.number(-20, 99) for _ in range(columns)] for _ in range(inner)]
    names = draft.pick(("a", "b"), ("left", "right"), ("first", "second"))
    for name, matrix in zip(names, (a, b), strict=True):
        draft.file(f"{root}/{name}.txt", "".join(" ".join(map(str, row)) + "\n" for row in matrix))
    transposed = draft.chance(0.4)
    target = f"{root}/{draft.pick('product', 'result', 'c')}.txt"
    draft.say(
        draft.pick(
            f"Multiply two matrices for me: {root}/{names[0]}.txt and {root}/{names[1]}.txt.",
            f"{root}/{names[0]}.txt and {root}/{names[1]}.txt each hold a matrix of whole numbers.",
        ),
        "Each line is a row, with the numbers separated by spaces.",
        f"! Compute the matrix product {names[0]} times {names[1]} (in this order)"
        f"{' and transpose it' if transposed else ''}.",
        f"! Write the result to {target} in the same form,",
        "! with single spaces between the numbers and none at the ends of lines.",
        draft.every_line(),
    )
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
    )
    draft.solve(oracle, swap(oracle, f"if {transposed}:", f"if {not transposed}:"))


def _moving(draft: Draft) -> None:
    root = draft.project()
    source = f"{root}/{draft.pick('daily', 'visitors', 'output')}.csv"
    target = source.replace(".csv", "-moving.csv")
    window = draft.number(3, 5)
    names = draft.some(CITIES, 2)
    count = draft.number(12, 20)
    series = [[draft.number(0, 900) for _ in range(count)] for _ in names]
    for values in series:  # the highest total occurs twice, at the end; before, one rises without being the highest
        values[0] += 3000
        values[window + 1] = values[1] + 1
        values[-2] += 9000
        values[-1] = values[-1 - window]
    lines = [f"{day},{a},{b}\n" for day, (a, b) in enumerate(zip(*series, strict=True), 1)]
    draft.file(source, f"day,{','.join(names)}\n" + "".join(lines))
    draft.say(
        draft.pick(f"Compute moving sums over {source}.", f"I'd like {source} smoothed by a moving sum."),
        f"The columns are day (1, 2, 3 and so on), {names[0]} and {names[1]}.",
        f"! Write {target} as CSV with the header day,{names[0]},{names[1]},record.",
        f"! For each day from day {window} on there is one record,",
        "! in order:",
        f"! the day, and for both columns the sum of the values of that day and the {window - 1} days before it.",
        "! The last field is yes if the total of the two sums is higher than on every earlier day of the result, and "
        "no otherwise;",
        "! on the first day of the result it is yes.",
    )
    draft.form(target, "csv")
    oracle = python("""
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
        """)
    draft.solve(oracle, swap(oracle, f"rows[end - {window}:end]", f"rows[end - {window}:end - 1]"))


def _integers(draft: Draft) -> None:
    root = draft.project()
    source = f"{root}/{draft.pick('numbers', 'input', 'values')}.txt"
    target = f"{root}/{draft.pick('factors', 'output', 'factored')}.txt"
    numbers = [1, 2, draft.pick(49, 121, 169), 2 ** draft.number(5, 20), draft.pick(7919, 104729, 15485863)]
    numbers += [draft.number(2, 10**6) for _ in range(draft.number(5, 10))]
    numbers = draft.shuffled(numbers)
    draft.file(source, "".join(f"{number}\n" for number in numbers))
    draft.say(
        draft.pick(f"Factorise the numbers in {source}.", f"{source} has a positive whole number on each line."),
        f"! Write a line for each of them to {target}, in the same order:",
        "! \n    NUMBER: FACTORS (KIND)",
        "! \nFACTORS are the prime factors in ascending order,",
        "! joined by ' * ';",
        "! a prime that occurs more than once is written once with its exponent, like 2^3.",
        "! KIND is prime or composite.",
        "! The number 1 gives the line '1: 1 (unit)',",
        "360 would give '360: 2^3 * 3^2 * 5 (composite)' and 13 would give '13: 13 (prime)'.",
        draft.every_line(),
    )
    oracle = python("""
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
        """)
    draft.solve(oracle, swap(oracle, "if power > 1", "if power > 2"))


FAMILY = Family(
    "numbers",
    "Statistics, matrices, moving sums, prime factors",
    (_statistics, _matrix, _moving, _integers),
    ("python3",),
)
