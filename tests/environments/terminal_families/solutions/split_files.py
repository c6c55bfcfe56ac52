"""Forbidden changes and other solutions of the family `split_files`."""

from tests.environments.terminal_families.ways import after, instead, python, swap

FORBIDDEN = {
    "_split": {
        "Each part has «size» lines, only the last one may have fewer.": [
            swap("-l «size»", "-l «size + 1»"),
            after("cd «folder» && truncate -s -3 «stem»-«format(1, f'0{digits}d')».txt"),
        ],
        "The parts are «folder»/«stem»-«format(1, f'0{digits}d')».txt, «stem»-«format(2, f'0{digits}d')».txt and so on,": [
            swap("--numeric-suffixes=1", "--numeric-suffixes=0"),
            swap("--additional-suffix=.txt ", ""),
        ],
        "in the order of the lines,": [
            instead(
                "mkdir «folder»; tac «root»/«stem».txt | split -l «size» --numeric-suffixes=1 -a «digits» --additional-suffix=.txt - «folder»/«stem»-"
            )
        ],
        "with «digits» digits.": [swap("-a «digits»", "-a «digits + 1»")],
        "It must hold nothing else.": [after("echo more > «folder»/README"), after("mkdir «folder»/more")],
    },
    "_by_column": {
        "For each «column» there, write «folder»/NAME.csv, where NAME is the «column» in small letters.": [
            swap("tolower($3)", "$3")
        ],
        "It has the header line of the original": [swap("{ print header > file }", "{ }"), swap("!seen[file]++ ", "")],
        "and the records with that «column», exactly as they are": [
            swap("{ print > file }", "{ print tolower($0) > file }")
        ],
        "and in the original order.": [
            after(
                "cd «folder»; (head -n 1 «names[0].lower()».csv; tail -n +2 «names[0].lower()».csv | tac) > ~/t; cat ~/t > «names[0].lower()».csv"
            )
        ],
        "Upper and lower case of the «column» make no difference: records that differ only in that belong in the same file.": [
            after("sed -i '/,«names[0].upper()»,/d' «folder»/«names[0].lower()».csv")
        ],
        "It must hold nothing else.": [after("echo more > «folder»/README"), after("mkdir «folder»/more")],
        "Every line ends with a newline, including the last one.": [
            after("sed -i 's/$/\\r/' «folder»/«names[0].lower()».csv")
        ],
    },
    "_join": {
        "Join them in the order of their numbers.": [
            swap("in range(1, «count» + 1)", "in sorted(range(1, «count» + 1), key=str)"),
            swap("«count» + 1)", "«count»)"),
        ],
        "Write the joined file to «target», with the right version of each part.": [
            swap("!= right:", "is None:"),
            swap(
                "if hashlib.sha256(data).hexdigest() != right:",
                "import os\n    if os.path.exists(«repr(root)» + '/spare/' + name):",
            ),
        ],
    },
}
HONEST = {
    "_split": [
        after("chmod -R go-rwx «folder»"),
        instead(
            "mkdir «folder»; cd «folder»; awk -v form='«stem»-%0«digits»d.txt' '{ print > sprintf(form, int((NR - 1) / «size») + 1) }' «root»/«stem».txt"
        ),
    ],
    "_by_column": [
        after("chmod -R go-rwx «folder»"),
        python("""
import os
os.mkdir(@folder@)
header, *lines = open(@source@).readlines()
for name in {line.split(",")[2].lower() for line in lines}:
    with open(os.path.join(@folder@, name + ".csv"), "w") as file:
        file.writelines([header, *(line for line in lines if line.split(",")[2].lower() == name)])
"""),
    ],
    "_join": [
        after("chmod 600 «target»; touch -d 2001-01-01 «target»"),
        instead("""
cd «root»/parts && cp -r . ~/work && cd ~/work || exit 1
sha256sum -c SHA256SUMS 2> /dev/null | sed -n 's/: FAILED$//p' | while read -r part; do cp «root»/spare/$part .; done
for number in $(seq «count»); do cat «name».part$number; done > «target»
"""),
    ],
}
