"""Forbidden changes and other solutions of the family `urls`."""

from tests.environments.terminal_families.ways import after, instead, python, swap

FORBIDDEN = {
    "_parameter": {
        "Write the decoded value of «key» of each URL that has it to «target», one per line,": [
            instead("«undecoded»"),
            swap("print(value,", "print(repr(value),"),
        ],
        "in the order of the URLs.": [
            after("tac «target» > ~/t; cat ~/t > «target»"),
            after("LC_ALL=C sort -r -o «target» «target»; LC_ALL=C sort -s -k 1.2,1.4 -o «target» «target»"),
        ],
        "In queries both %20 and + stand for a space,": [
            swap("urlsplit(line.strip()).query", 'urlsplit(line.strip()).query.replace("+", "%2B")')
        ],
        "and a literal plus sign is written %2B.": [
            swap("urlsplit(line.strip()).query", 'urlsplit(line.strip()).query.replace("%2B", "+")')
        ],
        "URLs whose query lacks the parameter are skipped;": [swap("[])", '[""])')],
        "other parameters with a longer name and the fragment (after #) do not count.": [
            swap("urlsplit(line.strip()).query", 'urlsplit(line.strip()).query.replace("my", "")'),
            swap("line.strip()", 'line.strip().replace("#", "&")'),
        ],
    },
    "_hosts": {
        "The host is compared in small letters,": [
            swap(
                "urlsplit(line.strip()).hostname", 'urlsplit(line.strip()).netloc.rpartition("@")[2].partition(":")[0]'
            )
        ],
        "without a port,": [
            swap("urlsplit(line.strip()).hostname", 'urlsplit(line.strip()).netloc.lower().rpartition("@")[2]')
        ],
        "without a user name (what comes before @)": [
            swap("urlsplit(line.strip()).hostname", 'urlsplit(line.strip()).netloc.lower().partition(":")[0]')
        ],
        "and without a leading 'www.'.": [swap('.removeprefix("www.")', "")],
        "Write «target»: for each host one line with the count,": [swap("print(count,", "print(count + 1,")],
        "a tab, and the host in that form.": [
            swap('sep="\\t"', 'sep=" "'),
            swap("print(count, host", "print(host, count"),
        ],
        "Largest count first,": [after("tac «target» > ~/t; cat ~/t > «target»")],
        "equal counts in alphabetical order.": [after("LC_ALL=C sort -k 1,1nr -k 2,2r -o «target» «target»")],
    },
    "_clean": {
        "Remove every query parameter whose name begins with utm_": [
            after("sed -i 's!^«bases[0]»$!&?utm_source=mail!' «target»")
        ],
        "and the parameter fbclid,": [after("sed -i 's!^«bases[0]»$!&?fbclid=7!' «target»")],
        "and also the fragment (# and what follows).": [
            after("sed -i '1s/$/#top/' «target»"),
            after("sed -i '1s/$/#/' «target»"),
        ],
        "The remaining parameters keep their order and spelling;": [swap('"&".join(parts)', '"&".join(parts[::-1])')],
        "a URL with none left has no question mark either.": [
            swap('("?" + "&".join(parts) if parts else "")', '"?" + "&".join(parts)')
        ],
        "Write the cleaned URLs to «target» in the order of the lines.": [
            after("tac «target» > ~/t; cat ~/t > «target»")
        ],
        "Where a cleaned URL has occurred before, leave the repetition out.": [after("head -n 1 «target» >> «target»")],
    },
}
HONEST = {
    "_parameter": [
        python(r"""
from urllib.parse import unquote_plus
with open(@target@, "w") as target:
    for line in open(@source@):
        for part in line.strip().partition("#")[0].partition("?")[2].split("&"):
            name, _, value = part.partition("=")
            if name == @key@:
                target.write(__import__('urllib.parse').parse.unquote_plus(value) + "\n")
""")
    ],
    "_hosts": [
        instead(
            "tr A-Z a-z < «source» | sed -E 's!^[a-z]+://!!; s![/?#].*!!; s!.*@!!; s!:.*!!; s!^www[.]!!' | LC_ALL=C sort | uniq -c | LC_ALL=C sort -k 1,1nr -k 2,2 | sed 's/^ *//; s/ /\\t/' > «target»"
        )
    ],
    "_clean": [
        instead(
            "sed -E 's/#.*//; :again; s/([?&])(utm_[^&]*|fbclid=[^&]*)(&|$)/\\1/; t again; s/[?&]$//' «source» | awk '!seen[$0]++' > «target»"
        )
    ],
}
