"""Family: schedules like cron's."""

from datetime import datetime, timedelta

from .draft import Draft, python, swap
from .family import Family
from .vocabulary import SERVICES

_DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")

#: The part of every oracle that reads schedules.
_READER = """
        from datetime import datetime, timedelta
        def matches(field, value, first, last):
            for part in field.split(","):
                span, _, step = part.partition("/")
                low, _, high = span.partition("-")
                low, high = (first, last) if span == "*" else (int(low), int(high or low))
                if low <= value <= high and (value - low) % int(step or 1) == 0:
                    return True
            return False
        limits = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))
        def runs(fields, at):
            values = (at.minute, at.hour, at.day, at.month, (at.weekday() + 1) % 7)
            return all(matches(field, value, *limit) for field, value, limit in zip(fields, values, limits))
        jobs = []
        for line in open(@source@):
            if line.strip() and not line.startswith("#"):
                *fields, name = line.split()
                jobs.append((fields, name))
"""


def _fields(draft: Draft) -> list[str]:
    """Return a random schedule; it never restricts both the day of the month and the day of the week."""
    minute = draft.pick("0", "30", "*/15", "*/20", "5,35", str(draft.number(0, 59)), "10-50/20")
    hour = draft.pick(
        "*", "*/6", "*/4", "8-18", str(draft.number(0, 23)), f"{draft.number(0, 8)},{draft.number(12, 20)}"
    )
    day, month, weekday = draft.pick(
        ("*", "*", "*"),
        ("*", "*", "*"),
        ("*", "*", "1-5"),
        ("*", "*", "0,6"),
        (f"{draft.number(1, 28)}", "*", "*"),
        ("1,15", "*", "*"),
        ("*", f"{draft.number(1, 12)}", "*"),
        ("*", "*", str(draft.number(0, 6))),
        ("*/2", "*", "*"),
        ("*", "*/3", "*"),
    )
    return [minute, hour, day, month, weekday]


def _special(at: datetime) -> list[list[str]]:
    """Return schedules that expose a wrong reading of days: the weekday after ``at``, its own, every second day."""
    weekday = at.isoweekday() % 7
    own = f"{(weekday + 3) % 7},{weekday}"
    return [["*", "*", "*", "*", str((weekday + 1) % 7)], ["*", "*", "*", "*", own], ["*", "*", "*/2", "*", "*"]]


def _begin(draft: Draft, jobs: list[tuple[list[str], str]]) -> tuple[str, str]:
    """Write the schedule and its description. Return the project and the schedule."""
    root = draft.project()
    lines: list[str] = []
    for fields, name in jobs:
        lines.append(draft.pick("", "", f"# {draft.prose(4)}\n", "\n") + " ".join(fields) + f" {name}\n")
    source = draft.file(f"{root}/{draft.pick('schedule', 'crontab', 'jobs')}.txt", "".join(lines))
    draft.say(
        draft.pick(f"{source} is a job schedule in the style of cron.", f"Our job schedule is in {source}."),
        "Each line has five fields and the name of a job, separated by spaces: minute (0-59), hour (0-23), day of the "
        "month (1-31), month (1-12)",
        "! and day of the week (0-6, 0 is Sunday).",
        "! A field is * (every value), or a comma-separated list of numbers and ranges such as 2-5.",
        "! After * or a range, /N selects its first value and every Nth one after that: */15 as minute is 0, 15, 30 "
        "and 45, 10-50/20 is 10, 30 and 50, */2 as day of the month is 1, 3, 5 and so on.",
        "! A job runs in every minute at which all five fields match.",
        "Empty lines and comments, which begin with #, are skipped.",
    )
    return root, source


def _new_year(draft: Draft) -> datetime:
    return datetime(draft.number(2022, 2026), 1, 1)  # noqa: DTZ001 - a schedule has no time zone


def _at(draft: Draft) -> None:
    at = _new_year(draft) + timedelta(days=draft.number(0, 360), hours=draft.number(0, 23))
    at += timedelta(minutes=draft.pick(0, 30, 15, 20, 45))
    names = draft.some(SERVICES, draft.number(9, 14))
    jobs = [(_fields(draft), f"{name}-job") for name in names]
    weekday = at.isoweekday() % 7
    jobs[0] = ([str(at.minute), "*", "*", "*", str(weekday)], jobs[0][1])
    jobs[1] = ([f"*/{draft.pick(5, 15)}" if at.minute % 15 == 0 else "*/10", "*", "*", "*", "*"], jobs[1][1])
    jobs[2:5] = [(fields, name) for fields, (_, name) in zip(_special(at), jobs[2:5], strict=True)]
    jobs = draft.shuffled(jobs)
    root, source = _begin(draft, jobs)
    target = f"{root}/{draft.pick('due', 'running', 'triggered')}.txt"
    draft.say(
        f"Which jobs run at {at.strftime('%H:%M on %Y-%m-%d')}, a {_DAYS[weekday]}?",
        f"! Write their names to {target}, one per line,",
        "! in alphabetical order.",
        draft.every_line(),
    )
    oracle = python(
        _READER
        + """
        with open(@target@, "w") as target:
            for name in sorted(name for fields, name in jobs if runs(fields, datetime.fromisoformat(@at@))):
                print(name, file=target)
        """,
        source=source,
        at=at.isoformat(),
    )
    draft.solve(oracle, swap(oracle, "(at.weekday() + 1) % 7", "at.weekday()"))


def _count(draft: Draft) -> None:
    day = _new_year(draft) + timedelta(days=draft.number(0, 360))
    names = draft.some(SERVICES, draft.number(6, 10))
    jobs = [(_fields(draft), f"{name}-job") for name in names]
    jobs[0] = (["10-50/20", "8-18", "*", "*", "*"], jobs[0][1])
    jobs[1:4] = [(fields, name) for fields, (_, name) in zip(_special(day), jobs[1:4], strict=True)]
    root, source = _begin(draft, draft.shuffled(jobs))
    target = f"{root}/{draft.pick('counts', 'runs', 'load')}.json"
    draft.say(
        f"How often does each job run on {day.strftime('%Y-%m-%d')}, a {_DAYS[day.isoweekday() % 7]}, from 00:00 to "
        "23:59?",
        f"! Write a JSON object to {target} that maps the name of every job to its number of runs on that day",
        "! (0 for those that do not run at all).",
    )
    draft.form(target, "json")
    oracle = python(
        _READER
        + """
        import json
        day = datetime.fromisoformat(@day@)
        minutes = [day + timedelta(minutes=minute) for minute in range(1440)]
        json.dump({name: sum(runs(fields, at) for at in minutes) for fields, name in jobs}, open(@target@, "w"))
        """,
        source=source,
        day=day.isoformat(),
    )
    draft.solve(oracle, swap(oracle, "<= value <= high", "<= value < high"))


def _next(draft: Draft) -> None:
    now = _new_year(draft) + timedelta(minutes=draft.number(0, 500_000))
    names = draft.some(SERVICES, draft.number(5, 8))
    jobs = [(_fields(draft), f"{name}-job") for name in names]
    jobs[0] = ([str(now.minute), str(now.hour), "*", "*", "*"], jobs[0][1])
    jobs = [(fields if fields[3] == "*" else [*fields[:3], "*", fields[4]], name) for fields, name in jobs]
    jobs[1:4] = [(fields, name) for fields, (_, name) in zip(_special(now), jobs[1:4], strict=True)]
    jobs[4] = (jobs[2][0], jobs[4][1])  # in the same minute as another job
    root, source = _begin(draft, draft.shuffled(jobs))
    target = f"{root}/{draft.pick('next', 'upcoming', 'forecast')}.txt"
    draft.say(
        f"It is now {now.strftime('%Y-%m-%d %H:%M')} (a {_DAYS[now.isoweekday() % 7]}). When does each job run next?",
        "! A run in the present minute is over already and does not count.",
        f"! Write {target} with one line per job: YYYY-MM-DD HH:MM and the name, separated by a space;",
        "! the earliest run first,",
        "! runs in the same minute by name.",
        draft.every_line(),
    )
    oracle = python(
        _READER
        + """
        rows = []
        for fields, name in jobs:
            at = datetime.fromisoformat(@now@) + timedelta(minutes=1)
            while not runs(fields, at):
                at += timedelta(minutes=1)
            rows.append((at, name))
        with open(@target@, "w") as target:
            for at, name in sorted(rows):
                print(at.strftime("%Y-%m-%d %H:%M"), name, file=target)
        """,
        source=source,
        now=now.isoformat(),
    )
    draft.solve(oracle, swap(oracle, "') + timedelta(minutes=1)", "')"))


FAMILY = Family("schedule", "Work with cron-like schedules", (_at, _count, _next), ("python3",))
