"""Family: dates, times and time zones. Zones are written as offsets, so the machine's zone data does not matter."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone

from .draft import Draft, breach, python, swap
from .family import Family
from .vocabulary import CITIES, FIRST_NAMES, PRODUCTS, WORDS

__all__ = ["FAMILY"]

_LINES, _LINE_ORDER = "* has the right lines", "lines of * are in order"
_HEADER, _RECORDS, _ORDER = "* has the right header", "* has the right records", "records of * are in order"


def _day(draft: Draft, first: int = 2015, last: int = 2026) -> date:
    return date(draft.number(first, last), 1, 1) + timedelta(days=draft.number(0, 364))


def _to_utc(draft: Draft) -> None:
    root = draft.project()
    source = f"{root}/{draft.pick('flights', 'meetings', 'calls', 'sightings')}.txt"
    target = source.replace(".txt", "-utc.txt")
    rows: list[tuple[datetime, str, str]] = []
    for city in draft.some(CITIES, draft.number(8, 14)):
        minutes = draft.pick(-600, -480, -300, -210, 60, 120, 330, 345, 540, 660)
        moment = datetime.combine(_day(draft), datetime.min.time(), timezone(timedelta(minutes=minutes)))
        moment += timedelta(minutes=draft.number(0, 1439))
        if len(rows) == 1:
            # The same moment as the first, with another offset.
            moment = rows[0][0].astimezone(timezone(timedelta(minutes=minutes)))
        rows.append((moment.astimezone(UTC), city, moment.strftime("%Y-%m-%d %H:%M %z")))
    draft.file(source, "".join(f"{shown} {city}\n" for _, city, shown in rows), keep=True)
    ordered = sorted(rows, key=lambda row: (row[0], row[1]))
    expected = "".join(f"{moment.strftime('%Y-%m-%dT%H:%MZ')} {city}\n" for moment, city, _ in ordered)
    draft.say(
        draft.pick(f"The times in {source} have different time zones.", f"Convert the times in {source} to UTC."),
        "Its lines are YYYY-MM-DD HH:MM, the offset of local time from UTC as +HHMM or -HHMM, and a name, separated by "
        "spaces. For example 2024-05-01 01:30 +0200 is 23:30 of the day before in UTC.",
        f"Write all of them to {target} in the form",
        draft.require(
            "\nYYYY-MM-DDTHH:MMZ NAME",
            breach("seconds too", _LINES, swap=("%H:%MZ", "%H:%M:00Z")),
            breach("+0000 in place of Z", _LINES, swap=("%H:%MZ", "%H:%M+0000")),
            breach("a space in place of T", _LINES, swap=("%dT%H", "%d %H")),
            breach("a comma before the name", _LINES, after=f"sed -i 's/ /,/' {target}"),
        ),
        draft.require(
            "\nwhere the time is in UTC (T and Z are literal),",
            breach(
                "local times", _LINES, swap=("moment.astimezone(timezone.utc)", "moment.replace(tzinfo=timezone.utc)")
            ),
            breach("the offset added", _LINES, swap=("moment.astimezone(timezone.utc)", "moment + moment.utcoffset()")),
            breach("a line missing", _LINES, after=f"sed -i 1d {target}"),
        ),
        draft.require(
            "earliest first;",
            breach("latest first", _LINE_ORDER, swap=("in sorted(rows)", "in sorted(rows)[::-1]")),
            breach(
                "in the order of the names",
                _LINE_ORDER,
                swap=("in sorted(rows)", "in sorted(rows, key=lambda row: row[1])"),
            ),
        ),
        draft.require(
            "lines with the same time by name.",
            breach(
                "the same time by name backwards",
                _LINE_ORDER,
                swap=("in sorted(rows)", "in sorted(sorted(rows)[::-1], key=lambda row: row[0])"),
            ),
        ),
        draft.every_line(target),
        draft.leave(),
    )
    draft.result(target, expected)
    oracle = python(
        """
        from datetime import datetime, timezone
        rows = []
        for line in open(@source@):
            day, time, offset, name = line.split()
            moment = datetime.strptime(f"{day} {time} {offset}", "%Y-%m-%d %H:%M %z")
            rows.append((moment.astimezone(timezone.utc), name))
        with open(@target@, "w") as target:
            for moment, name in sorted(rows):
                print(moment.strftime("%Y-%m-%dT%H:%MZ"), name, file=target)
        """,
        source=source,
        target=target,
    )
    draft.honest(
        "calculated by date",
        instead=f"""
while read -r day time offset name; do
    echo "$(date -u -d "$day $time $offset" +%Y-%m-%dT%H:%MZ) $name"
done < {source} | LC_ALL=C sort > {target}
""",
    )
    draft.pieces(target)
    draft.solve(
        oracle, swap(oracle, "moment.astimezone(timezone.utc)", "moment.replace(tzinfo=timezone.utc)"), expected
    )


def _spans(draft: Draft) -> None:
    root = draft.project()
    source = f"{root}/{draft.pick('rentals', 'leaves', 'bookings', 'loans')}.csv"
    target = source.replace(".csv", "-days.csv")
    inclusive = draft.chance(0.5)
    form, spoken = draft.pick(("%d.%m.%Y", "DD.MM.YYYY"), ("%m/%d/%Y", "MM/DD/YYYY"), ("%Y%m%d", "YYYYMMDD"))
    rows: list[list[str]] = []
    result: list[list[str]] = [["name", "start", "end", "days"]]
    for name in draft.some(FIRST_NAMES, draft.number(7, 12)):
        start = draft.pick(_day(draft), date(2024, 2, draft.number(1, 28)), date(2023, 12, draft.number(1, 31)))
        end = start + timedelta(days=draft.pick(0, draft.number(1, 40), draft.number(30, 500)))
        rows.append([name, start.strftime(form), end.strftime(form)])
        result.append([name, start.isoformat(), end.isoformat(), str((end - start).days + inclusive)])
    draft.file(source, "name,start,end\n" + "".join(f"{','.join(row)}\n" for row in rows), keep=True)
    rule = (
        "counting both the first and the last day (so a span that starts and ends on the same day has 1 day)"
        if inclusive
        else "that is, the number of midnights in between (so a span that starts and ends on the same day has 0 days)"
    )
    draft.say(
        draft.pick(f"How many days does each entry of {source} last?", f"Add the durations to {source}."),
        f"The CSV file has the columns name, start and end, with dates as {spoken}.",
        draft.require(
            f"Write {target}, a CSV file with the header name,start,end,days:",
            breach("another header", _HEADER, after=f"sed -i 1s/days/length/ {target}"),
            breach("semicolons", _HEADER, _RECORDS, swap=("csv.writer(target)", "csv.writer(target, delimiter=';')")),
        ),
        draft.require(
            "the same records",
            breach("a record missing", _RECORDS, after=f"sed -i 2d {target}"),
            breach("another name", _RECORDS, swap=('row["name"],', 'row["name"].upper(),')),
        ),
        draft.require(
            "in the same order,",
            breach(
                "records backwards", _ORDER, swap=("in csv.DictReader(source)", "in list(csv.DictReader(source))[::-1]")
            ),
        ),
        draft.require(
            "the dates as YYYY-MM-DD,",
            breach(
                "dates as they were",
                _RECORDS,
                swap=('row["name"], start, end,', 'row["name"], row["start"], row["end"],'),
            ),
            breach("dates with slashes", _RECORDS, after=f"sed -i s#-#/#g {target}"),
        ),
        draft.require(
            f"and in the last column the number of days, {rule}.",
            breach(
                "the other way of counting", _RECORDS, swap=(f".days + {int(inclusive)}", f".days + {1 - inclusive}")
            ),
            breach(
                "the unit beside the number",
                _RECORDS,
                swap=(f".days + {int(inclusive)}])", f".days + {int(inclusive)}, 'days'])"),
            ),
        ),
        draft.leave(),
    )
    draft.initial.absent(target)
    draft.final.rows(target, result)
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
        source=source,
        target=target,
        form=form,
        more=int(inclusive),
    )
    draft.honest_csv("csv.writer(target")
    draft.solve(oracle, swap(oracle, f".days + {int(inclusive)}", f".days + {1 - inclusive}"), str(result))


def _weeks(draft: Draft) -> None:
    root = draft.project()
    source = f"{root}/{draft.pick('sales', 'visits', 'output')}.csv"
    target = source.replace(".csv", "-weekly.csv")
    totals: dict[str, int] = {}
    lines: list[str] = []
    year = draft.number(2016, 2025)
    days = [date(year, 1, 1), date(year, 1, 5), date(year - 1, 12, 31), date(year + 1, 1, 1), date(year, 12, 31)]
    days += [date(year, 1, 1) + timedelta(days=draft.number(0, 60)) for _ in range(draft.number(8, 16))]
    for day in draft.shuffled(days):
        amount = draft.number(1, 500)
        iso = day.isocalendar()
        week = f"{iso.year}-W{iso.week:02d}"
        totals[week] = totals.get(week, 0) + amount
        lines.append(f"{day.isoformat()},{draft.pick(*PRODUCTS)},{amount}\n")
    draft.file(source, "date,item,amount\n" + "".join(lines), keep=True)
    expected = [["week", "total"], *([week, str(totals[week])] for week in sorted(totals))]
    draft.say(
        draft.pick(f"I need weekly totals of {source}.", f"Add up {source} by week."),
        "The CSV file has the columns date (YYYY-MM-DD), item and amount (a whole number).",
        draft.require(
            "Weeks are ISO 8601 weeks: they begin on Monday, and week 1 is the one with the year's first Thursday, so "
            "days around New Year may belong to a week of the neighbouring year.",
            breach("weeks that begin on Sunday", _RECORDS, swap=("%G-W%V", "%Y-W%U")),
            breach("the calendar's year", _RECORDS, swap=("%G-W%V", "%Y-W%V")),
        ),
        draft.require(
            f"Write {target} as CSV with the header week,total",
            breach("another header", _HEADER, after=f"sed -i 1s/total/sum/ {target}"),
            breach("no header", _HEADER, _RECORDS, after=f"sed -i 1d {target}"),
            breach("semicolons", _HEADER, _RECORDS, after=f"sed -i 's/,/;/' {target}"),
        ),
        draft.require(
            "and one record per week that has entries,",
            breach("a week twice", _RECORDS, after=f"tail -n 1 {target} >> {target}"),
            breach("a week without entries", _RECORDS, after=f"echo {year + 1}-W30,0 >> {target}"),
            breach("a week missing", _RECORDS, after=f"sed -i 2d {target}"),
        ),
        draft.require(
            "earliest first;",
            breach("latest first", _ORDER, swap=("in sorted(totals.items())", "in sorted(totals.items())[::-1]")),
        ),
        draft.require(
            "the week in the form 2023-W05 (ISO year, two-digit week)",
            breach("a week of one digit", _RECORDS, after=f"sed -i s/W0/W/ {target}"),
            breach("another form", _RECORDS, after=f"sed -i s/-W/W/ {target}"),
        ),
        draft.require(
            "and the sum of the amounts.",
            breach("the number of entries", _RECORDS, swap=('int(row["amount"])', "1")),
            breach(
                "the largest amount",
                _RECORDS,
                swap=('totals.get(week, 0) + int(row["amount"])', 'max(totals.get(week, 0), int(row["amount"]))'),
            ),
        ),
        draft.leave(),
    )
    draft.initial.absent(target)
    draft.final.rows(target, expected)
    oracle = python(
        """
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
        """,
        source=source,
        target=target,
    )
    draft.honest_csv("csv.writer(target")
    draft.solve(oracle, swap(oracle, "%G-W%V", "%Y-W%U"), str(expected))


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
    draft.file(source, "".join(f"{day.isoformat()} {word}\n" for day, word in rows), keep=True)
    chosen = [(day, word) for day, word in sorted(rows) if day.weekday() in wanted]
    expected = "".join(f"{day.isoformat()} {days[day.weekday()]} {word}\n" for day, word in chosen)
    draft.say(
        draft.pick(
            f"Find the entries of {source} that fall on certain days of the week.", f"Filter {source} by weekday."
        ),
        "Its lines are a date (YYYY-MM-DD), a space and a word.",
        draft.require(
            f"Write those whose date is a {spoken} to {target} in the form",
            breach(
                "other days", _LINES, swap=(f"in {wanted!r}", f"in {tuple((number + 1) % 7 for number in wanted)!r}")
            ),
            breach("every day", _LINES, swap=(f"if number in {wanted!r}", "if True")),
            breach("a line missing", _LINES, after=f"sed -i 1d {target}"),
        ),
        draft.require(
            "\nYYYY-MM-DD WEEKDAY WORD",
            breach("the weekday first", _LINES, after=f"sed -Ei 's/(\\S+) (\\S+)/\\2 \\1/' {target}"),
            breach("commas", _LINES, after=f"sed -i 's/ /,/g' {target}"),
        ),
        draft.require(
            "\nwith the English name of the weekday (such as Monday),",
            breach("short names", _LINES, after=f"sed -Ei 's/ (...)[a-z]*day/ \\1/' {target}"),
            breach("small letters", _LINES, after=f"sed -i 's/.*/\\L&/' {target}"),
        ),
        draft.require(
            "sorted by date",
            breach("latest first", _LINE_ORDER, after=f"LC_ALL=C sort -s -k 1,1r -o {target} {target}"),
        ),
        draft.require(
            "and, on the same date, by word.",
            breach("words of a date backwards", _LINE_ORDER, after=f"LC_ALL=C sort -k 1,1 -k 3r -o {target} {target}"),
        ),
        draft.every_line(target),
        draft.leave(),
    )
    draft.result(target, expected)
    oracle = python(
        """
        from datetime import date
        with open(@target@, "w") as target:
            for line in sorted(open(@source@)):
                day, word = line.split()
                number = date.fromisoformat(day).weekday()
                if number in @wanted@:
                    print(day, @days@[number], word, file=target)
        """,
        source=source,
        target=target,
        wanted=wanted,
        days=days,
    )
    draft.honest(
        "the names by date",
        instead=f"""
while read -r day word; do
    case $(date -d $day +%u) in
    {"|".join(str(number + 1) for number in wanted)}) echo "$day $(LC_ALL=C date -d $day +%A) $word" ;;
    esac
done < {source} | LC_ALL=C sort > {target}
""",
    )
    draft.pieces(target)
    near = swap(oracle, f"in {wanted!r}", f"in {tuple((number + 1) % 7 for number in wanted)!r}")
    draft.solve(oracle, near, expected)


FAMILY = Family(
    "dates", "Dates, weekdays, ISO weeks and offsets from UTC", (_weekdays, _spans, _to_utc, _weeks), ("python3",)
)
