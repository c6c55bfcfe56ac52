"""Family: patterns in running text."""

from .draft import Draft, python, swap
from .family import Family
from .vocabulary import CITIES, FIRST_NAMES, HOSTS, LAST_NAMES, WORDS


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
    draft.file(source, _weave(draft, shown))
    pattern = r"[A-Za-z0-9._]+@[A-Za-z0-9]+\.[A-Za-z]+"
    draft.say(
        draft.pick(f"Collect the e-mail addresses in {source}.", f"Who is mentioned by e-mail address in {source}?"),
        "! An address here is one or more letters, digits, dots or underscores, then @,",
        "! then a domain of exactly two parts joined by a dot (the first part letters and digits, the second letters "
        "only).",
        "! Things such as @name, or name@host without a dot, are no addresses.",
        "! They may stand in brackets or before a comma.",
        f"! Write them to {target} in small letters,",
        "! each one once,",
        "! one per line,",
        "! in alphabetical (byte) order.",
        draft.every_line(),
    )
    oracle = f"grep -oE '{pattern}' {source} | tr A-Z a-z | LC_ALL=C sort -u > {target}\n"
    draft.solve(oracle, swap(oracle, "| tr A-Z a-z ", ""))


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
    draft.file(source, _weave(draft, shown))
    pattern = rf"(?<![A-Za-z0-9])(?:{'|'.join(keys)})-[0-9]{{{least},{most}}}(?![A-Za-z0-9])"
    draft.say(
        draft.pick(f"Which tickets does {source} mention, and how often?", f"Count the ticket numbers in {source}."),
        f"! A ticket number is one of {', '.join(keys)} in capitals, a hyphen, and {least} to {most} digits,",
        "! with no further letter or digit directly before or after it.",
        f"! Write {target} with one line for each different ticket:",
        "! how often it occurs, one space, the ticket number.",
        "! Most frequent first;",
        "! equally frequent ones in byte order of the ticket number (LC_ALL=C sort).",
        draft.every_line(),
    )
    oracle = python(
        """
        import collections, re
        counts = collections.Counter(re.findall(@pattern@, open(@source@).read()))
        with open(@target@, "w") as target:
            for ticket, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
                print(count, ticket, file=target)
        """,
        pattern=pattern,
    )
    draft.solve(oracle, swap(oracle, "(?![A-Za-z0-9])", ""))


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
    draft.file(source, _weave(draft, shown))
    draft.say(
        draft.pick(f"Extract all IPv4 addresses from {source}.", f"Which IPv4 addresses occur in {source}?"),
        "! An address is four decimal numbers from 0 to 255 joined by dots.",
        "! It must not have a digit, a letter or a dot directly before it,",
        "! nor a digit, a letter or a dot directly after it: 1.2.3.4.5 and v1.2.3.4 are no addresses, and neither is "
        "1.2.3.999.",
        f"! Write each different address once to {target},",
        "! one per line,",
        "! sorted numerically by the first number, then the second, the third and the fourth (so 9.1.1.1 comes "
        "before 10.0.0.1).",
        draft.every_line(),
    )
    oracle = python("""
        import re
        found = re.findall(r"(?<![A-Za-z0-9.])\\d+(?:\\.\\d+){3}(?![A-Za-z0-9.])", open(@source@).read())
        good = {entry for entry in found if all(int(part) < 256 for part in entry.split("."))}
        with open(@target@, "w") as target:
            for entry in sorted(good, key=lambda entry: [int(part) for part in entry.split(".")]):
                print(entry, file=target)
        """)
    draft.solve(oracle, swap(oracle, "(part) < 256", "(part) < 1000"))


FAMILY = Family(
    "regex_extract", "Extract addresses and numbers from text", (_emails, _tickets, _addresses), ("python3",)
)
