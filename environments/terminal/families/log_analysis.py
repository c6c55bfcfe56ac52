"""Family: questions about log files."""

from .draft import Draft, python, swap
from .family import Family
from .vocabulary import FIRST_NAMES, SERVICES, WORDS


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
    return draft.file(f"{root}/{draft.pick('access', 'web', 'frontend')}.log", text)


def _statuses(draft: Draft) -> None:
    root = draft.project()
    requests = _access(draft, draft.number(50, 90))
    source = _write_access(draft, root, requests)
    target = f"{root}/{draft.pick('status', 'codes', 'summary')}.txt"
    method = draft.pick("GET", "POST")
    draft.say(
        draft.pick(f"{source} is the access log of a web server.", f"Summarise the access log {source}."),
        f"! Count its {method} requests (no others) by status code, the number after the quoted request.",
        f"! Write {target} with one line per status code that occurs among them:",
        "! the code, one space, the count;",
        "! lowest code first.",
        draft.every_line(),
    )
    oracle = (
        f'awk \'$6 == "\\"{method}" {{ count[$9]++ }} END {{ for (code in count) print code, count[code] }}\' {source} '
        f"| sort -n > {target}\n"
    )
    draft.solve(oracle, swap(oracle, f'$6 == "\\"{method}" ', ""))


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
    draft.say(
        draft.pick(f"Who causes the most traffic according to {source}?", f"Analyse the web server log {source}."),
        f"! Consider only requests whose path begins with {prefix}/",
        "! and whose status code is below 400.",
        "! Add up the bytes sent (the last field of each line) for each client address (the first field).",
        f"! Write the {top} clients with the most bytes to {target}:",
        "! CSV with the header client,bytes and one record per client,",
        "! most bytes first.",
        "! Equal totals are ordered by address in byte order.",
    )
    draft.form(target, "csv")
    oracle = (
        f'{{ echo client,bytes\nawk \'$9 < 400 && index($7, "{prefix}/") == 1 {{ total[$1] += $NF }} '
        f'END {{ for (client in total) print client "," total[client] }}\' {source} '
        f"| LC_ALL=C sort -t , -k 2,2nr -k 1,1 | head -n {top}; }} > {target}\n"
    )
    draft.solve(oracle, swap(oracle, "echo client,bytes", "true"))


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
    draft.say(
        draft.pick(f"I want hourly figures from {source}.", f"When did the errors in {source} happen?"),
        f"! For every hour from {first:02d} to {last:02d} (both included, hours without requests too), write a line "
        f"to {target}",
        "! with three fields separated by tabs:",
        "! the hour in two digits,",
        "! the number of all requests in that hour,",
        "! and the number of those with a status code of 500 or above.",
        "! Earliest hour first.",
        draft.every_line(),
    )
    oracle = python("""
        counts = {hour: [0, 0] for hour in range(@first@, @last@ + 1)}
        for line in open(@source@):
            hour, status = int(line.split(":")[1]), int(line.split()[8])
            if hour in counts:
                counts[hour][0] += 1
                counts[hour][1] += status >= 500
        with open(@target@, "w") as target:
            for hour, (requests, errors) in counts.items():
                print(f"{hour:02d}\\t{requests}\\t{errors}", file=target)
        """)
    draft.solve(oracle, swap(oracle, f"{last} + 1", f"{last}"))


def _jobs(draft: Draft) -> None:
    root = draft.project()
    source = f"{root}/{draft.pick('jobs', 'worker', 'batch')}.log"
    target = f"{root}/{draft.pick('jobs', 'durations', 'report')}.json"
    jobs = [f"{name.lower()}-{draft.number(100, 999)}" for name in draft.some(FIRST_NAMES, draft.number(7, 12))]
    events: list[tuple[int, str]] = []
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
            events.append((start + seconds, f"INFO job {job} finished"))
        elif kind == 1:
            events.append((start + seconds, f"ERROR job {job} failed: {draft.pick(*WORDS)}"))
    day = f"{draft.number(2021, 2025)}-{draft.number(1, 12):02d}-{draft.number(1, 28):02d}"
    lines = [
        f"{day}T{at // 3600:02d}:{at // 60 % 60:02d}:{at % 60:02d} {message}\n"
        for at, message in sorted(events, key=lambda event: event[0])
    ]
    draft.file(source, "".join(lines))
    draft.say(
        draft.pick(f"How did the jobs in {source} go?", f"Evaluate the job log {source}."),
        "Its lines are a time, a level and a message.",
        "A job starts with the message 'job NAME started' and ends with 'job NAME finished' or 'job NAME failed: "
        "REASON';",
        "! other messages about a job mean nothing.",
        "All times are of one day.",
        f"Write a JSON object to {target} with three keys:",
        "! finished, an object that maps the name of each finished job to its duration in whole seconds;",
        "! failed, an array of the names of the jobs that failed;",
        "! unfinished, an array of the names of those that started but neither finished nor failed.",
        "! No other keys.",
        "! Sort both arrays alphabetically.",
    )
    draft.form(target, "json")
    oracle = python("""
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
        """)
    draft.solve(oracle, swap(oracle, " - {*failed}", ""))


FAMILY = Family(
    "log_analysis", "Count, add up and match what logs say", (_statuses, _clients, _hours, _jobs), ("python3",)
)
