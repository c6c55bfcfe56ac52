"""Forbidden changes and other solutions of the family `text_transform`."""

from tests.environments.terminal_families.ways import after, instead, python, swap

FORBIDDEN = {
    "_reorder": {
        "\nWrite «target» with the same people in the form": [after("sed -i '$d' «target»")],
        "\n    Last, First<separator>NUMBER": [swap("\\2, \\1", "\\1, \\2")],
        "\nwhere <separator> is «spoken» with no spaces around it.": [
            swap("\\1«shown»", "\\1 «shown»"),
            swap("«shown»\\3", "«shown» \\3"),
        ],
        "Sort by last name": [swap("-k 2,2 -k 1,1", "-k 1,1")],
        "and, among equal last names, by first name.": [swap("-k 2,2 -k 1,1", "-k 2,2 -k 1,1r")],
    },
    "_replace": {
        "In every file below «root» (at any depth) whose name ends in .txt, replace each occurrence of the word «old» by «new», in place.": [
            swap("-type f", "-maxdepth 1 -type f"),
            swap("/g' {}", "/' {}"),
        ],
        "Only the whole word in small letters counts: «longer», un«old» and «old.capitalize()» stay,": [
            swap("\\b«old»\\b", "«old»"),
            swap("/g' {}", "/gI' {}"),
        ],
        "but («old») and «old» before a comma or full stop are replaced.": [
            swap("s/\\b«old»\\b/«new»/g", "s/ «old» / «new» /g")
        ],
        "All other text, all other files and all names stay exactly as they are; nothing is added.": [
            swap("-name '*.txt'", "-name '*'"),
            after("echo more > «root»/leftover"),
        ],
    },
    "_unwrap": {
        "Write «target» with each paragraph on one line, in the same order:": [
            after("tac «target» > ~/t; cat ~/t > «target»"),
            after("sed -i '1s/ /\\n/3' «target»"),
        ],
        "join its lines with single spaces, with no spaces at the beginning or the end of a line of the original surviving the join.": [
            after("sed -i 's/ /  /3' «target»"),
            swap('gsub(/[ \\n]+/, " ")', 'gsub(/[ \\n]+/, "")'),
        ],
        'Put the paragraph\'s number, a full stop and a space in front, counting from 1, so that the file begins with "1. ".': [
            swap("print NR ", "print NR - 1 "),
            swap('". "', '") "'),
        ],
        "There are no empty lines in the result.": [after("sed -i '$!G' «target»")],
    },
    "_columns": {
        "Write them in the same order to «target»,": [after("tac «target» > ~/t; cat ~/t > «target»")],
        "as columns separated by two spaces.": [swap('sep="  "', 'sep=" "')],
        "Each column is exactly as wide as its longest field.": [
            swap("ljust(a)", "ljust(a + 1)"),
            swap("ljust(b)", "ljust(20)"),
        ],
        "The first two columns are padded with spaces on the right (left-aligned),": [
            swap("ljust(a)", "rjust(a)"),
            swap("ljust(b)", "rjust(b)"),
        ],
        "the third on the left (right-aligned), so no line ends with a space.": [swap("rjust(c)", "ljust(c)")],
    },
}
HONEST = {
    "_reorder": [
        python(r"""
people = [line.strip().replace(":", "").split(" ") for line in open(@source@)]
with open(@target@, "w") as file:
    for first, last, number in sorted(people, key=lambda person: (person[1], person[0])):
        file.write(f"{last}, {first}" + @separator@ + number + "\n")
""")
    ],
    "_replace": [
        swap("sed -i ", "sed -i --follow-symlinks "),
        python(r"""
import pathlib, re
for path in pathlib.Path(@root@).rglob("*.txt"):
    path.write_text(re.sub(r"\b" + @old@ + r"\b", @new@, path.read_text()))
"""),
    ],
    "_unwrap": [
        python(r"""
import re
parts = re.split("\n\n+", open(@source@).read().strip())
with open(@target@, "w") as file:
    for number, part in enumerate(parts, 1):
        print(f"{number}. {' '.join(part.split())}", file=file)
""")
    ],
    "_columns": [
        instead(
            "awk -F : -v form='%-«max(len(r[0]) for r in rows)»s  %-«max(len(r[1]) for r in rows)»s  %«max(len(r[2]) for r in rows)»s' '{ printf form, $1, $2, $3; print \"\" }' «source» > «target»"
        )
    ],
}
