"""Forbidden changes and other solutions of the family `log_analysis`."""

from tests.environments.terminal_families.ways import after, instead, swap

FORBIDDEN = {
    "_statuses": {
        "Count its «method» requests (no others) by status code, the number after the quoted request.": [
            swap('$6 == "\\"«method»" ', ""),
            swap('$6 == "\\"«method»"', '$6 == "\\"«method»" || $6 == "\\"PUT"'),
        ],
        "Write «target» with one line per status": [after("echo 511 0 >> «target»"), after("sed -i 1d «target»")],
        "the code, one space, the count;": [
            after("sed -i 's/ /\\t/' «target»"),
            after("sed -Ei 's/(.*) (.*)/\\2 \\1/' «target»"),
        ],
        "lowest code first.": [swap("sort -n", "sort -nr")],
    },
    "_clients": {
        "Consider only requests whose path begins with «prefix»/": [
            swap(' && index($7, "«prefix»/") == 1', ""),
            swap('"«prefix»/") == 1', '"«prefix»-") + index($7, "«prefix»/") == 1'),
        ],
        "and whose status code is below 400.": [swap("$9 < 400 && ", ""), swap("$9 < 400", "$9 <= 400")],
        "Add up the bytes sent (the last field of each line)": [swap("+= $NF", "+= 1")],
        "Write the «top»": [swap("head -n «top»", "head -n «top + 1»")],
        "CSV with the header client,bytes": [swap("echo client,bytes", "true"), after("sed -i 's/,/;/' «target»")],
        "most bytes first.": [
            swap("2,2nr", "2,2n"),
            after("{ head -n 1 «target»; tail -n +2 «target» | LC_ALL=C sort; } > ~/x && mv ~/x «target»"),
        ],
        "Equal totals are ordered by address in": [swap("-k 1,1 |", "-k 1,1r |")],
    },
    "_hours": {
        "For every hour from": [swap("«last» + 1", "«last»"), swap("range(«first»,", "range(«first» + 1,")],
        "with three fields separated by tabs:": [
            after("sed -i 's/\\t/ /g' «target»"),
            after("sed -i '1i hour\\trequests\\terrors' «target»"),
        ],
        "the hour in two digits,": [swap("{hour:02d}", "{hour}")],
        "the number of all": [swap("{requests}", "{requests - errors}"), swap("[0] += 1", "[0] += status == 200")],
        "and the number of those": [swap("status >= 500", "status > 500")],
        "Earliest hour first.": [after("tac «target» > ~/x && mv ~/x «target»")],
    },
    "_jobs": {
        "other messages about a job mean nothing.": [swap("started$", "started"), swap("finished$", "finished")],
        "finished, an object that maps the name of each finished job to its duration in whole seconds;": [
            swap("at - started[found[1]]", "(at - started[found[1]]) // 60"),
            swap("hours * 3600 + ", ""),
        ],
        "failed, an array of the names of the jobs that failed;": [
            swap('"failed": sorted(failed)', '"failed": {name: "" for name in failed}')
        ],
        "unfinished, an array of the names of those that": [swap(" - {*failed}", ""), swap(" - {*finished}", "")],
        "No other keys.": [swap('"unfinished": unfinished', '"unfinished": unfinished, "jobs": len(started)')],
        "Sort both arrays alphabetically.": [
            swap('"failed": sorted(failed)', '"failed": sorted(failed)[::-1]'),
            swap('"unfinished": unfinished', '"unfinished": unfinished[::-1]'),
        ],
    },
}
HONEST = {
    "_statuses": [
        instead(
            "grep -F ' \"«method» ' «source» | cut -d ' ' -f 9 | sort | uniq -c | while read -r count code; do\n"
            '  echo "$code $count" >> «target»\ndone\n'
        )
    ],
    "_clients": [
        instead(
            """python3 - <<'END'
import collections, csv, re
totals = collections.Counter()
for client, path, status, size in re.findall(r'^(\\S+) .*"\\S+ (\\S+) \\S+" (\\d+) (\\d+)$', open("«source»").read(), re.M):
    if path.startswith("«prefix»/") and int(status) < 400:
        totals[client] += int(size)
with open("«target»", "w", newline="") as target:
    csv.writer(target).writerows([("client", "bytes"), *sorted(sorted(totals.items()), key=lambda item: -item[1])[:«top»]])
END
"""
        ),
        after('sed -Ei \'s/(.*),(.*)/"\\1","\\2"/\' «target»'),
    ],
    "_hours": [
        instead(
            "cat «source» | awk -F '[: ]' '{ all[$5 + 0]++; bad[$5 + 0] += $12 >= 500 }\n"
            'END { for (h = «first»; h <= «last»; h++) printf "%02d\\t%d\\t%d\\n", h, all[h], bad[h] }\' > «target»\n'
        )
    ],
    "_jobs": [
        instead(
            """cd «root» && sed -nE 's/.*T(..):(..):(..).* job (\\S+) (started|finished|failed: .*)$/\\4 \\5 \\1 \\2 \\3/p' «source» |
awk '{ if ($2 == "failed:") { end[$1] = "failed"; next } at = $3 * 3600 + $4 * 60 + $5 }
$2 == "started" { begin[$1] = at } $2 == "finished" { end[$1] = at - begin[$1] }
END { for (job in begin) print job, job in end ? end[job] : "unfinished" }' | LC_ALL=C sort | python3 -c '
import json, sys
jobs = [line.split() for line in sys.stdin]
result = {key: [job for job, end in jobs if end == key] for key in ("unfinished", "failed")}
result["finished"] = {job: float(end) for job, end in jobs if end.isdigit()}
json.dump(result, open("«target»", "w"), indent=1)'
"""
        ),
        after("python3 -m json.tool --sort-keys «target» ~/laid-out.json && mv ~/laid-out.json «target»"),
    ],
}
