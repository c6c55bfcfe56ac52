"""Family: small services on localhost, started, written and reconfigured. Graded while they run, by drawn requests."""

import itertools
import random

from .draft import Draft, python, swap
from .family import Family
from .vocabulary import CITIES, FIRST_NAMES, SERVICES, WORDS


def _wait(port: int) -> str:
    """Return Bash that waits until something listens on the port."""
    return f"for attempt in $(seq 100); do (: < /dev/tcp/127.0.0.1/{port}) 2> /dev/null && break; sleep 0.1; done\n"


def _started(command: str, port: int) -> str:
    """Return Bash that starts a service and waits for it."""
    return f"setsid -f {command} < /dev/null > /dev/null 2>&1\n{_wait(port)}"


def ways_out(numbers: random.Random, folder: str, inside: list[str], outside: list[str]) -> list[str]:
    """Return paths that lead careless servers out of a folder, to each file outside by each kind of spelling.

    A path goes up, or is the file's absolute path. Its dots and slashes are encoded up to three times, its slashes
    turned round, and its steps up doubled for servers that remove one. Half of the paths have other details besides.
    """
    found: list[str] = []
    odd = 0.0

    def coded(text: str, depth: int) -> str:
        if depth and numbers.random() < odd:
            depth = numbers.randrange(depth)
        style = numbers.choice(("02x", "02X"))
        return "".join(f"%{'25' * (depth - 1)}{ord(letter):{style}}" for letter in text) if depth else text

    def rarely(*options: str) -> str:
        return numbers.choice(options) if numbers.random() < odd else ""

    parent = folder.rpartition("/")[0]
    for odd, target, depth in itertools.product((0.0, 0.2), outside, range(4)):  # noqa: B007 - read above
        for slash, up in (("/", ".."), ("/", "..../"), ("\\", ".."), ("\\", "....\\")):
            begin = [name for name in (rarely("none", ".") or numbers.choice(("", *inside))).split("/") if name]
            below = target.startswith(f"{parent}/")
            steps = len(begin) + 1 if below else numbers.randrange(12, 16)
            rest = target[len(parent) + 1 if below else 1 :]
            between = coded(slash, depth) + rarely("/", "./")
            path = between.join([*begin, *[coded(up, depth)] * steps, coded(rest, numbers.choice((0, 0, depth)))])
            found.append(f"/{path}{rarely('?', '%00', '%00.txt', '/', '/.', '#')}")
        found.append(numbers.choice(("/", coded("/", depth))) + coded("/", depth) + target[1:])
    return found


_SERVED = """
awaited(port)
numbers = random.Random(SEED)
requests = [("page", numbers.choice(sorted(pages))) for _ in range(20)] + [("page", page) for page in pages]
missing = [numbers.choice(["", "/x", *(f"/{name}" for name in inside)]) for _ in range(9)]
requests += [("none", f"{place}/none{numbers.randrange(999)}.txt") for place in missing] + [("none", "/private.txt")]
for page in pages:
    near = [page.swapcase(), page[:-1], f"{page}x", f"/more{page}", "/" + page.split("/")[-1]]
    requests += [("none", path) for path in near if path not in pages]
requests += [("way out", path) for path in ways_out(numbers, folder, inside, [*outside, "/etc/passwd"])]
secrets = [*outside.values(), b"root:x:"]
for kind, path in [*numbers.sample(requests, len(requests)), ("wait", "/"), ("page", min(pages))]:
    if kind == "wait":
        time.sleep(0.3)
    status, body = asked(port, path)
    if kind == "page":
        assert status == 200 and body == pages[path], f"{path}: {status} {body[:200]}"
    elif kind == "none":
        assert status == 404, f"{path}: {status}"
    assert not [secret for secret in secrets if secret in body], f"{path}: {body[:200]}"
new = f"/{numbers.randrange(10**9)}.txt"
for text in (b"first\\n", b"second, longer\\n"):
    with open(folder + new, "wb") as file:
        file.write(text)
    assert asked(port, new) == (200, text), asked(port, new)
os.unlink(folder + new)
assert asked(port, new)[0] == 404, "a file that is gone is served"
awaited(port)
assert not abroad(), abroad()
"""


def _files(draft: Draft) -> None:
    root = draft.project()
    port = draft.number(2000, 30000)
    folder = f"{root}/{draft.pick('public', 'site', 'share')}"
    pages: dict[str, bytes] = {}
    for name in draft.some(WORDS, draft.number(3, 5)):
        path = f"/{draft.pick('', 'docs/', 'img/')}{name}.txt"
        pages[path] = draft.text(draft.number(40, 200))
        draft.file(f"{folder}{path}", pages[path])
    # One folder outside has a name that begins like the one of the pages.
    outside = {
        f"{place}": f"{draft.prose(6)}\n".encode() for place in (f"{root}/private.txt", f"{folder}-old/notes.txt")
    }
    for path, content in outside.items():
        draft.file(path, content)
    draft.say(
        draft.pick(f"Please serve the files of {folder} over HTTP.", f"I want to see {folder} in my browser."),
        f"! Start a web server on port {port} of 127.0.0.1,",
        "! and of no other address,",
        f"! that answers GET requests for /PATH with the content of the file PATH in {folder} (status 200),",
        "! and with status 404 if there is no such file (files may change, come and go later),",
        f"! Files outside of {folder} must not be served, whatever way a path is written.",
        "! The server must keep running in the background after you are done and your shell has ended.",
    )
    inside = sorted({path[1:].rpartition("/")[0] for path in pages} - {""})
    draft.final.judged(
        "drawn requests", _SERVED, ways_out, port=port, folder=folder, pages=pages, inside=inside, outside=outside
    )
    oracle = _started(f"python3 -m http.server {port} --bind 127.0.0.1 --directory {folder}", port)
    draft.solve(oracle, swap(oracle, f"--directory {folder}", f"--directory {root}"))


_SERVER = """
import socketserver
class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            line = line.decode().rstrip("\\n")
            self.wfile.write((@answer@ + "\\n").encode())
            self.wfile.flush()
class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True
Server(("127.0.0.1", @port@), Handler).serve_forever()
"""


def answer_to(line: str, kind: str, word: str) -> str:
    if kind == "upper":
        return f"{line.upper()} {word}"
    if kind == "reverse":
        return f"{word}:{line[::-1]}"
    if kind == "count":
        return f"{len(line)} {word}"
    return f"{word}={sum(map(int, line.split()))}"


def line_of(numbers: random.Random, kind: str, words: list[str], long: bool = False) -> str:
    """Return a line, which is about as long as the prompt allows if it is ``long``."""
    if kind == "sum":
        most = numbers.choice((1000, 1000, 10**9))
        count = 270 if long else numbers.randrange(1, numbers.choice((9, 270)))
        return " ".join(str(numbers.randrange(-99, most)) for _ in range(count))
    if long or numbers.randrange(3) == 0:
        # Any printable characters, with spaces at the ends, and more than fits into one packet.
        length = 2996 if long else numbers.randrange(numbers.choice((40, 2996)))
        odd = "".join(chr(numbers.randrange(32, 127)) for _ in range(length))
        return f"{' ' * numbers.randrange(3)}{odd}{' ' * numbers.randrange(3)}"
    return numbers.choice((" ", " ", "  ", ", ")).join(numbers.choice(words) for _ in range(numbers.randrange(12)))


_ANSWERED = """
def line_from(stream, rest):
    end = time.monotonic() + 5
    while b"\\n" not in rest[0]:
        stream.settimeout(max(end - time.monotonic(), 0.001))
        part = stream.recv(65536)
        assert part, "the connection has ended"
        rest[0] += part
    line, _, rest[0] = rest[0].partition(b"\\n")
    return line.decode()

awaited(port)
numbers = random.Random(SEED)
asked_lines = 0
while asked_lines < 80:
    gone = socket.create_connection(("127.0.0.1", port), timeout=5)
    gone.sendall(line_of(numbers, kind, words).encode())
    gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes((1, 0, 0, 0, 0, 0, 0, 0)))
    gone.close()
    count = numbers.randrange(1, 6)
    clients = [(socket.create_connection(("127.0.0.1", port), timeout=5), [b""]) for _ in range(count)]
    begun = numbers.choice(clients)
    first = line_of(numbers, kind, words, asked_lines == 0)
    cut = numbers.randrange(len(first) + 1)
    begun[0].sendall(first[:cut].encode())
    for stream, rest in numbers.choices(clients, k=6):
        if stream is not begun[0]:
            lines = [line_of(numbers, kind, words) for _ in range(numbers.randrange(1, 4))]
            stream.sendall("".join(f"{line}\\n" for line in lines).encode())
            for line in lines:
                found = line_from(stream, rest)
                assert found == answer_to(line, kind, word), f"{line!r}: {found!r}"
            asked_lines += len(lines)
    begun[0].sendall(f"{first[cut:]}\\n{first}\\n".encode())
    for _ in range(2):
        found = line_from(*begun)
        assert found == answer_to(first, kind, word), f"{first!r}: {found!r}"
    asked_lines += 2
    for stream, rest in clients:
        assert rest == [b""], rest
        stream.close()
time.sleep(0.3)
awaited(port)
assert not abroad(), abroad()
"""


def _lines(draft: Draft) -> None:
    root = draft.project()
    port = draft.number(2000, 30000)
    word = draft.pick(*WORDS)
    kind = draft.pick("upper", "reverse", "count", "sum")
    rule, code, wrong = {
        "upper": (
            f"the line in capital letters (A-Z), followed by a space and {word}",
            f'line.upper() + " {word}"',
            f'line.upper() + "{word}"',
        ),
        "reverse": (
            f"{word}, a colon, and the line with its characters in reverse order",
            f'"{word}:" + line[::-1]',
            f'"{word}:" + " ".join(line.split()[::-1])',
        ),
        "count": (
            f"the number of characters of the line without its newline, a space and {word}",
            f'f"{{len(line)}} {word}"',
            f'f"{{len(line) + 1}} {word}"',
        ),
        "sum": (
            f"{word}, the character = and the sum of all whole numbers in the line; a line consists of whole numbers "
            "from -99 to 10^9, separated by single spaces",
            f'"{word}=" + str(sum(map(int, line.split())))',
            f'"{word}=" + str(len(line.split()))',
        ),
    }[kind]
    example = "1 2 -7" if kind == "sum" else "Hello there"
    draft.file(f"{root}/README", f"Port {port}: {draft.prose(4)}\n")
    own = f"{root}/{draft.pick('server', 'service', 'program')}"
    draft.say(
        draft.pick(
            f"Write and start a small TCP service on 127.0.0.1, port {port}.",
            f"I need a line service that listens on 127.0.0.1, TCP port {port}.",
        ),
        "! It must listen on no other address.",
        "A client connects and sends lines.",
        "! The service answers each line, when its newline has come, at once, on the same connection, with one line "
        f"that also ends with a newline: {rule}.",
        f"\nFor the line\n\n    {example}\n\nthe answer is\n\n    {answer_to(example, kind, word)}",
        "! \n\nA client may send several lines before it closes the connection,",
        "! and several clients may be connected one after the other or at the same time.",
        "! A client may also vanish in the middle of a line.",
        "! It must keep running in the background after you are done and your shell has ended.",
        "All text is printable ASCII, and a line has at most 3000 characters.",
    )
    draft.may_appear(own, f"What you write for it may lie in a directory {own}, or outside of {root}.")
    draft.final.judged(
        "drawn lines", _ANSWERED, answer_to, line_of,
        port=port, kind=kind, word=word, words=draft.some((*WORDS, *FIRST_NAMES, *CITIES), 20),
    )  # fmt: skip
    server = _SERVER.replace("@answer@", code).replace("@port@", str(port))
    oracle = f"mkdir {own}; cat > {own}/service.py <<'END'{server}END\n" + _started(f"python3 {own}/service.py", port)
    draft.solve(oracle, swap(oracle, code, wrong))


_MOVED = """
awaited(new)
numbers = random.Random(SEED)
for number in range(60):
    path = "/" + "".join(numbers.choice("abc/.-7") for _ in range(numbers.randrange(9)))
    status, body = asked(new, path)
    assert status == 200 and body.decode() == greeting, f"{path}: {status} {body[:200]}"
time.sleep(0.3)
awaited(new)
assert not listening(old), listening(old)
name = os.path.basename(command[0])
running = {number: line for number, line in processes().items() if os.path.basename(line[0]).startswith("python")}
found = [number for number, line in running.items() if name in map(os.path.basename, line)]
assert len(found) == 1 and holders(listening(new)) == found, f"{found} run, {holders(listening(new))} listen"
line = running[found[0]]
assert line[1:] == command and os.path.basename(line[0]).startswith("python3"), line
"""
_GREETER = '''"""Answers every request with the greeting. Reads its configuration when it starts."""
import http.server, sys

lines = [line.partition('=') for line in open(sys.argv[1]) if not line.startswith('#')]
settings = {key.strip(): value.strip() for key, _, value in lines}


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = (settings['greeting'] + '\\n').encode()
        self.send_response(200)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


http.server.ThreadingHTTPServer(('127.0.0.1', int(settings['port'])), Handler).serve_forever()
'''


def _restart(draft: Draft) -> None:
    root = draft.project()
    old, new = draft.some(range(2000, 30000), 2)
    name = draft.pick(*SERVICES)
    greeting, changed = (f"{draft.pick(*WORDS)} {draft.pick(*CITIES)} {draft.number(10, 99)}" for _ in range(2))
    changed += "!"
    config = draft.file(f"{root}/{name}.conf", f"# {draft.prose(4)}\nport = {old}\ngreeting = {greeting}\n")
    program = draft.file(f"{root}/{name}.py", _GREETER)
    command = f"python3 {program} {config}"
    draft.start = _started(command, old)
    stop = python(
        """
        import os, signal
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                line = open(f"/proc/{name}/cmdline").read().split("\\0")
            except OSError:
                continue
            if line[1:3] == @line@:
                os.kill(int(name), signal.SIGTERM)
        """,
        line=[program, config],
    )
    draft.say(
        draft.pick(
            f"The service {name} runs in the background as '{command}'.",
            f"'{command}' is running as a service on port {old}.",
        ),
        f"! It must move to port {new} and greet differently: in {config}, set port to {new} and greeting to",
        f"\n    {changed}",
        "! \nand change nothing else in that file.",
        "! See that exactly one process of the service is running,",
        "! with the new settings.",
        f"! Nothing may listen on port {old} any more.",
        f"! The service must be started with the same command ({command})",
        "! and keep running after your shell has ended.",
    )
    draft.final.judged("drawn requests", _MOVED, old=old, new=new, greeting=f"{changed}\n", command=[program, config])
    oracle = (
        f"sed -i -e 's/^port = .*/port = {new}/' -e 's/^greeting = .*/greeting = {changed}/' {config}\n{stop}"
        f"sleep 0.3\n{_started(command, new)}"
    )
    draft.solve(oracle, swap(oracle, stop, ""))


FAMILY = Family(
    "services",
    "Start, write and reconfigure a service on localhost",
    (_files, _restart, _lines),
    ("python3", "setsid"),
    "live",
)
