"""Family: questions about log files."""

from __future__ import annotations

from collections import Counter

from .draft import Draft, breach, python, swap
from .family import Family
from .vocabulary import FIRST_NAMES, SERVICES, WORDS

__all__ = ["FAMILY"]

_LINES, _VALUE, _HEADER, _RECORDS = (f"* has the right {what}" for what in ("lines", "value", "header", "records"))
_ORDER = "records of * are in order"


def _access(draft: Draft, requests: int) -> list[tuple[str, int, str, str, int, int]]:
    """Return requests of one day: address, hour, method, path, status, bytes."""
    clients = [f"10.{draft.number(0, 20)}.{draft.number(0, 250)}.{number}" for number in draft.some(range(1, 250), 8)]
    paths = [f"/{service}/{word}" for service, word in zip(draft.some(SERVICES, 5), draft.some(WORDS, 5), strict=True)]
    return [
        (
            clients[min(draft.number(0, 7), draft.number(0, 7))],
            draft.number(0, 23),
            draft.pick("GET", "GET", "GET", "POST", "PUT"),
            draft.pick(*paths),
            draft.pick(200, 200, 200, 200, 201, 301, 404, 404, 403, 500, 502, 503),
            draft.number(40, 20000),
        )
        for _ in range(requests)
    ]


def _write_access(draft: Draft, root: str, requests: list[tuple[str, int, str, str, int, int]]) -> str:
    day = f"{draft.number(1, 28):02d}/{draft.pick('Jan', 'Mar', 'Jul', 'Oct')}/{draft.number(2020, 2025)}"
    text = ""
    for client, hour, method, path, status, size in sorted(requests, key=lambda request: request[1]):
        time = f"{day}:{hour:02d}:{draft.number(0, 59):02d}:{draft.number(0, 59):02d} +0000"
        text += f'{client} - - [{time}] "{method} {path} HTTP/1.1" {status} {size}\n'
    return draft.file(f"{root}/{draft.pick('access', 'web', 'frontend')}.log", text, keep=True)


def _statuses(draft: Draft) -> None:
    root = draft.project()
    requests = _access(draft, draft.number(50, 90))
    source = _write_access(draft, root, requests)
    target = f"{root}/{draft.pick('status', 'codes', 'summary')}.txt"
    method = draft.pick("GET", "POST")
    counts = Counter(status for _, _, verb, _, status, _ in requests if verb == method)
    expected = "".join(f"{status} {counts[status]}\n" for status in sorted(counts))
    draft.say(
        draft.pick(f"{source} is the access log of a web server.", f"Summarise the access log {source}."),
        draft.require(
            f"Count its {method} requests (no others) by status code, the number after the quoted request.",
            breach("all requests", _LINES, swap=(f'$6 == "\\"{method}" ', "")),
            breach("all other requests", _LINES, swap=("$6 ==", "$6 !=")),
            breach(
                "requests of PUT too", _LINES, swap=(f'$6 == "\\"{method}"', f'$6 == "\\"{method}" || $6 == "\\"PUT"')
            ),
            breach("by number of bytes", _LINES, swap=("count[$9]", "count[$10]")),
            breach("by the first digit of the code", _LINES, swap=("count[$9]", "count[substr($9, 1, 1)]")),
            breach("bytes in place of requests", _LINES, swap=("count[$9]++", "count[$9] += $10")),
        ),
        draft.require(
            f"Write {target} with one line per status code that occurs among them:",
            breach("a code that does not occur", _LINES, after=f"echo 511 0 >> {target}"),
            breach("a code left out", _LINES, after=f"sed -i 1d {target}"),
            breach("a line twice", _LINES, after=f"sed -i 1p {target}"),
            breach("a heading", _LINES, after=f"sed -i '1i code count' {target}"),
        ),
        draft.require(
            "the code, one space, the count;",
            breach("a colon behind the code", _LINES, after=f"sed -i 's/ /: /' {target}"),
            breach("two spaces", _LINES, after=f"sed -i 's/ /  /' {target}"),
            breach("a tab", _LINES, after=f"sed -i 's/ /\\t/' {target}"),
            breach("the count first", _LINES, after=f"sed -Ei 's/(.*) (.*)/\\2 \\1/' {target}"),
        ),
        draft.require(
            "lowest code first.",
            breach("highest code first", "lines of * are in order", swap=("sort -n", "sort -nr")),
            breach("the lowest code last", "lines of * are in order", after=f"sed -i '1{{h;d}};${{G}}' {target}"),
        ),
        draft.every_line(target),
        draft.leave(),
    )
    draft.result(target, expected)
    oracle = (
        f'awk \'$6 == "\\"{method}" {{ count[$9]++ }} END {{ for (code in count) print code, count[code] }}\' {source} '
        f"| sort -n > {target}\n"
    )
    draft.honest(
        "counted by uniq",
        instead=f"""grep -F ' "{method} ' {source} | cut -d ' ' -f 9 | sort | uniq -c | while read -r count code; do
  echo "$code $count" >> {target}
done
""",
    )
    draft.honest("written through a temporary file", after=f"cp {target} {target}.new && mv {target}.new {target}")
    draft.solve(oracle, swap(oracle, f'$6 == "\\"{method}" ', ""), expected)


def _clients(draft: Draft) -> None:
    root = draft.project()
    requests = _access(draft, draft.number(60, 110))
    clients = sorted({request[0] for request in requests})
    prefix = requests[0][3].rpartition("/")[0]
    word = draft.pick(*WORDS)
    # Large requests that do not count, spread over clients that could reach the top, and large requests that do count.
    much = (f"{prefix}-old/{word}", 200), (f"/old{prefix}/{word}", 200), (prefix, 200), (f"{prefix}/{word}", 400)
    much += (f"{prefix}/{word}", 500), (f"{prefix}/{word}", 301)
    for number, (path, status) in enumerate(much):
        size = draft.number(700_000, 800_000)
        requests.append((clients[number % len(clients)], draft.number(0, 23), "GET", path, status, size))
    # Two clients with the same total, whose addresses sort differently as text and as numbers.
    tied = (f"10.9.0.{draft.number(1, 99)}", f"10.10.0.{draft.number(1, 99)}")
    requests += [(client, draft.number(0, 23), "GET", f"{prefix}/{word}", 200, 300_000) for client in (*tied, *tied)]
    requests += [(client, draft.number(0, 23), "GET", f"{prefix}/{word}", 200, 40) for client in clients]
    source = _write_access(draft, root, requests)
    top = draft.number(3, 5)
    target = f"{root}/{draft.pick('top-clients', 'heavy-users', 'traffic')}.csv"
    totals: Counter[str] = Counter()
    for client, _, _, path, status, size in requests:
        if path.startswith(f"{prefix}/") and status < 400:
            totals[client] += size
    ordered = sorted(totals.items(), key=lambda item: (-item[1], item[0]))[:top]
    expected = [["client", "bytes"], *([client, str(total)] for client, total in ordered)]
    draft.say(
        draft.pick(f"Who causes the most traffic according to {source}?", f"Analyse the web server log {source}."),
        draft.require(
            f"Consider only requests whose path begins with {prefix}/",
            breach("whatever their path", _RECORDS, swap=(f' && index($7, "{prefix}/") == 1', "")),
            breach(
                "paths that begin like it",
                _RECORDS,
                swap=(f'"{prefix}/") == 1', f'"{prefix}-") + index($7, "{prefix}/") == 1'),
            ),
            breach("paths that contain it", _RECORDS, swap=('/") == 1', '/")')),
            breach(
                "the path itself too",
                _RECORDS,
                swap=(f'index($7, "{prefix}/") == 1', f'index($7 "/", "{prefix}/") == 1'),
            ),
        ),
        draft.require(
            "and whose status code is below 400.",
            breach("whatever their status code", _RECORDS, swap=("$9 < 400 && ", "")),
            breach("400 too", _RECORDS, swap=("$9 < 400", "$9 <= 400")),
            breach("below 300", _RECORDS, swap=("$9 < 400", "$9 < 300")),
            breach("below 500", _RECORDS, swap=("$9 < 400", "$9 < 500")),
        ),
        draft.require(
            "Add up the bytes sent (the last field of each line) for each client address (the first field).",
            breach("the number of requests", _RECORDS, swap=("+= $NF", "+= 1")),
            breach("the last request alone", _RECORDS, swap=("+= $NF", "= $NF")),
            breach("by the path", _RECORDS, swap=("total[$1]", "total[$7]")),
            breach("the status code too", _RECORDS, swap=("+= $NF", "+= $NF + $9")),
        ),
        draft.require(
            f"Write the {top} clients with the most bytes to {target} (all of them if there are fewer):",
            breach("one client more", _RECORDS, swap=(f"head -n {top}", f"head -n {top + 1}")),
            breach("one client fewer", _RECORDS, swap=(f"head -n {top}", f"head -n {top - 1}")),
            breach("those with the fewest", _RECORDS, swap=("2,2nr", "2,2n")),
        ),
        draft.require(
            "CSV with the header client,bytes and one record per client,",
            breach("another header", _HEADER, swap=("echo client,bytes", "echo address,bytes")),
            breach("semicolons", _HEADER, _RECORDS, after=f"sed -i 's/,/;/' {target}"),
            breach("one more column", _HEADER, _RECORDS, after=f"sed -i 's/$/,more/' {target}"),
            breach("one record twice", _RECORDS, after=f"sed -i '$p' {target}"),
        ),
        draft.require(
            "most bytes first.",
            breach(
                "fewest bytes first",
                _ORDER,
                after=f"{{ head -n 1 {target}; tail -n +2 {target} | tac; }} > ~/x && mv ~/x {target}",
            ),
            breach(
                "by address",
                _ORDER,
                after=f"{{ head -n 1 {target}; tail -n +2 {target} | LC_ALL=C sort; }} > ~/x && mv ~/x {target}",
            ),
        ),
        draft.require(
            "Equal totals are ordered by address in byte order.",
            breach("equal totals backwards", _ORDER, swap=("-k 1,1 |", "-k 1,1r |")),
            breach("equal totals by address as numbers", _ORDER, swap=("-k 1,1 |", "-k 1,1V |")),
        ),
        draft.leave(),
    )
    draft.initial.absent(target)
    draft.final.rows(target, expected)
    oracle = (
        f'{{ echo client,bytes\nawk \'$9 < 400 && index($7, "{prefix}/") == 1 {{ total[$1] += $NF }} '
        f'END {{ for (client in total) print client "," total[client] }}\' {source} '
        f"| LC_ALL=C sort -t , -k 2,2nr -k 1,1 | head -n {top}; }} > {target}\n"
    )
    draft.honest("every field quoted", after=f'sed -Ei \'s/(.*),(.*)/"\\1","\\2"/\' {target}')
    draft.honest("line ends of CSV", after=f"sed -i 's/$/\\r/' {target}")
    draft.honest("a byte-order mark", after=f"sed -i '1s/^/\\xef\\xbb\\xbf/' {target}")
    draft.solve(oracle, swap(oracle, "echo client,bytes", "true"), str(expected))


def _hours(draft: Draft) -> None:
    root = draft.project()
    target = f"{root}/{draft.pick('errors-by-hour', 'hourly', 'error-rate')}.tsv"
    first = draft.number(0, 9)
    last = first + draft.number(5, 11)
    empty = draft.number(first + 1, last - 1)
    requests = [request for request in _access(draft, draft.number(70, 120)) if request[1] != empty]
    requests += [
        (requests[0][0], hour, "GET", requests[0][3], status, draft.number(40, 9000))
        for hour in (first, last)
        for status in (200, 404, 500, 503)
    ]
    source = _write_access(draft, root, requests)
    lines: list[str] = []
    for hour in range(first, last + 1):
        here = [status for _, when, _, _, status, _ in requests if when == hour]
        lines.append(f"{hour:02d}\t{len(here)}\t{sum(status >= 500 for status in here)}\n")
    draft.say(
        draft.pick(f"I want hourly figures from {source}.", f"When did the errors in {source} happen?"),
        draft.require(
            f"For every hour from {first:02d} to {last:02d} (both included, hours without requests too), write a line "
            f"to {target}",
            breach("the last hour left out", _LINES, swap=(f"{last} + 1", f"{last}")),
            breach("the first hour left out", _LINES, swap=(f"range({first},", f"range({first} + 1,")),
            breach("an hour more", _LINES, swap=(f"{last} + 1", f"{last} + 2")),
            breach("all hours of the day", _LINES, swap=(f"range({first}, {last} + 1)", "range(24)")),
            breach("no hours without requests", _LINES, after=f"sed -i /\\\\t0\\\\t0/d {target}"),
            breach("no hours without errors", _LINES, after=f"sed -i '/\\t0$/d' {target}"),
        ),
        draft.require(
            "with three fields separated by tabs:",
            breach("separated by spaces", _LINES, after=f"sed -i 's/\\t/ /g' {target}"),
            breach("separated by commas", _LINES, after=f"sed -i 's/\\t/,/g' {target}"),
            breach("a fourth field", _LINES, after=f"sed -i 's/$/\\t0/' {target}"),
            breach("a heading", _LINES, after=f"sed -i '1i hour\\trequests\\terrors' {target}"),
            breach("a tab at the end", _LINES, after=f"sed -i 's/$/\\t/' {target}"),
        ),
        draft.require(
            "the hour in two digits,",
            breach("the hour in one digit", _LINES, swap=("{hour:02d}", "{hour}")),
            breach("the hour with minutes", _LINES, swap=("{hour:02d}", "{hour:02d}:00")),
            breach("the next hour", _LINES, swap=("{hour:02d}", "{hour + 1:02d}")),
        ),
        draft.require(
            "the number of all requests in that hour,",
            breach("requests without errors", _LINES, swap=("{requests}", "{requests - errors}")),
            breach("successful requests", _LINES, swap=("[0] += 1", "[0] += status == 200")),
            breach(
                "all requests up to then",
                _LINES,
                swap=(
                    "    counts[hour][0] += 1\n",
                    "    for later in range(hour, 24): counts.get(later, [0, 0])[0] += 1\n",
                ),
            ),
        ),
        draft.require(
            "and the number of those with a status code of 500 or above.",
            breach("above 500", _LINES, swap=("status >= 500", "status > 500")),
            breach("just 500", _LINES, swap=("status >= 500", "status == 500")),
            breach("400 or above", _LINES, swap=("status >= 500", "status >= 400")),
        ),
        draft.require(
            "Earliest hour first.",
            breach("latest hour first", "lines of * are in order", after=f"tac {target} > ~/x && mv ~/x {target}"),
            breach("sorted by requests", "lines of * are in order", after=f"sort -k 2,2n -o {target} {target}"),
        ),
        draft.every_line(target),
        draft.leave(),
    )
    draft.result(target, "".join(lines))
    oracle = python(
        """
        import re
        counts = {hour: [0, 0] for hour in range(@first@, @last@ + 1)}
        for line in open(@source@):
            hour, status = int(line.split(":")[1]), int(line.split()[8])
            if hour in counts:
                counts[hour][0] += 1
                counts[hour][1] += status >= 500
        with open(@target@, "w") as target:
            for hour, (requests, errors) in counts.items():
                print(f"{hour:02d}\\t{requests}\\t{errors}", file=target)
        """,
        source=source,
        target=target,
        first=first,
        last=last,
    )
    draft.honest(
        "counted by awk",
        instead=f"""cat {source} | awk -F '[: ]' '{{ all[$5 + 0]++; bad[$5 + 0] += $12 >= 500 }}
END {{ for (h = {first}; h <= {last}; h++) printf "%02d\\t%d\\t%d\\n", h, all[h], bad[h] }}' > {target}
""",
    )
    draft.honest("written through a temporary file", after=f"cp {target} {target}.new && mv {target}.new {target}")
    draft.solve(oracle, swap(oracle, f"{last} + 1", f"{last}"), "".join(lines))


def _jobs(draft: Draft) -> None:
    root = draft.project()
    source = f"{root}/{draft.pick('jobs', 'worker', 'batch')}.log"
    target = f"{root}/{draft.pick('jobs', 'durations', 'report')}.json"
    jobs = [f"{name.lower()}-{draft.number(100, 999)}" for name in draft.some(FIRST_NAMES, draft.number(7, 12))]
    events: list[tuple[int, str]] = []
    finished: dict[str, int] = {}
    failed: list[str] = []
    unfinished: list[str] = []
    for index, job in enumerate(jobs):
        start = draft.number(0, 70000)
        seconds = draft.number(4000 if index == 0 else 4, 9000)
        events.append((start, f"INFO job {job} started"))
        if draft.chance(0.4):
            events.append((start + 1, f"WARN job {job} is slow: not finished in time?"))
        kind = (0, 1, 2, 1, 2, 0, 0)[index] if index < 7 else draft.pick(0, 0, 0, 1, 2)
        if index in (0, 2):
            events.append((start + 2, f"WARN job {job} failed once, trying again"))
        if index in (1, 4):
            events.append((start + 3, f"INFO job {job} finished part {draft.number(1, 9)}"))
        if index in (0, 1):
            events.append((start + 3, f"INFO job {job} started a helper"))
        if kind == 0:
            finished[job] = seconds
            events.append((start + seconds, f"INFO job {job} finished"))
        elif kind == 1:
            failed.append(job)
            events.append((start + seconds, f"ERROR job {job} failed: {draft.pick(*WORDS)}"))
        else:
            unfinished.append(job)
    day = f"{draft.number(2021, 2025)}-{draft.number(1, 12):02d}-{draft.number(1, 28):02d}"
    lines = [
        f"{day}T{at // 3600:02d}:{at // 60 % 60:02d}:{at % 60:02d} {message}\n"
        for at, message in sorted(events, key=lambda event: event[0])
    ]
    draft.file(source, "".join(lines), keep=True)
    value = {"finished": finished, "failed": sorted(failed), "unfinished": sorted(unfinished)}
    draft.say(
        draft.pick(f"How did the jobs in {source} go?", f"Evaluate the job log {source}."),
        "Its lines are a time, a level and a message.",
        "A job starts with the message 'job NAME started' and ends with 'job NAME finished' or 'job NAME failed: "
        "REASON';",
        draft.require(
            "other messages about a job mean nothing.",
            breach("all that begins with started", _VALUE, swap=("started$", "started")),
            breach("all that begins with finished", _VALUE, swap=("finished$", "finished")),
            breach("all that begins with failed", _VALUE, swap=("failed: ", "failed")),
            breach("whatever speaks of finished", _VALUE, swap=(" finished$", " .*finished")),
        ),
        "All times are of one day.",
        f"Write a JSON object to {target} with three keys:",
        draft.require(
            "finished, an object that maps the name of each finished job to its duration in whole seconds;",
            breach("minutes", _VALUE, swap=("at - started[found[1]]", "(at - started[found[1]]) // 60")),
            breach("the time it finished", _VALUE, swap=("at - started[found[1]]", "at")),
            breach("hours left out", _VALUE, swap=("hours * 3600 + ", "")),
            breach("durations as text", _VALUE, swap=("at - started[found[1]]", "str(at - started[found[1]])")),
            breach("names alone", _VALUE, swap=('"finished": finished', '"finished": sorted(finished)')),
            breach(
                "failed jobs too",
                _VALUE,
                swap=(
                    "failed.append(found[1])",
                    "failed.append(found[1]); finished[found[1]] = at - started[found[1]]",
                ),
            ),
            breach(
                "a job left out", _VALUE, swap=('"finished": finished', '"finished": dict([*finished.items()][1:])')
            ),
            breach("one second more", _VALUE, swap=("at - started[found[1]]", "at - started[found[1]] + 1")),
        ),
        draft.require(
            "failed, an array of the names of the jobs that failed;",
            breach(
                "an object with reasons",
                _VALUE,
                swap=('"failed": sorted(failed)', '"failed": {name: "" for name in failed}'),
            ),
            breach("the number of failed jobs", _VALUE, swap=('"failed": sorted(failed)', '"failed": len(failed)')),
            breach("a failed job left out", _VALUE, swap=('"failed": sorted(failed)', '"failed": sorted(failed)[1:]')),
        ),
        draft.require(
            "unfinished, an array of the names of those that started but neither finished nor failed.",
            breach("failed jobs among the unfinished", _VALUE, swap=(" - {*failed}", "")),
            breach("finished jobs among the unfinished", _VALUE, swap=(" - {*finished}", "")),
            breach("all jobs", _VALUE, swap=(" - {*finished} - {*failed}", "")),
            breach("no unfinished jobs", _VALUE, swap=("unfinished = sorted(", "unfinished = [] and (")),
        ),
        draft.require(
            "No other keys.",
            breach(
                "one more key",
                _VALUE,
                swap=('"unfinished": unfinished', '"unfinished": unfinished, "jobs": len(started)'),
            ),
        ),
        draft.require(
            "Sort both arrays alphabetically.",
            breach(
                "failed jobs backwards", _VALUE, swap=('"failed": sorted(failed)', '"failed": sorted(failed)[::-1]')
            ),
            breach(
                "unfinished jobs backwards", _VALUE, swap=('"unfinished": unfinished', '"unfinished": unfinished[::-1]')
            ),
        ),
        draft.leave(),
    )
    draft.initial.absent(target)
    draft.final.json(target, value)
    oracle = python(
        """
        import json, re
        started, finished, failed = {}, {}, []
        for line in open(@source@):
            hours, minutes, seconds = map(int, re.search("T(..):(..):(..) ", line).groups())
            at = hours * 3600 + minutes * 60 + seconds
            if found := re.search("job ([^ ]+) started$", line):
                started[found[1]] = at
            elif found := re.search("job ([^ ]+) finished$", line):
                finished[found[1]] = at - started[found[1]]
            elif found := re.search("job ([^ ]+) failed: ", line):
                failed.append(found[1])
        unfinished = sorted({*started} - {*finished} - {*failed})
        json.dump({"finished": finished, "failed": sorted(failed), "unfinished": unfinished}, open(@target@, "w"))
        """,
        source=source,
        target=target,
    )
    draft.honest("a newline at the end", after=f"echo >> {target}")
    draft.honest(
        "another layout, keys in alphabetical order",
        after=f"python3 -m json.tool --sort-keys {target} ~/laid-out.json && mv ~/laid-out.json {target}",
    )
    draft.honest("written through a temporary file", after=f"cp {target} {target}.new && mv {target}.new {target}")
    draft.solve(oracle, swap(oracle, " - {*failed}", ""), str(value))


FAMILY = Family(
    "log_analysis", "Count, add up and match what logs say", (_statuses, _clients, _hours, _jobs), ("python3",)
)
