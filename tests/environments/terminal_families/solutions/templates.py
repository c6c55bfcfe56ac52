"""Forbidden changes and other solutions of the family `templates`."""

from tests.environments.terminal_families.ways import after, instead, python, swap

FORBIDDEN = {
    "_render": {
        "Replace each {{key}} in the template (two braces on each side, no spaces) by the value of that key.": [
            swap(".read())", ".read(), count=1)"),
            swap("values.get(found[1], found[0])", "found[1]"),
        ],
        "Placeholders whose key has no value,": [
            swap("values.get(found[1], found[0])", 'values.get(found[1], "")'),
            after("sed -i /unknown_key/d «target»"),
        ],
        "and everything else, such as {key} in single braces, stay exactly as they are.": [
            swap('"{{([a-z_]+)}}"', '"{{?([a-z_]+)}}?"'),
            after("tac «target» > ~/t; cat ~/t > «target»"),
        ],
        "Write the result to «target».": [after("echo done >> «target»")],
    },
    "_letters": {
        "For each record of «root»/orders.csv (its first line has the names of the columns), write the text of «root»/template.txt to «folder»/ID.txt, where ID is the record's id,": [
            swap('/orders.csv")))', '/orders.csv")))[:-1]'),
            swap('row["id"] + ".txt"', 'row["name"] + ".txt"'),
        ],
        "with each ${column} replaced by the record's value of that column.": [
            swap("in row.items():", "in list(row.items())[:-1]:"),
            swap('"${" + key', '"{" + key'),
        ],
        "Otherwise the text must be identical to the template,": [after("echo P.S. >> «folder»/«people[0][0]».txt")],
        "and «folder» (to be created) must have no other files or directories.": [
            after("echo more > «folder»/README"),
            after("mkdir «folder»/more"),
        ],
    },
    "_conditional": {
        "In the template, the lines between a line '%if FLAG' and the next '%end' belong in the result only if the flag is on,": [
            swap('flags[line.split()[1]] == "on"', "line.split()[1] in flags")
        ],
        "those between '%ifnot FLAG' and '%end' only if it is off;": [
            swap('flags[line.split()[1]] == "off"', 'flags[line.split()[1]] == "on"')
        ],
        "The lines that begin with % themselves never belong in the result.": [
            after("echo %end >> «target»"),
            after("grep ^% template.conf >> «target»"),
        ],
        "All other lines do, unchanged": [after("sed -i 's/ = /=/' «target»")],
        "and in order.": [after("tac «target» > ~/t; cat ~/t > «target»")],
    },
}
HONEST = {
    "_render": [
        python(r"""
text = open(«repr(f'{root}/{name}.template')»).read()
for line in open(«repr(f'{root}/values.txt')»):
    key, _, value = line.rstrip("\n").partition("=")
    text = text.replace("{{" + key + "}}", value)
open(@target@, "w").write(text)
""")
    ],
    "_letters": [
        after("chmod -R go-rwx «folder»"),
        swap(
            'text = template\n    for key, value in row.items():\n        text = text.replace("${" + key + "}", value)\n',
            "import string\n    text = string.Template(template).substitute(row)\n",
        ),
    ],
    "_conditional": [
        instead("""
cd «root»; awk 'NR == FNR { sub(/:/, ""); flag[$1] = $2; next }
/^%ifnot / { off = flag[$2] == "on"; next }
/^%if / { off = flag[$2] == "off"; next }
/^%end/ { off = 0; next }
!off' flags.txt template.conf > «target»
""")
    ],
}
