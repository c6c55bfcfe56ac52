"""Forbidden changes and other solutions of the family `numbers`."""

from tests.environments.terminal_families.ways import after, instead, swap

FORBIDDEN = {
    "_statistics": {
        "empty lines and lines that say n/a are to be ignored.": [
            swap(
                '[int(line) for line in open(«repr(source)») if line.strip() not in ("", "n/a")]',
                '[int(line.replace("n/a", "0")) for line in open(«repr(source)») if line.strip()]',
            )
        ],
        "Write a JSON object to": [swap('"max":', '"maximum":'), swap("sum(values)", "sum(map(abs, values))")],
        "The median of an even number of values is the mean of the two in the middle (exactly: it may end in .5).": [
            swap("statistics.median(", "statistics.mean(")
        ],
    },
    "_matrix": {
        "Compute the matrix product «names[0]» times «names[1]» (in this order)«' and transpose it' * transposed».": [
            swap("if «transposed»:", "if «not transposed»:"),
            swap("zip(row, column)", "zip(row, column[::-1])"),
        ],
        "Write the result": [after("tac «target» > ~/t; cat ~/t > «target»"), after("sed -i 's/ /,/g' «target»")],
        "with single spaces between the": [after("sed -i 's/ /  /' «target»"), after("sed -i 's/$/ /' «target»")],
    },
    "_moving": {
        "Write «target» as CSV with": [after("sed -i 1s/record/highest/ «target»"), after("sed -i 1d «target»")],
        "For each day from day «window» on": [swap("range(«window», ", "range(1, "), after("sed -i '$d' «target»")],
        "in order:": [after("(head -n 1 «target»; tail -n +2 «target» | tac) > ~/t; cat ~/t > «target»")],
        "the day, and for both columns the sum of the values of that day and the «window - 1» days before it.": [
            swap("rows[end - «window»:end]", "rows[end - «window»:end - 1]"),
            swap("in (1, 2)", "in (2, 1)"),
        ],
        "The last field is yes if the total of the two sums is higher than on every earlier day of the result, and": [
            swap("best = max(best, sum(sums))", "best = sum(sums)"),
            swap("sum(sums) > best", "sum(sums) >= best"),
        ],
        "on the first day of the result it": [swap('"yes" if sum(sums) > best', '"yes" if sum(sums) > best > -1')],
    },
    "_integers": {
        "Write a line for each": [after("tac «target» > ~/t; cat ~/t > «target»"), after("sed -i '$d' «target»")],
        "\n    NUMBER: FACTORS (KIND)": [swap("{number}: ", "{number} "), swap("({kind})", "[{kind}]")],
        "\nFACTORS are the prime factors in ascending order,": [
            swap("in powers.items())", "in reversed(powers.items()))"),
            swap("{factors or 1}", "1 * {factors}"),
        ],
        "joined by ' * ';": [swap('" * ".join', '"*".join')],
        "a prime that occurs more": [swap("if power > 1", "if power > 2")],
        "KIND is prime or composite.": [swap('"prime" if powers[number] else ', "")],
        "The number 1 gives the": [swap('"unit" if number == 1 else ', ""), swap("{factors or 1}", "{factors}")],
    },
}
HONEST = {
    "_statistics": [
        swap('"w"))', '"w"), indent=4, sort_keys=True)'),
        instead(
            "grep -v n/a «source» | grep . | sort -n | awk '{ v[NR] = $1; s += $1 } END { m = int((NR + 1) / 2)\n"
            'printf "{\\"count\\": %d, \\"min\\": %d, \\"max\\": %d, \\"sum\\": %d, \\"median\\": %.1f}", '
            "NR, v[1], v[NR], s, (v[m] + v[NR + 1 - m]) / 2 }' > «target»"
        ),
    ],
    "_matrix": [
        instead(
            """cd «root» && awk 'NR == FNR { for (j = 1; j <= NF; j++) b[FNR, j] = $j; n = NF; next }
{ for (j = 1; j <= n; j++) { s = 0; for (k = 1; k <= NF; k++) s += $k * b[k, j]; c[FNR, j] = s }; m = FNR }
END { if («int(transposed)») for (j = 1; j <= n; j++) for (i = 1; i <= m; i++) printf "%d%s", c[i, j], i < m ? " " : "\\n"
else for (i = 1; i <= m; i++) for (j = 1; j <= n; j++) printf "%d%s", c[i, j], j < n ? " " : "\\n" }' \\
«names[1]».txt «names[0]».txt > «target»
"""
        )
    ],
    "_moving": [
        swap("csv.writer(target)", "csv.writer(target, quoting=csv.QUOTE_ALL)"),
        instead(
            """awk -F, -v OFS=, 'NR == 1 { print $0, "record"; best = -1; next } { a[$1] = $2; b[$1] = $3 }
$1 >= «window» { x = y = 0; for (d = $1 - «window - 1»; d <= $1; d++) { x += a[d]; y += b[d] }
print $1, x, y, (x + y > best ? "yes" : "no"); if (x + y > best) best = x + y }' «source» > «target»
"""
        ),
    ],
    "_integers": [
        instead(
            """factor < «source» | awk '{ n = NF - 1; text = ""; number = substr($1, 1, length($1) - 1)
for (i = 2; i <= NF; i += power) { for (power = 1; $(i + power) == $i; power++);
text = text (i > 2 ? " * " : "") $i (power > 1 ? "^" power : "") }
print number ": " (n ? text " (" (n > 1 ? "composite" : "prime") ")" : "1 (unit)") }' > «target»
"""
        )
    ],
}
