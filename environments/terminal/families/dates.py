"""Family: dates, times and time zones. Zones are written as offsets, so the machine's zone data does not matter."""

from datetime import date, datetime, timedelta, timezone

from .draft import Draft, python, swap
from .family import Family
from .vocabulary import CITIES, FIRST_NAMES, PRODUCTS, WORDS


def _day(draft: Draft, first: int = 2015, last: int = 2026) -> date:
    return date(draft.number(first, last), 1, 1) + timedelta(days=draft.number(0, 364))


def _to_utc(draft: Draft) -> None:
    root = draft.project()
    source = f"{root}/{draft.pick('flights', 'meetings', 'calls', 'sightings')}.txt"
    target = source.replace(".txt", "-utc.txt")
    rows: list[tuple[datetime, str]] = []
    for city in draft.some(CITIES, draft.number(8, 14)):
        minutes = draft.pick(-600, -480, -300, -210, 60, 120, 330, 345, 540, 660)
        moment = datetime.combine(_day(draft), datetime.min.time(), timezone(timedelta(minutes=minutes)))
        moment += timedelta(minutes=draft.number(0, 1439))
        if len(rows) == 1:
            # The same moment as the first, with another offset.
            moment = rows[0][0].astimezone(timezone(timedelta(minutes=minutes)))
        rows.append((moment, city))
    draft.file(source, "".join(f"{moment.strftime('%Y-%m-%d %H:%M %z')} {city}\n" for moment, city in rows))
    draft.say(
        draft.pick(f"The times in {source} have different time zones.", f"Convert the times in {source} to UTC."),
        "Its lines are YYYY-MM-DD HH:MM, the offset of local time from UTC as +HHMM or -HHMM, and a name, separated by "
        "spaces. For example 2024-05-01 01:30 +0200 is 23:30 of the day before in UTC.",
        f"Write all of them to {target} in the form",
        "! \nYYYY-MM-DDTHH:MMZ NAME",
        "! \nwhere the time is in UTC (T and Z are literal),",
        "! earliest first;",
        "! lines with the same time by name.",
        draft.every_line(),
    )
    oracle = python("""
        from datetime import datetime, timezone
        rows = []
        for line in open(@source@):
            day, time, offset, name = line.split()
            moment = datetime.strptime(f"{day} {time} {offset}", "%Y-%m-%d %H:%M %z")
            rows.append((moment.astimezone(timezone.utc), name))
        with open(@target@, "w") as target:
            for moment, name in sorted(rows):
                print(moment.strftime("%Y-%m-%dT%H:%MZ"), name, file=target)
        """)
    draft.solve(oracle, swap(oracle, "moment.astimezone(timezone.utc)", "moment.replace(tzinfo=timezone.utc)"))


def _spans(draft: Draft) -> None:
    root = draft.project()
    source = f"{root}/{draft.pick('rentals', 'leaves', 'bookings', 'loans')}.csv"
    target = source.replace(".csv", "-days.csv")
    inclusive = draft.chance(0.5)
    form, spoken = draft.pick(("%d.%m.%Y", "DD.MM.YYYY"), ("%m/%d/%Y", "MM/DD/YYYY"), ("%Y%m%d", "YYYYMMDD"))
    rows: list[list[str]] = []
    for name in draft.some(FIRST_NAMES, draft.number(7, 12)):
        start = draft.pick(_day(draft), date(2024, 2, draft.number(1, 28)), date(2023, 12, draft.number(1, 31)))
        end = start + timedelta(days=draft.pick(0, draft.number(1, 40), draft.number(30, 500)))
        rows.append([name, start.strftime(form), end.strftime(form)])
    draft.file(source, "name,start,end\n" + "".join(f"{','.join(row)}\n" for row in rows))
    rule = (
        "counting both the first and the last day (so a span that starts and ends on the same day has 1 day)"
        if inclusive
        else "that is, the number of midnights in between (so a span that starts and ends on the same day has 0 days)"
    )
    draft.say(
        draft.pick(f"How many days does each entry of {source} last?", f"Add the durations to {source}."),
        f"The CSV file has the columns name, start and end, with dates as {spoken}.",
        f"! Write {target}, a CSV file with the header name,start,end,days:",
        "! the same records",
        "! in the same order,",
        "! the dates as YYYY-MM-DD,",
        f"! and in the last column the number of days, {rule}.",
    )
    draft.form(target, "csv")
    oracle = python(
        """
        import csv
        from datetime import datetime
        with open(@source@) as source, open(@target@, "w") as target:
            writer = csv.writer(target)
            writer.writerow(["name", "start", "end", "days"])
            for row in csv.DictReader(source):
                start, end = (datetime.strptime(row[key], @form@).date() for key in ("start", "end"))
                writer.writerow([row["name"], start, end, (end - start).days + @more@])
        """,
        more=int(inclusive),
    )
    draft.solve(oracle, swap(oracle, f".days + {int(inclusive)}", f".days + {1 - inclusive}"))


def _weeks(draft: Draft) -> None:
    root = draft.project()
    source = f"{root}/{draft.pick('sales', 'visits', 'output')}.csv"
    target = source.replace(".csv", "-weekly.csv")
    year = draft.number(2016, 2025)
    days = [date(year, 1, 1), date(year, 1, 5), date(year - 1, 12, 31), date(year + 1, 1, 1), date(year, 12, 31)]
    days += [date(year, 1, 1) + timedelta(days=draft.number(0, 60)) for _ in range(draft.number(8, 16))]
    lines = [f"{day.isoformat()},{draft.pick(*PRODUCTS)},{draft.number(1, 500)}\n" for day in draft.shuffled(days)]
    draft.file(source, "date,item,amount\n" + "".join(lines))
    draft.say(
        draft.pick(f"I need weekly totals of {source}.", f"Add up {source} by week."),
        "The CSV file has the columns date (YYYY-MM-DD), item and amount (a whole number).",
        "! Weeks are ISO 8601 weeks: they begin on Monday, and week 1 is the one with the year's first Thursday, so "
        "days around New Year may belong to a week of the neighbouring year.",
        f"! Write {target} as CSV with the header week,total",
        "! and one record per week that has entries,",
        "! earliest first;",
        "! the week in the form 2023-W05 (ISO year, two-digit week)",
        "! and the sum of the amounts.",
    )
    draft.form(target, "csv")
    oracle = python("""
        import csv
        from datetime import date
        totals = {}
        for row in csv.DictReader(open(@source@)):
            day = date.fromisoformat(row["date"])
            week = day.strftime("%G-W%V")
            totals[week] = totals.get(week, 0) + int(row["amount"])
        with open(@target@, "w") as target:
            writer = csv.writer(target)
            writer.writerow(["week", "total"])
            for week, total in sorted(totals.items()):
                writer.writerow([week, total])
        """)
    draft.solve(oracle, swap(oracle, "%G-W%V", "%Y-W%U"))


def _weekdays(draft: Draft) -> None:
    root = draft.project()
    source = f"{root}/{draft.pick('shifts', 'deliveries', 'appointments')}.txt"
    days = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
    wanted = draft.pick((5, 6), (0,), (4,), (2, 3), (0, 6))
    spoken = " or a ".join(days[number] for number in wanted)
    target = source.replace(".txt", f"-{draft.pick('selected', 'filtered', 'special')}.txt")
    rows: list[tuple[date, str]] = []
    for index, word in enumerate(draft.some(WORDS, draft.number(14, 22))):
        day = _day(draft)
        if index < 3:
            day += timedelta(days=(wanted[0] - day.weekday()) % 7)
        elif index < 5:
            day += timedelta(days=(wanted[-1] + 1 - day.weekday()) % 7)
        # Two on the same date, in the wrong order.
        rows.append((rows[0][0] if index == 5 else day, word))
    draft.file(source, "".join(f"{day.isoformat()} {word}\n" for day, word in rows))
    draft.say(
        draft.pick(
            f"Find the entries of {source} that fall on certain days of the week.", f"Filter {source} by weekday."
        ),
        "Its lines are a date (YYYY-MM-DD), a space and a word.",
        f"! Write those whose date is a {spoken} to {target} in the form",
        "! \nYYYY-MM-DD WEEKDAY WORD",
        "! \nwith the English name of the weekday (such as Monday),",
        "! sorted by date",
        "! and, on the same date, by word.",
        draft.every_line(),
    )
    oracle = python("""
        from datetime import date
        with open(@target@, "w") as target:
            for line in sorted(open(@source@)):
                day, word = line.split()
                number = date.fromisoformat(day).weekday()
                if number in @wanted@:
                    print(day, @days@[number], word, file=target)
        """)
    near = swap(oracle, f"in {wanted!r}", f"in {tuple((number + 1) % 7 for number in wanted)!r}")
    draft.solve(oracle, near)


FAMILY = Family(
    "dates", "Dates, weekdays, ISO weeks and offsets from UTC", (_weekdays, _spans, _to_utc, _weeks), ("python3",)
)
