"""Forbidden changes and other solutions of the family `text_encodings`."""

from tests.environments.terminal_families.ways import after, instead, python, swap

FORBIDDEN = {
    "_base64": {
        "For each file NAME.b64 in it, write the decoded bytes to «target»/NAME (so a.txt.b64 becomes a.txt).": [
            swap("${file%.b64}", "$file"),
            swap("base64 -d", "cat"),
        ],
        "Other files in «source» are not to be decoded or copied.": [after("cp «source»/README «target»/")],
        "It must hold only the decoded files.": [
            after("ls «target» > ~/list; mv ~/list «target»/list"),
            after("mkdir «target»/more"),
        ],
    },
    "_hex": {
        "Each pair of hexadecimal digits (upper or lower case) is one byte;": [
            swap('bytes.fromhex("".join(lines).replace(":", " "))', '"".join(lines).encode()'),
            swap(
                '"".join(lines).replace(":", " ")',
                '"".join(lines).replace(":", "").replace(" ", "").replace("\\n", "")[::-1]',
            ),
        ],
        "pairs are separated by spaces, colons or line ends.": [
            after("(head -c 1 «target»; printf :; tail -c +2 «target») > ~/t; cat ~/t > «target»")
        ],
        "A # begins a comment that reaches to the end of its line.": [
            after("(head -n 1 «source»; cat «target») > ~/t; cat ~/t > «target»")
        ],
        "Write the bytes, in order and nothing else, to «target».": [
            swap('"".join(lines)', '"".join(lines[:-1])'),
            swap('.replace(":", " "))', '.replace(":", " "))[::-1]'),
        ],
    },
    "_messages": {
        "Each line is KIND:TEXT, where KIND tells how TEXT is encoded: base64, hex (two hexadecimal digits a byte), rot13 (letters only), url (percent-encoding; a plus sign stands for itself) or plain (not at all).": [
            swap("base64.b64decode(text).decode()", "text"),
            swap("bytes.fromhex(text).decode()", "text"),
        ],
        "Only the first colon separates;": [swap("print(decode[kind](text)", 'print(decode[kind](text).split(":")[0]')],
        "Write the decoded messages to «target», one per line,": [
            after("paste -s -d ' ' «target» > ~/t; cat ~/t > «target»")
        ],
        "in the same order,": [after("tac «target» > ~/t; cat ~/t > «target»")],
        "without KIND.": [swap("print(decode[kind](text)", 'print(kind + ":" + decode[kind](text)')],
    },
}
HONEST = {
    "_base64": [
        after("chmod -R go-rwx «target»"),
        python("""
import base64, pathlib
pathlib.Path(@target@).mkdir()
for path in pathlib.Path(@source@).glob("*.b64"):
    (pathlib.Path(@target@) / path.stem).write_bytes(base64.b64decode(path.read_bytes()))
"""),
    ],
    "_hex": [
        after("chmod 600 «target»"),
        instead(r"""
sed 's/#.*//' «source» | tr -cd 0-9a-fA-F | sed 's/../\\x&/g' > ~/t
printf "$(cat ~/t)" > «target»"""),
    ],
    "_messages": [swap("base64.b64decode(text).decode()", "codecs.decode(text.encode(), 'base64').decode()")],
}
