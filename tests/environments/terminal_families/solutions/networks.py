"""Forbidden changes and other solutions of the family `networks`."""

from tests.environments.terminal_families.ways import after, python, swap

FORBIDDEN = {
    "_inside": {
        "All addresses of the block count, the first and the last one too.": [
            swap("in network:", "in list(network.hosts()):")
        ],
        "Write them to «target» as 'ADDRESS HOST' lines,": [swap("print(address, host,", "print(host, address,")],
        "sorted numerically by address, lowest first.": [
            swap("in sorted(rows)", "in sorted(rows, key=lambda row: str(row[0]))")
        ],
    },
    "_routes": {
        "The networks overlap; for an address, the most specific network that contains it counts, which is the one with the longest prefix.": [
            swap("-route[0].prefixlen", "route[0].prefixlen"),
            swap("routes.sort(key=lambda route: -route[0].prefixlen)", "routes.reverse()"),
        ],
        "Write «target» with a line 'ADDRESS GATEWAY' for each line of «wanted»,": [
            after("sed -Ei 's/(.*) (.*)/\\2 \\1/' «target»"),
            after("sed -i 's/.* //' «target»"),
        ],
        "in the same order.": [after("sort -o «target» «target»"), after("tac «target» > ~/x && cp ~/x «target»")],
        "Where no network matches, the gateway is none.": [
            after("sed -i '/ none$/d' «target»"),
            after("sed -i 's/ none$/ -/' «target»"),
        ],
    },
    "_merge": {
        "Write «target» with the shortest list of networks that cover exactly the same addresses:": [
            swap("print(network, file", "print(network.supernet(), file")
        ],
        "networks contained in others disappear,": [swap("«_COLLAPSE»", "sorted(set(networks))")],
        "and two halves of a larger block are merged into it, as often as possible.": [
            swap(
                "«_COLLAPSE»",
                "[n for n in sorted(set(networks)) if not any(n != m and n.subnet_of(m) for m in networks)]",
            )
        ],
        "Comments are dropped;": [
            after("sed -i '1s/$/  # merged/' «target»"),
            swap("open(«repr(source)»)]", "open(«repr(source)») if '#' not in line]"),
        ],
        "sort numerically by address.": [
            after("LC_ALL=C sort -o «target» «target»"),
            swap("«_COLLAPSE»", "sorted(«_COLLAPSE», key=lambda n: (n.prefixlen, n), reverse=True)"),
        ],
    },
}
HONEST = {
    "_inside": [
        python(r"""
def number(address):
    a, b, c, d = map(int, address.split("."))
    return (a << 24) + (b << 16) + (c << 8) + d
rows = [line.split()[::-1] for line in open(@source@)]
rows = [row for row in rows if @first@ <= number(row[0]) <= @last@]
rows.sort(key=lambda row: number(row[0]))
open(@target@, "w").write("".join(" ".join(row) + "\n" for row in rows))
"""),
        after("sort -R «target» > ~/x; sort -t . -k 1,1n -k 2,2n -k 3,3n -k 4,4n ~/x > «target»"),
    ],
    "_routes": [
        swap(
            "found[0] if found",
            "min((r for r in routes if address in r[0]), key=lambda r: r[0].num_addresses)[1] if found",
        )
    ],
    "_merge": [
        python(r"""
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
open(@target@, "w").writelines(f"{network}\n" for network in sorted(networks))
""")
    ],
}
