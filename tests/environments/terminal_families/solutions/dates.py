"""Forbidden changes and other solutions of the family `dates`."""

from tests.environments.terminal_families.ways import after, instead, swap

_QUOTED = swap("csv.writer(target)", "csv.writer(target, quoting=csv.QUOTE_ALL)")

FORBIDDEN = {
    "_to_utc": {
        "\nYYYY-MM-DDTHH:MMZ NAME": [swap("%H:%MZ", "%H:%M:00Z"), swap("%dT%H", "%d %H")],
        "\nwhere the time is in UTC (T and Z are literal),": [
            swap("moment.astimezone(timezone.utc)", "moment.replace(tzinfo=timezone.utc)")
        ],
        "earliest first;": [swap("in sorted(rows)", "in sorted(rows)[::-1]")],
        "lines with the same": [swap("in sorted(rows)", "in sorted(sorted(rows)[::-1], key=lambda row: row[0])")],
    },
    "_spans": {
        "Write «target», a CSV file with the header name,start,end,days:": [
            after("sed -i 1s/days/length/ «target»"),
            swap("csv.writer(target)", "csv.writer(target, delimiter=';')"),
        ],
        "the same records": [after("sed -i 2d «target»"), swap('row["name"],', 'row["name"].upper(),')],
        "in the same order,": [swap("in csv.DictReader(source)", "in list(csv.DictReader(source))[::-1]")],
        "the dates as YYYY-MM-DD,": [
            swap('row["name"], start, end,', 'row["name"], row["start"], row["end"],'),
            after("sed -i s#-#/#g «target»"),
        ],
        "and in the last column the number of days,": [swap(".days + «int(inclusive)»", ".days + «1 - inclusive»")],
    },
    "_weeks": {
        "Weeks are ISO 8601 weeks: they begin on Monday, and": [swap("%G-W%V", "%Y-W%U")],
        "Write «target» as CSV with the header": [after("sed -i 1d «target»"), after("sed -i 's/,/;/' «target»")],
        "and one record per week that has entries,": [
            after("tail -n 1 «target» >> «target»"),
            after("printf '«year + 1»-W30,0\\r\\n' >> «target»"),
        ],
        "earliest first;": [swap("in sorted(totals.items())", "in sorted(totals.items())[::-1]")],
        "the week in the form 2023-W05 (ISO": [after("sed -i s/W0/W/ «target»"), after("sed -i s/-W/W/ «target»")],
        "and the sum of the amounts.": [
            swap('int(row["amount"])', "1"),
            swap('totals.get(week, 0) + int(row["amount"])', 'int(row["amount"])'),
        ],
    },
    "_weekdays": {
        "Write those whose date is a «spoken» to «target» in the form": [
            swap("in «repr(wanted)»", "in «repr(tuple(((number + 1) % 7 for number in wanted)))»"),
            swap("if number in «repr(wanted)»", "if True"),
        ],
        "\nYYYY-MM-DD WEEKDAY WORD": [
            after("sed -Ei 's/(\\S+) (\\S+)/\\2 \\1/' «target»"),
            after("sed -i 's/ /,/g' «target»"),
        ],
        "\nwith the English name of the weekday (such as Monday),": [
            after("sed -Ei 's/ (...)[a-z]*day/ \\1/' «target»"),
            after("sed -i 's/.*/\\L&/' «target»"),
        ],
        "sorted by date": [after("LC_ALL=C sort -s -k 1,1r -o «target» «target»")],
        "and, on the same date, by word.": [after("LC_ALL=C sort -k 1,1 -k 3r -o «target» «target»")],
    },
}
HONEST = {
    "_to_utc": [
        instead(
            """while read -r day time offset name; do
    echo "$(date -u -d "$day $time $offset" +%Y-%m-%dT%H:%MZ) $name"
done < «source» | LC_ALL=C sort > «target»
"""
        )
    ],
    "_spans": [
        instead(
            """{ echo name,start,end,days; tail -n +2 «source» |
sed -E 's#,«{"%d.%m.%Y": "(..).(..).(....)", "%m/%d/%Y": "(..)/(..)/(....)", "%Y%m%d": "([0-9]{4})(..)(..)"}[form]»#,«
{"%d.%m.%Y": r"\\3-\\2-\\1", "%m/%d/%Y": r"\\3-\\1-\\2", "%Y%m%d": r"\\1-\\2-\\3"}[form]»#g' | while IFS=, read -r name start end; do
  seconds=$(($(date -u -d "$end" +%s) - $(date -u -d "$start" +%s)))
  echo "$name,$start,$end,$((seconds / 86400 + «int(inclusive)»))"
done; } > «target»
"""
        ),
        _QUOTED,
    ],
    "_weeks": [
        instead(
            """{ echo week,total; tail -n +2 «source» | while IFS=, read -r day item amount; do
  echo "$(date -d "$day" +%G-W%V) $amount"
done | awk '{ total[$1] += $2 } END { for (week in total) print week "," total[week] }' | LC_ALL=C sort; } > «target»
"""
        ),
        _QUOTED,
    ],
    "_weekdays": [
        instead(
            """while read -r day word; do
    case $(date -d $day +%u) in
    «"|".join(str(number + 1) for number in wanted)») echo "$day $(LC_ALL=C date -d $day +%A) $word" ;;
    esac
done < «source» | LC_ALL=C sort > «target»
"""
        )
    ],
}
