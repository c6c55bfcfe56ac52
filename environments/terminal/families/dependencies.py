"""Family: graphs of dependencies."""

from __future__ import annotations

import heapq

from .draft import Draft, breach, python, swap
from .family import Family
from .vocabulary import PRODUCTS, SERVICES

__all__ = ["FAMILY"]

_LINES, _ORDER, _VALUE = "* has the right lines", "lines of * are in order", "* has the right value"


def _graph(draft: Draft) -> dict[str, list[str]]:
    """Return the direct dependencies of each name: no cycles, and chains whose order is not alphabetical.

    Every graph contains a name with an indirect dependency, and a name whose dependencies are on different levels.
    """
    names = draft.some(draft.pick(SERVICES, PRODUCTS), draft.number(9, 14))
    graph: dict[str, list[str]] = {}
    for index, name in enumerate(names):
        graph[name] = draft.some(names[:index], draft.number(0, min(index, 3)))
    late, early = max(names[:2]), min(names[:2])
    # Of these two names, the alphabetically first depends on the last.
    graph[late], graph[early] = [], [late]
    graph[names[2]], graph[names[3]] = [early], [late, names[2]]
    return graph


def _write(draft: Draft, graph: dict[str, list[str]]) -> tuple[str, str]:
    root = draft.project()
    lines = [f"{name}: {' '.join(needs)}".rstrip() + "\n" for name, needs in draft.shuffled(list(graph.items()))]
    return root, draft.file(
        f"{root}/{draft.pick('dependencies', 'modules', 'packages')}.txt", "".join(lines), keep=True
    )


_FORM = "A line is a name, a colon, and the names it directly depends on, separated by spaces (there may be none)."
_READ = """
        graph = {}
        for line in open(@source@):
            name, _, needs = line.partition(":")
            graph[name] = needs.split()
"""


def _order(draft: Draft) -> None:
    graph = _graph(draft)
    root, source = _write(draft, graph)
    target = f"{root}/{draft.pick('order', 'sequence', 'plan')}.txt"
    waiting = {name: set(needs) for name, needs in graph.items()}
    ready = [name for name, needs in waiting.items() if not needs]
    heapq.heapify(ready)
    order: list[str] = []
    while ready:
        name = heapq.heappop(ready)
        order.append(name)
        for other, needs in waiting.items():
            if name in needs:
                needs.remove(name)
                if not needs:
                    heapq.heappush(ready, other)
    expected = "".join(f"{name}\n" for name in order)
    draft.say(
        draft.pick(
            f"In which order can the things in {source} be installed?", f"Work out an installation order for {source}."
        ),
        _FORM,
        draft.require(
            f"Write all names to {target}, one per line,",
            breach("a name left out", _LINES, after=f"sed -i 1d {target}"),
            breach("a name twice", _LINES, after=f"tail -n 1 {target} >> {target}"),
            breach("names with what they need", _LINES, after=f"sed -i 's/$/:/' {target}"),
        ),
        draft.require(
            "such that everything comes after all it depends on.",
            breach("everything before what it depends on", _ORDER, after=f"tac {target} > ~/x && mv ~/x {target}"),
            breach(
                "in the order of the alphabet", _ORDER, swap=("min(name for", "sorted(graph)[len(done)] or (name for")
            ),
        ),
        draft.require(
            "There are many such orders; take the one that results if at each step, of all names whose dependencies "
            "have all been listed already, the first in alphabetical order comes next.",
            breach("the last name in place of the first", _ORDER, swap=("min(name for", "max(name for")),
        ),
        draft.every_line(target),
        draft.leave(),
    )
    draft.pieces(target)
    draft.honest(
        "with a heap",
        instead=python(
            _READ
            + """
        import heapq
        left = {name: set(needs) for name, needs in graph.items()}
        ready = [name for name in left if not left[name]]
        heapq.heapify(ready)
        with open(@target@, "w") as target:
            while ready:
                name = heapq.heappop(ready)
                print(name, file=target)
                for other in left:
                    if name in left[other]:
                        left[other].remove(name)
                        if not left[other]:
                            heapq.heappush(ready, other)
            """,
            source=source,
            target=target,
        ),
    )
    draft.result(target, expected)
    oracle = python(
        _READ
        + """
        done = []
        while len(done) < len(graph):
            done.append(min(name for name in graph if name not in done and all(need in done for need in graph[name])))
        open(@target@, "w").write("".join(name + "\\n" for name in done))
        """,
        source=source,
        target=target,
    )
    draft.solve(oracle, swap(oracle, "min(name for", "max(name for"), expected)


def _closure(draft: Draft) -> None:
    graph = _graph(draft)
    name = max(graph, key=lambda name: (len(_needs(graph, name)) - len(graph[name]), name))
    inverse = draft.chance(0.5)
    if inverse:
        backwards = {other: [user for user in graph if other in graph[user]] for other in graph}
        name = max(backwards, key=lambda name: (len(_needs(backwards, name)) - len(backwards[name]), name))
        found = sorted(_needs(backwards, name))
    else:
        found = sorted(_needs(graph, name))
    root, source = _write(draft, graph)
    target = f"{root}/{draft.pick('affected', 'needed', 'related')}.txt"
    question = (
        f"Which of them depend on {name}, directly or through others?"
        if inverse
        else f"What does {name} depend on, directly or through others?"
    )
    other = min(set(graph) - {*found, name}, default="nothing")
    draft.say(
        draft.pick(f"{source} lists dependencies.", f"I have a question about the dependencies in {source}."),
        _FORM,
        draft.require(
            question,
            breach("direct dependencies alone", _LINES, swap=("todo += new", "pass")),
            breach("a name left out", _LINES, after=f"sed -i 1d {target}"),
            breach("a name that has nothing to do with it", _LINES, after=f"echo {other} >> {target}"),
        ),
        draft.require(
            f"Write the names to {target}, one per line,",
            breach("a name twice", _LINES, after=f"tail -n 1 {target} >> {target}"),
            breach("all on one line", _LINES, after=f"paste -s -d ' ' {target} > ~/x && mv ~/x {target}"),
        ),
        draft.require(
            "in alphabetical order,",
            breach("backwards", _ORDER, swap=("in sorted(found)", "in sorted(found)[::-1]")),
        ),
        draft.require(
            f"without {name} itself.",
            breach("the name itself too", _LINES, swap=("in sorted(found)", f"in sorted({{*found, {name!r}}})")),
        ),
        draft.every_line(target),
        draft.leave(),
    )
    expected = "".join(f"{other}\n" for other in found)
    draft.result(target, expected)
    oracle = python(
        _READ
        + """
        if @inverse@:
            graph = {name: [user for user in graph if name in graph[user]] for name in graph}
        found, todo = set(), [@name@]
        while todo:
            new = set(graph[todo.pop()]) - found
            found |= new
            todo += new
        open(@target@, "w").write("".join(name + "\\n" for name in sorted(found)))
        """,
        source=source,
        target=target,
        inverse=inverse,
        name=name,
    )
    draft.pieces(target)
    draft.honest("sorted afterwards", after=f"LC_ALL=C sort -o {target} {target}")
    draft.solve(oracle, swap(oracle, "todo += new", "pass"), expected)


def _needs(graph: dict[str, list[str]], name: str) -> set[str]:
    found: set[str] = set()
    todo = [name]
    while todo:
        for other in graph[todo.pop()]:
            if other not in found:
                found.add(other)
                todo.append(other)
    return found


def _levels(draft: Draft) -> None:
    graph = _graph(draft)
    names = list(graph)
    missing = f"{names[-1]}-{draft.pick('core', 'base', 'plus')}"
    graph[names[-1]] = [*graph[names[-1]], missing]
    loop = draft.some([f"{name}-x" for name in names], 3)
    for place, name in enumerate(loop):
        graph[name] = [loop[(place + 1) % 3]]
    user = f"{names[0]}-user"
    graph[user] = [loop[0], names[0]]
    root, source = _write(draft, graph)
    target = f"{root}/{draft.pick('problems', 'check', 'analysis')}.json"
    level: dict[str, int] = {}
    changed = True
    while changed:
        changed = False
        for name, needs in graph.items():
            if name not in level and all(need in level for need in needs):
                level[name] = 1 + max((level[need] for need in needs), default=-1)
                changed = True
    value = {
        "missing": [missing],
        "cycle": sorted(name for name in graph if name in _needs({**graph, missing: []}, name)),
        "levels": level,
    }
    draft.say(
        draft.pick(f"Check the dependencies in {source}.", f"Something is wrong with the dependencies in {source}."),
        _FORM,
        draft.require(
            f"Write a JSON object to {target} with the keys missing, cycle and levels and no others.",
            breach("one more key", _VALUE, swap=('{"missing": missing,', '{"version": 1, "missing": missing,')),
            breach(
                "an array of the three",
                _VALUE,
                swap=('{"missing": missing, "cycle": cycle, "levels": levels}', "[missing, cycle, levels]"),
            ),
        ),
        draft.require(
            "missing is an array of the names that something depends on but that have no line of their own, sorted.",
            breach("a missing name left out", _VALUE, swap=('"missing": missing', '"missing": missing[1:]')),
            breach("every name that something depends on", _VALUE, swap=(" - set(graph))", ")")),
            breach("a missing name twice", _VALUE, swap=('"missing": missing', '"missing": missing * 2')),
        ),
        draft.require(
            "cycle is an array of all names that depend on themselves through others, sorted.",
            breach(
                "names that depend on the cycle too",
                _VALUE,
                swap=("if name in reached(name)", f"if {loop[0]!r} in reached(name)"),
            ),
            breach("the cycle backwards", _VALUE, swap=('"cycle": cycle', '"cycle": cycle[::-1]')),
            breach("a name of the cycle left out", _VALUE, swap=('"cycle": cycle', '"cycle": cycle[1:]')),
        ),
        draft.require(
            "levels is an object with the level of every name that can be installed: it is 0 for names without "
            "dependencies,",
            breach("levels from 1", _VALUE, swap=("default=0", "default=1")),
            breach(
                "names without dependencies left out",
                _VALUE,
                swap=('"levels": levels', '"levels": {name: levels[name] for name in levels if graph[name]}'),
            ),
        ),
        draft.require(
            "and otherwise one more than the highest level among those it directly depends on;",
            breach("one more than the lowest", _VALUE, swap=("max((levels[need] + 1", "min((levels[need] + 1")),
            breach(
                "the number of dependencies",
                _VALUE,
                swap=("max((levels[need] + 1 for need in needs), default=0)", "len(needs)"),
            ),
        ),
        draft.require(
            "names that depend on a missing name or on a cycle, directly or through others, and the missing names, do "
            "not appear in it.",
            breach("missing names", _VALUE, swap=('"levels": levels', '"levels": {**levels, missing[0]: 0}')),
            breach("names of the cycle", _VALUE, swap=('"levels": levels', '"levels": {**levels, cycle[0]: 1}')),
            breach("missing names taken as there", _VALUE, swap=("levels = {}", "levels = dict.fromkeys(missing, 0)")),
        ),
        draft.leave(),
    )
    draft.initial.absent(target)
    draft.final.json(target, value)
    oracle = python(
        _READ
        + """
        import json
        missing = sorted({need for needs in graph.values() for need in needs} - set(graph))
        def reached(name):
            found, todo = set(), [name]
            while todo:
                new = set(graph.get(todo.pop(), ())) - found
                found |= new
                todo += new
            return found
        cycle = sorted(name for name in graph if name in reached(name))
        levels = {}
        for _ in graph:
            for name, needs in graph.items():
                if all(need in levels for need in needs):
                    levels[name] = max((levels[need] + 1 for need in needs), default=0)
        json.dump({"missing": missing, "cycle": cycle, "levels": levels}, open(@target@, "w"))
        """,
        source=source,
        target=target,
    )
    draft.honest("laid out in lines", swap=('"w"))', '"w"), indent=2)'))
    draft.honest("keys sorted", swap=('"w"))', '"w"), sort_keys=True)'))
    draft.honest("a newline at the end", after=f"echo >> {target}")
    draft.solve(oracle, swap(oracle, "max((levels[need] + 1", "min((levels[need] + 1"), str(value))


FAMILY = Family("dependencies", "Order, follow and check dependencies", (_closure, _order, _levels), ("python3",))
