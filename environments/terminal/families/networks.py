"""IPv4 networks and addresses."""

from __future__ import annotations

import ipaddress

from .draft import Draft, breach, python, swap
from .family import Family
from .vocabulary import CITIES, HOSTS, SERVICES

__all__ = ["FAMILY"]


def _network(draft: Draft, prefix: int) -> ipaddress.IPv4Network:
    number = (10 << 24 | draft.number(0, 2**24 - 1)) >> (32 - prefix) << (32 - prefix)
    return ipaddress.IPv4Network((number, prefix))


def _inside(draft: Draft) -> None:
    root = draft.project()
    network = _network(draft, draft.pick(19, 21, 22, 26, 27))
    first, last = int(network.network_address), int(network.broadcast_address)
    numbers = [first, last, first - 1, last + 1, *(draft.number(first, last) for _ in range(draft.number(4, 8)))]
    numbers += [draft.number(first - 5000, last + 5000) for _ in range(draft.number(4, 8))]
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
    right, order = "* has the right lines", "lines of * are in order"
    draft.pieces(target)
    draft.honest(
        "by numbers",
        swap=("in network:", "and int(network[0]) <= int(ipaddress.ip_address(address)) <= int(network[-1]):"),
    )
    draft.say(
        draft.pick(
            f"Which of the machines in {source} are in the network {network}?",
            f"Select the machines in {source} that belong to {network}.",
        ),
        "Each line is a host name and an IPv4 address, separated by a space.",
        draft.require(
            "All addresses of the block count, the first and the last one too.",
            breach("the first and the last left out", right, swap=("in network:", "in list(network.hosts()):")),
            breach("a block twice as large", right, swap=("in network:", "in network.supernet():")),
        ),
        draft.require(
            f"Write them to {target} as 'ADDRESS HOST' lines,",
            breach("the host first", right, swap=("print(address, host", "print(host, address")),
            breach("a tab in between", right, swap=("host, file", 'host, sep="\\t", file')),
            breach("one left out", right, after=f"sed -i '$d' {target}"),
        ),
        draft.require(
            "sorted numerically by address,",
            breach("sorted by host", order, swap=("sorted(rows)", "sorted(rows, key=lambda row: row[1])")),
        ),
        draft.require("lowest first.", breach("highest first", order, swap=("sorted(rows)", "sorted(rows)[::-1]"))),
        draft.every_line(target),
        draft.leave(),
    )
    draft.initial.absent(target)
    draft.final.text(target, expected)
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
    draft.solve(oracle, swap(oracle, "in network:", "in list(network.hosts()):"), expected)


def _routes(draft: Draft) -> None:
    root = draft.project()
    wide = _network(draft, draft.number(10, 13))
    routes: dict[str, str] = {}
    names = draft.some(SERVICES, 9)
    networks = [wide]
    for _ in range(draft.number(4, 6)):
        parent = draft.pick(*networks)
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
    table = draft.file(
        f"{root}/routes.txt", "".join(f"{n} {g}\n" for n, g in draft.shuffled(list(routes.items()))), keep=True
    )
    wanted = draft.file(f"{root}/addresses.txt", "".join(f"{address}\n" for address in addresses), keep=True)
    lines: list[str] = []
    for address in addresses:
        found = [n for n in networks if ipaddress.IPv4Address(address) in n]
        best = max(found, key=lambda n: n.prefixlen) if found else None
        lines.append(f"{address} {routes[str(best)] if best else 'none'}\n")
    target = f"{root}/{draft.pick('gateways', 'routed', 'lookup')}.txt"
    right, order = "* has the right lines", "lines of * are in order"
    draft.pieces(target)
    draft.honest(
        "the longest chosen",
        swap=(
            "routes.sort(key=lambda route: -route[0].prefixlen)",
            "routes = sorted(routes, key=lambda route: route[0].prefixlen)[::-1]",
        ),
    )
    draft.say(
        draft.pick(
            f"Look up the addresses in {wanted} in a routing table.",
            f"Where are packets to the addresses in {wanted} sent?",
        ),
        f"{table} is the routing table: each line is an IPv4 network (as in 10.1.0.0/16) and the name of a gateway.",
        draft.require(
            "The networks overlap; for an address, the most specific network that contains it counts, which is the one "
            "with the longest prefix.",
            breach("the shortest prefix", right, swap=("-route[0].prefixlen", "route[0].prefixlen")),
        ),
        draft.require(
            f"Write {target} with a line 'ADDRESS GATEWAY' for each line of {wanted},",
            breach(
                "the gateway first",
                right,
                swap=('print(address, found[0] if found else "none"', 'print(found[0] if found else "none", address'),
            ),
            breach("one left out", right, after=f"sed -i '$d' {target}"),
            breach("the network too", right, swap=("[gateway for", '[f"{network} {gateway}" for')),
        ),
        draft.require(
            "in the same order.", breach("backwards", order, after=f"tac {target} > ~/t; cat ~/t > {target}")
        ),
        draft.require(
            "Where no network matches, the gateway is none.",
            breach("another word", right, swap=('"none"', '"default"')),
            breach("no line for it", right, after=f"sed -i '/ none$/d' {target}"),
        ),
        draft.every_line(target),
        draft.leave(),
    )
    draft.initial.absent(target)
    draft.final.text(target, "".join(lines))
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
    draft.solve(oracle, swap(oracle, "-route[0].prefixlen", "route[0].prefixlen"), "".join(lines))


def _merge(draft: Draft) -> None:
    root = draft.project()
    networks: list[ipaddress.IPv4Network] = []
    for _ in range(draft.number(4, 7)):
        network = _network(draft, draft.number(18, 24))
        networks += list(network.subnets(prefixlen_diff=draft.number(1, 2)))
        if draft.chance(0.4):
            networks.append(_network(draft, 28))
    networks += [next(networks[0].subnets(prefixlen_diff=1)), networks[0]]
    lines = [f"{network}{draft.pick('', f'  # {draft.pick(*CITIES)}')}\n" for network in draft.shuffled(networks)]
    source = draft.file(f"{root}/{draft.pick('blocklist', 'allowlist', 'prefixes')}.txt", "".join(lines), keep=True)
    target = source.replace(".txt", "-merged.txt")
    merged = list(ipaddress.collapse_addresses(networks))
    expected = "".join(f"{network}\n" for network in merged)
    right, order = "* has the right lines", "lines of * are in order"
    halves = "[n for n in sorted(set(networks)) if not any(n != m and n.subnet_of(m) for m in networks)]"
    draft.pieces(target)
    draft.honest("sorted at first", swap=("collapse_addresses(networks)", "collapse_addresses(sorted(set(networks)))"))
    draft.say(
        draft.pick(
            f"Shorten the list of IPv4 networks in {source}.", f"The IPv4 networks in {source} overlap; merge them."
        ),
        "Each line is a network such as 10.1.2.0/24, possibly followed by a comment that begins with #.",
        draft.require(
            f"Write {target} with the shortest list of networks that cover exactly the same addresses:",
            breach("one network more", right, after=f"echo 192.168.0.0/16 >> {target}"),
            breach("one network less", right, after=f"sed -i '$d' {target}"),
            breach("a network twice as large", right, swap=("print(network,", "print(network.supernet(),")),
        ),
        draft.require(
            "networks contained in others disappear,",
            breach("those left", right, swap=("ipaddress.collapse_addresses(networks)", "sorted(set(networks))")),
        ),
        draft.require(
            "and two halves of a larger block are merged into it,",
            breach("halves left", right, swap=("ipaddress.collapse_addresses(networks)", halves)),
        ),
        draft.require(
            "as often as possible.",
            breach("halves of the result", right, swap=("print(network,", 'print(*network.subnets(), sep="\\n",')),
        ),
        draft.require("Comments are dropped;", breach("a comment", right, after=f"sed -i '1s/$/  # Oslo/' {target}")),
        draft.require(
            "sort numerically by address.",
            breach("backwards", order, after=f"tac {target} > ~/t; cat ~/t > {target}"),
        ),
        draft.every_line(target),
        draft.leave(),
    )
    draft.initial.absent(target)
    draft.final.text(target, expected)
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
    near = swap(oracle, "ipaddress.collapse_addresses(networks)", "sorted(set(networks))")
    draft.solve(oracle, near, expected)


FAMILY = Family("networks", "IPv4 addresses, networks and routes", (_inside, _routes, _merge), ("python3",))
