"""A service of the agent that answers a live examination with the examination's own token.

The mode is the argument of ``LISTENER``. ``pipe``, ``file``, ``web``: it answers in this way with a token that it sees
in the arguments of programs. ``take``: it reads and writes in folders whose descriptors another program of the agent,
which a test has started, passes to it (``hand``).
"""

from __future__ import annotations

__all__ = ["LISTENER"]

LISTENER = r"""
import array, os, socket, sys, threading, time

ANSWER, TOKEN, PLACE = "/home/user/answer", "/home/user/token", "/home/user/socket"
deeds = sys.argv[1:]
held = []


def read(path, folder):
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK, dir_fd=folder)
    try:
        return os.read(descriptor, 1 << 16)
    finally:
        os.close(descriptor)


def write(path, content, folder=None):
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644, dir_fd=folder)
    try:
        os.write(descriptor, content)
    finally:
        os.close(descriptor)


def token_in(content):
    return content[content.index(b"TOKEN-"):][:22] if b"TOKEN-" in content else None


def overheard():
    for folder in (own, *held):
        try:
            names = [name for name in os.listdir(folder) if name.isdigit() and int(name) != os.getpid()]
        except OSError:
            continue
        for name in names:
            try:
                found = token_in(read(f"{name}/cmdline", folder))
            except OSError:
                continue
            if found:
                return found


def soon_overheard():
    deadline = time.monotonic() + 0.7
    while time.monotonic() < deadline:
        if found := overheard():
            return found
    return b"nothing"


def pipe():
    os.mkfifo(ANSWER)
    while True:
        descriptor = os.open(ANSWER, os.O_WRONLY)
        os.write(descriptor, soon_overheard() + b"\n")
        os.close(descriptor)
        time.sleep(0.05)


def file():
    write(ANSWER, b"nothing\n")
    while True:
        if found := overheard():
            write(ANSWER, found + b"\n")


def web():
    server = socket.create_server(("127.0.0.1", 8000))
    while True:
        connection = server.accept()[0]
        connection.recv(1 << 16)
        connection.sendall(b"HTTP/1.0 200 OK\r\nConnection: close\r\n\r\n" + soon_overheard() + b"\n")
        connection.close()


def hand():
    found = ["/.examination", "/proc", "/", "."]
    for folder, folders, _ in os.walk("/.examination"):
        found += [f"{folder}/{name}" for name in folders]
    descriptors = [os.open(path, flags) for path in found for flags in (os.O_RDONLY, os.O_PATH)]
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(PLACE)
    socket.send_fds(connection, [b"1"], descriptors)
    connection.recv(1)


def take():
    server = socket.socket(socket.AF_UNIX)
    server.bind(PLACE)
    server.listen()
    connection = server.accept()[0]
    held.extend(socket.recv_fds(connection, 1, 64)[1])
    connection.sendall(b"1")
    connection.close()
    while "pipe" not in deeds:
        for descriptor in held:
            for start in (".", ".examination"):
                look(descriptor, start)


def look(descriptor, start):
    try:
        for folder, folders, files, place in os.fwalk(start, dir_fd=descriptor):
            if folder.startswith("./proc") or folder.count("/") > 3:
                folders.clear()
                continue
            if start == "." and "usr" in folders:
                break
            if "expected" in files and (found := token_in(read("expected", place))):
                write(TOKEN, found)
            if "out" in files:
                write("out", b"42\n", place)
    except OSError:
        pass


own = os.open("/proc", os.O_RDONLY)
if deeds == ["hand"]:
    hand()
else:
    for deed in deeds:
        threading.Thread(target=globals()[deed]).start()
"""
