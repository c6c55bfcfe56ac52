"""Family: IPv4 networks and addresses."""

from __future__ import annotations

import ipaddress

from .draft import Draft, breach, python, swap
from .family import Family
from .vocabulary import CITIES, HOSTS, SERVICES

__all__ = ["FAMILY"]

_LINES, _ORDER = "* has the right lines", "lines of * are in order"


def _network(draft: Draft, prefix: int) -> ipaddress.IPv4Network:
    number = (10 << 24 | draft.number(0, 2**24 - 1)) >> (32 - prefix) << (32 - prefix)
    return ipaddress.IPv4Network((number, prefix))


def _inside(draft: Draft) -> None:
    root = draft.project()
    network = _network(draft, draft.pick(19, 21, 22, 26, 27))
    if network.prefixlen > 24:  # addresses sort differently as numbers and as text
        start = int(network.network_address) >> 8 << 8
        network = ipaddress.IPv4Network((start + draft.pick(0, {26: 64, 27: 96}[network.prefixlen]), network.prefixlen))
    first, last = int(network.network_address), int(network.broadcast_address)
    numbers = [first, last, first - 1, last + 1, *(draft.number(first, last) for _ in range(draft.number(4, 8)))]
    numbers += [draft.number(first - 5000, last + 5000) for _ in range(draft.number(4, 8))]
    early = 99 - first % 256 if first % 256 else 9
    numbers += [first + early, first + early + 1]
    addresses = list(dict.fromkeys(str(ipaddress.IPv4Address(number)) for number in numbers))
    hosts = draft.some(HOSTS, len(addresses))
    source = draft.file(
        f"{root}/{draft.pick('hosts', 'machines', 'devices')}.txt",
        "".join(f"{host} {address}\n" for host, address in zip(hosts, draft.shuffled(addresses), strict=True)),
        keep=True,
    )
    pairs = [line.split() for line in draft.files[source].content.decode().splitlines()]
    chosen = [pair for pair in pairs if ipaddress.IPv4Address(pair[1]) in network]
    chosen.sort(key=lambda pair: int(ipaddress.IPv4Address(pair[1])))
    target = f"{root}/{draft.pick('inside', 'members', 'matching')}.txt"
    expected = "".join(f"{address} {host}\n" for host, address in chosen)
    draft.say(
        draft.pick(
            f"Which of the machines in {source} are in the network {network}?",
            f"Select the machines in {source} that belong to {network}.",
        ),
        "Its lines are a host name and an IPv4 address, separated by a space.",
        draft.require(
            "All addresses of the block count, the first and the last one too.",
            breach("neither the first nor the last", _LINES, swap=("in network:", "in list(network.hosts()):")),
            breach("not the first", _LINES, swap=("in network:", "in list(network)[1:]:")),
            breach("not the last", _LINES, swap=("in network:", "in list(network)[:-1]:")),
            breach("the one behind the last too", _LINES, swap=("in network:", "in [*network, network[-1] + 1]:")),
            breach("the one before the first too", _LINES, swap=("in network:", "in [*network, network[0] - 1]:")),
            breach("a larger block", _LINES, swap=("in network:", "in network.supernet(network.prefixlen - 8):")),
            breach("all others", _LINES, swap=("in network:", "not in network:")),
        ),
        draft.require(
            f"Write them to {target} as 'ADDRESS HOST' lines,",
            breach("the host first", _LINES, swap=("print(address, host,", "print(host, address,")),
            breach("the address alone", _LINES, swap=("print(address, host,", "print(address,")),
            breach("a tab", _LINES, swap=("print(address, host,", "print(address, host, sep='\\t',")),
            breach("the network too", _LINES, swap=("print(address, host,", "print(address, network, host,")),
            breach("a line twice", _LINES, after=f"sed -i 1p {target}"),
            breach("a line left out", _LINES, after=f"sed -i 1d {target}"),
            breach("three digits for each number", _LINES, after=f"sed -Ei 's/\\b([0-9]{{1,2}})[.]/0\\1./g' {target}"),
        ),
        draft.require(
            "sorted numerically by address, lowest first.",
            breach("sorted as text", _ORDER, swap=("in sorted(rows)", "in sorted(rows, key=lambda row: str(row[0]))")),
            breach("highest first", _ORDER, swap=("in sorted(rows)", "in sorted(rows, reverse=True)")),
        ),
        draft.every_line(target),
        draft.leave(),
    )
    draft.result(target, expected)
    oracle = python(
        """
        import ipaddress
        network = ipaddress.ip_network(@network@)
        rows = []
        for line in open(@source@):
            host, address = line.split()
            if ipaddress.ip_address(address) in network:
                rows.append((ipaddress.ip_address(address), host))
        with open(@target@, "w") as target:
            for address, host in sorted(rows):
                print(address, host, file=target)
        """,
        network=str(network),
        source=source,
        target=target,
    )
    draft.honest(
        "reckoned by hand",
        instead=python(
            """
            def number(address):
                a, b, c, d = map(int, address.split("."))
                return (a << 24) + (b << 16) + (c << 8) + d
            rows = [line.split()[::-1] for line in open(@source@)]
            rows = [row for row in rows if @first@ <= number(row[0]) <= @last@]
            rows.sort(key=lambda row: number(row[0]))
            open(@target@, "w").write("".join(" ".join(row) + "\\n" for row in rows))
            """,
            source=source,
            first=first,
            last=last,
            target=target,
        ),
    )
    draft.honest(
        "sorted by sort", after=f"sort -R {target} > ~/x; sort -t . -k 1,1n -k 2,2n -k 3,3n -k 4,4n ~/x > {target}"
    )
    draft.solve(oracle, swap(oracle, "in network:", "in list(network.hosts()):"), expected)


def _routes(draft: Draft) -> None:
    root = draft.project()
    wide = _network(draft, draft.number(10, 13))
    routes: dict[str, str] = {}
    names = draft.some(SERVICES, 9)
    networks = [wide]
    for index in range(draft.number(4, 6)):
        parent = draft.pick(*networks[-1:]) if index < 2 else draft.pick(*networks)
        if parent.prefixlen < 26:
            longer = min(parent.prefixlen + draft.number(2, 6), 28)
            offset = draft.number(0, 2 ** (longer - parent.prefixlen) - 1) << (32 - longer)
            networks.append(ipaddress.IPv4Network((int(parent.network_address) + offset, longer)))
    networks = list(dict.fromkeys(networks))
    for network, name in zip(networks, names, strict=False):
        routes[str(network)] = name
    addresses = [
        str(ipaddress.IPv4Address(int(n.network_address) + draft.number(0, n.num_addresses - 1))) for n in networks * 2
    ]
    addresses += [f"192.168.{draft.number(0, 255)}.{draft.number(1, 254)}", f"172.16.{draft.number(0, 255)}.7"]
    addresses = draft.shuffled(list(dict.fromkeys(addresses)))
    if addresses == sorted(addresses):
        addresses.reverse()
    # The widest network comes first and the next widest last, so that neither end of the table is right for all.
    first, second, *others = routes.items()
    shown = [first, *draft.shuffled(others), second]
    table = draft.file(f"{root}/routes.txt", "".join(f"{n} {g}\n" for n, g in shown), keep=True)
    wanted = draft.file(f"{root}/addresses.txt", "".join(f"{address}\n" for address in addresses), keep=True)
    lines: list[str] = []
    for address in addresses:
        found = [n for n in networks if ipaddress.IPv4Address(address) in n]
        best = max(found, key=lambda n: n.prefixlen) if found else None
        lines.append(f"{address} {routes[str(best)] if best else 'none'}\n")
    target = f"{root}/{draft.pick('gateways', 'routed', 'lookup')}.txt"
    draft.say(
        draft.pick(
            f"Look up the addresses in {wanted} in a routing table.",
            f"Where are packets to the addresses in {wanted} sent?",
        ),
        f"{table} is the routing table, with lines of an IPv4 network (as in 10.1.0.0/16) and the name of a gateway.",
        draft.require(
            "The networks overlap; for an address, the most specific network that contains it counts, which is the one "
            "with the longest prefix.",
            breach("the shortest prefix", _LINES, swap=("-route[0].prefixlen", "route[0].prefixlen")),
            breach(
                "the last one in the table",
                _LINES,
                swap=("routes.sort(key=lambda route: -route[0].prefixlen)", "routes.reverse()"),
            ),
            breach(
                "the first one in the table",
                _LINES,
                swap=("routes.sort(key=lambda route: -route[0].prefixlen)", "pass"),
            ),
            breach("prefixes as text", _LINES, swap=("-route[0].prefixlen", "route[0].prefixlen > 13")),
            breach("the name of the network", _LINES, swap=("[gateway for", "[network for")),
            breach("all gateways that match", _LINES, swap=("found[0] if", "','.join(found) if")),
        ),
        draft.require(
            f"Write {target} with a line 'ADDRESS GATEWAY' for each line of {wanted},",
            breach("the gateway first", _LINES, after=f"sed -Ei 's/(.*) (.*)/\\2 \\1/' {target}"),
            breach("the gateway alone", _LINES, after=f"sed -i 's/.* //' {target}"),
            breach("an arrow between them", _LINES, after=f"sed -i 's/ / -> /' {target}"),
            breach("an address left out", _LINES, after=f"sed -i '$d' {target}"),
            breach("a line twice", _LINES, after=f"sed -i 1p {target}"),
        ),
        draft.require(
            "in the same order.",
            breach("sorted", _ORDER, after=f"sort -o {target} {target}"),
            breach("backwards", _ORDER, after=f"tac {target} > ~/x && cp ~/x {target}"),
        ),
        draft.require(
            "Where no network matches, the gateway is none.",
            breach("such addresses left out", _LINES, after=f"sed -i '/ none$/d' {target}"),
            breach("a hyphen in place of none", _LINES, after=f"sed -i 's/ none$/ -/' {target}"),
            breach("nothing in place of none", _LINES, after=f"sed -i 's/ none$/ /' {target}"),
        ),
        draft.every_line(target),
        draft.leave(),
    )
    draft.result(target, "".join(lines))
    oracle = python(
        """
        import ipaddress
        routes = [line.split() for line in open(@table@)]
        routes = [(ipaddress.ip_network(network), gateway) for network, gateway in routes]
        routes.sort(key=lambda route: -route[0].prefixlen)
        with open(@target@, "w") as target:
            for line in open(@wanted@):
                address = ipaddress.ip_address(line.strip())
                found = [gateway for network, gateway in routes if address in network]
                print(address, found[0] if found else "none", file=target)
        """,
        table=table,
        wanted=wanted,
        target=target,
    )
    draft.honest(
        "the best of all that match",
        swap=(
            "found[0] if found",
            "min((r for r in routes if address in r[0]), key=lambda r: r[0].num_addresses)[1] if found",
        ),
    )
    draft.honest("written through a temporary file", after=f"cp {target} {target}.new && mv {target}.new {target}")
    draft.solve(oracle, swap(oracle, "-route[0].prefixlen", "route[0].prefixlen"), "".join(lines))


#: The merge in the oracle of ``_merge``.
_COLLAPSE = "ipaddress.collapse_addresses(networks)"


def _merge(draft: Draft) -> None:
    root = draft.project()
    networks: list[ipaddress.IPv4Network] = []
    for _ in range(draft.number(4, 7)):
        network = _network(draft, draft.number(18, 24))
        networks += list(network.subnets(prefixlen_diff=draft.number(1, 2)))
        if draft.chance(0.4):
            networks.append(_network(draft, 28))
    networks += [next(networks[0].subnets(prefixlen_diff=1)), networks[0]]
    # Four quarters of a block, and one network with a comment that comes first as a number but not as text.
    networks += ipaddress.IPv4Network(f"11.{draft.number(0, 250)}.0.0/16").subnets(prefixlen_diff=2)
    networks.append(ipaddress.IPv4Network(f"9.{draft.number(0, 250)}.{draft.number(0, 255)}.128/25"))
    comments = {networks[-1]: f"  # {draft.pick(*CITIES)}"}
    lines = [
        f"{network}{comments.get(network) or draft.pick('', f'  # {draft.pick(*CITIES)}')}\n"
        for network in draft.shuffled(networks)
    ]
    source = draft.file(f"{root}/{draft.pick('blocklist', 'allowlist', 'prefixes')}.txt", "".join(lines), keep=True)
    target = source.replace(".txt", "-merged.txt")
    merged = list(ipaddress.collapse_addresses(networks))
    expected = "".join(f"{network}\n" for network in merged)
    draft.say(
        draft.pick(
            f"Shorten the list of IPv4 networks in {source}.", f"The IPv4 networks in {source} overlap; merge them."
        ),
        "Its lines are networks such as 10.1.2.0/24, possibly followed by a comment that begins with #.",
        draft.require(
            f"Write {target} with the shortest list of networks that cover exactly the same addresses:",
            breach("a network left out", _LINES, after=f"sed -i '$d' {target}"),
            breach("a network that was not there", _LINES, after=f"echo 10.255.255.255/32 >> {target}"),
            breach("a larger network", _LINES, swap=("print(network, file", "print(network.supernet(), file")),
            breach("a network twice", _LINES, after=f"sed -i 1p {target}"),
            breach("halves", _LINES, swap=("print(network, file", "print(*network.subnets(), sep='\\n', file")),
            breach(
                "masks in place of lengths", _LINES, swap=("print(network, file", "print(network.with_netmask, file")
            ),
            breach("addresses alone", _LINES, after=f"sed -i 's,/.*,,' {target}"),
        ),
        draft.require(
            "networks contained in others disappear,",
            breach("the same networks without repetitions", _LINES, swap=(_COLLAPSE, "sorted(set(networks))")),
        ),
        draft.require(
            "and two halves of a larger block are merged into it, as often as possible.",
            breach(
                "no halves merged",
                _LINES,
                swap=(
                    _COLLAPSE,
                    "[n for n in sorted(set(networks)) if not any(n != m and n.subnet_of(m) for m in networks)]",
                ),
            ),
            breach(
                "halves merged once",
                _LINES,
                swap=(
                    _COLLAPSE,
                    f"[part for whole in {_COLLAPSE} for part in whole.subnets(max(17 - whole.prefixlen, 0))]",
                ),
            ),
        ),
        draft.require(
            "Comments are dropped;",
            breach("comments left", _LINES, after=f"sed -i '1s/$/  # merged/' {target}"),
            breach("comments on lines of their own", _LINES, after=f"sed -i '1i # merged' {target}"),
            breach(
                "networks with comments left out",
                _LINES,
                swap=(f"open({source!r})]", f"open({source!r}) if '#' not in line]"),
            ),
        ),
        draft.require(
            "sort numerically by address.",
            breach("sorted as text", _ORDER, after=f"LC_ALL=C sort -o {target} {target}"),
            breach("sorted backwards", _ORDER, after=f"tac {target} > ~/x && cp ~/x {target}"),
            breach(
                "sorted by length",
                _ORDER,
                swap=(_COLLAPSE, f"sorted({_COLLAPSE}, key=lambda n: (n.prefixlen, n), reverse=True)"),
            ),
        ),
        draft.every_line(target),
        draft.leave(),
    )
    draft.result(target, expected)
    oracle = python(
        """
        import ipaddress
        networks = [ipaddress.ip_network(line.partition("#")[0].strip()) for line in open(@source@)]
        with open(@target@, "w") as target:
            for network in ipaddress.collapse_addresses(networks):
                print(network, file=target)
        """,
        source=source,
        target=target,
    )
    draft.honest(
        "merged step by step",
        instead=python(
            """
            import ipaddress
            networks = {ipaddress.ip_network(line.split()[0]) for line in open(@source@)}
            before = set()
            while before != networks:
                before = set(networks)
                for network in before:
                    whole = network.supernet()
                    if all(half in networks for half in whole.subnets()):
                        networks = networks - {*whole.subnets()} | {whole}
            networks = [n for n in networks if not any(n != other and n.subnet_of(other) for other in networks)]
            open(@target@, "w").writelines(f"{network}\\n" for network in sorted(networks))
            """,
            source=source,
            target=target,
        ),
    )
    draft.honest("written through a temporary file", after=f"cp {target} {target}.new && mv {target}.new {target}")
    near = swap(oracle, _COLLAPSE, "sorted(set(networks))")
    draft.solve(oracle, near, expected)


FAMILY = Family("networks", "IPv4 addresses, networks and routes", (_inside, _routes, _merge), ("python3",))
