"""Family: Base64, hexadecimal and other encodings of bytes as text."""

import base64
import codecs
import urllib.parse

from .draft import Draft, python, swap
from .family import Family
from .vocabulary import WORDS


def _base64(draft: Draft) -> None:
    root = draft.project()
    source = f"{root}/{draft.pick('encoded', 'attachments', 'payloads')}"
    target = f"{root}/{draft.pick('decoded', 'files', 'plain')}"
    expected: dict[str, bytes] = {}
    for index, name in enumerate(draft.some(WORDS, draft.number(4, 8))):
        data = draft.text(draft.number(30, 200)) if index % 2 else draft.random.randbytes(draft.number(30, 150))
        file = f"{name}.{'txt' if index % 2 else 'bin'}"
        text = base64.encodebytes(data) if draft.chance(0.5) else base64.b64encode(data)
        draft.file(f"{source}/{file}.b64", text)
        expected[file] = data
    draft.file(f"{source}/README", "Files ending in .b64 are base64.\n")
    draft.say(
        draft.pick(
            f"Decode the base64 files in {source}.", f"{source} has files that were base64-encoded for mailing."
        ),
        f"! For each file NAME.b64 in it, write the decoded bytes to {target}/NAME (so a.txt.b64 becomes a.txt).",
        f"! Other files in {source} are not to be decoded or copied.",
        f"{target} does not exist yet.",
        "! It must hold only the decoded files.",
    )
    oracle = (
        f"mkdir -p {target}\ncd {source} || exit 1\nfor file in *.b64; do\n"
        f'  base64 -d "$file" > "{target}/${{file%.b64}}"\ndone\n'
    )
    draft.solve(oracle, swap(oracle, "${file%.b64}", "$file"))


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
    draft.file(source, text)
    draft.say(
        draft.pick(f"Turn the hex dump {source} into a binary file.", f"{source} is a hand-written hex dump."),
        "! Each pair of hexadecimal digits (upper or lower case) is one byte;",
        "! pairs are separated by spaces, colons or line ends.",
        "! A # begins a comment that reaches to the end of its line.",
        f"! Write the bytes, in order and nothing else, to {target}.",
    )
    draft.final.test(
        f"{target.rpartition('/')[2]} has the right bytes", f"assert content({target!r}).hex() == {data.hex()!r}"
    )
    oracle = python("""
        lines = [line.partition("#")[0] for line in open(@source@)]
        open(@target@, "wb").write(bytes.fromhex("".join(lines).replace(":", " ")))
        """)
    draft.solve(oracle, swap(oracle, '"".join(lines)', '"".join(lines[:-1])'))


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
    draft.file(source, "".join(lines))
    draft.say(
        draft.pick(f"Decode the messages in {source}.", f"{source} holds one encoded message per line."),
        "! Each line is KIND:TEXT, where KIND tells how TEXT is encoded: base64, hex (two hexadecimal digits a "
        "byte), rot13 (letters only), url (percent-encoding; a plus sign stands for itself) or plain (not at all).",
        "! Only the first colon separates;",
        "the decoded texts are ASCII.",
        f"! Write the decoded messages to {target}, one per line,",
        "! in the same order,",
        "! without KIND.",
        draft.every_line(),
    )
    oracle = python("""
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
        """)
    draft.solve(oracle, swap(oracle, 'codecs.decode(text, "rot13")', "text"))


FAMILY = Family("text_encodings", "Base64, hexadecimal, percent-encoding", (_base64, _hex, _messages), ("python3",))
