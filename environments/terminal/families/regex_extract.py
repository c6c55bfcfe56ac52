"""Family: patterns in running text."""

from __future__ import annotations

import re

from .draft import Draft, breach, python, swap
from .family import Family
from .vocabulary import CITIES, FIRST_NAMES, HOSTS, LAST_NAMES, WORDS

__all__ = ["FAMILY"]

_LINES, _ORDER = "* has the right lines", "lines of * are in order"


def _weave(draft: Draft, things: list[str]) -> str:
    """Return lines of words, with each of ``things`` somewhere between spaces."""
    text = ""
    for thing in draft.shuffled(things):
        words = [draft.pick(*WORDS) for _ in range(draft.number(3, 8))]
        words.insert(draft.number(0, len(words)), thing)
        text += " ".join(words) + draft.pick("\n", "\n", " ")
    return text.rstrip() + "\n"


def _emails(draft: Draft) -> None:
    root = draft.project()
    source = f"{root}/{draft.pick('mailbox', 'thread', 'forum', 'notes')}.txt"
    target = f"{root}/{draft.pick('addresses', 'emails', 'recipients')}.txt"
    domains = [f"{word}.{draft.pick('com', 'org', 'net', 'example')}" for word in draft.some(WORDS, 4)]
    domains[0] = f"{draft.pick(*WORDS)}{draft.number(2, 9)}.{draft.pick('com', 'org')}"
    people = [*zip(draft.some(FIRST_NAMES, 10), draft.some(LAST_NAMES, 10), strict=True)]
    addresses = [
        f"{first}{'._'[index] if index < 2 else draft.pick('.', '_', '')}{last}@{draft.pick(*domains)}".lower()
        for index, (first, last) in enumerate(people)
    ]
    addresses[2] = f"{people[2][0]}{draft.number(2, 99)}@{domains[0]}".lower()
    name, _, domain = addresses[7].partition("@")
    shown = [*addresses[:7], f"{name.upper()}@{domain}", *addresses[8:]]
    shown += [addresses[0].title(), addresses[1].upper(), addresses[2]]
    forms = {3: "<{}>", 4: "({})", 5: "{},", 6: "{}"}
    shown = [
        forms.get(index, draft.pick("{}", "<{}>", "({})", "{},")).format(address) for index, address in enumerate(shown)
    ]
    shown += [
        f"@{draft.pick(*FIRST_NAMES).lower()}",
        f"{draft.pick(*WORDS)} @ {domains[0]}",
        f"me@{draft.pick(*HOSTS)}",
    ]
    draft.file(source, _weave(draft, shown), keep=True)
    pattern = r"[A-Za-z0-9._]+@[A-Za-z0-9]+\.[A-Za-z]+"
    draft.say(
        draft.pick(f"Collect the e-mail addresses in {source}.", f"Who is mentioned by e-mail address in {source}?"),
        draft.require(
            "An address here is one or more letters, digits, dots or underscores, then @,",
            breach("no dots in names", _LINES, swap=("[A-Za-z0-9._]+@", "[A-Za-z0-9_]+@")),
            breach("no underscores in names", _LINES, swap=("[A-Za-z0-9._]+@", "[A-Za-z0-9.]+@")),
            breach("no digits in names", _LINES, swap=("[A-Za-z0-9._]+@", "[A-Za-z._]+@")),
            breach("small letters in names alone", _LINES, swap=("[A-Za-z0-9._]+@", "\\b[a-z0-9._]+@")),
            breach("a space before the sign", _LINES, swap=("._]+@", "._]+ ?@ ?")),
        ),
        draft.require(
            "then a domain of exactly two parts joined by a dot (the first part letters and digits, the second letters "
            "only).",
            breach("no digits in domains", _LINES, swap=("@[A-Za-z0-9]+", "@[A-Za-z]+")),
            breach("domains without their second part", _LINES, swap=("\\.[A-Za-z]+'", "\\.'")),
            breach("two letters of the second part", _LINES, swap=("\\.[A-Za-z]+'", "\\.[A-Za-z][A-Za-z]'")),
            breach("names without domains", _LINES, after=f"sed -i s/@.*// {target}"),
        ),
        draft.require(
            "Things such as @name, or name@host without a dot, are no addresses.",
            breach("domains without a dot", _LINES, swap=("\\.[A-Za-z]+'", "(\\.[A-Za-z]+)?'")),
            breach("nothing before the sign", _LINES, swap=(f"'{pattern}'", f"'{pattern}|@[a-z]+( |$)'")),
        ),
        draft.require(
            "They may stand in brackets or before a comma.",
            breach("none in brackets", _LINES, swap=(f"-oE '{pattern}'", f"-oP '(?<![<(A-Za-z0-9._]){pattern}'")),
            breach("none before a comma", _LINES, swap=(f"-oE '{pattern}'", f"-oP '{pattern}(?![,A-Za-z])'")),
            breach("brackets and commas too", _LINES, swap=(f"'{pattern}'", f"'[<(]?{pattern}[>),]?'")),
        ),
        draft.require(
            f"Write them to {target} in small letters,",
            breach("letters as they are", _LINES, swap=("| tr A-Z a-z ", "")),
            breach("capital letters", _LINES, swap=("tr A-Z a-z", "tr a-z A-Z")),
        ),
        draft.require("each one once,", breach("each as often as it occurs", _LINES, swap=("sort -u", "sort"))),
        draft.require(
            "one per line,",
            breach("two on a line", _LINES, after=f"paste -d , - - < {target} > ~/two && mv ~/two {target}"),
            breach("numbered lines", _LINES, after=f"cat -n {target} > ~/numbered && mv ~/numbered {target}"),
            breach("an address left out", _LINES, after=f"sed -i 1d {target}"),
        ),
        draft.require(
            "in alphabetical (byte) order.",
            breach("sorted backwards", _ORDER, swap=("sort -u", "sort -ru")),
            breach("the first one last", _ORDER, after=f"sed -i '1{{h;d}};${{G}}' {target}"),
        ),
        draft.every_line(target),
        draft.leave(),
    )
    expected = "".join(f"{address}\n" for address in sorted(set(addresses)))
    draft.result(target, expected)
    oracle = f"grep -oE '{pattern}' {source} | tr A-Z a-z | LC_ALL=C sort -u > {target}\n"
    draft.honest(
        "found by Python",
        instead=python(
            """
            import re
            found = {address.lower() for address in re.findall(@pattern@, open(@source@).read())}
            open(@target@, "w").writelines(address + "\\n" for address in sorted(found))
            """,
            pattern=pattern,
            source=source,
            target=target,
        ),
    )
    draft.honest(
        "small letters first",
        swap=(f"grep -oE '{pattern}' {source} | tr A-Z a-z", f"tr A-Z a-z < {source} | grep -oE '{pattern}'"),
    )
    draft.solve(oracle, swap(oracle, "| tr A-Z a-z ", ""), expected)


def _tickets(draft: Draft) -> None:
    root = draft.project()
    source = f"{root}/{draft.pick('changelog', 'commits', 'chat', 'release-notes')}.txt"
    target = f"{root}/{draft.pick('tickets', 'issues', 'references')}.txt"
    keys = draft.some(("OPS", "WEB", "API", "QA", "CORE", "DOCS"), 3)
    least, most = draft.pick((2, 4), (3, 5))
    # Two tickets that sort differently as numbers and as text, one ticket of each key, then any.
    tickets = [
        f"{keys[0]}-{'9' * least}",
        f"{keys[0]}-{'1' * most}",
        f"{keys[1]}-{'5' * least}",
        f"{keys[2]}-{'6' * most}",
    ]
    tickets += [
        f"{draft.pick(*keys)}-{draft.number(10 ** (least - 1), 10**most - 1)}" for _ in range(draft.number(5, 10))
    ]
    tickets = list(dict.fromkeys(tickets))
    shown = [*tickets, *draft.some(tickets[2:], 3)]
    shown = [draft.pick("{}", "({})", "{}:", "{}.", "[{}]").format(ticket) for ticket in shown]
    shown += [tickets[0].lower(), f"X{tickets[1]}", f"{keys[0]}-{'1' * (most + 1)}", f"{keys[1]}-{'7' * (least - 1)}"]
    shown += [f"{tickets[2]}x", f"UTF-{'8' * least}"]
    draft.file(source, _weave(draft, shown), keep=True)
    pattern = rf"(?<![A-Za-z0-9])(?:{'|'.join(keys)})-[0-9]{{{least},{most}}}(?![A-Za-z0-9])"
    text = draft.files[source].content.decode()
    found = re.findall(pattern, text)
    counts = sorted({(-found.count(ticket), ticket) for ticket in found})
    expected = "".join(f"{-count} {ticket}\n" for count, ticket in counts)
    draft.say(
        draft.pick(f"Which tickets does {source} mention, and how often?", f"Count the ticket numbers in {source}."),
        draft.require(
            f"A ticket number is one of {', '.join(keys)} in capitals, a hyphen, and {least} to {most} digits,",
            breach("small letters too", _LINES, swap=("re.findall(", "re.findall('(?i)' + ")),
            breach("any key", _LINES, swap=(f"(?:{'|'.join(keys)})", "[A-Z]+")),
            breach("one key left out", _LINES, swap=(f"{'|'.join(keys)})", f"{'|'.join(keys[:2])})")),
            breach("fewer digits too", _LINES, swap=(f"{{{least},{most}}}", f"{{1,{most}}}")),
            breach("more digits too", _LINES, swap=(f"{{{least},{most}}}", f"{{{least},}}")),
            breach("the most digits alone", _LINES, swap=(f"{{{least},{most}}}", f"{{{most}}}")),
        ),
        draft.require(
            "with no further letter or digit directly before or after it.",
            breach("a letter before it", _LINES, swap=("(?<![A-Za-z0-9])", "")),
            breach("a letter or digit after it", _LINES, swap=("(?![A-Za-z0-9])", "")),
            breach("a letter after it", _LINES, swap=("(?![A-Za-z0-9])", "(?![0-9])")),
            breach("only between spaces", _LINES, swap=("(?![A-Za-z0-9])", "(?![^ \\n])")),
        ),
        draft.require(
            f"Write {target} with one line for each different ticket:",
            breach(
                "a line for each time",
                _LINES,
                swap=("in sorted(counts.items(), key", "in sorted(list(counts.items()) * 2, key"),
            ),
            breach("a ticket left out", _LINES, after=f"sed -i '$d' {target}"),
            breach("a heading", _LINES, after=f"sed -i '1i count ticket' {target}"),
        ),
        draft.require(
            "how often it occurs, one space, the ticket number.",
            breach("the ticket number first", _LINES, swap=("print(count, ticket,", "print(ticket, count,")),
            breach("a tab", _LINES, swap=("print(count, ticket,", "print(count, ticket, sep='\\t',")),
            breach("always 1", _LINES, swap=("print(count,", "print(1,")),
            breach("as uniq writes it", _LINES, swap=("print(count,", "print(f'{count:7}',")),
            breach("the digits alone", _LINES, after=f"sed -i 's/ .*-/ /' {target}"),
        ),
        draft.require(
            "Most frequent first;",
            breach("least frequent first", _ORDER, swap=("(-item[1], item[0])", "(item[1], item[0])")),
            breach(
                "by ticket number alone",
                _ORDER,
                after=f"LC_ALL=C sort -k 2 -o {target} {target} && tac {target} > ~/x && cp ~/x {target}",
            ),
        ),
        draft.require(
            "equally frequent ones in byte order of the ticket number (LC_ALL=C sort).",
            breach(
                "equally frequent ones backwards",
                _ORDER,
                swap=("(-item[1], item[0])", "(-item[1], [-ord(letter) for letter in item[0]])"),
            ),
            breach(
                "equally frequent ones by number",
                _ORDER,
                swap=("(-item[1], item[0])", "(-item[1], item[0].split('-')[0], int(item[0].split('-')[1]))"),
            ),
        ),
        draft.every_line(target),
        draft.leave(),
    )
    draft.result(target, expected)
    oracle = python(
        """
        import collections, re
        counts = collections.Counter(re.findall(@pattern@, open(@source@).read()))
        with open(@target@, "w") as target:
            for ticket, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
                print(count, ticket, file=target)
        """,
        pattern=pattern,
        source=source,
        target=target,
    )
    draft.honest(
        "counted by uniq",
        instead=f"grep -oP '{pattern}' {source} | sort | uniq -c | awk '{{ print $1, $2 }}' "
        f"| LC_ALL=C sort -k 1,1nr -k 2,2 > {target}\n",
    )
    draft.honest("written through a temporary file", after=f"cp {target} {target}.new && mv {target}.new {target}")
    draft.solve(oracle, swap(oracle, "(?![A-Za-z0-9])", ""), expected)


def _addresses(draft: Draft) -> None:
    root = draft.project()
    source = f"{root}/{draft.pick('firewall', 'sshd', 'proxy', 'access')}.log"
    target = f"{root}/{draft.pick('addresses', 'clients', 'sources')}.txt"

    def address() -> str:
        return ".".join(str(draft.number(1, 254)) for _ in range(4))

    good = [address() for _ in range(draft.number(8, 14))]
    second = draft.number(0, 9)
    good += [f"9.{second}.0.1", f"10.{second}.200.1", f"10.{second}.30.1", f"100.{draft.number(0, 9)}.30.255"]
    shown = [*good, *draft.some(good, 3)]
    shown = [draft.pick("{}", "src={}", "[{}]", "{}:443", "{};").format(entry) for entry in shown]
    shown += [f"{draft.number(256, 999)}.1.2.3", f"1.2.3.{draft.number(256, 999)}", "1.2.3", f"v{address()}.7"]
    shown += [f"build-{draft.number(1, 9)}.{address()}", f"host-{draft.pick(*CITIES).lower()}"]
    shown += [f"v{address()}", f"{address()}x", f"{address()}.", f".{address()}"]
    draft.file(source, _weave(draft, shown), keep=True)
    draft.say(
        draft.pick(f"Extract all IPv4 addresses from {source}.", f"Which IPv4 addresses occur in {source}?"),
        draft.require(
            "An address is four decimal numbers from 0 to 255 joined by dots.",
            breach("three numbers are enough", _LINES, swap=("{3}", "{2,3}")),
            breach("any numbers", _LINES, swap=("int(part) < 256", "int(part) < 1000")),
            breach("numbers below 255", _LINES, swap=("int(part) < 256", "int(part) < 255")),
            breach("numbers above 0", _LINES, swap=("int(part) < 256", "0 < int(part) < 256")),
            breach(
                "the first number alone checked", _LINES, swap=('in entry.split("."))}', 'in entry.split(".")[:1])}')
            ),
        ),
        draft.require(
            "It must not have a digit, a letter or a dot directly before it,",
            breach("whatever is before it", _LINES, swap=("(?<![A-Za-z0-9.])", "")),
            breach("a letter before it", _LINES, swap=("(?<![A-Za-z0-9.])", "(?<![0-9.])")),
            breach("a dot before it", _LINES, swap=("(?<![A-Za-z0-9.])", "(?<![A-Za-z0-9])")),
            breach("nothing but a space before it", _LINES, swap=("(?<![A-Za-z0-9.])", "(?<![^ \\n])")),
        ),
        draft.require(
            "nor a digit, a letter or a dot directly after it: 1.2.3.4.5 and v1.2.3.4 are no addresses, and neither is "
            "1.2.3.999.",
            breach("whatever is after it", _LINES, swap=("(?![A-Za-z0-9.])", "")),
            breach("a letter after it", _LINES, swap=("(?![A-Za-z0-9.])", "(?![0-9.])")),
            breach("a dot after it", _LINES, swap=("(?![A-Za-z0-9.])", "(?![A-Za-z0-9])")),
            breach("the dot of a sentence after it", _LINES, swap=("(?![A-Za-z0-9.])", "(?![A-Za-z0-9]|[.][0-9])")),
            breach("nothing but a space after it", _LINES, swap=("(?![A-Za-z0-9.])", "(?![^ \\n])")),
        ),
        draft.require(
            f"Write each different address once to {target},",
            breach(
                "each as often as it occurs",
                _LINES,
                swap=(
                    'good = {entry for entry in found if all(int(part) < 256 for part in entry.split("."))}',
                    'good = [entry for entry in found if all(int(part) < 256 for part in entry.split("."))]',
                ),
            ),
            breach(
                "only those that occur once",
                _LINES,
                swap=("for entry in found if", "for entry in found if found.count(entry) == 1 and"),
            ),
            breach("an address left out", _LINES, after=f"sed -i '$d' {target}"),
        ),
        draft.require(
            "one per line,",
            breach("two on a line", _LINES, after=f"paste -d ' ' - - < {target} > ~/two && mv ~/two {target}"),
            breach("numbered lines", _LINES, after=f"cat -n {target} > ~/numbered && mv ~/numbered {target}"),
        ),
        draft.require(
            "sorted numerically by the first number, then the second, the third and the fourth (so 9.1.1.1 comes "
            "before 10.0.0.1).",
            breach(
                "sorted as text", _ORDER, swap=('key=lambda entry: [int(part) for part in entry.split(".")]', "key=str")
            ),
            breach(
                "sorted by the first number alone",
                _ORDER,
                swap=('[int(part) for part in entry.split(".")]', '(int(entry.split(".")[0]), entry)'),
            ),
            breach("sorted backwards", _ORDER, after=f"tac {target} > ~/x && mv ~/x {target}"),
        ),
        draft.every_line(target),
        draft.leave(),
    )
    ordered = sorted(set(good), key=lambda entry: [int(part) for part in entry.split(".")])
    expected = "".join(f"{entry}\n" for entry in ordered)
    draft.result(target, expected)
    oracle = python(
        """
        import re
        found = re.findall(r"(?<![A-Za-z0-9.])\\d+(?:\\.\\d+){3}(?![A-Za-z0-9.])", open(@source@).read())
        good = {entry for entry in found if all(int(part) < 256 for part in entry.split("."))}
        with open(@target@, "w") as target:
            for entry in sorted(good, key=lambda entry: [int(part) for part in entry.split(".")]):
                print(entry, file=target)
        """,
        source=source,
        target=target,
    )
    draft.honest("sorted by sort", after=f"sort -u {target} > ~/x && sort -V ~/x > {target}")
    draft.honest(
        "found by grep",
        instead=f"grep -oP '(?<![A-Za-z0-9.])[0-9]+([.][0-9]+){{3}}(?![A-Za-z0-9.])' {source} "
        "| awk -F . '$1 < 256 && $2 < 256 && $3 < 256 && $4 < 256' "
        f"| sort -u -t . -k 1,1n -k 2,2n -k 3,3n -k 4,4n > {target}\n",
    )
    draft.solve(oracle, swap(oracle, "(part) < 256", "(part) < 1000"), expected)


FAMILY = Family(
    "regex_extract", "Extract addresses and numbers from text", (_emails, _tickets, _addresses), ("python3",)
)
