"""Forbidden changes and other solutions of the family `reports`."""

from tests.environments.terminal_families.ways import after, instead, swap

FORBIDDEN = {
    "_weekly": {
        "Write «target» in exactly": [after("sed -i 's/^/    /' «target»"), after("sed -i 's/^- /* /' «target»")],
        "    # Week report: «team»\n\n    Tasks: NUMBER OF ALL TASKS\n    Hours: SUM OF ALL HOURS": [
            swap("{len(rows)}", "{sum(row[2] == 'done' for row in rows)}")
        ],
        "The section Done has a line for every person in the file": [after("sed -i '/: 0 h$/d' «target»")],
        "with the sum of the": [swap(' if state == "done" else 0', ""), swap('state == "done"', 'state != "open"')],
        "most hours first,": [swap("(-item[1], item[0])", "(item[1], item[0])")],
        "equal hours by name.": [swap("(-item[1], item[0])", "-item[1]")],
        "The section Blocked has a": [after("sed -i '$d' «target»"), swap('state == "blocked"', 'state != "done"')],
        "in the order of the file.": [
            swap(
                "person, task, state, hours in rows:\n        if",
                "person, task, state, hours in rows[::-1]:\n        if",
            )
        ],
        "The empty lines are as shown, and": [after("sed -i '/^$/d' «target»"), after("sed -i '2d;3G' «target»")],
    },
    "_table": {
        "Write «target» with": [after("sed -i '1i # Services' «target»"), after("sed -i '2s/---/:--/g' «target»")],
        "(without the indentation, which only sets it off here).": [after("sed -i 's/^/    /' «target»")],
        "There is one row for each service in requests.csv,": [
            after("sed -i '2a | intranet | «names[6]» | 0 | 0 | 0.0% |' «target»"),
            after("sed -i '/| 0 | 0.0% |$/d' «target»"),
        ],
        "sorted by name;": [swap("in sorted(rows)", "in rows")],
        "the owner is nobody where": [swap('"nobody"', '""'), swap("| {owner} |", "| {owner.split()[0]} |")],
        "The last row has the sums.": [after("sed -i '$d' «target»"), after("sed -i '3{h;d};${p;x}' «target»")],
        "R is errors divided by requests in percent with exactly one decimal,": [
            swap("{rate // 10}.{rate % 10}%", "{errors / requests:.1f}%"),
            after("sed -i 's/[.]0%/%/' «target»"),
        ],
        "rounded down (cut off), such as 0.0, 2.9 or 12.5.": [
            swap("rate = errors * 1000 // requests", "rate = round(errors * 1000 / requests)")
        ],
    },
}
HONEST = {
    "_weekly": [
        instead(
            """{ printf '# Week report: %s\\n\\nTasks: %d\\n' «team» "$(wc -l < «source»)"
awk -F '\\t' '{ sum += $4 } END { printf "Hours: %d\\n\\n## Done\\n\\n", sum }' «source»
awk -F '\\t' '{ done[$1] += $3 == "done" ? $4 : 0 } END { for (p in done) print done[p] "\\t" p }' «source» |
  LC_ALL=C sort -k 1,1nr -k 2 | awk -F '\\t' '{ print "- " $2 ": " $1 " h" }'
printf '\\n## Blocked\\n\\n'
awk -F '\\t' '$3 == "blocked" { print "- " $2 " (" $1 ")" }' «source»; } > «target»
"""
        )
    ],
    "_table": [
        instead(
            """{ printf '| Service | Owner | Requests | Errors | Rate |\\n|---|---|---|---|---|\\n'
tail -n +2 «root»/requests.csv | LC_ALL=C sort | awk -F ' = |,' '
function rate(bad, all,  x) { x = int(bad * 1000 / all); return int(x / 10) "." x % 10 "%" }
NR == FNR { owner[$1] = $2; next }
{ print "| " $1 " | " ($1 in owner ? owner[$1] : "nobody") " | " $2 " | " $3 " | " rate($3, $2) " |" }
{ n += $2; m += $3 }
END { print "| **all** | | " n " | " m " | " rate(m, n) " |" }' «root»/owners.txt -; } > «target»
"""
        )
    ],
}
