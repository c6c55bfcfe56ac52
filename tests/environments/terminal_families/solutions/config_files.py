"""Forbidden changes and other solutions of the family `config_files`."""

from tests.environments.terminal_families.ways import after, instead, swap

FORBIDDEN = {
    "_environment": {
        "\n- set «changed» to «new»": [
            swap("-e 's/^«changed»=.*/«changed»=«new»/' ", ""),
            after("sed -i 's/^«changed»=.*/«changed»=\"«new»\"/' «path»"),
        ],
        "\n- remove the line": [swap(" -e '/^«removed»=/d'", ""), swap("/^«removed»=/d", "s/^«removed»=/# &/")],
        "\n- add «added»=«more» as a new last line": [
            swap("echo '«added»=«more»' >> «path»", "sed -i '1i«added»=«more»' «path»")
        ],
        "Comments (lines": [swap("s/^«changed»=.*", "s/«changed»=.*"), swap("/^«removed»=/d", "/«removed»=/d")],
        "the order": [after("LC_ALL=C sort -r -o «path» «path»")],
        "and other settings (also those whose names merely begin the same)": [
            swap("s/^«changed»=.*", "s/^«changed».*=.*"),
            swap("/^«removed»=/d", "/^«removed»/d"),
        ],
    },
    "_sections": {
        "In the section [«target»], set «key» to «new».": [
            swap(" and section == «repr(target)»", " and False"),
            swap('line = «repr(key)» + " = "', 'result.append(line); line = «repr(key)» + " = "'),
        ],
        "The section [«lacking»] has no «key» yet: add it there with the same value,": [
            swap("if section == «repr(lacking)»", "if False"),
            swap('«repr(key)» + " = " + «repr(new)»)', '«repr(key)» + " = 0" + «repr(new)»)'),
        ],
        "as the last line of the section's settings, directly after its present last setting and before": [
            swap("while not result[place - 1]", 'while not result[place - 1].startswith("[")')
        ],
        "Write settings as the file does, with one": [after("sed -i 's/^«key» = «new»$/«key»=«new»/' «path»")],
        "Commented-out lines, «key» in all other sections, empty lines and every other byte stay as they are.": [
            swap(" and section == «repr(target)»", ""),
            swap("line.startswith(«repr(key)»", 'line.lstrip("# ").startswith(«repr(key)»'),
        ],
    },
    "_layers": {
        "Its files are «names[0]», «names[1]» and «names[2]», read in this order; a later setting of a key replaces": [
            swap("«in_order»", "«str([f'{root}/{name}' for name in names[::-1]])»"),
            swap(", '«root»/«names[2]»']", "]"),
        ],
        "Each has lines 'key: value', where spaces around the value do not count; empty lines and lines that": [
            swap("= value.strip()", '= value.rstrip("\\n")'),
            swap(' and not line.startswith("#")', ""),
        ],
        "A key with an empty value ('key:') removes the setting made so far; a later file may set it again.": [
            swap("del settings[key]", "pass"),
            swap(
                "settings[key] = value.strip()",
                "if not value.strip(): continue\n«' ' * 12»settings[key] = value.strip()",
            ),
        ],
        "Write the result to «target»: a JSON object of all keys that are set in the end and their values,": [
            swap("json.dump(settings,", "json.dump(list(settings.items()),"),
            swap("value.strip()\n", "int(value) if value.strip().isdigit() else value.strip()\n"),
        ],
    },
}
HONEST = {
    "_environment": [
        instead(
            'awk -F= \'$1 == "«removed»" { next } $1 == "«changed»" { $0 = "«changed»=«new»" } { print } '
            'END { print "«added»=«more»" }\' «path» > ~/new && cat ~/new > «path»'
        ),
        after("cp -p «path» ~/new && mv ~/new «path»"),
    ],
    "_sections": [
        instead(
            """python3 - <<'END'
import re
blocks = re.split(r"(?m)^(?=\\[)", open("«path»").read())
for place, block in enumerate(blocks):
    if block.startswith("[«target»]"):
        blocks[place] = re.sub("(?m)^«key» = .*", "«key» = «new»", block)
    elif block.startswith("[«lacking»]"):
        blocks[place] = re.sub(r"\\n(\\n*)\\Z", r"\\n«key» = «new»\\n\\1", block)
open("«path»", "w").write("".join(blocks))
END
"""
        )
    ],
    "_layers": [
        instead(
            """cd «root» && cat «' '.join(names)» | sed -E '/^(#|$)/d; s/: */ /' | python3 -c '
import json, sys
last = dict(line.rstrip("\\n").split(" ") for line in sys.stdin)
json.dump({key: value for key, value in last.items() if value}, open("«target»", "w"))'
"""
        ),
        swap("indent=2", "indent=2, sort_keys=True"),
    ],
}
