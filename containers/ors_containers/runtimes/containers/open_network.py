"""The open network of a container: ``slirp4netns``, a TCP/IP stack in a process of the host without privileges.

The container's packets end in that process, which opens ordinary sockets of the host for them. What these must not
reach is kept away in two places: ``slirp4netns`` refuses the host's loopback, and the container's own routing table has
no route to private, link-local and shared addresses or to the host's (``blocked_networks``). No process inside can
change the table (CAP_NET_ADMIN) or write packets past it: an open network costs the container CAP_NET_RAW, since the
header of a raw packet may name another address than the one that its route was looked up for.

Invariant: the process ends with the container and with the server: its end of a pipe is closed then.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
from pathlib import Path

from ors_containers.errors import StartFailed
from ors_containers.runtimes.namespaces import read_until

__all__ = ["NAME_SERVER", "OpenNetwork", "blocked_networks", "why_not_open"]

#: A range for benchmarks of networks: hosts have no address in it.
_RANGE = "198.18.0.0/24"
NAME_SERVER = "198.18.0.3"
#: Networks that are not the Internet: private, shared and link-local ones, the services of clouds among them.
_NOT_PUBLIC = (
    *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24", "192.168.0.0/16"),
    *("168.63.129.16/32", "224.0.0.0/4", "240.0.0.0/4"),
)
_START_PATIENCE = 10.0
_LOCAL = re.compile(r"\|-- ([\d.]+)\n\s+/32 host LOCAL")


def why_not_open(allowed: bool) -> str:
    """Return why containers have no open network here, with the remedy; empty where they can have one."""
    if not allowed:
        return "the operator has not allowed it: ORS_SANDBOX_NETWORK=open does"
    if shutil.which("slirp4netns") is None:
        return "slirp4netns is not installed: apt install slirp4netns"
    if not Path("/dev/net/tun").exists():
        return "this machine has no /dev/net/tun: modprobe tun, or docker run --device /dev/net/tun"
    return ""


def blocked_networks() -> list[str]:
    """Return the networks that no container reaches: those that are not public, and this machine's own addresses."""
    try:
        own = set(_LOCAL.findall(Path("/proc/net/fib_trie").read_text()))
    except OSError:
        own = set[str]()
    return [*_NOT_PUBLIC, *(f"{address}/32" for address in sorted(own) if not address.startswith("127."))]


class OpenNetwork:
    """One process of ``slirp4netns``."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._lifeline = -1

    async def start(self, container: int) -> int:
        """Give the container of that process 1 the network; return the process to lease. Raises ``StartFailed``."""
        ready, ready_there = os.pipe()
        theirs, self._lifeline = os.pipe()
        try:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *("slirp4netns", "--configure", "--mtu=65520", "--disable-host-loopback", f"--cidr={_RANGE}"),
                    *("--enable-sandbox", "--enable-seccomp", f"--userns-path=/proc/{container}/ns/user"),
                    *(f"--ready-fd={ready_there}", f"--exit-fd={theirs}", str(container), "tap0"),
                    pass_fds=(ready_there, theirs),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.DEVNULL,
                    stderr=asyncio.subprocess.DEVNULL,
                    start_new_session=True,
                )
            except OSError as error:
                raise StartFailed(f"slirp4netns cannot be started: {error.strerror}") from error
            finally:
                os.close(ready_there)
                os.close(theirs)
            if not await read_until(ready, b"1", _START_PATIENCE):
                await self.close()
                raise StartFailed("slirp4netns could not configure the container's network")
            return self._process.pid
        finally:
            os.close(ready)

    async def close(self) -> None:
        """End the process."""
        if self._lifeline != -1:
            os.close(self._lifeline)
            self._lifeline = -1
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
