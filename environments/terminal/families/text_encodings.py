"""Family: Base64, hexadecimal and other encodings of bytes as text."""

from __future__ import annotations

import base64
import codecs
import urllib.parse

from .draft import Draft, breach, python, swap
from .family import Family
from .vocabulary import WORDS

__all__ = ["FAMILY"]


def _base64(draft: Draft) -> None:
    root = draft.project()
    source = f"{root}/{draft.pick('encoded', 'attachments', 'payloads')}"
    target = f"{root}/{draft.pick('decoded', 'files', 'plain')}"
    expected: dict[str, bytes] = {}
    for index, name in enumerate(draft.some(WORDS, draft.number(4, 8))):
        data = draft.text(draft.number(30, 200)) if index % 2 else draft.random.randbytes(draft.number(30, 150))
        file = f"{name}.{'txt' if index % 2 else 'bin'}"
        text = base64.encodebytes(data) if draft.chance(0.5) else base64.b64encode(data)
        draft.file(f"{source}/{file}.b64", text, keep=True)
        expected[file] = data
    draft.file(f"{source}/README", "Files ending in .b64 are base64.\n", keep=True)
    base, first = target.rpartition("/")[2], next(iter(expected))
    right, more = f"files of {base} have the right content", f"{base} holds nothing else"
    draft.honest("closed to others", after=f"chmod -R go-rwx {target}")
    draft.honest(
        "from Python",
        instead=python(
            """
            import base64, pathlib
            pathlib.Path(@target@).mkdir()
            for path in pathlib.Path(@source@).glob("*.b64"):
                (pathlib.Path(@target@) / path.stem).write_bytes(base64.b64decode(path.read_bytes()))
            """,
            source=source,
            target=target,
        ),
    )
    draft.say(
        draft.pick(
            f"Decode the base64 files in {source}.", f"{source} has files that were base64-encoded for mailing."
        ),
        draft.require(
            f"For each file NAME.b64 in it, write the decoded bytes to {target}/NAME (so a.txt.b64 becomes a.txt).",
            breach("names with .b64", right, more, swap=("${file%.b64}", "$file")),
            breach("names without their ends", right, more, swap=("${file%.b64}", "${file%%.*}")),
            breach("bytes as they are", right, swap=("base64 -d", "cat")),
            breach("one left out", right, after=f"rm {target}/{first}"),
            breach("a newline more", right, after=f"echo >> {target}/{first}"),
        ),
        draft.require(
            f"Other files in {source} are not to be decoded or copied.",
            breach("another copied", more, after=f"cp {source}/README {target}/"),
        ),
        f"{target} does not exist yet.",
        draft.require(
            "It must hold only the decoded files.",
            breach("one more file", more, after=f"ls {target} > ~/list; mv ~/list {target}/list"),
            breach("one more directory", more, after=f"mkdir {target}/more"),
            breach("the encoded ones too", more, after=f"cp {source}/*.b64 {target}/"),
        ),
        draft.leave(),
    )
    draft.initial.absent(target)
    draft.final.files(target, expected)
    oracle = (
        f"mkdir -p {target}\ncd {source} || exit 1\nfor file in *.b64; do\n"
        f'  base64 -d "$file" > "{target}/${{file%.b64}}"\ndone\n'
    )
    draft.solve(oracle, swap(oracle, "${file%.b64}", "$file"), "\n".join(sorted(expected)))


def _hex(draft: Draft) -> None:
    root = draft.project()
    source = f"{root}/{draft.pick('dump', 'firmware', 'packet', 'image')}.hex"
    target = source.replace(".hex", ".bin")
    data = draft.random.randbytes(draft.number(60, 300))
    text = f"# {draft.prose(4)}\n"
    place = 0
    while place < len(data):
        width = draft.number(4, 20)
        # Colons in the first line, capitals in the second.
        chunk = data[place : place + width].hex(" " if draft.chance(0.7) and place else ":")
        text += (chunk.upper() if draft.chance(0.4) else chunk) + draft.pick("", "", f"  # offset {place:#06x}") + "\n"
        place += width
    draft.file(source, text, keep=True)
    right = "* has the right bytes"
    draft.honest("closed to others", after=f"chmod 600 {target}")
    draft.honest(
        "digit by digit",
        instead=f"sed 's/#.*//' {source} | tr -cd 0-9a-fA-F | sed 's/../\\\\x&/g' > ~/t\n"
        f'printf "$(cat ~/t)" > {target}',
    )
    draft.say(
        draft.pick(f"Turn the hex dump {source} into a binary file.", f"{source} is a hand-written hex dump."),
        draft.require(
            "Each pair of hexadecimal digits (upper or lower case) is one byte;",
            breach(
                "the digits as text",
                right,
                swap=('bytes.fromhex("".join(lines).replace(":", " "))', '"".join(lines).encode()'),
            ),
            breach(
                "digits the other way round",
                right,
                swap=(
                    '"".join(lines).replace(":", " ")',
                    '"".join(lines).replace(":", "").replace(" ", "").replace("\\n", "")[::-1]',
                ),
            ),
        ),
        draft.require(
            "pairs are separated by spaces, colons or line ends.",
            breach(
                "colons as bytes",
                right,
                after=f"(head -c 1 {target}; printf :; tail -c +2 {target}) > ~/t; cat ~/t > {target}",
            ),
        ),
        draft.require(
            "A # begins a comment that reaches to the end of its line.",
            breach(
                "the first comment too", right, after=f"(head -n 1 {source}; cat {target}) > ~/t; cat ~/t > {target}"
            ),
        ),
        draft.require(
            f"Write the bytes, in order and nothing else, to {target}.",
            breach("the last line left out", right, swap=('"".join(lines)', '"".join(lines[:-1])')),
            breach("backwards", right, swap=('.replace(":", " "))', '.replace(":", " "))[::-1]')),
            breach("a newline more", right, after=f"echo >> {target}"),
        ),
        draft.leave(),
    )
    draft.initial.absent(target)
    draft.final.test(
        f"{target.rpartition('/')[2]} has the right bytes", f"assert content({target!r}).hex() == {data.hex()!r}"
    )
    oracle = python(
        """
        lines = [line.partition("#")[0] for line in open(@source@)]
        open(@target@, "wb").write(bytes.fromhex("".join(lines).replace(":", " ")))
        """,
        source=source,
        target=target,
    )
    draft.solve(oracle, swap(oracle, '"".join(lines)', '"".join(lines[:-1])'), data.hex())


def _messages(draft: Draft) -> None:
    root = draft.project()
    source = f"{root}/{draft.pick('messages', 'queue', 'captured')}.txt"
    target = source.replace(".txt", "-decoded.txt")
    lines: list[str] = []
    expected: list[str] = []
    kinds = ["base64", "hex", "rot13", "url", "plain"]
    kinds += [draft.pick(*kinds) for _ in range(draft.number(4, 9))]
    for kind in draft.shuffled(kinds):
        plain = draft.prose(draft.number(2, 6))
        plain += {"plain": ": #1", "url": " a+b & c"}.get(kind) or draft.pick("", " 50% off", " a+b & c", ": #1")
        written = {
            "base64": base64.b64encode(plain.encode()).decode(),
            "hex": plain.encode().hex(),
            "rot13": codecs.encode(plain, "rot13"),
            "url": urllib.parse.quote(plain, safe=""),
            "plain": plain,
        }[kind]
        lines.append(f"{kind}:{written}\n")
        expected.append(f"{plain}\n")
    draft.file(source, "".join(lines), keep=True)
    right = "* has the right lines"
    draft.pieces(target)
    draft.honest(
        "by another function",
        swap=("base64.b64decode(text).decode()", "codecs.decode(text.encode(), 'base64').decode()"),
    )
    draft.say(
        draft.pick(f"Decode the messages in {source}.", f"{source} holds one encoded message per line."),
        draft.require(
            "Each line is KIND:TEXT, where KIND tells how TEXT is encoded: base64, hex (two hexadecimal digits a "
            "byte), rot13 (letters only), url (percent-encoding; a plus sign stands for itself) or plain (not at all).",
            breach("base64 left", right, swap=("base64.b64decode(text).decode()", "text")),
            breach("hex left", right, swap=("bytes.fromhex(text).decode()", "text")),
            breach("rot13 left", right, swap=('codecs.decode(text, "rot13")', "text")),
            breach("percents left", right, swap=("urllib.parse.unquote,", "str,")),
            breach(
                "plain texts decoded",
                right,
                swap=('"plain": str', '"plain": lambda text: codecs.decode(text, "rot13")'),
            ),
        ),
        draft.require(
            "Only the first colon separates;",
            breach(
                "the rest left out", right, swap=("print(decode[kind](text)", 'print(decode[kind](text).split(":")[0]')
            ),
        ),
        "the decoded texts are ASCII.",
        draft.require(
            f"Write the decoded messages to {target}, one per line,",
            breach("one left out", right, after=f"sed -i '$d' {target}"),
            breach("all in one line", right, after=f"paste -s -d ' ' {target} > ~/t; cat ~/t > {target}"),
        ),
        draft.require(
            "in the same order,",
            breach("backwards", "lines of * are in order", after=f"tac {target} > ~/t; cat ~/t > {target}"),
        ),
        draft.require(
            "without KIND.",
            breach("with it", right, swap=("print(decode[kind](text)", 'print(kind + ":" + decode[kind](text)')),
        ),
        draft.every_line(target),
        draft.leave(),
    )
    draft.result(target, "".join(expected))
    oracle = python(
        """
        import base64, codecs, urllib.parse
        decode = {
            "base64": lambda text: base64.b64decode(text).decode(),
            "hex": lambda text: bytes.fromhex(text).decode(),
            "rot13": lambda text: codecs.decode(text, "rot13"),
            "url": urllib.parse.unquote,
            "plain": str,
        }
        with open(@target@, "w") as target:
            for line in open(@source@):
                kind, _, text = line.rstrip("\\n").partition(":")
                print(decode[kind](text), file=target)
        """,
        source=source,
        target=target,
    )
    draft.solve(oracle, swap(oracle, 'codecs.decode(text, "rot13")', "text"), "".join(expected))


FAMILY = Family("text_encodings", "Base64, hexadecimal, percent-encoding", (_base64, _hex, _messages), ("python3",))
