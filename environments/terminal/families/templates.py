"""Family: text templates to fill in."""

from .draft import Draft, python, swap
from .family import Family
from .vocabulary import CITIES, DEPARTMENTS, FIRST_NAMES, LAST_NAMES, PRODUCTS, SERVICES


def _render(draft: Draft) -> None:
    root = draft.project()
    name = draft.pick("config", "unit", "banner", "site")
    target = f"{root}/{name}.out"
    values = {
        "service": draft.pick(*SERVICES),
        "city": draft.pick(*CITIES),
        "port": str(draft.number(1024, 65000)),
        "owner": f"{draft.pick(*FIRST_NAMES)} {draft.pick(*LAST_NAMES)}",
        "team": draft.pick(*DEPARTMENTS),
        "workers": str(draft.number(2, 64)),
        "path": f"/srv/{draft.pick(*SERVICES)}/data",
    }
    used = draft.some(sorted(values), 6)
    lines = [draft.pick(f"{key} = {{{{{key}}}}}", f"# {{{{{key}}}}} is the {key}") for key in used]
    lines += [f"{{{{{used[0]}}}}}-{{{{{used[1]}}}}}", "left = {{unknown_key}}", f"single = {{{used[2]}}}"]
    template = "".join(f"{line}\n" for line in draft.shuffled(lines))
    draft.file(f"{root}/{name}.template", template)
    draft.file(f"{root}/values.txt", "".join(f"{key}={value}\n" for key, value in values.items()))
    draft.say(
        draft.pick(f"Fill in the template {root}/{name}.template.", f"Please render {root}/{name}.template."),
        f"{root}/values.txt has one key=value pair per line.",
        "! Replace each {{key}} in the template (two braces on each side, no spaces) by the value of that key.",
        "! Placeholders whose key has no value,",
        "! and everything else, such as {key} in single braces, stay exactly as they are.",
        f"! Write the result to {target}.",
    )
    oracle = python(
        """
        import re
        values = dict(line.rstrip("\\n").split("=", 1) for line in open(@root/values.txt@))
        text = re.sub("{{([a-z_]+)}}", lambda found: values.get(found[1], found[0]), open(@template@).read())
        open(@target@, "w").write(text)
        """,
        template=f"{root}/{name}.template",
    )
    draft.solve(oracle, swap(oracle, "values.get(found[1], found[0])", 'values.get(found[1], "")'))


def _letters(draft: Draft) -> None:
    root = draft.project()
    folder = f"{root}/{draft.pick('letters', 'mails', 'invoices')}"
    people = [
        (str(draft.number(1000, 9999) * 10 + index), first, draft.pick(*PRODUCTS), str(draft.number(5, 500)))
        for index, first in enumerate(draft.some(FIRST_NAMES, draft.number(4, 8)))
    ]
    template = (
        f"{draft.pick('Dear', 'Hello', 'Hi')} ${{name}},\n\n"
        f"{draft.pick('your order of one', 'we have shipped your')} ${{product}} ({draft.pick('no.', 'number')} "
        "${id}) "
        f"{draft.pick('costs', 'comes to')} ${{price}} EUR.\n\n{draft.pick('Regards', 'Best wishes', 'Yours')},\n"
        f"{draft.pick(*FIRST_NAMES)} {draft.pick(*LAST_NAMES)}\n"
    )
    draft.file(f"{root}/template.txt", template)
    table = "id,name,product,price\n" + "".join(f"{','.join(person)}\n" for person in people)
    draft.file(f"{root}/orders.csv", table)
    expected: dict[str, bytes] = {}
    for number, name, product, price in people:
        text = template.replace("${name}", name).replace("${product}", product)
        expected[f"{number}.txt"] = text.replace("${id}", number).replace("${price}", price).encode()
    draft.say(
        draft.pick(f"I have to send a letter for every order in {root}/orders.csv.", "Please do a mail merge for me."),
        f"! For each record of {root}/orders.csv (its first line has the names of the columns), write the text of "
        f"{root}/template.txt to {folder}/ID.txt, where ID is the record's id,",
        "! with each ${column} replaced by the record's value of that column.",
        "! Otherwise the text must be identical to the template,",
        f"! and {folder} (to be created) must have no other files or directories.",
    )
    oracle = python("""
        import csv, os
        os.mkdir(@folder@)
        template = open(@root@ + "/template.txt").read()
        for row in list(csv.DictReader(open(@root@ + "/orders.csv"))):
            text = template
            for key, value in row.items():
                text = text.replace("${" + key + "}", value)
            open(@folder@ + "/" + row["id"] + ".txt", "w").write(text)
        """)
    draft.solve(oracle, swap(oracle, '/orders.csv")))', '/orders.csv")))[:-1]'))


def _conditional(draft: Draft) -> None:
    root = draft.project()
    target = f"{root}/{draft.pick('service', 'deploy', 'node')}.conf"
    keys = draft.some(("tls", "cache", "debug", "proxy", "audit", "backup", "metrics"), 5)
    values = {key: draft.pick("on", "off") for key in keys}
    values[keys[0]], values[keys[1]] = "on", "off"
    lines: list[str] = []
    for key in keys:
        # One hidden block of each kind.
        positive = (draft.chance(0.6) or key == keys[1]) and key != keys[0]
        body = [f"{key}_{word} = {draft.number(1, 999)}" for word in draft.some(SERVICES, draft.number(1, 3))]
        plain = f"{key}_name = {draft.pick(*SERVICES)}"
        lines += [f"%if{'' if positive else 'not'} {key}", *body, "%end", plain]
    draft.file(f"{root}/template.conf", "".join(f"{line}\n" for line in lines))
    draft.file(f"{root}/flags.txt", "".join(f"{key}: {value}\n" for key, value in values.items()))
    draft.say(
        draft.pick(
            f"Generate {target} from {root}/template.conf.", f"I need {target}, made from {root}/template.conf."
        ),
        f"{root}/flags.txt gives each flag as on or off.",
        "! In the template, the lines between a line '%if FLAG' and the next '%end' belong in the result only if the "
        "flag is on,",
        "! those between '%ifnot FLAG' and '%end' only if it is off;",
        "no block is inside another.",
        "! The lines that begin with % themselves never belong in the result.",
        "! All other lines do, unchanged",
        "! and in order.",
    )
    oracle = python("""
        flags = dict(line.strip().split(": ") for line in open(@root/flags.txt@))
        shown = True
        with open(@target@, "w") as target:
            for line in open(@root/template.conf@):
                if line.startswith("%ifnot"):
                    shown = flags[line.split()[1]] == "off"
                elif line.startswith("%if"):
                    shown = flags[line.split()[1]] == "on"
                elif line.startswith("%end"):
                    shown = True
                elif shown:
                    target.write(line)
        """)
    draft.solve(oracle, swap(oracle, 'flags[line.split()[1]] == "on"', "line.split()[1] in flags"))


FAMILY = Family("templates", "Fill in templates and mail merges", (_render, _letters, _conditional), ("python3",))
