"""Family: reports for people, compiled from several files."""

from .draft import Draft, python, swap
from .family import Family
from .vocabulary import DEPARTMENTS, FIRST_NAMES, LAST_NAMES, PRODUCTS, SERVICES


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
        task = f"{draft.pick('Review', 'Order', 'Repair', 'Test')} {draft.pick(*PRODUCTS)}"
        rows.append((person, task, state, draft.number(1, 16)))
    source = draft.file(
        f"{root}/{draft.pick('tasks', 'work', 'week')}.tsv", "".join(f"{p}\t{t}\t{s}\t{h}\n" for p, t, s, h in rows)
    )
    target = f"{root}/{draft.pick('report', 'status', 'summary')}.md"
    draft.say(
        draft.pick(f"Write the weekly report of the team {team}.", f"I need a weekly report in Markdown for {team}."),
        f"{source} has one task per line, with four fields separated by tabs: person, task, state (done, open or "
        "blocked) and hours.",
        f"! Write {target} in exactly this form (the indentation is not part of it):",
    )
    draft.say(
        f"!     # Week report: {team}\n\n    Tasks: NUMBER OF ALL TASKS\n    Hours: SUM OF ALL HOURS\n\n"
        "    ## Done\n\n    - PERSON: HOURS h\n    ...\n\n    ## Blocked\n\n    - TASK (PERSON)\n    ..."
    )
    draft.say(
        "! The section Done has a line for every person in the file",
        "! with the sum of the hours of their tasks that are done (0 if there are none),",
        "! most hours first,",
        "! equal hours by name.",
        "! The section Blocked has a line for every blocked task,",
        "! in the order of the file.",
        "! The empty lines are as shown, and there is a single newline after the last line.",
    )
    oracle = python("""
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
        """)
    draft.solve(oracle, swap(oracle, ' if state == "done" else 0', ""))


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
    draft.file(f"{root}/owners.txt", "".join(f"{s} = {o}\n" for s, o in draft.shuffled(list(owners.items()))))
    draft.file(
        f"{root}/requests.csv",
        "service,requests,errors\n" + "".join(f"{s},{t},{e}\n" for s, (t, e) in requests.items()),
    )
    target = f"{root}/{draft.pick('services', 'overview', 'health')}.md"
    draft.say(
        draft.pick(
            f"Make a Markdown table of the services in {root}/requests.csv.",
            "I need an overview of our services in Markdown.",
        ),
        f"{root}/requests.csv has the columns service, requests and errors; {root}/owners.txt has lines 'service = "
        "owner'.",
        f"! Write {target} with these lines and nothing else:",
    )
    draft.say(
        "    | Service | Owner | Requests | Errors | Rate |\n    |---|---|---|---|---|\n    | NAME | OWNER | N | N | "
        "R% |\n    ...\n"
        "    | **all** | | N | N | R% |"
    )
    draft.say(
        "! (without the indentation, which only sets it off here).",
        "! There is one row for each service in requests.csv,",
        "! sorted by name;",
        "! the owner is nobody where owners.txt has none.",
        "! The last row has the sums.",
        "! R is errors divided by requests in percent with exactly one decimal,",
        "! rounded down (cut off), such as 0.0, 2.9 or 12.5.",
        draft.every_line(),
    )
    oracle = python("""
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
        """)
    draft.solve(oracle, swap(oracle, '"nobody"', '""'))


FAMILY = Family("reports", "Write reports in Markdown from data", (_weekly, _table), ("python3",))
