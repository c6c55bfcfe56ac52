"""Family: URLs and their queries."""

import urllib.parse
from collections import Counter

from .draft import Draft, python, swap
from .family import Family
from .vocabulary import CITIES, FIRST_NAMES, LAST_NAMES, PRODUCTS, SERVICES, WORDS


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
    draft.file(source, "".join(lines))
    undecoded = f"grep -oE '[?&]{key}=[^&#]*' {source} | cut -d = -f 2- > {target}\n"
    draft.say(
        draft.pick(
            f"I need the values of the query parameter {key!r} of the URLs in {source}.",
            f"{source} has one URL per line; extract the query parameter {key!r}.",
        ),
        f"! Write the decoded value of {key} of each URL that has it to {target}, one per line,",
        "! in the order of the URLs.",
        "! In queries both %20 and + stand for a space,",
        "! and a literal plus sign is written %2B.",
        "! URLs whose query lacks the parameter are skipped;",
        "! other parameters with a longer name and the fragment (after #) do not count.",
        draft.every_line(),
    )
    oracle = python("""
        from urllib.parse import parse_qs, urlsplit
        with open(@target@, "w") as target:
            for line in open(@source@):
                for value in parse_qs(urlsplit(line.strip()).query).get(@key@, []):
                    print(value, file=target)
        """)
    draft.solve(oracle, undecoded)


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
    draft.file(source, "".join(lines))
    draft.say(
        draft.pick(f"Count the URLs in {source} by host.", f"Which sites does {source} link to, and how often?"),
        "There is one URL per line.",
        "! The host is compared in small letters,",
        "! without a port,",
        "! without a user name (what comes before @)",
        "! and without a leading 'www.'.",
        f"! Write {target}: for each host one line with the count,",
        "! a tab, and the host in that form.",
        "! Largest count first,",
        "! equal counts in alphabetical order.",
        draft.every_line(),
    )
    oracle = python("""
        import collections
        from urllib.parse import urlsplit
        counts = collections.Counter(urlsplit(line.strip()).hostname.removeprefix("www.") for line in open(@source@))
        with open(@target@, "w") as target:
            for host, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
                print(count, host, sep="\\t", file=target)
        """)
    draft.solve(oracle, swap(oracle, '.removeprefix("www.")', ""))


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
    draft.file(source, "".join(lines))
    draft.say(
        draft.pick(f"Strip the tracking from the URLs in {source}.", f"Clean up the links in {source}."),
        "There is one URL per line.",
        "! Remove every query parameter whose name begins with utm_",
        "! and the parameter fbclid,",
        "! and also the fragment (# and what follows).",
        "! The remaining parameters keep their order and spelling;",
        "! a URL with none left has no question mark either.",
        f"! Write the cleaned URLs to {target} in the order of the lines.",
        "! Where a cleaned URL has occurred before, leave the repetition out.",
        draft.every_line(),
    )
    oracle = python("""
        seen = {}
        for line in open(@source@):
            url, _, query = line.strip().partition("#")[0].partition("?")
            parts = [part for part in query.split("&") if part and not part.startswith(("utm_", "fbclid="))]
            seen.setdefault(url + ("?" + "&".join(parts) if parts else ""))
        open(@target@, "w").write("".join(url + "\\n" for url in seen))
        """)
    draft.solve(oracle, swap(oracle, '.partition("#")[0]', ""))


FAMILY = Family("urls", "Take URLs and queries apart", (_parameter, _hosts, _clean), ("python3",))
