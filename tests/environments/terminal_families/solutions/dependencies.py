"""Forbidden changes and other solutions of the family `dependencies`."""

from tests.environments.terminal_families.ways import after, instead, swap

FORBIDDEN = {
    "_order": {
        "Write all names to «target», one per line,": [after("sed -i 's/$/:/' «target»")],
        "such that everything comes after all it depends on.": [
            after("tac «target» > ~/x && mv ~/x «target»"),
            swap("min(name for", "sorted(graph)[len(done)] or (name for"),
        ],
        "There are many such orders; take the one that results if at each step, of all names whose dependencies have all been listed already, the first in alphabetical order comes next.": [
            swap("min(name for", "max(name for")
        ],
    },
    "_closure": {
        "«question»": [swap("todo += new", "pass")],
        "Write the names to «target», one per line,": [after("paste -s -d ' ' «target» > ~/x && mv ~/x «target»")],
        "in alphabetical order,": [swap("in sorted(found)", "in sorted(found)[::-1]")],
        "without «name» itself.": [swap("in sorted(found)", "in sorted({*found, «repr(name)»})")],
    },
    "_levels": {
        "Write a JSON object to «target» with the keys missing, cycle and levels and no others.": [
            swap('{"missing": missing,', '{"version": 1, "missing": missing,'),
            swap('{"missing": missing, "cycle": cycle, "levels": levels}', "[missing, cycle, levels]"),
        ],
        "missing is an array of the names that something depends on but that have no line of their own, sorted.": [
            swap('"missing": missing', '"missing": missing[1:]'),
            swap(" - set(graph))", ")"),
        ],
        "cycle is an array of all names that depend on themselves through others, sorted.": [
            swap("if name in reached(name)", "if «repr(loop[0])» in reached(name)"),
            swap('"cycle": cycle', '"cycle": cycle[::-1]'),
        ],
        "levels is an object with the level of every name that can be installed: it is 0 for names without dependencies,": [
            swap("default=0", "default=1"),
            swap('"levels": levels', '"levels": {name: levels[name] for name in levels if graph[name]}'),
        ],
        "and otherwise one more than the highest level among those it directly depends on;": [
            swap("max((levels[need] + 1", "min((levels[need] + 1"),
            swap("max((levels[need] + 1 for need in needs), default=0)", "len(needs)"),
        ],
        "names that depend on a missing name or on a cycle, directly or through others, and the missing names, do not appear in it.": [
            swap('"levels": levels', '"levels": {**levels, missing[0]: 0}'),
            swap("levels = {}", "levels = dict.fromkeys(missing, 0)"),
        ],
    },
}
HONEST = {
    "_order": [
        instead(
            "«python(_READ + '\\n        import heapq\\n        left = {name: set(needs) for name, needs in graph.items()}\\n        ready = [name for name in left if not left[name]]\\n        heapq.heapify(ready)\\n        with open(@target@, \"w\") as target:\\n            while ready:\\n                name = heapq.heappop(ready)\\n                print(name, file=target)\\n                for other in left:\\n                    if name in left[other]:\\n                        left[other].remove(name)\\n                        if not left[other]:\\n                            heapq.heappush(ready, other)\\n            ', source=source, target=target)»"
        )
    ],
    "_closure": [after("LC_ALL=C sort -o «target» «target»")],
    "_levels": [swap('"w"))', '"w"), indent=2)'), swap('"w"))', '"w"), sort_keys=True)'), after("echo >> «target»")],
}
