"""Family: IPv4 networks and addresses."""

import ipaddress

from .draft import Draft, python, swap
from .family import Family
from .vocabulary import CITIES, HOSTS, SERVICES


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
    )
    target = f"{root}/{draft.pick('inside', 'members', 'matching')}.txt"
    draft.say(
        draft.pick(
            f"Which of the machines in {source} are in the network {network}?",
            f"Select the machines in {source} that belong to {network}.",
        ),
        "Its lines are a host name and an IPv4 address, separated by a space.",
        "! All addresses of the block count, the first and the last one too.",
        f"! Write them to {target} as 'ADDRESS HOST' lines,",
        "! sorted numerically by address, lowest first.",
        draft.every_line(),
    )
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
    )
    draft.solve(oracle, swap(oracle, "in network:", "in list(network.hosts()):"))


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
    table = draft.file(f"{root}/routes.txt", "".join(f"{n} {g}\n" for n, g in shown))
    wanted = draft.file(f"{root}/addresses.txt", "".join(f"{address}\n" for address in addresses))
    target = f"{root}/{draft.pick('gateways', 'routed', 'lookup')}.txt"
    draft.say(
        draft.pick(
            f"Look up the addresses in {wanted} in a routing table.",
            f"Where are packets to the addresses in {wanted} sent?",
        ),
        f"{table} is the routing table, with lines of an IPv4 network (as in 10.1.0.0/16) and the name of a gateway.",
        "! The networks overlap; for an address, the most specific network that contains it counts, which is the one "
        "with the longest prefix.",
        f"! Write {target} with a line 'ADDRESS GATEWAY' for each line of {wanted},",
        "! in the same order.",
        "! Where no network matches, the gateway is none.",
        draft.every_line(),
    )
    oracle = python("""
        import ipaddress
        routes = [line.split() for line in open(@table@)]
        routes = [(ipaddress.ip_network(network), gateway) for network, gateway in routes]
        routes.sort(key=lambda route: -route[0].prefixlen)
        with open(@target@, "w") as target:
            for line in open(@wanted@):
                address = ipaddress.ip_address(line.strip())
                found = [gateway for network, gateway in routes if address in network]
                print(address, found[0] if found else "none", file=target)
        """)
    draft.solve(oracle, swap(oracle, "-route[0].prefixlen", "route[0].prefixlen"))


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
    source = draft.file(f"{root}/{draft.pick('blocklist', 'allowlist', 'prefixes')}.txt", "".join(lines))
    target = source.replace(".txt", "-merged.txt")
    draft.say(
        draft.pick(
            f"Shorten the list of IPv4 networks in {source}.", f"The IPv4 networks in {source} overlap; merge them."
        ),
        "Its lines are networks such as 10.1.2.0/24, possibly followed by a comment that begins with #.",
        f"! Write {target} with the shortest list of networks that cover exactly the same addresses:",
        "! networks contained in others disappear,",
        "! and two halves of a larger block are merged into it, as often as possible.",
        "! Comments are dropped;",
        "! sort numerically by address.",
        draft.every_line(),
    )
    oracle = python("""
        import ipaddress
        networks = [ipaddress.ip_network(line.partition("#")[0].strip()) for line in open(@source@)]
        with open(@target@, "w") as target:
            for network in ipaddress.collapse_addresses(networks):
                print(network, file=target)
        """)
    near = swap(oracle, _COLLAPSE, "sorted(set(networks))")
    draft.solve(oracle, near)


FAMILY = Family("networks", "IPv4 addresses, networks and routes", (_inside, _routes, _merge), ("python3",))
