"""Family: reports for people, compiled from several files."""

from __future__ import annotations

from .draft import Draft, breach, python, swap
from .family import Family
from .vocabulary import DEPARTMENTS, FIRST_NAMES, LAST_NAMES, PRODUCTS, SERVICES

__all__ = ["FAMILY"]

_LINES, _ORDER = "* has the right lines", "lines of * are in order"


def _weekly(draft: Draft) -> None:
    root = draft.project()
    team = draft.pick(*DEPARTMENTS)
    people = draft.some(FIRST_NAMES, draft.number(4, 6))
    # The last two people have done nothing; their order in the file differs from the order of their names.
    people[-2:] = sorted(people[-2:], reverse=True)
    rows: list[tuple[str, str, str, int]] = []
    for number in range(draft.number(9, 16)):
        person = people[number] if number < len(people) else draft.pick(*people)
        state = draft.pick("done", "done", "open", "blocked")
        if number < 4:
            state = ("done", "open", "blocked", "blocked")[number]
        elif person in people[-2:] and state == "done":
            state = "open"
        rows.append(
            (
                person,
                f"{draft.pick('Review', 'Order', 'Repair', 'Test')} {draft.pick(*PRODUCTS)}",
                state,
                draft.number(1, 16),
            )
        )
    source = draft.file(
        f"{root}/{draft.pick('tasks', 'work', 'week')}.tsv",
        "".join(f"{p}\t{t}\t{s}\t{h}\n" for p, t, s, h in rows),
        keep=True,
    )
    target = f"{root}/{draft.pick('report', 'status', 'summary')}.md"
    done = {person: sum(h for p, _, s, h in rows if p == person and s == "done") for person in people}
    lines = [
        f"# Week report: {team}",
        "",
        f"Tasks: {len(rows)}",
        f"Hours: {sum(row[3] for row in rows)}",
        "",
        "## Done",
        "",
    ]
    lines += [f"- {person}: {done[person]} h" for person in sorted(people, key=lambda p: (-done[p], p))]
    lines += ["", "## Blocked", ""]
    lines += [f"- {task} ({person})" for person, task, state, _ in rows if state == "blocked"]
    expected = "".join(f"{line}\n" for line in lines)
    draft.say(
        draft.pick(f"Write the weekly report of the team {team}.", f"I need a weekly report in Markdown for {team}."),
        f"{source} has one task per line, with four fields separated by tabs: person, task, state (done, open or "
        "blocked) and hours.",
        draft.require(
            f"Write {target} in exactly this form (the indentation is not part of it):",
            breach("another title", _LINES, after=f"sed -i '1s/Week report/Weekly report/' {target}"),
            breach("indented", _LINES, after=f"sed -i 's/^/    /' {target}"),
            breach("other bullets", _LINES, after=f"sed -i 's/^- /* /' {target}"),
            breach("headings of another level", _LINES, after=f"sed -i 's/^## /### /' {target}"),
            breach("no unit", _LINES, after=f"sed -i 's/ h$//' {target}"),
            breach("no brackets", _LINES, after=f"sed -Ei 's/ [(](.*)[)]$/ \\1/' {target}"),
            breach("spaces at the ends of lines", _LINES, after=f"sed -i 's/$/ /' {target}"),
            breach("one more section", _LINES, after=f"printf '\\n## Open\\n' >> {target}"),
            breach(
                "the headings exchanged",
                _ORDER,
                after=f"sed -i 's/^## Done/## x/;s/^## Blocked/## Done/;s/^## x/## Blocked/' {target}",
            ),
        ),
    )
    draft.say(
        draft.require(
            f"    # Week report: {team}\n\n    Tasks: NUMBER OF ALL TASKS\n    Hours: SUM OF ALL HOURS\n\n"
            "    ## Done\n\n    - PERSON: HOURS h\n    ...\n\n    ## Blocked\n\n    - TASK (PERSON)\n    ...",
            breach(
                "the number of tasks that are done",
                _LINES,
                swap=("{len(rows)}", "{sum(row[2] == 'done' for row in rows)}"),
            ),
            breach("the number of people", _LINES, swap=("{len(rows)}", "{len(done)}")),
            breach(
                "the hours of tasks that are done",
                _LINES,
                swap=("sum(int(row[3]) for row in rows)", "sum(done.values())"),
            ),
            breach("the tasks of the blocked people alone", _LINES, swap=("- {task} ({person})", "- {person}")),
            breach("the person first", _LINES, swap=("- {task} ({person})", "- {person} ({task})")),
            breach("another team", _LINES, after=f"sed -i '1s/: .*/: all teams/' {target}"),
        )
    )
    draft.say(
        draft.require(
            "The section Done has a line for every person in the file",
            breach("people who have done nothing left out", _LINES, after=f"sed -i '/: 0 h$/d' {target}"),
            breach(
                "a line for every task",
                _LINES,
                swap=("in sorted(done.items(), key", "in sorted([(row[0], done[row[0]]) for row in rows], key"),
            ),
        ),
        draft.require(
            "with the sum of the hours of their tasks that are done (0 if there are none),",
            breach("the hours of all tasks", _LINES, swap=(' if state == "done" else 0', "")),
            breach("the number of tasks", _LINES, swap=("int(hours) if", "100 if")),
            breach("blocked tasks too", _LINES, swap=('state == "done"', 'state != "open"')),
            breach("open tasks too", _LINES, swap=('state == "done"', 'state != "blocked"')),
            breach("nothing in place of 0", _LINES, after=f"sed -i 's/: 0 h$/:/' {target}"),
        ),
        draft.require(
            "most hours first,",
            breach("fewest hours first", _ORDER, swap=("(-item[1], item[0])", "(item[1], item[0])")),
        ),
        draft.require(
            "equal hours by name.",
            breach("equal hours in the order of the file", _ORDER, swap=("(-item[1], item[0])", "-item[1]")),
        ),
        draft.require(
            "The section Blocked has a line for every blocked task,",
            breach("one of them left out", _LINES, after=f"sed -i '$d' {target}"),
            breach("open tasks among the blocked", _LINES, swap=('state == "blocked"', 'state != "done"')),
        ),
        draft.require(
            "in the order of the file.",
            breach(
                "blocked tasks backwards",
                _ORDER,
                swap=(
                    "person, task, state, hours in rows:\n        if",
                    "person, task, state, hours in rows[::-1]:\n        if",
                ),
            ),
        ),
        draft.require(
            "The empty lines are as shown;",
            breach("no empty lines", _LINES, after=f"sed -i '/^$/d' {target}"),
            breach("no empty line below the hours", _LINES, after=f"sed -i '/^Hours/{{n;d}}' {target}"),
            breach("an empty line more", _LINES, after=f"sed -i '1G' {target}"),
            breach("an empty line at another place", _ORDER, after=f"sed -i '2d;3G' {target}"),
        ),
        draft.require(
            "the file ends with a single newline after the last line.",
            breach("no newline at the end", "* ends with a newline", after=f"truncate -s -1 {target}"),
            breach("an empty line at the end", _LINES, after=f"echo >> {target}"),
        ),
        draft.leave(),
    )
    draft.result(target, expected)
    oracle = python(
        """
        rows = [line.rstrip("\\n").split("\\t") for line in open(@source@)]
        done = {row[0]: 0 for row in rows}
        for person, task, state, hours in rows:
            done[person] += int(hours) if state == "done" else 0
        with open(@target@, "w") as target:
            print(f"# Week report: {@team@}\\n\\nTasks: {len(rows)}", file=target)
            print(f"Hours: {sum(int(row[3]) for row in rows)}\\n\\n## Done\\n", file=target)
            for person, hours in sorted(done.items(), key=lambda item: (-item[1], item[0])):
                print(f"- {person}: {hours} h", file=target)
            print("\\n## Blocked\\n", file=target)
            for person, task, state, hours in rows:
                if state == "blocked":
                    print(f"- {task} ({person})", file=target)
        """,
        source=source,
        target=target,
        team=team,
    )
    draft.honest(
        "by awk",
        instead=f"""
{{ printf '# Week report: %s\\n\\nTasks: %d\\n' {team} "$(wc -l < {source})"
awk -F '\\t' '{{ sum += $4 }} END {{ printf "Hours: %d\\n\\n## Done\\n\\n", sum }}' {source}
awk -F '\\t' '{{ done[$1] += $3 == "done" ? $4 : 0 }} END {{ for (p in done) print done[p] "\\t" p }}' {source} |
  LC_ALL=C sort -k 1,1nr -k 2 | awk -F '\\t' '{{ print "- " $2 ": " $1 " h" }}'
printf '\\n## Blocked\\n\\n'
awk -F '\\t' '$3 == "blocked" {{ print "- " $2 " (" $1 ")" }}' {source}; }} > {target}
""",
    )
    draft.honest("written through a temporary file", after=f"cp {target} {target}.new && mv {target}.new {target}")
    draft.solve(oracle, swap(oracle, ' if state == "done" else 0', ""), expected)


def _table(draft: Draft) -> None:
    root = draft.project()
    services = draft.some(SERVICES, draft.number(4, 6))
    names = [
        f"{first} {last}" for first, last in zip(draft.some(FIRST_NAMES, 7), draft.some(LAST_NAMES, 7), strict=True)
    ]
    owners = dict(zip(services, names, strict=False))
    owners.pop(services[1])
    requests: dict[str, tuple[int, int]] = {}
    for service in services:
        total = draft.number(2, 500) * 20
        requests[service] = (total, total * draft.number(0, 60) // 1000 if service != services[0] else 0)
    # One rate that would be rounded up; another order than the names'; an owner of a service that is not in the table.
    requests[services[2]] = (600, 3 * draft.number(1, 9) + 1)
    if services == sorted(services):
        requests = {service: requests[service] for service in services[::-1]}
    owners["intranet"] = names[6]
    draft.file(
        f"{root}/owners.txt", "".join(f"{s} = {o}\n" for s, o in draft.shuffled(list(owners.items()))), keep=True
    )
    draft.file(
        f"{root}/requests.csv",
        "service,requests,errors\n" + "".join(f"{s},{t},{e}\n" for s, (t, e) in requests.items()),
        keep=True,
    )
    target = f"{root}/{draft.pick('services', 'overview', 'health')}.md"
    lines = ["| Service | Owner | Requests | Errors | Rate |", "|---|---|---|---|---|"]
    for service in sorted(services):
        total, errors = requests[service]
        # Per mille, rounded down, so that rounding is unambiguous.
        rate = errors * 1000 // total
        lines.append(
            f"| {service} | {owners.get(service, 'nobody')} | {total} | {errors} | {rate // 10}.{rate % 10}% |"
        )
    total, errors = sum(t for t, _ in requests.values()), sum(e for _, e in requests.values())
    rate = errors * 1000 // total
    lines.append(f"| **all** | | {total} | {errors} | {rate // 10}.{rate % 10}% |")
    expected = "".join(f"{line}\n" for line in lines)
    draft.say(
        draft.pick(
            f"Make a Markdown table of the services in {root}/requests.csv.",
            "I need an overview of our services in Markdown.",
        ),
        f"{root}/requests.csv has the columns service, requests and errors; {root}/owners.txt has lines 'service = "
        "owner'.",
        draft.require(
            f"Write {target} with these lines and nothing else:",
            breach("a title", _LINES, after=f"sed -i '1i # Services' {target}"),
            breach("no line below the heading", _LINES, after=f"sed -i 2d {target}"),
            breach("another line below the heading", _LINES, after=f"sed -i '2s/---/:--/g' {target}"),
            breach("another heading", _LINES, after=f"sed -i '1s/Rate/Error rate/' {target}"),
            breach("no spaces", _LINES, after=f"sed -i 's/ | /|/g' {target}"),
            breach("columns of one width", _LINES, after=f"sed -i 's/ | /   | /' {target}"),
            breach("spaces at the ends of lines", _LINES, after=f"sed -i 's/$/ /' {target}"),
            breach("no bar at the ends of lines", _LINES, after=f"sed -i 's/ *|$//' {target}"),
        ),
    )
    draft.say(
        "    | Service | Owner | Requests | Errors | Rate |\n    |---|---|---|---|---|\n    | NAME | OWNER | N | N | "
        "R% |\n    ...\n"
        "    | **all** | | N | N | R% |"
    )
    draft.say(
        draft.require(
            "(without the indentation, which only sets it off here).",
            breach("indented", _LINES, after=f"sed -i 's/^/    /' {target}"),
        ),
        draft.require(
            "There is one row for each service in requests.csv,",
            breach(
                "a service of owners.txt too",
                _LINES,
                after=f"sed -i '2a | intranet | {names[6]} | 0 | 0 | 0.0% |' {target}",
            ),
            breach("services without errors left out", _LINES, after=f"sed -i '/| 0 | 0.0% |$/d' {target}"),
            breach("services without owner left out", _LINES, after=f"sed -i '/ nobody /d' {target}"),
            breach("a row twice", _LINES, after=f"sed -i 3p {target}"),
            breach("names in bold letters", _LINES, swap=("| {name} |", "| **{name}** |")),
            breach(
                "requests without errors",
                _LINES,
                swap=("| {owner} | {requests} |", "| {owner} | {requests - errors} |"),
            ),
            breach(
                "requests and errors exchanged",
                _LINES,
                swap=("| {owner} | {requests} | {errors} |", "| {owner} | {errors} | {requests} |"),
            ),
        ),
        draft.require(
            "sorted by name;",
            breach("in the order of requests.csv", _ORDER, swap=("in sorted(rows)", "in rows")),
            breach("sorted backwards", _ORDER, swap=("in sorted(rows)", "in sorted(rows, reverse=True)")),
        ),
        draft.require(
            "the owner is nobody where owners.txt has none.",
            breach("no owner", _LINES, swap=('"nobody"', '""')),
            breach("another word", _LINES, swap=('"nobody"', '"none"')),
            breach("nobody everywhere", _LINES, swap=("owners.get(name,", "owners.get(name.upper(),")),
            breach("first names alone", _LINES, swap=("| {owner} |", "| {owner.split()[0]} |")),
        ),
        draft.require(
            "The last row has the sums.",
            breach("no last row", _LINES, after=f"sed -i '$d' {target}"),
            breach("the sums first", _ORDER, after=f"sed -i '3{{h;d}};${{p;x}}' {target}"),
            breach("the number of services", _LINES, swap=("sum(row[1] for row in rows)", "len(rows)")),
            breach("the most errors", _LINES, swap=("sum(row[2] for row in rows)", "max(row[2] for row in rows) - 1")),
            breach(
                "no rate",
                _LINES,
                swap=('| {percent(errors, requests)} |", file=target)\nEND', '| |", file=target)\nEND'),
            ),
        ),
        draft.require(
            "R is errors divided by requests in percent with exactly one decimal,",
            breach(
                "a share in place of percent", _LINES, swap=("{rate // 10}.{rate % 10}%", "{errors / requests:.1f}%")
            ),
            breach("two decimals", _LINES, swap=("{rate % 10}%", "{rate % 10}0%")),
            breach("no decimals where there are none", _LINES, after=f"sed -i 's/[.]0%/%/' {target}"),
            breach("a comma", _LINES, swap=("{rate // 10}.{rate % 10}%", "{rate // 10},{rate % 10}%")),
            breach("no sign", _LINES, swap=("{rate % 10}%", "{rate % 10}")),
        ),
        draft.require(
            "rounded down (cut off), such as 0.0, 2.9 or 12.5.",
            breach(
                "rounded", _LINES, swap=("rate = errors * 1000 // requests", "rate = round(errors * 1000 / requests)")
            ),
            breach(
                "rounded up", _LINES, swap=("rate = errors * 1000 // requests", "rate = -(-errors * 1000 // requests)")
            ),
        ),
        draft.every_line(target),
        draft.leave(),
    )
    draft.result(target, expected)
    oracle = python(
        """
        import csv
        owners = dict(line.strip().split(" = ") for line in open(@root@ + "/owners.txt"))
        table = csv.DictReader(open(@root@ + "/requests.csv"))
        rows = [(row["service"], int(row["requests"]), int(row["errors"])) for row in table]
        def percent(errors, requests):
            rate = errors * 1000 // requests
            return f"{rate // 10}.{rate % 10}%"
        with open(@target@, "w") as target:
            print("| Service | Owner | Requests | Errors | Rate |\\n|---|---|---|---|---|", file=target)
            for name, requests, errors in sorted(rows):
                owner = owners.get(name, "nobody")
                print(f"| {name} | {owner} | {requests} | {errors} | {percent(errors, requests)} |", file=target)
            requests, errors = sum(row[1] for row in rows), sum(row[2] for row in rows)
            print(f"| **all** | | {requests} | {errors} | {percent(errors, requests)} |", file=target)
        """,
        root=root,
        target=target,
    )
    draft.honest(
        "by awk",
        instead=f"""
{{ printf '| Service | Owner | Requests | Errors | Rate |\\n|---|---|---|---|---|\\n'
tail -n +2 {root}/requests.csv | LC_ALL=C sort | awk -F ' = |,' '
function rate(bad, all,  x) {{ x = int(bad * 1000 / all); return int(x / 10) "." x % 10 "%" }}
NR == FNR {{ owner[$1] = $2; next }}
{{ print "| " $1 " | " ($1 in owner ? owner[$1] : "nobody") " | " $2 " | " $3 " | " rate($3, $2) " |" }}
{{ n += $2; m += $3 }}
END {{ print "| **all** | | " n " | " m " | " rate(m, n) " |" }}' {root}/owners.txt -; }} > {target}
""",
    )
    draft.honest("written through a temporary file", after=f"cp {target} {target}.new && mv {target}.new {target}")
    draft.solve(oracle, swap(oracle, '"nobody"', '""'), expected)


FAMILY = Family("reports", "Write reports in Markdown from data", (_weekly, _table), ("python3",))
