"""Family: URLs and their queries."""

from __future__ import annotations

import urllib.parse
from collections import Counter

from .draft import Draft, breach, python, swap
from .family import Family
from .vocabulary import CITIES, FIRST_NAMES, LAST_NAMES, PRODUCTS, SERVICES, WORDS

__all__ = ["FAMILY"]


def _parameter(draft: Draft) -> None:
    root = draft.project()
    source = f"{root}/{draft.pick('requests', 'links', 'clicks')}.txt"
    key = draft.pick("q", "user", "ref", "term")
    target = f"{root}/{key}-values.txt"
    host = f"{draft.pick(*WORDS)}.example"
    lines: list[str] = []
    expected: list[str] = []
    for index in range(draft.number(9, 15)):
        value = draft.pick(
            f"{draft.pick(*FIRST_NAMES)} {draft.pick(*LAST_NAMES)}",
            f"{draft.pick(*CITIES)} & more",
            "100% wool",
            f"a+{draft.pick(*WORDS)}",
            draft.pick(*PRODUCTS),
        )
        if index == 0:
            value = f"{draft.pick(*CITIES)} & {draft.pick(*CITIES)}"
        if index == 2:
            value = f"a+{draft.pick(*WORDS)}"
        parts = [f"page={draft.number(1, 9)}", f"my{key}={draft.pick(*WORDS)}"]
        if index != 1 and (index < 4 or draft.chance(0.7)):
            # Spaces as + at first, so that both encodings occur.
            encode = urllib.parse.quote_plus if draft.chance(0.5) or index == 0 else urllib.parse.quote
            value = f"{draft.pick(*CITIES)} or more" if index == 3 else value
            encode = urllib.parse.quote if index == 3 else encode
            parts.append(f"{key}={encode(value)}")
            expected.append(f"{value}\n")
        ending = f"#{key}=none" if index == 1 else draft.pick("", "", f"#{key}=none")
        lines.append(f"https://{host}/{draft.pick(*SERVICES)}?{'&'.join(draft.shuffled(parts))}{ending}\n")
    draft.file(source, "".join(lines), keep=True)
    right, order = "* has the right lines", "lines of * are in order"
    query = "urlsplit(line.strip()).query"
    undecoded = f"grep -oE '[?&]{key}=[^&#]*' {source} | cut -d = -f 2- > {target}\n"
    draft.pieces(target)
    draft.honest(
        "taken apart by hand",
        instead=python(
            """
            from urllib.parse import unquote_plus
            with open(@target@, "w") as target:
                for line in open(@source@):
                    for part in line.strip().partition("#")[0].partition("?")[2].split("&"):
                        name, _, value = part.partition("=")
                        if name == @key@:
                            target.write(unquote_plus(value) + "\\n")
            """,
            source=source,
            target=target,
            key=key,
        ),
    )
    draft.say(
        draft.pick(
            f"I need the values of the query parameter {key!r} of the URLs in {source}.",
            f"{source} has one URL per line; extract the query parameter {key!r}.",
        ),
        draft.require(
            f"Write the decoded value of {key} of each URL that has it to {target}, one per line,",
            breach("values as they are", right, instead=undecoded),
            breach("a value left out", right, after=f"sed -i '$d' {target}"),
            breach("quoted values", right, swap=("print(value,", "print(repr(value),")),
        ),
        draft.require(
            "in the order of the URLs.",
            breach("backwards", order, after=f"tac {target} > ~/t; cat ~/t > {target}"),
            breach(
                "sorted",
                order,
                after=f"LC_ALL=C sort -r -o {target} {target}; LC_ALL=C sort -s -k 1.2,1.4 -o {target} {target}",
            ),
        ),
        draft.require(
            "In queries both %20 and + stand for a space,",
            breach("+ left", right, swap=(query, f'{query}.replace("+", "%2B")')),
            breach("%20 left", right, swap=(query, f'{query}.replace("%20", "%2520")')),
        ),
        draft.require(
            "and a literal plus sign is written %2B.",
            breach("a space for it", right, swap=(query, f'{query}.replace("%2B", "+")')),
        ),
        draft.require(
            "URLs whose query lacks the parameter are skipped;",
            breach("an empty line for them", right, swap=("[])", '[""])')),
        ),
        draft.require(
            "other parameters with a longer name and the fragment (after #) do not count.",
            breach("longer names", right, swap=(query, f'{query}.replace("my", "")')),
            breach("the fragment", right, swap=("line.strip()", 'line.strip().replace("#", "&")')),
        ),
        draft.every_line(target),
        draft.leave(),
    )
    draft.result(target, "".join(expected))
    oracle = python(
        """
        from urllib.parse import parse_qs, urlsplit
        with open(@target@, "w") as target:
            for line in open(@source@):
                for value in parse_qs(urlsplit(line.strip()).query).get(@key@, []):
                    print(value, file=target)
        """,
        source=source,
        target=target,
        key=key,
    )
    draft.solve(oracle, undecoded, "".join(expected))


def _hosts(draft: Draft) -> None:
    root = draft.project()
    source = f"{root}/{draft.pick('bookmarks', 'crawl', 'history')}.txt"
    target = f"{root}/{draft.pick('hosts', 'sites', 'domains')}.tsv"
    hosts = [f"{word}.{draft.pick('example', 'test', 'invalid')}" for word in draft.some(WORDS, draft.number(4, 6))]
    counts: Counter[str] = Counter()
    lines: list[str] = []
    for index in range(draft.number(14, 24)):
        host = hosts[index % len(hosts)] if index < 6 else draft.pick(*hosts)
        counts[host] += 1
        shown = draft.pick(host, host.upper(), f"www.{host}", f"{host}:8080", f"bob@{host}", f"WWW.{host.title()}:443")
        if index < 4:  # each form at least once
            shown = (f"www.{host}:80", host.upper(), f"{host}:8080", f"bob@{host}")[index]
        path = draft.pick("", "/", f"/{draft.pick(*SERVICES)}", f"?next={draft.pick(*hosts)}", "/a:b@c#d")
        lines.append(f"{draft.pick('http', 'https', 'HTTPS', 'ftp')}://{shown}{path}\n")
    # Two hosts with the same count.
    first, second = sorted(hosts[:2], key=lambda host: counts[host])
    lines += [f"https://{first}/\n"] * (counts[second] - counts[first])
    counts[first] = counts[second]
    draft.file(source, "".join(lines), keep=True)
    right, order = "* has the right lines", "lines of * are in order"
    name = "urlsplit(line.strip()).hostname"
    netloc = "urlsplit(line.strip()).netloc"
    draft.pieces(target)
    draft.honest(
        "by the tools of the shell",
        instead=f"tr A-Z a-z < {source} | sed -E 's!^[a-z]+://!!; s![/?#].*!!; s!.*@!!; s!:.*!!; s!^www[.]!!' "
        f"| LC_ALL=C sort | uniq -c | LC_ALL=C sort -k 1,1nr -k 2,2 | sed 's/^ *//; s/ /\\t/' > {target}",
    )
    draft.say(
        draft.pick(f"Count the URLs in {source} by host.", f"Which sites does {source} link to, and how often?"),
        "There is one URL per line.",
        draft.require(
            "The host is compared in small letters,",
            breach("capitals apart", right, swap=(name, f'{netloc}.rpartition("@")[2].partition(":")[0]')),
        ),
        draft.require(
            "without a port,", breach("ports too", right, swap=(name, f'{netloc}.lower().rpartition("@")[2]'))
        ),
        draft.require(
            "without a user name (what comes before @)",
            breach("user names too", right, swap=(name, f'{netloc}.lower().partition(":")[0]')),
        ),
        draft.require("and without a leading 'www.'.", breach("www too", right, swap=('.removeprefix("www.")', ""))),
        draft.require(
            f"Write {target}: for each host one line with the count,",
            breach("one host left out", right, after=f"sed -i '$d' {target}"),
            breach("counts of one more", right, swap=("print(count,", "print(count + 1,")),
        ),
        draft.require(
            "a tab, and the host in that form.",
            breach("a space", right, swap=('sep="\\t"', 'sep=" "')),
            breach("the host first", right, swap=("print(count, host", "print(host, count")),
            breach("capitals", right, swap=("print(count, host", "print(count, host.title()")),
        ),
        draft.require(
            "Largest count first,", breach("smallest first", order, after=f"tac {target} > ~/t; cat ~/t > {target}")
        ),
        draft.require(
            "equal counts in alphabetical order.",
            breach("equal counts backwards", order, after=f"LC_ALL=C sort -k 1,1nr -k 2,2r -o {target} {target}"),
        ),
        draft.every_line(target),
        draft.leave(),
    )
    expected = "".join(f"{n}\t{host}\n" for host, n in sorted(counts.items(), key=lambda item: (-item[1], item[0])))
    draft.result(target, expected)
    oracle = python(
        """
        import collections
        from urllib.parse import urlsplit
        counts = collections.Counter(urlsplit(line.strip()).hostname.removeprefix("www.") for line in open(@source@))
        with open(@target@, "w") as target:
            for host, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
                print(count, host, sep="\\t", file=target)
        """,
        source=source,
        target=target,
    )
    draft.solve(oracle, swap(oracle, '.removeprefix("www.")', ""), expected)


def _clean(draft: Draft) -> None:
    root = draft.project()
    source = f"{root}/{draft.pick('newsletter', 'shared', 'campaign')}-links.txt"
    target = source.replace(".txt", "-clean.txt")
    hosts = [f"{word}.example" for word in draft.some(WORDS, 3)]
    bases: list[str] = []
    for number in range(draft.number(6, 9)):
        # None, two and one parameters at first, then any number.
        few = (0, 2, 1)[number] if number < 3 else draft.number(0, 2)
        query = [f"{draft.pick(*SERVICES)}={draft.number(1, 99)}" for _ in range(few)]
        url = f"https://{draft.pick(*hosts)}/{draft.pick(*PRODUCTS)}"
        bases.append(f"{url}?{'&'.join(query)}" if query else url)
    bases = list(dict.fromkeys(bases))
    lines: list[str] = []
    order: dict[str, None] = {}
    for index, base in enumerate(draft.shuffled([*bases, *draft.some(bases, 3)])):
        url, _, query = base.partition("?")
        parts = query.split("&") if query else []
        for _ in range(1 if index == 0 else draft.number(0, 2)):
            tracking = f"utm_{draft.pick('source', 'medium', 'campaign')}={draft.pick(*WORDS)}"
            parts.insert(draft.number(0, len(parts)), tracking)
        if index == 0 or draft.chance(0.3):
            parts.insert(draft.number(0, len(parts)), f"fbclid={draft.number(10**6, 10**7)}")
        if index == 1:  # its fragment follows a parameter that stays, so the fragment stays
            parts = query.split("&") if query else []
        fragment = f"#{draft.pick(*WORDS)}" if index == 1 or draft.chance(0.3) else ""
        lines.append(url + ("?" + "&".join(parts) if parts else "") + fragment + "\n")
        order.setdefault(base)
    draft.file(source, "".join(lines), keep=True)
    right, in_order = "* has the right lines", "lines of * are in order"
    draft.pieces(target)
    draft.honest(
        "by the tools of the shell",
        instead=f"sed -E 's/#.*//; :again; s/([?&])(utm_[^&]*|fbclid=[^&]*)(&|$)/\\1/; t again; s/[?&]$//' {source} "
        f"| awk '!seen[$0]++' > {target}",
    )
    draft.say(
        draft.pick(f"Strip the tracking from the URLs in {source}.", f"Clean up the links in {source}."),
        "There is one URL per line.",
        draft.require(
            "Remove every query parameter whose name begins with utm_",
            breach("one left", right, after=f"sed -i 's!^{bases[0]}$!&?utm_source=mail!' {target}"),
        ),
        draft.require(
            "and the parameter fbclid,", breach("it left", right, after=f"sed -i 's!^{bases[0]}$!&?fbclid=7!' {target}")
        ),
        draft.require(
            "and also the fragment (# and what follows).",
            breach("a fragment left", right, after=f"sed -i '1s/$/#top/' {target}"),
            breach("the # left", right, after=f"sed -i '1s/$/#/' {target}"),
        ),
        draft.require(
            "The remaining parameters keep their order and spelling;",
            breach("another order", right, swap=('"&".join(parts)', '"&".join(parts[::-1])')),
            breach("another spelling", right, swap=('"&".join(parts)', '"&".join(parts).upper()')),
        ),
        draft.require(
            "a URL with none left has no question mark either.",
            breach(
                "a question mark", right, swap=('("?" + "&".join(parts) if parts else "")', '"?" + "&".join(parts)')
            ),
        ),
        draft.require(
            f"Write the cleaned URLs to {target} in the order of the lines.",
            breach("backwards", in_order, after=f"tac {target} > ~/t; cat ~/t > {target}"),
            breach("a URL left out", right, after=f"sed -i '$d' {target}"),
        ),
        draft.require(
            "Where a cleaned URL has occurred before, leave the repetition out.",
            breach("a URL twice", right, after=f"head -n 1 {target} >> {target}"),
        ),
        draft.every_line(target),
        draft.leave(),
    )
    expected = "".join(f"{url}\n" for url in order)
    draft.result(target, expected)
    oracle = python(
        """
        seen = {}
        for line in open(@source@):
            url, _, query = line.strip().partition("#")[0].partition("?")
            parts = [part for part in query.split("&") if part and not part.startswith(("utm_", "fbclid="))]
            seen.setdefault(url + ("?" + "&".join(parts) if parts else ""))
        open(@target@, "w").write("".join(url + "\\n" for url in seen))
        """,
        source=source,
        target=target,
    )
    draft.solve(oracle, swap(oracle, '.partition("#")[0]', ""), expected)


FAMILY = Family("urls", "Take URLs and queries apart", (_parameter, _hosts, _clean), ("python3",))
