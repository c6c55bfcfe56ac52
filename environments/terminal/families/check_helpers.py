"""Functions that the tests of a task may call, as source: each is written into the modules that need it.

Invariant: they use the standard library only. Where they cannot look, they raise an error: an unreadable path is not an
absent path.
"""

from __future__ import annotations

__all__ = ["HELPERS", "MODULES", "NEEDS"]

#: Source of each helper, by its name.
HELPERS = {
    "content": '''
        def content(path):
            """The bytes of a regular file; a link, a pipe or a giant is none."""
            status = os.lstat(path)
            assert stat.S_ISREG(status.st_mode), f"{path} is not a regular file"
            assert status.st_size < 20_000_000, f"{path} is far too large"
            with open(path, "rb") as file:
                return file.read()
        ''',
    "digest": """
        def digest(data):
            return hashlib.sha256(data).hexdigest()
        """,
    "run": '''
        def run(*command, given=b"", folder="/"):
            """Run a program by itself; its exit status and its standard output."""
            environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/home/user", "LANG": "C.UTF-8"}
            environment |= {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1", "GIT_NO_REPLACE_OBJECTS": "1"}
            finished = subprocess.run(
                command,
                input=given,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=folder,
                env=environment,
                timeout=20,
                start_new_session=True,
            )
            return finished.returncode, finished.stdout
        ''',
    "missing": '''
        def missing(path):
            """Whether nothing is there. A directory that cannot be looked into is no such answer: it fails the test."""
            try:
                os.lstat(path)
            except (FileNotFoundError, NotADirectoryError):
                return True
            return False
        ''',
    "git": '''
        def git(*arguments, folder):
            """What git prints, whatever the configuration of the user. It has to succeed: nothing is an answer too."""
            safe = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "safe.directory=*")
            status, printed = run("git", *safe, *arguments, folder=folder)
            assert status == 0, f"git {arguments[0]} ended with {status}"
            return printed.decode("utf-8", "replace")
        ''',
    "processes": '''
        def processes():
            """Process ids and their command lines, zombies apart."""
            found = {}
            for name in os.listdir("/proc"):
                if name.isdigit():
                    try:
                        with open(f"/proc/{name}/cmdline", "rb") as file:
                            line = file.read().rstrip(b"\\0").split(b"\\0")
                    except (FileNotFoundError, ProcessLookupError):
                        continue  # it has ended
                    if line != [b""]:
                        found[int(name)] = [part.decode("utf-8", "replace") for part in line]
            return found
        ''',
    "alive": '''
        def alive(first, stopped=False):
            """Ids of a range of twenty in which bash goes on, ``stopped`` for those that stand still too.

            A range below 300 belongs to processes that the task began with: Linux gives such ids once, and when all are
            used up it begins again at 300. Command lines lie in a process's own memory and say nothing.
            """
            found = []
            for number in range(first, first + 20):
                try:
                    with open(f"/proc/{number}/stat") as file:
                        state = file.read().rpartition(")")[2].split()[0]
                    program = os.path.basename(os.readlink(f"/proc/{number}/exe"))
                except (FileNotFoundError, ProcessLookupError):
                    continue  # it has ended
                if program == "bash" and (stopped or state not in "Tt"):
                    found.append(number)
            return found
        ''',
    "descriptors": '''
        def descriptors():
            """What the other processes of the user have open: by id, links below /proc and where they lead."""
            found = {}
            for name in os.listdir("/proc"):
                if name.isdigit() and int(name) != os.getpid():
                    links = found[int(name)] = {}
                    try:
                        for number in os.listdir(f"/proc/{name}/fd"):
                            try:
                                links[f"/proc/{name}/fd/{number}"] = os.readlink(f"/proc/{name}/fd/{number}")
                            except FileNotFoundError:
                                continue  # it is closed; the process may have others
                    except (FileNotFoundError, ProcessLookupError, PermissionError):
                        continue  # it has ended, or is none of the user's
            return found
        ''',
    "held": '''
        def held(texts):
            """Ids of the processes that have a file with one of these contents open, with the paths of such files."""
            found = {}
            sizes = {len(text) for text in texts}
            for process, links in descriptors().items():
                for link, path in links.items():
                    try:
                        status = os.stat(link)
                        if stat.S_ISREG(status.st_mode) and status.st_size in sizes:
                            with open(link, "rb") as file:
                                if file.read() in texts:
                                    found.setdefault(process, []).append(path.removesuffix(" (deleted)"))
                    except (FileNotFoundError, ProcessLookupError, PermissionError):
                        continue  # it is closed
            return found
        ''',
    "opened": '''
        def opened(path):
            """Ids of the processes that have a file open."""
            return [process for process, links in descriptors().items() if path in links.values()]
        ''',
    "listening": '''
        def listening(port):
            """The TCP sockets that listen on a port, or on any (0): inodes, and addresses as /proc has them."""
            found = {}
            for name in ("tcp", "tcp6"):
                if missing(f"/proc/self/net/{name}") and name == "tcp6":
                    continue  # without IPv6
                with open(f"/proc/self/net/{name}") as file:
                    for fields in map(str.split, file.readlines()[1:]):
                        address, _, number = fields[1].partition(":")
                        if fields[3] == "0A" and port in (0, int(number, 16)):
                            found[fields[9]] = address
            return found
        ''',
    "local_only": '''
        def local_only(port):
            """Whether something listens on a port at 127.0.0.1, and nothing does at another address."""
            local = {"0100007F", "0000000000000000FFFF00000100007F"}
            return set() < set(listening(port).values()) <= local
        ''',
    "holders": '''
        def holders(inodes):
            """Ids of the processes that hold one of these sockets."""
            wanted = {f"socket:[{inode}]" for inode in inodes}
            return [process for process, links in descriptors().items() if wanted & {*links.values()}]
        ''',
    "abroad": '''
        def abroad():
            """Ids of the processes that listen, on any port, at another address than 127.0.0.1."""
            local = {"0100007F", "0000000000000000FFFF00000100007F"}
            return holders([inode for inode, address in listening(0).items() if address not in local])
        ''',
    "awaited": '''
        def awaited(port):
            """Wait up to five seconds until something listens on a port, and nothing but 127.0.0.1 does."""
            end = time.monotonic() + 5
            while not listening(port) and time.monotonic() < end:
                time.sleep(0.05)
            assert local_only(port), f"{port} has {listening(port)}"
        ''',
    "asked": '''
        def asked(port, path):
            """Status and body of the answer to a GET request, 0 where there is none. It takes five seconds at most."""
            end = time.monotonic() + 5
            request = f"GET {path} HTTP/1.1\\r\\nHost: 127.0.0.1:{port}\\r\\nConnection: close\\r\\n\\r\\n"
            data = b""
            with socket.create_connection(("127.0.0.1", port), timeout=5) as stream:
                try:
                    stream.sendall(request.encode())
                    while len(data) < 1_000_000:
                        stream.settimeout(max(end - time.monotonic(), 0.001))
                        part = stream.recv(65536)
                        data += part
                        head, ended, body = data.partition(b"\\r\\n\\r\\n")
                        length = head.lower().partition(b"\\r\\ncontent-length:")[2].partition(b"\\r\\n")[0].strip()
                        if not part or (ended and length.isdigit() and len(body) >= int(length)):
                            break
                except ConnectionError:
                    pass  # it has closed the connection: what it said before counts

            class Said:
                def makefile(self, mode):
                    return io.BytesIO(data)

            try:
                answer = http.client.HTTPResponse(Said())
                answer.begin()
                return answer.status, answer.read()
            except http.client.HTTPException:
                return 0, data
        ''',
}
NEEDS = {
    "git": ("run",),
    "listening": ("missing",),
    "held": ("descriptors",),
    "opened": ("descriptors",),
    "holders": ("descriptors",),
    "abroad": ("descriptors", "holders", "listening", "missing"),
    "awaited": ("listening", "local_only", "missing"),
    "local_only": ("listening", "missing"),
}
MODULES = (
    "csv",
    "fnmatch",
    "gzip",
    "hashlib",
    "http.client",
    "io",
    "itertools",
    "json",
    "math",
    "os",
    "pathlib",
    "random",
    "shutil",
    "socket",
    "sqlite3",
    "stat",
    "string",
    "subprocess",
    "tarfile",
    "tempfile",
    "time",
    "xml.etree.ElementTree",
    "zipfile",
)
