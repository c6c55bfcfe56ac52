"""Forbidden changes and other solutions of the family `regex_extract`."""

from tests.environments.terminal_families.ways import after, instead, python, swap

FORBIDDEN = {
    "_emails": {
        "An address here is one or more letters, digits, dots or underscores, then @,": [
            swap("[A-Za-z0-9._]+@", "[A-Za-z0-9_]+@"),
            swap("._]+@", "._]+ ?@ ?"),
        ],
        "then a domain of exactly two parts joined by a dot (the first part letters and digits, the second letters only).": [
            swap("@[A-Za-z0-9]+", "@[A-Za-z]+"),
            swap("\\.[A-Za-z]+'", "\\.'"),
        ],
        "Things such as @name, or name@host without a dot, are no addresses.": [
            swap("\\.[A-Za-z]+'", "(\\.[A-Za-z]+)?'"),
            swap("'«pattern»'", "'«pattern»|@[a-z]+( |$)'"),
        ],
        "They may stand in brackets or before a comma.": [
            swap("-oE '«pattern»'", "-oP '(?<![<(A-Za-z0-9._])«pattern»'"),
            swap("'«pattern»'", "'[<(]?«pattern»[>),]?'"),
        ],
        "Write them to «target» in small letters,": [swap("| tr A-Z a-z ", ""), swap("tr A-Z a-z", "tr a-z A-Z")],
        "each one once,": [swap("sort -u", "sort")],
        "one per line,": [
            after("paste -d , - - < «target» > ~/two && mv ~/two «target»"),
            after("cat -n «target» > ~/numbered && mv ~/numbered «target»"),
        ],
        "in alphabetical (byte) order.": [swap("sort -u", "sort -ru"), after("sed -i '1{h;d};${G}' «target»")],
    },
    "_tickets": {
        "A ticket number is one of «', '.join(keys)» in capitals, a hyphen, and «least» to «most» digits,": [
            swap("re.findall(", "re.findall('(?i)' + "),
            swap("(?:«'|'.join(keys)»)", "[A-Z]+"),
        ],
        "with no further letter or digit directly before or after it.": [
            swap("(?<![A-Za-z0-9])", ""),
            swap("(?![A-Za-z0-9])", ""),
        ],
        "Write «target» with one line for each different ticket:": [
            swap("in sorted(counts.items(), key", "in sorted(list(counts.items()) * 2, key"),
            after("sed -i '1i count ticket' «target»"),
        ],
        "how often it occurs, one space, the ticket number.": [
            swap("print(count, ticket,", "print(ticket, count,"),
            swap("print(count,", "print(1,"),
        ],
        "Most frequent first;": [
            swap("(-item[1], item[0])", "(item[1], item[0])"),
            after("LC_ALL=C sort -k 2 -o «target» «target» && tac «target» > ~/x && cp ~/x «target»"),
        ],
        "equally frequent ones in byte order of the ticket number (LC_ALL=C sort).": [
            swap("(-item[1], item[0])", "(-item[1], [-ord(letter) for letter in item[0]])")
        ],
    },
    "_addresses": {
        "An address is four decimal numbers from 0 to 255 joined by dots.": [
            swap("{3}", "{2,3}"),
            swap("int(part) < 256", "int(part) < 1000"),
        ],
        "It must not have a digit, a letter or a dot directly before it,": [swap("(?<![A-Za-z0-9.])", "")],
        "nor a digit, a letter or a dot directly after it: 1.2.3.4.5 and v1.2.3.4 are no addresses, and neither is 1.2.3.999.": [
            swap("(?![A-Za-z0-9.])", "")
        ],
        "Write each different address once to «target»,": [
            swap(
                'good = {entry for entry in found if all(int(part) < 256 for part in entry.split("."))}',
                'good = [entry for entry in found if all(int(part) < 256 for part in entry.split("."))]',
            ),
            swap("for entry in found if", "for entry in found if found.count(entry) == 1 and"),
        ],
        "one per line,": [
            after("paste -d ' ' - - < «target» > ~/two && mv ~/two «target»"),
            after("cat -n «target» > ~/numbered && mv ~/numbered «target»"),
        ],
        "sorted numerically by the first number, then the second, the third and the fourth (so 9.1.1.1 comes before 10.0.0.1).": [
            swap('key=lambda entry: [int(part) for part in entry.split(".")]', "key=str"),
            swap('[int(part) for part in entry.split(".")]', '(int(entry.split(".")[0]), entry)'),
        ],
    },
}
HONEST = {
    "_emails": [
        python(r"""
import re
found = {address.lower() for address in re.findall(@pattern@, open(@source@).read())}
open(@target@, "w").writelines(address + "\n" for address in sorted(found))
"""),
        swap("grep -oE '«pattern»' «source» | tr A-Z a-z", "tr A-Z a-z < «source» | grep -oE '«pattern»'"),
    ],
    "_tickets": [
        instead(
            "grep -oP '«pattern»' «source» | sort | uniq -c | awk '{ print $1, $2 }' | LC_ALL=C sort -k 1,1nr -k 2,2 > «target»\n"
        )
    ],
    "_addresses": [
        after("sort -u «target» > ~/x && sort -V ~/x > «target»"),
        instead(
            "grep -oP '(?<![A-Za-z0-9.])[0-9]+([.][0-9]+){3}(?![A-Za-z0-9.])' «source» | awk -F . '$1 < 256 && $2 < 256 && $3 < 256 && $4 < 256' | sort -u -t . -k 1,1n -k 2,2n -k 3,3n -k 4,4n > «target»\n"
        ),
    ],
}
