"""Small services on localhost: started, written and reconfigured. Graded while they run."""

from __future__ import annotations

from .draft import Draft, python, swap
from .family import Family
from .vocabulary import CITIES, FIRST_NAMES, SERVICES, WORDS

__all__ = ["FAMILY"]

_GET = """
connection = http.client.HTTPConnection("127.0.0.1", @port@, timeout=10)
connection.request("GET", @path@)
answer = connection.getresponse()
"""


def _get(port: int, path: str, rest: str) -> str:
    return _GET.replace("@port@", str(port)).replace("@path@", repr(path)) + rest


def _local_only(draft: Draft, port: int) -> None:
    draft.final.test("it listens on no other address", f"assert local_only({port}), listening({port})")


def _wait(port: int) -> str:
    """Bash that returns when something listens there."""
    return f"for attempt in $(seq 100); do (: < /dev/tcp/127.0.0.1/{port}) 2> /dev/null && break; sleep 0.1; done\n"


def _files(draft: Draft) -> None:
    root = draft.project()
    port = draft.number(2000, 30000)
    folder = f"{root}/{draft.pick('public', 'site', 'share')}"
    pages: dict[str, bytes] = {}
    for name in draft.some(WORDS, draft.number(3, 5)):
        path = f"{draft.pick('', 'docs/', 'img/')}{name}.txt"
        pages[path] = draft.text(draft.number(40, 200))
        draft.file(f"{folder}/{path}", pages[path], keep=True)
    private = draft.prose(6)
    draft.file(f"{root}/private.txt", f"{private}\n", keep=True)
    draft.say(
        draft.pick(f"Please serve the files of {folder} over HTTP.", f"I want to see {folder} in my browser."),
        f"Start a web server on port {port} of 127.0.0.1, and of no other address, that answers GET requests for "
        f"/PATH with the content of the file PATH in {folder} (status 200), and with status 404 if there is no such "
        f"file. Files outside of {folder} must not be served, whatever way a path is written.",
        "The server must keep running in the background after you are done and your shell has ended.",
        draft.leave(),
    )
    for path, data in pages.items():
        body = f"assert answer.status == 200\nassert digest(answer.read(10_000_000)) == digest({data!r})"
        draft.final.test(f"{path} is served", _get(port, f"/{path}", body))
    draft.final.test(
        "missing files are missing", _get(port, f"/none-{draft.number(1, 999)}.txt", "assert answer.status == 404")
    )
    draft.final.test("other files are not served", _get(port, "/private.txt", "assert answer.status == 404"))
    refused = f"assert answer.status != 200\nassert {private.encode()!r} not in answer.read(10_000_000)"
    inside = next(iter(pages)).rpartition("/")[0]
    ways = {
        "with dots": "/../private.txt",
        "with dots below": f"/{inside}/../../private.txt" if inside else "/./../private.txt",
        "with encoded dots": "/%2e%2e/private.txt",
        "with an encoded slash": "/..%2fprivate.txt",
        "by an absolute path": f"/{root}/private.txt",
        "by an encoded path": f"/{root.replace('/', '%2f')}%2fprivate.txt",
    }
    for way, path in ways.items():
        draft.final.test(f"other files are not served {way}", _get(port, path, refused))
    _local_only(draft, port)
    oracle = (
        f"setsid -f python3 -m http.server {port} --bind 127.0.0.1 --directory {folder} < /dev/null > /dev/null 2>&1\n"
        + _wait(port)
    )
    draft.solve(oracle, swap(oracle, f"--directory {folder}", f"--directory {root}"), f"port {port}, {folder}")


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


def _answer(kind: str, word: str, line: str) -> str:
    if kind == "upper":
        return f"{line.upper()} {word}"
    if kind == "reverse":
        return f"{word}:{line[::-1]}"
    if kind == "count":
        return f"{len(line)} {word}"
    return f"{word}={sum(map(int, line.split()))}"


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
            f"{word}, the character = and the sum of all whole numbers in the line; a line consists of whole numbers, "
            "which may be negative, separated by single spaces",
            f'"{word}=" + str(sum(map(int, line.split())))',
            f'"{word}=" + str(len(line.split()))',
        ),
    }[kind]
    asked: list[str] = []
    for number in range(4):
        if kind == "sum":
            asked.append(" ".join(str(draft.number(-99, 999)) for _ in range(number + 1)))
        else:
            asked.append(" ".join(draft.pick(*WORDS, *FIRST_NAMES, *CITIES) for _ in range(number + 1)))
    example = "1 2 -7" if kind == "sum" else "Hello there"
    draft.file(f"{root}/README", f"Port {port}: {draft.prose(4)}\n", keep=True)
    draft.say(
        draft.pick(
            f"Write and start a small TCP service on 127.0.0.1, port {port}.",
            f"I need a line service that listens on 127.0.0.1, TCP port {port}.",
        ),
        "It must listen on no other address.",
        "A client connects and sends lines that end with a newline. The service answers each line at once, on the "
        f"same connection, with one line that also ends with a newline: {rule}.",
        f"\nFor the line\n\n    {example}\n\nthe answer is\n\n    {_answer(kind, word, example)}",
        "\n\nA client may send several lines before it closes the connection, and several clients may be connected one "
        f"after the other or at the same time. Put the program into {root}.",
        "It must keep running in the background after you are done and your shell has ended. All text is ASCII.",
    )
    for number, line in enumerate(asked, 1):
        draft.final.test(
            f"line {number} is answered",
            f"""
            connection = socket.create_connection(("127.0.0.1", {port}), timeout=10)
            with connection, connection.makefile("rw") as stream:
                stream.write({line!r} + "\\n")
                stream.flush()
                assert stream.readline() == {_answer(kind, word, line)!r} + "\\n"
            """,
        )
    both = [asked[1], asked[2]]
    draft.final.test(
        "two clients at the same time",
        f"""
        with socket.create_connection(("127.0.0.1", {port}), timeout=10) as idle:
            with socket.create_connection(("127.0.0.1", {port}), timeout=10) as other, other.makefile("rw") as stream:
                for line, answer in zip({both!r}, {[_answer(kind, word, line) for line in both]!r}):
                    stream.write(line + "\\n")
                    stream.flush()
                    assert stream.readline() == answer + "\\n"
        """,
    )
    _local_only(draft, port)
    draft.final.test("the program is there", f"assert below({root!r}) != ['README']")
    server = _SERVER.replace("@answer@", code).replace("@port@", str(port))
    oracle = (
        f"cat > {root}/service.py <<'END'{server}END\n"
        f"setsid -f python3 {root}/service.py < /dev/null > /dev/null 2>&1\n" + _wait(port)
    )
    draft.solve(oracle, swap(oracle, code, wrong), rule)


def _restart(draft: Draft) -> None:
    root = draft.project()
    old, new = draft.some(range(2000, 30000), 2)
    name = draft.pick(*SERVICES)
    greeting, changed = (f"{draft.pick(*WORDS)} {draft.pick(*CITIES)} {draft.number(10, 99)}" for _ in range(2))
    changed += "!"
    config = draft.file(f"{root}/{name}.conf", f"# {draft.prose(4)}\nport = {old}\ngreeting = {greeting}\n")
    program = draft.file(
        f"{root}/{name}.py",
        '"""Answers every request with the greeting. Reads its configuration when it starts."""\n'
        "import http.server, sys\n\n"
        "lines = [line.partition('=') for line in open(sys.argv[1]) if not line.startswith('#')]\n"
        "settings = {key.strip(): value.strip() for key, _, value in lines}\n\n\n"
        "class Handler(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        body = (settings['greeting'] + '\\n').encode()\n"
        "        self.send_response(200)\n"
        "        self.send_header('Content-Length', str(len(body)))\n"
        "        self.end_headers()\n"
        "        self.wfile.write(body)\n\n"
        "    def log_message(self, *arguments):\n"
        "        pass\n\n\n"
        "http.server.ThreadingHTTPServer(('127.0.0.1', int(settings['port'])), Handler).serve_forever()\n",
        keep=True,
    )
    draft.start = f"setsid -f python3 {program} {config} < /dev/null > /dev/null 2>&1\n" + _wait(old)
    draft.say(
        draft.pick(
            f"The service {name} runs in the background as 'python3 {program} {config}'.",
            f"'python3 {program} {config}' is running as a service on port {old}.",
        ),
        f"It must move to port {new} and greet differently: set port to {new} and greeting to",
        f"\n{changed}",
        f"\nin {config}, change nothing else in that file, and see that exactly one process of the service is "
        f"running, with the new settings. Nothing may listen on port {old} any more.",
        "The program itself must not be changed, and the service must be started with the same command (python3 "
        f"{program} {config}) and keep running after your shell has ended.",
    )
    text = draft.files[config].content.decode().replace(f"port = {old}\n", f"port = {new}\n")
    draft.final.text(config, text.replace(f"greeting = {greeting}\n", f"greeting = {changed}\n"))
    draft.final.test(
        "the new port greets", _get(new, "/", f"assert answer.read(1000).decode('utf-8') == {changed + chr(10)!r}")
    )
    draft.final.test("the old port is free", f"assert not listening({old})")
    _local_only(draft, new)
    draft.final.test(
        "the service runs once",
        f"""
        found = [number for number, line in processes().items() if line[1:] == {[program, config]!r}]
        assert len(found) == 1, found
        line = processes()[found[0]]
        assert os.path.basename(line[0]).startswith("python3"), line
        """,
    )
    draft.final.test(
        "nothing else answers",
        f"""
        found = [number for number, line in processes().items() if line[1:] == {[program, config]!r}]
        folder = f"/proc/{{found[0]}}/fd"
        held = {{os.readlink(f"{{folder}}/{{name}}") for name in os.listdir(folder)}}
        assert {{f"socket:[{{inode}}]" for inode in listening({new})}} <= held
        """,
    )
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
    oracle = (
        f"sed -i -e 's/^port = .*/port = {new}/' -e 's/^greeting = .*/greeting = {changed}/' {config}\n{stop}"
        f"sleep 0.3\nsetsid -f python3 {program} {config} < /dev/null > /dev/null 2>&1\n" + _wait(new)
    )
    draft.solve(oracle, swap(oracle, stop, ""), f"port {new}, {changed}")


FAMILY = Family(
    "services",
    "Start, write and reconfigure a service on localhost",
    (_files, _restart, _lines),
    ("python3", "setsid"),
    "live",
)
