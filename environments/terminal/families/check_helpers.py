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
    "same": '''
        def same(value, expected):
            """Equal as JSON: 1 is 1.0, but true is not 1."""
            if isinstance(expected, dict):
                return (
                    isinstance(value, dict)
                    and value.keys() == expected.keys()
                    and all(same(value[key], expected[key]) for key in expected)
                )
            if isinstance(expected, list):
                return isinstance(value, list) and len(value) == len(expected) and all(map(same, value, expected))
            return isinstance(value, bool) == isinstance(expected, bool) and value == expected
        ''',
    "lines": '''
        def lines(path):
            """The lines of a file; whether the last one ends is not seen."""
            found = content(path).decode("utf-8").split("\\n")
            return found if found[-1] else found[:-1]
        ''',
    "ordered": '''
        def ordered(found, expected):
            """Whether what both have is in the same order in both; what only one of them has does not count."""
            if sorted(found) == sorted(expected):
                return found == expected
            both = set(found) & set(expected)
            return [item for item in dict.fromkeys(found) if item in both] == [
                item for item in dict.fromkeys(expected) if item in both
            ]
        ''',
    "rows": '''
        def rows(path):
            """The records of a CSV file; empty lines and a byte-order mark do not count."""
            text = content(path).decode("utf-8-sig")
            return [tuple(row) for row in csv.reader(io.StringIO(text, newline="")) if row]
        ''',
    "below": '''
        def below(folder):
            """Every file and link below a directory, by its path relative to it."""
            assert stat.S_ISDIR(os.lstat(folder).st_mode), f"{folder} is not a directory"
            found = []

            def unreadable(error):
                raise error

            for place, directories, names in os.walk(folder, onerror=unreadable):
                links = [name for name in directories if os.path.islink(os.path.join(place, name))]
                found += [os.path.relpath(os.path.join(place, name), folder) for name in names + links]
            return sorted(found)
        ''',
    "tree": '''
        def tree(folder):
            """What is at and below a directory: for each path its kind, its permissions and its content."""

            def unreadable(error):
                raise error

            paths = [folder]
            for place, directories, names in os.walk(folder, onerror=unreadable):
                paths += [os.path.join(place, name) for name in directories + names]
            found = {}
            for path in paths:
                status = os.lstat(path)
                mode = f"{stat.S_IMODE(status.st_mode):04o}"
                if stat.S_ISDIR(status.st_mode):
                    what = f"directory {mode}"
                elif stat.S_ISLNK(status.st_mode):
                    what = f"link {os.readlink(path)}"
                elif stat.S_ISREG(status.st_mode):
                    what = f"file {mode} {digest(content(path))}"
                else:
                    what = "neither a file nor a directory"
                found[os.path.relpath(path, folder)] = what
            return found
        ''',
    "one_file": '''
        def one_file(path, other):
            """Whether two paths are one file. What is done to one shows in the other: inode numbers can differ."""
            mode = stat.S_IMODE(os.lstat(path).st_mode)
            shown = [stat.S_IMODE(os.lstat(other).st_mode)]
            os.chmod(path, mode ^ 0o001)
            shown.append(stat.S_IMODE(os.lstat(other).st_mode))
            os.chmod(path, mode)
            return shown == [mode, mode ^ 0o001]
        ''',
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
    "commit": '''
        def commit(name, folder):
            """What a commit says: its headers, each with all its values, and its message."""
            head, _, message = git("cat-file", "commit", name, folder=folder).partition("\\n\\n")
            headers = {}
            for line in head.splitlines():
                key, _, value = line.partition(" ")
                headers.setdefault(key, []).append(value)
            return headers, message.rstrip("\\n")
        ''',
    "blobs": '''
        def blobs(folder):
            """The files of a working tree as git would record them, read without it: its settings hide nothing."""
            found = {}
            for path in below(folder):
                if not path.startswith(".git/"):
                    data = content(os.path.join(folder, path))
                    mode = 0o755 if os.lstat(os.path.join(folder, path)).st_mode & 0o100 else 0o644
                    name = hashlib.sha1(b"blob %d\\0" % len(data) + data).hexdigest()
                    found[path] = f"100{mode:o} {name}"
            return found
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
    "undisturbed": '''
        def undisturbed(first):
            """Command lines of the processes that began with an id from ``first`` on, neither stopped nor ended.

            A range of twenty ids below 300 belongs to one of those that the task began with: Linux gives such ids once.
            When all are used up it begins again at 300.
            """
            found = []
            for number, line in processes().items():
                try:
                    with open(f"/proc/{number}/stat") as file:
                        state = file.read().rpartition(")")[2].split()[0]
                except (FileNotFoundError, ProcessLookupError):
                    continue  # it has ended
                if first <= number < first + 20 and state not in "TtXxZ":
                    found.append(line)
            return found
        ''',
    "alive": '''
        def alive(first):
            """Ids of a range, as above, in which bash goes on, stopped or not, whatever its command line says."""
            found = []
            for name in os.listdir("/proc"):
                if name.isdigit() and first <= int(name) < first + 20:
                    try:
                        if os.path.basename(os.readlink(f"/proc/{name}/exe")) == "bash":
                            found.append(int(name))
                    except (FileNotFoundError, ProcessLookupError):
                        continue  # it has ended
            return found
        ''',
    "opened": '''
        def opened(path):
            """Ids of the processes that have a file open."""
            found = []
            for name in os.listdir("/proc"):
                if name.isdigit() and int(name) != os.getpid():
                    try:
                        links = [os.readlink(f"/proc/{name}/fd/{number}") for number in os.listdir(f"/proc/{name}/fd")]
                    except (FileNotFoundError, ProcessLookupError, PermissionError):
                        continue  # it has ended, or is none of the user's
                    if path in links:
                        found.append(int(name))
            return found
        ''',
    "listening": '''
        def listening(port):
            """The TCP sockets that listen on a port: inodes, and addresses as /proc has them."""
            found = {}
            for name in ("tcp", "tcp6"):
                if missing(f"/proc/self/net/{name}") and name == "tcp6":
                    continue  # without IPv6
                with open(f"/proc/self/net/{name}") as file:
                    for fields in map(str.split, file.readlines()[1:]):
                        address, _, number = fields[1].partition(":")
                        if fields[3] == "0A" and int(number, 16) == port:
                            found[fields[9]] = address
            return found
        ''',
    "local_only": '''
        def local_only(port):
            """Whether something listens on a port at 127.0.0.1, and nothing does at another address."""
            local = {"0100007F", "0000000000000000FFFF00000100007F"}
            return set() < set(listening(port).values()) <= local
        ''',
}
NEEDS = {
    "lines": ("content",),
    "rows": ("content",),
    "tree": ("content", "digest"),
    "git": ("run",),
    "commit": ("git", "run"),
    "blobs": ("below", "content"),
    "undisturbed": ("processes",),
    "listening": ("missing",),
    "local_only": ("listening", "missing"),
}
MODULES = (
    "csv",
    "fnmatch",
    "gzip",
    "hashlib",
    "http.client",
    "io",
    "json",
    "os",
    "shutil",
    "socket",
    "sqlite3",
    "stat",
    "subprocess",
    "tarfile",
    "tempfile",
    "time",
    "xml.etree.ElementTree",
    "zipfile",
)
