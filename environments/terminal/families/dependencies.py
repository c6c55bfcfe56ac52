"""Family: graphs of dependencies."""

from .draft import Draft, python, swap
from .family import Family
from .vocabulary import PRODUCTS, SERVICES


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
    return root, draft.file(f"{root}/{draft.pick('dependencies', 'modules', 'packages')}.txt", "".join(lines))


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
    draft.say(
        draft.pick(
            f"In which order can the things in {source} be installed?", f"Work out an installation order for {source}."
        ),
        _FORM,
        f"! Write all names to {target}, one per line,",
        "! such that everything comes after all it depends on.",
        "! There are many such orders; take the one that results if at each step, of all names whose dependencies "
        "have all been listed already, the first in alphabetical order comes next.",
        draft.every_line(),
    )
    oracle = python(
        _READ
        + """
        done = []
        while len(done) < len(graph):
            done.append(min(name for name in graph if name not in done and all(need in done for need in graph[name])))
        open(@target@, "w").write("".join(name + "\\n" for name in done))
        """,
    )
    draft.solve(oracle, swap(oracle, "min(name for", "max(name for"))


def _closure(draft: Draft) -> None:
    graph = _graph(draft)
    name = max(graph, key=lambda name: (len(_needs(graph, name)) - len(graph[name]), name))
    inverse = draft.chance(0.5)
    if inverse:
        backwards = {other: [user for user in graph if other in graph[user]] for other in graph}
        name = max(backwards, key=lambda name: (len(_needs(backwards, name)) - len(backwards[name]), name))
    root, source = _write(draft, graph)
    target = f"{root}/{draft.pick('affected', 'needed', 'related')}.txt"
    question = (
        f"Which of them depend on {name}, directly or through others?"
        if inverse
        else f"What does {name} depend on, directly or through others?"
    )
    draft.say(
        draft.pick(f"{source} lists dependencies.", f"I have a question about the dependencies in {source}."),
        _FORM,
        f"! {question}",
        f"! Write the names to {target}, one per line,",
        "! in alphabetical order,",
        f"! without {name} itself.",
        draft.every_line(),
    )
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
    )
    draft.solve(oracle, swap(oracle, "todo += new", "pass"))


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
    draft.say(
        draft.pick(f"Check the dependencies in {source}.", f"Something is wrong with the dependencies in {source}."),
        _FORM,
        f"! Write a JSON object to {target} with the keys missing, cycle and levels and no others.",
        "! missing is an array of the names that something depends on but that have no line of their own, sorted.",
        "! cycle is an array of all names that depend on themselves through others, sorted.",
        "! levels is an object with the level of every name that can be installed: it is 0 for names without "
        "dependencies,",
        "! and otherwise one more than the highest level among those it directly depends on;",
        "! names that depend on a missing name or on a cycle, directly or through others, and the missing names, do "
        "not appear in it.",
    )
    draft.form(target, "json")
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
    )
    draft.solve(oracle, swap(oracle, "max((levels[need] + 1", "min((levels[need] + 1"))


FAMILY = Family("dependencies", "Order, follow and check dependencies", (_closure, _order, _levels), ("python3",))
