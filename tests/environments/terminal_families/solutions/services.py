"""Forbidden changes and other solutions of the family `services`."""

from tests.environments.terminal_families.ways import Way, after, instead, swap

WEB = """
import http.server, os, urllib.parse
folder = "«folder»"
decoded = urllib.parse.unquote
count = 0
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        global count
        count += 1
        path = self.path.partition("?")[0]
        try:
            data, status = open(PATH, "rb").read(), 200
        except (OSError, ValueError):
            data, status = b"", 404
        CHANGE
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
http.server.ThreadingHTTPServer(("127.0.0.1", «port»), Handler).serve_forever()
"""


def server(path: str, change: str = "pass") -> Way:
    """Return the way of another web server; ``path`` is a Python expression for the file of a request."""
    program = WEB.replace("PATH", path).replace("CHANGE", change)
    return instead(f"cat > ~/server.py <<'END'{program}END\n«_started(f'python3 ~/server.py', port)»")


#: Nothing outside of the folder, as the kernel sees it.
INSIDE = "folder + decoded(path) if os.path.realpath(folder + decoded(path)).startswith(folder + '/') else '/none'"
HOLES = (
    "folder + path",
    "folder + decoded(path)",
    "folder + (decoded(path) if '..' not in path else '/none')",
    "folder + (decoded(path) if '../' not in path else '/none')",
    "folder + decoded(path).replace('../', '')",
    "os.path.join(folder, decoded(path)[1:] if '..' not in decoded(path) else 'none')",
    "folder + (decoded(decoded(path)) if '..' not in decoded(path) else '/none')",
    "folder + (decoded(decoded(decoded(path))) if '..' not in decoded(decoded(path)) else '/none')",
    "folder + (decoded(path).replace('\\\\', '/') if '../' not in decoded(path) else '/none')",
    INSIDE.replace("folder + '/')", "folder)"),
)
#: Ends what listens on a port.
ENDED = (
    "for place in /proc/[0-9]*; do line=$(tr '\\0' ' ' 2> /dev/null < $place/cmdline)\n"
    '  case $line in python3*PORT*|"python3 $root/"*) kill -9 ${place#/proc/} ;; esac\ndone; sleep 0.3'
)
#: The oracle ends its command with a redirection to /dev/null.
NOHUP = swap("< /dev/null > /dev/null 2>&1\n", "< /dev/null > /dev/null 2>&1 & disown\n")
BY_PYTHON = swap(
    "setsid -f python3",
    "python3 -c 'import subprocess, sys; subprocess.Popen([\"python3\", *sys.argv[1:]], start_new_session=True)'",
)


def elsewhere(port: str) -> Way:
    """Return the way that also listens on another address."""
    start = (
        f"«_started(f'python3 -m http.server {{{port}}} --bind 127.0.0.2', {port}).replace('127.0.0.1', '127.0.0.2')»"
    )
    return after(start)


FORBIDDEN = {
    "_files": {
        "Start a web server on port": [swap("http.server «port»", "http.server «port + 1»")],
        "and of no other address,": [
            swap("--bind 127.0.0.1", "--bind 0.0.0.0"),
            after(
                "setsid -f python3 -m http.server «port + 1» --bind 0.0.0.0 --directory «folder» < /dev/null "
                "> /dev/null 2>&1; sleep 0.5"
            ),
        ],
        "that answers GET requests for /PATH": [
            server(INSIDE, "status = 201 if status == 200 else status"),
            server(INSIDE, "data = data.swapcase()"),
            server(INSIDE, "global kept; kept = globals().get('kept', {}); data = kept.setdefault(path, data)"),
        ],
        "and with status 404 if there is no such file": [
            server(INSIDE, "status = 403 if status == 404 else status"),
            server(INSIDE, "status = 200"),
            server("folder + path if os.path.isfile(folder + path) else folder + path.swapcase()"),
            server(
                "next(iter(sorted(__import__('glob').glob(folder + path + '*') if path[-1] != '/' else [])), '/none')"
            ),
        ],
        "Files outside of «folder» must not be served": [server(hole) for hole in HOLES],
        "The server must keep running": [
            after(ENDED.replace("PORT", "«port»")),
            server(INSIDE, "os._exit(0) if count > 25 else None"),
        ],
    },
    "_lines": {
        "It must listen on no other address.": [swap('("127.0.0.1", ', '("0.0.0.0", '), elsewhere("port")],
        "The service answers each line, when its newline": [
            swap("«code»", "«wrong»"),
            swap('.rstrip("\\n")', '.rstrip("\\n")[:2500]'),
            swap('+ "\\n").encode', '+ "\\n\\n").encode'),
        ],
        "\n\nA client may send several lines": [
            swap("self.wfile.flush()\n", "self.wfile.flush()\n            return\n")
        ],
        "and several clients may be connected": [
            swap("ThreadingTCPServer", "TCPServer"),
            swap("serve_forever()", "handle_request()"),
        ],
        "A client may also vanish": [
            swap(
                "daemon_threads = True",
                "daemon_threads = True\n    def handle_error(self, *about):\n        __import__('os')._exit(1)",
            )
        ],
        "It must keep running": [
            after(ENDED.replace("PORT", "«port»")),
            swap(
                "line = line.decode()",
                "global left; left = globals().get('left', 60) - 1; left or __import__('os')._exit(0); line = line.decode()",
            ),
        ],
    },
    "_restart": {
        "It must move to port «new»": [
            after("sed -i 's/^port = .*/port = «old»/' «config»"),
            after("sed -i 's/^greeting = .*/greeting = «greeting»/' «config»"),
        ],
        "\nand change nothing else in that file.": [
            after("sed -i 1d «config»"),
            after("tac «config» > ~/new; cat ~/new > «config»"),
        ],
        "See that exactly one process of the service is running,": [
            # Another one, with another configuration on another port.
            after(
                "sed 's/^port = .*/port = 31999/' «config» > ~/c.conf\n"
                "setsid -f python3 -B ./«name».py ~/c.conf < /dev/null > /dev/null 2>&1; sleep 0.6"
            ),
            # The same command line without the service: the modules that it imports are others.
            after(
                "mkdir -p ~/fake/http; echo 'import time; time.sleep(1000)' > ~/fake/http/__init__.py\n"
                "export PYTHONPATH=~/fake\nsetsid -f «command» < /dev/null > /dev/null 2>&1; sleep 0.5"
            ),
        ],
        "with the new settings.": [
            instead(
                "sed -i 's/^port = .*/port = «new»/' «config»\n«stop»sleep 0.3\n«_started(command, new)»"
                "sed -i 's/^greeting = .*/greeting = «changed»/' «config»"
            )
        ],
        "Nothing may listen on port «old» any more.": [swap("«stop»", ""), elsewhere("old")],
        "The service must be started with the same command": [
            swap("setsid -f python3", "setsid -f python3 -u"),
            # Another program answers, beside an idle process of the command line.
            after(
                "cp «program» ~/other.py\n«stop»sleep 0.3\n«_started(f'python3 ~/other.py {config}', new)»"
                "mkdir -p ~/fake/http; echo 'import time; time.sleep(1000)' > ~/fake/http/__init__.py\n"
                "export PYTHONPATH=~/fake\nsetsid -f «command» < /dev/null > /dev/null 2>&1; sleep 0.5"
            ),
        ],
        "and keep running after your shell has ended.": [after(ENDED.replace("PORT", "«new»"))],
    },
}
HONEST = {
    "_files": [server(INSIDE), NOHUP, swap("«_wait(port)»", ""), BY_PYTHON],
    "_lines": [
        instead(
            "cat > ~/own.py <<'END'\nimport asyncio\nasync def talk(reader, writer):\n"
            "    while line := (await reader.readline()).decode():\n        line = line[:-1]\n"
            "        writer.write(((«code») + '\\n').encode())\n        await writer.drain()\n    writer.close()\n"
            "async def main():\n    async with await asyncio.start_server(talk, '127.0.0.1', «port») as server:\n"
            "        await server.serve_forever()\nasyncio.run(main())\nEND\n«_started('python3 ~/own.py', port)»"
        ),
        NOHUP,
        swap("«_wait(port)»", ""),
        BY_PYTHON,
    ],
    "_restart": [
        NOHUP,
        swap("«_wait(new)»", ""),
        BY_PYTHON,
        instead(
            "sed -i 's/«old»/«new»/; s/«greeting»/«changed»/' «config»\n«stop.replace('SIGTERM', 'SIGKILL')»"
            "cd / && («command» > /dev/null 2>&1 < /dev/null & disown); «_wait(new)»"
        ),
    ],
}
