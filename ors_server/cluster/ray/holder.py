"""The holder of one node: an actor of Ray that starts ``ors-server node``, keeps it, and finds it again.

The node is a detached process: it outlives the actor, the raylet and Ray's head. The holder is connected to the node's
socket (``supervisor.holding``). When Ray starts the actor again, it connects to the node that is there instead of
starting another. The actor's process is Ray's own; a node and its workers never import Ray.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from ors_server.cluster.ray.key_pipe import key_pipe
from ors_server.cluster.ray.orders import HolderFailed, NodeOrder, refuse_subreaper

__all__ = ["Holder"]

#: Seconds that a node may take to open its socket, and an earlier holder to end.
_START, _HANDOVER = 60.0, 10.0
#: Seconds that a node may take to answer at its socket.
_ANSWER = 5.0
#: Seconds without a holder after which a node that another raylet's holder has started is free.
_ABANDONED = 5.0
#: Nodes that are started within ``_WINDOW`` seconds before the holder gives up.
_STARTS, _WINDOW = 5, 300.0


class Holder:
    """The actor. It starts or adopts its node when it is made, and keeps it until ``stop``."""

    def __init__(self, order: NodeOrder) -> None:
        refuse_subreaper(os.environ)
        self._order = order
        self._stopping = False
        self._starts: list[float] = []
        self._failure = ""
        self.adopted = False
        self._connection = self._adopt() or self._start()
        threading.Thread(target=self._keep, daemon=True).start()
        threading.Thread(target=_end_with_raylet, args=(os.getppid(),), daemon=True).start()

    def state(self) -> dict[str, Any]:
        """Return the node's process, whether it was adopted, and why there is none any longer."""
        return {"pid": self._connection.pid, "adopted": self.adopted, "failure": self._failure}

    def stop(self, seconds: float) -> bool:
        """Have the node stop, and wait for its end; return whether it has ended."""
        self._stopping = True
        self._connection.send("stop")
        end = time.monotonic() + seconds
        while Path(f"/proc/{self._connection.pid}").exists() and time.monotonic() < end:
            time.sleep(0.05)
        return not Path(f"/proc/{self._connection.pid}").exists()

    def hurry(self) -> None:
        """End the wait for the node's sessions."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._connection.pid, signal.SIGTERM)

    def _keep(self) -> None:
        """Start the node again when it ends, unless it ends because it is an orphan."""
        while True:
            orphaned = self._connection.wait()
            if self._stopping:
                return
            if orphaned:
                ray = import_module("ray")
                ray.kill(ray.get_runtime_context().current_actor, no_restart=True)
                return
            try:
                self._connection = self._start()
            except HolderFailed as error:
                self._failure = str(error)
                return
            if self._stopping:
                self._connection.send("stop")

    # --- the node ----------------------------------------------------------------------------

    @property
    def _path(self) -> Path:
        return _folder(self._order.cluster) / f"{self._order.node[:16]}.sock"

    def _adopt(self) -> _Connection | None:
        """Connect to the node of an earlier holder: this node's own, or one that has been without a holder."""
        own = self._path
        end = time.monotonic() + _HANDOVER
        while (connection := _connect(own)) is not None:
            if connection.hold():
                self.adopted = True
                return connection
            if time.monotonic() > end:
                raise HolderFailed(f"Another holder has the node at {own}. End it first.")
            time.sleep(0.2)
        for path in own.parent.glob("*.sock"):
            connection = None if path == own else _connect(path)
            # A younger one has just been started, and its own holder is about to connect.
            if connection is not None and connection.alone > _ABANDONED and connection.hold():
                self.adopted = True
                return connection
        return None

    def _start(self) -> _Connection:
        now = time.monotonic()
        self._starts = [start for start in self._starts if start > now - _WINDOW]
        if len(self._starts) >= _STARTS:
            raise HolderFailed(f"The node ended {_STARTS} times within {_WINDOW:g} s. Its log says why.")
        if self._starts:
            time.sleep(min(30.0, 2.0 ** len(self._starts)))
        self._starts.append(time.monotonic())
        path, order = self._path, self._order
        detach = [sys.executable, "-I", "-S", str(Path(__file__).with_name("detach.py"))]
        command = [*detach, sys.executable, "-m", "ors_server", *order.arguments, "--hold", str(path)]
        # Ray's variables steer Ray's processes; the node is none.
        surroundings = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        try:
            with key_pipe(order.key) as (descriptor, variables):
                subprocess.run(
                    command,
                    env=surroundings | dict(order.variables) | variables,
                    cwd=order.folder if Path(order.folder).is_dir() else "/",
                    stdin=subprocess.DEVNULL,
                    pass_fds=(descriptor,),
                    check=True,
                )
        except (OSError, subprocess.CalledProcessError) as error:
            raise HolderFailed(f"The node cannot be started: {error}") from None
        end = time.monotonic() + _START
        while time.monotonic() < end:
            connection = _connect(path)
            if connection is not None and connection.hold():
                return connection
            time.sleep(0.05)
        raise HolderFailed(f"The node did not open {path} within {_START:g} s. Its log says why.")


def _end_with_raylet(raylet: int) -> None:
    """End this process when its raylet has ended, which Ray leaves to chance: another holder is to take the node."""
    while os.getppid() == raylet:
        time.sleep(1.0)
    os._exit(1)


def _folder(cluster: str) -> Path:
    """Return the folder of a cluster's sockets, which is this user's alone. Raises ``HolderFailed``."""
    parent = Path(tempfile.gettempdir(), f"ors-server-{os.getuid()}")
    folder = parent / f"ray-{cluster}"
    for each in (parent, folder):
        each.mkdir(mode=0o700, exist_ok=True)
        status = each.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
            raise HolderFailed(f"{each} belongs to another user or is open to others. Remove it.")
    return folder


class _Connection:
    """A connection to a node's socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._lines = sock.makefile("rb")
        greeting = json.loads(self._lines.readline())
        self.pid = int(greeting["pid"])
        self.alone = float(greeting["alone"])

    def hold(self) -> bool:
        """Become the node's holder; return False where it has another, or has ended."""
        try:
            self.send("hold")
            held = bool(json.loads(self._lines.readline())["held"])
        except (OSError, ValueError):
            held = False
        if held:
            self._sock.settimeout(None)
        else:
            self._sock.close()
        return held

    def send(self, command: str) -> None:
        """Send a command; the node may have ended."""
        with contextlib.suppress(OSError):
            self._sock.sendall(json.dumps(command).encode() + b"\n")

    def wait(self) -> bool:
        """Wait until the node ends; return whether it says that no gateway takes it any longer."""
        orphaned = False
        with contextlib.suppress(OSError, ValueError):
            while line := self._lines.readline():
                orphaned = bool(json.loads(line).get("orphaned"))
        return orphaned


def _connect(path: Path) -> _Connection | None:
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(_ANSWER)
    try:
        sock.connect(str(path))
        return _Connection(sock)
    except (OSError, ValueError):
        sock.close()
        return None
