"""Questions to log files."""

from __future__ import annotations

from collections import Counter

from .draft import Draft, python, swap
from .family import Family
from .vocabulary import FIRST_NAMES, SERVICES, WORDS

__all__ = ["FAMILY"]


def _access(draft: Draft, requests: int) -> list[tuple[str, int, str, str, int, int]]:
    """Requests of one day: address, hour, method, path, status, bytes."""
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
        f"Count its {method} requests (no others) by status code, the number after the quoted request.",
        f"Write {target} with one line per status code that occurs among them: the code, one space, the count; lowest "
        "code first.",
        draft.every_line(),
        draft.leave(),
    )
    draft.initial.absent(target)
    draft.final.text(target, expected)
    oracle = (
        f'awk \'$6 == "\\"{method}" {{ count[$9]++ }} END {{ for (code in count) print code, count[code] }}\' {source} '
        f"| sort -n > {target}\n"
    )
    draft.solve(oracle, swap(oracle, f'$6 == "\\"{method}" ', ""), expected)


def _clients(draft: Draft) -> None:
    root = draft.project()
    requests = _access(draft, draft.number(60, 110))
    prefix = requests[0][3].rpartition("/")[0]
    source = _write_access(draft, root, requests)
    top = draft.number(2, 4)
    target = f"{root}/{draft.pick('top-clients', 'heavy-users', 'traffic')}.csv"
    totals: Counter[str] = Counter()
    for client, _, _, path, status, size in requests:
        if path.startswith(f"{prefix}/") and status < 400:
            totals[client] += size
    ordered = sorted(totals.items(), key=lambda item: (-item[1], item[0]))[:top]
    expected = [["client", "bytes"], *([client, str(total)] for client, total in ordered)]
    draft.say(
        draft.pick(f"Who causes the most traffic according to {source}?", f"Analyse the web server log {source}."),
        f"Consider only requests whose path begins with {prefix}/ and whose status code is below 400. Add up the "
        "bytes sent (the last field of each line) for each client address (the first field).",
        f"Write the {top} clients with the most bytes to {target} (all of them if there are fewer): CSV with the "
        "header client,bytes and one record per client, most bytes first. Equal totals are ordered by address in byte "
        "order.",
        draft.leave(),
    )
    draft.initial.absent(target)
    draft.final.rows(target, expected)
    oracle = (
        f'{{ echo client,bytes\nawk \'$9 < 400 && index($7, "{prefix}/") == 1 {{ total[$1] += $NF }} '
        f'END {{ for (client in total) print client "," total[client] }}\' {source} '
        f"| LC_ALL=C sort -t , -k 2,2nr -k 1,1 | head -n {top}; }} > {target}\n"
    )
    draft.solve(oracle, swap(oracle, "echo client,bytes", "true"), str(expected))


def _hours(draft: Draft) -> None:
    root = draft.project()
    requests = _access(draft, draft.number(70, 120))
    source = _write_access(draft, root, requests)
    target = f"{root}/{draft.pick('errors-by-hour', 'hourly', 'error-rate')}.tsv"
    first = draft.number(0, 12)
    last = first + draft.number(5, 11)
    lines: list[str] = []
    for hour in range(first, last + 1):
        here = [status for _, when, _, _, status, _ in requests if when == hour]
        lines.append(f"{hour:02d}\t{len(here)}\t{sum(status >= 500 for status in here)}\n")
    draft.say(
        draft.pick(f"I want hourly figures from {source}.", f"When did the errors in {source} happen?"),
        f"For every hour from {first:02d} to {last:02d} (both included, hours without requests too), write a line to "
        f"{target} with three fields separated by tabs: the hour in two digits, the number of all requests in that "
        "hour, and the number of those with a status code of 500 or above. Earliest hour first.",
        draft.every_line(),
        draft.leave(),
    )
    draft.initial.absent(target)
    draft.final.text(target, "".join(lines))
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
        seconds = draft.number(2, 9000)
        events.append((start, f"INFO job {job} started"))
        if draft.chance(0.4):
            events.append((start + 1, f"WARN job {job} is slow: not finished in time?"))
        kind = index if index < 3 else draft.pick(0, 0, 0, 1, 2)
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
        "Each line is a time, a level and a message. A job starts with the message 'job NAME started' and ends with "
        "'job NAME finished' or 'job NAME failed: REASON'; other messages about a job mean nothing. All times are of "
        "one day.",
        f"Write a JSON object to {target} with three keys: finished, an object that maps the name of each finished "
        "job to its duration in whole seconds; failed, an array of the names of the jobs that failed; unfinished, an "
        "array of the names of those that started but neither finished nor failed. Sort both arrays alphabetically.",
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
    draft.solve(oracle, swap(oracle, " - {*failed}", ""), str(value))


FAMILY = Family(
    "log_analysis", "Count, add up and match what logs say", (_statuses, _clients, _hours, _jobs), ("python3",)
)
