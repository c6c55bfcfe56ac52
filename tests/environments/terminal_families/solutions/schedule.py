"""Forbidden changes and other solutions of the family `schedule`."""

from tests.environments.terminal_families.ways import Way, after, instead, swap


def _by_sets(code: str) -> Way:
    """Return a way that reads each field as the set of its values, and works with days, hours and minutes."""
    return instead(
        f"""python3 - <<'END'
from datetime import datetime, time, timedelta
import json
def allowed(field, first, last):
    values = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        low, _, high = (f"{{first}}-{{last}}" if span == "*" else span).partition("-")
        values.update(range(int(low), int(high or low) + 1, int(step or 1)))
    return values
def times(job, day):
    matches = day.day in job[2] and day.month in job[3] and day.isoweekday() % 7 in job[4]
    return [(hour, minute) for hour in sorted(job[1]) for minute in sorted(job[0]) if matches]
jobs = {{}}
for line in open("«source»"):
    if line[0] not in "#\\n":
        *fields, name = line.split()
        jobs[name] = [allowed(*one) for one in zip(fields, (0, 0, 1, 1, 0), (59, 23, 31, 12, 6))]
{code}
END
"""
    )


FORBIDDEN = {
    "_begin": {
        "and day of the week (0-6, 0 is Sunday).": [swap("(at.weekday() + 1) % 7", "at.weekday()")],
        "A field is * (every value), or a comma-separated list": [swap('field.split(",")', 'field.split(",")[:1]')],
        "After * or a range, /N selects its first value and every": [swap("(value - low) % int", "value % int")],
        "A job runs in every minute at which all five": [swap("zip(fields, values", "zip(fields[:4], values")],
    },
    "_at": {
        "Write their names to «target», one per line,": [
            after("sed -i '$d' «target»"),
            after("paste -s -d ' ' «target» > ~/t; cat ~/t > «target»"),
        ],
        "in alphabetical order.": [after("LC_ALL=C sort -r -o «target» «target»")],
    },
    "_count": {
        "Write a JSON object to «target»": [swap("range(1440)", "range(720)")],
        "(0 for those that do not run at all).": [
            swap("for fields, name in jobs}", "for fields, name in jobs if any(runs(fields, at) for at in minutes)}"),
            after("sed -i 's/: 0\\([,}]\\)/: null\\1/g' «target»"),
        ],
    },
    "_next": {
        "A run in the present minute is over already and does not": [swap("') + timedelta(minutes=1)", "')")],
        "Write «target» with one line per job: YYYY-MM-DD HH:MM and the name, separated by a space;": [
            after("sed -i '$d' «target»"),
            swap('print(at.strftime("%Y-%m-%d %H:%M"), name', 'print(name, at.strftime("%Y-%m-%d %H:%M")'),
        ],
        "the earliest run first,": [after("sort -r -o «target» «target»")],
        "runs in the same minute by": [swap("sorted(rows)", "sorted(sorted(rows)[::-1], key=lambda row: row[0])")],
    },
}
HONEST = {
    "_at": [
        _by_sets(
            'due = sorted(name for name, job in jobs.items() if («at.hour», «at.minute») in times(job, datetime.fromisoformat("«at»")))\n'
            'open("«target»", "w").write("\\n".join(due) + "\\n")'
        )
    ],
    "_count": [
        _by_sets(
            'day = datetime.fromisoformat("«day»")\n'
            'json.dump({name: len(times(job, day)) for name, job in jobs.items()}, open("«target»", "w"))'
        ),
        after("python3 -m json.tool --sort-keys «target» ~/t && cat ~/t > «target»"),
    ],
    "_next": [
        _by_sets(
            """now, lines = datetime.fromisoformat("«now»"), []
for name, job in jobs.items():
    days = (now.date() + timedelta(days=ahead) for ahead in range(400))
    runs = (datetime.combine(day, time(*at)) for day in days for at in times(job, day))
    lines.append(f"{next(run for run in runs if run > now):%Y-%m-%d %H:%M} {name}\\n")
open("«target»", "w").write("".join(sorted(lines)))"""
        )
    ],
}
