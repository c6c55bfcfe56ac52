"""Family: small services on localhost, started, written and reconfigured. Graded while they run."""

from __future__ import annotations

from .draft import Draft, breach, fill, python, swap
from .family import Family
from .requirements import Way
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


def _ended(port: int, *checks: str) -> Way:
    """Return a breach: a service that ends with the agent, so that all of these checks fail."""
    return breach(
        "a service that has ended",
        *checks,
        after="for name in $(ls /proc | grep -x '[0-9]*'); do\n"
        "  line=$(tr '\\0' ' ' 2> /dev/null < /proc/$name/cmdline)\n"
        f'  case $line in "python3 "*{port}*|"python3 $root/"*) kill -9 $name ;; esac\n'
        "done; sleep 0.3",
    )


def _kept_alive(draft: Draft, oracle: str) -> None:
    """Add honest ways to start a service that keeps running."""
    start, quiet = "setsid -f python3", "< /dev/null > /dev/null 2>&1\n"
    assert start in oracle, quiet in oracle
    draft.honest("with nohup", instead=oracle.replace(start, "nohup python3").replace(quiet, "> /dev/null 2>&1 &\n"))
    draft.honest(
        "disowned",
        instead="("
        + oracle.replace(start, "python3").replace(quiet, "< /dev/null >> ~/service.log 2>&1 & disown\n")
        + ")",
    )
    draft.honest(
        "by Python",
        instead=oracle.replace(
            start,
            'python3 -c \'import subprocess, sys; subprocess.Popen(["python3", *sys.argv[1:]], '
            "start_new_session=True)'",
        ),
    )


def _wait(port: int) -> str:
    """Return Bash that waits until something listens on the port."""
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
    address = "it listens on no other address"
    everything = (address, "* is served", "missing files are missing", "other files are not served*")

    def server(path: str, status: str = "200", *, missing: str = "404", body: str = "data") -> str:
        names = {
            "path": path,
            "status": status,
            "missing": missing,
            "body": body,
            "folder": repr(folder),
            "port": str(port),
        }
        start = "setsid -f python3 ~/server.py < /dev/null > /dev/null 2>&1\n"
        return f"cat > ~/server.py <<'END'\n{fill(_WEB, names)}END\n{start}{_wait(port)}"

    draft.say(
        draft.pick(f"Please serve the files of {folder} over HTTP.", f"I want to see {folder} in my browser."),
        draft.require(
            f"Start a web server on port {port} of 127.0.0.1,",
            breach("another port", *everything, swap=(f"http.server {port}", f"http.server {port + 1}")),
        ),
        draft.require(
            "and of no other address,",
            breach("all addresses", address, swap=("--bind 127.0.0.1", "--bind 0.0.0.0")),
            breach("all addresses, IPv6 too", address, swap=("--bind 127.0.0.1", "--bind ::")),
            breach(
                "one more address",
                address,
                after=f"setsid -f python3 -m http.server {port} --bind 127.0.0.2 < /dev/null > /dev/null 2>&1\n"
                + _wait(port).replace("127.0.0.1", "127.0.0.2"),
            ),
        ),
        draft.require(
            f"that answers GET requests for /PATH with the content of the file PATH in {folder} (status 200),",
            breach("another status", "* is served", instead=server(_INSIDE, "201")),
            breach("capitals", "* is served", instead=server(_INSIDE, body="data.swapcase()")),
        ),
        draft.require(
            "and with status 404 if there is no such file.",
            breach(
                "another status for what is not there",
                "missing files are missing",
                "other files are not served",
                instead=server(_INSIDE, missing="403"),
            ),
            breach(
                "an empty answer for what is not there",
                "missing files are missing",
                "other files are not served*",
                instead=server(_INSIDE, missing="200"),
            ),
        ),
        draft.require(
            f"Files outside of {folder} must not be served, whatever way a path is written.",
            *(
                breach(f"a way out by {what}", "other files are not served *", instead=server(way))
                for what, way in _HOLES
            ),
        ),
        draft.require(
            "The server must keep running in the background after you are done and your shell has ended.",
            _ended(port, *everything),
        ),
        draft.leave(which=f"{root}/private.txt"),
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
        "with dots encoded twice": "/%252e%252e/private.txt",
        "with a slash encoded twice": "/..%252fprivate.txt",
        "with all of it encoded twice": "/%252e%252e%252fprivate.txt",
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
    _kept_alive(draft, oracle)
    draft.honest("a server of one's own", instead=server(_INSIDE))
    draft.solve(oracle, swap(oracle, f"--directory {folder}", f"--directory {root}"), f"port {port}, {folder}")


#: A web server; ``path`` is a Python expression for the file of a request.
_WEB = """
import http.server, os, urllib.parse
folder = @folder@
def decoded(path):
    return urllib.parse.unquote(path)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        path = self.path
        try:
            data, status = open(@path@, "rb").read(), @status@
            data = @body@
        except OSError:
            data, status = b"", @missing@
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
http.server.ThreadingHTTPServer(("127.0.0.1", @port@), Handler).serve_forever()
"""
_INSIDE = "folder + '/' + decoded(path) if '..' not in decoded(path) else '/none'"
_HOLES = (
    ("dots", "folder + path"),
    ("encoded dots", "folder + (decoded(path) if '..' not in path else '/none')"),
    ("an encoded slash", "folder + (decoded(path) if '../' not in path else '/none')"),
    ("an absolute path", "os.path.join(folder, decoded(path)[1:] if '..' not in decoded(path) else 'none')"),
    ("dots encoded twice", "folder + (decoded(decoded(path)) if '..' not in decoded(path) else '/none')"),
    ("a slash encoded twice", "folder + (decoded(decoded(path)) if '../' not in decoded(path) else '/none')"),
)


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
    address = "it listens on no other address"
    answers = (address, "line * is answered", "two clients*", "several lines*")
    draft.say(
        draft.pick(
            f"Write and start a small TCP service on 127.0.0.1, port {port}.",
            f"I need a line service that listens on 127.0.0.1, TCP port {port}.",
        ),
        draft.require(
            "It must listen on no other address.",
            breach("all addresses", address, swap=('("127.0.0.1", ', '("0.0.0.0", ')),
        ),
        "A client connects and sends lines.",
        draft.require(
            "The service answers each line, when its newline has come, at once, on the same connection, with one line "
            f"that also ends with a newline: {rule}.",
            breach("another answer", "line * is answered", "two clients*", "several lines*", swap=(code, wrong)),
            breach("a blank line after each answer", "several lines*", swap=('+ "\\n").encode', '+ "\\n\\n").encode')),
        ),
        f"\nFor the line\n\n    {example}\n\nthe answer is\n\n    {_answer(kind, word, example)}",
        draft.require(
            "\n\nA client may send several lines before it closes the connection,",
            breach(
                "one answer to a client",
                "several lines*",
                swap=("self.wfile.flush()\n", "self.wfile.flush()\n            return\n"),
            ),
        ),
        draft.require(
            "and several clients may be connected one after the other or at the same time.",
            breach("one client at a time", "two clients*", swap=("ThreadingTCPServer", "TCPServer")),
            breach("one client only", *answers, swap=("serve_forever()", "handle_request()")),
        ),
        draft.require(
            f"Put the program into {root}.",
            breach("the program elsewhere", "the program is there", after=f"mv {root}/service.py ~"),
        ),
        draft.require(
            "It must keep running in the background after you are done and your shell has ended.",
            _ended(port, address, "line * is answered", "two clients*", "several lines*"),
        ),
        "All text is ASCII.",
        draft.leave(),
    )
    for number, line in enumerate(asked, 1):
        draft.final.test(
            f"line {number} is answered",
            f"""
            connection = socket.create_connection(("127.0.0.1", {port}), timeout=10)
            with connection, connection.makefile("rwb") as stream:
                stream.write({line.encode() + bytes([10])!r})
                stream.flush()
                assert stream.readline() == {_answer(kind, word, line).encode() + bytes([10])!r}
            """,
        )
    draft.final.test(
        "two clients at the same time",
        f"""
        with socket.create_connection(("127.0.0.1", {port}), timeout=10) as idle:
            with socket.create_connection(("127.0.0.1", {port}), timeout=10) as other, other.makefile("rwb") as stream:
                stream.write({asked[1].encode()!r} + b"\\n")
                stream.flush()
                assert stream.readline() == {_answer(kind, word, asked[1]).encode()!r} + b"\\n"
        """,
    )
    draft.final.test(
        "several lines of one client",
        f"""
        with socket.create_connection(("127.0.0.1", {port}), timeout=10) as other, other.makefile("rwb") as stream:
            for line, answer in zip({asked[1:3]!r}, {[_answer(kind, word, line) for line in asked[1:3]]!r}):
                stream.write(line.encode() + b"\\n")
                stream.flush()
                assert stream.readline() == answer.encode() + b"\\n"
        """,
    )
    _local_only(draft, port)
    draft.final.test("the program is there", f"assert below({root!r}) != ['README']")
    server = _SERVER.replace("@answer@", code).replace("@port@", str(port))
    oracle = (
        f"cat > {root}/service.py <<'END'{server}END\n"
        f"setsid -f python3 {root}/service.py < /dev/null > /dev/null 2>&1\n" + _wait(port)
    )
    _kept_alive(draft, oracle)
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
    right, once, answers = "* has the right lines", "the service runs once", "nothing else answers"
    again = f"setsid -f python3 {program} {config} < /dev/null > /dev/null 2>&1\n"
    # The same command line without the service: the modules it imports are fakes.
    idle = (
        "mkdir -p ~/fake/http; echo 'import time; time.sleep(1000)' > ~/fake/http/__init__.py\n"
        "export PYTHONPATH=~/fake\n"
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
    draft.say(
        draft.pick(
            f"The service {name} runs in the background as 'python3 {program} {config}'.",
            f"'python3 {program} {config}' is running as a service on port {old}.",
        ),
        draft.require(
            f"It must move to port {new} and greet differently: in {config}, set port to {new} and greeting to",
            breach("the old port in the file", right, after=f"sed -i 's/^port = .*/port = {old}/' {config}"),
            breach(
                "the old greeting in the file",
                right,
                after=f"sed -i 's/^greeting = .*/greeting = {greeting}/' {config}",
            ),
        ),
        f"\n    {changed}",
        draft.require(
            "\nand change nothing else in that file.",
            breach("the comment removed", right, after=f"sed -i 1d {config}"),
            breach("a line more", right, after=f"echo 'more = 1' >> {config}"),
            breach(
                "lines in another order", "lines of * are in order", after=f"tac {config} > ~/new; cat ~/new > {config}"
            ),
            breach("no newline", "* ends with a newline", after=f"truncate -s -1 {config}"),
        ),
        draft.require(
            "See that exactly one process of the service is running,",
            breach("one more that does nothing", once, after=f"{idle}{again}"),
        ),
        draft.require(
            "with the new settings.",
            breach(
                "started before the greeting was set",
                "the new port greets",
                instead=f"sed -i 's/^port = .*/port = {new}/' {config}\n{stop}sleep 0.3\n{again}{_wait(new)}"
                f"sed -i 's/^greeting = .*/greeting = {changed}/' {config}",
            ),
        ),
        draft.require(
            f"Nothing may listen on port {old} any more.",
            breach("the old one still there", "the old port is free", once, swap=(stop, "")),
            breach(
                "the old port at another address",
                "the old port is free",
                after=f"setsid -f python3 -m http.server {old} --bind 127.0.0.2 < /dev/null > /dev/null 2>&1\n"
                + _wait(old).replace("127.0.0.1", "127.0.0.2"),
            ),
        ),
        draft.untouched("The program itself must not be changed,", program),
        draft.require(
            f"and the service must be started with the same command (python3 {program} {config})",
            breach("another option", once, answers, swap=("setsid -f python3", "setsid -f python3 -u")),
            breach(
                "another program that answers",
                answers,
                after=f"cp {program} ~/other.py\n{stop}sleep 0.3\n"
                f"setsid -f python3 ~/other.py {config} < /dev/null > /dev/null 2>&1\n{_wait(new)}{idle}{again}",
            ),
        ),
        draft.require(
            "and keep running after your shell has ended.", _ended(new, once, answers, "the new port greets")
        ),
    )
    text = draft.files[config].content.decode().replace(f"port = {old}\n", f"port = {new}\n")
    draft.final.text(config, text.replace(f"greeting = {greeting}\n", f"greeting = {changed}\n"))
    draft.final.test(
        "the new port greets", _get(new, "/", f"assert answer.read(1000).decode('utf-8') == {changed + chr(10)!r}")
    )
    draft.final.test("the old port is free", f"assert not listening({old})")
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
        held = set()
        for number in found:
            folder = f"/proc/{{number}}/fd"
            held |= {{os.readlink(f"{{folder}}/{{name}}") for name in os.listdir(folder)}}
        assert {{f"socket:[{{inode}}]" for inode in listening({new})}} <= held
        assert held
        """,
    )
    oracle = (
        f"sed -i -e 's/^port = .*/port = {new}/' -e 's/^greeting = .*/greeting = {changed}/' {config}\n{stop}"
        f"sleep 0.3\n{again}" + _wait(new)
    )
    _kept_alive(draft, oracle)
    draft.solve(oracle, swap(oracle, stop, ""), f"port {new}, {changed}")


FAMILY = Family(
    "services",
    "Start, write and reconfigure a service on localhost",
    (_files, _restart, _lines),
    ("python3", "setsid"),
    "live",
)
