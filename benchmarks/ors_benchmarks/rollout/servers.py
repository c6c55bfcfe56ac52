"""The server of a run, started for it or running elsewhere, and an environment of it as a client sees it.

A started server serves one run and ends with it, so that its time, CPU and memory are those of that run alone. It
hosts the same environment, whichever SDK it is of. Of a server that is given by its URL only what its clients see is
known.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ors_clients.client.async_client import AsyncClient
from ors_clients.errors import ClientError
from ors_clients.rollouts.sessions_ahead import AheadSession

from ors_benchmarks.harness.candidates import SDKS, Candidate
from ors_benchmarks.harness.processes import ServerProcess
from ors_benchmarks.rollout.engines.base import without_user
from ors_benchmarks.rollout.figures import ServerFacts
from ors_benchmarks.rollout.openreward_session import peer_sessions
from ors_benchmarks.rollout.runs import PlayedEnvironment
from ors_server.errors import OrsError

__all__ = [
    "CLIENTS",
    "SERVERS",
    "NoEnvironment",
    "Served",
    "ServedElsewhere",
    "StartedServer",
    "peak_mib",
    "played_environment",
]

#: Fewer than in training: a server that does not answer is reported sooner.
RETRIES = 2

#: Methods of environments that run while a session is opened and its prompt read, and while it is closed.
_OPENING, _CLOSING = ("setup", "get_prompt", "get_messages"), ("teardown",)

#: By the name that ``--servers`` takes.
SERVERS: dict[str, Candidate] = {candidate.name: candidate for candidate in SDKS}
#: By the name that ``--clients`` takes, with how tables call them.
CLIENTS = {"ours": "ors_clients", "openreward": "openreward"}


class NoEnvironment(OrsError):
    """A server has no such environment, split or task, or cannot be reached."""


@dataclass
class StartedServer:
    """A server of one of the SDKs, started for one run."""

    candidate: Candidate
    #: ``echo``, or for ours anything that ``ors-server serve`` takes.
    target: str
    think_time: float
    #: Takes its log and its reports.
    folder: Path
    core: int | None

    @property
    def title(self) -> str:
        """Title in tables."""
        return self.candidate.title

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[Served]:
        """Run the server during the block. Raises ``PeerUnavailable`` and ``StartFailed``."""
        python = self.candidate.prepare("--servers ours")
        serial = sum(1 for _ in self.folder.glob("*.times"))
        times = self.folder / f"{self.candidate.name}-{serial}.times"
        command = self.candidate.command(
            python, "--target", _absolute(self.target), "--think", str(self.think_time), "--times", str(times)
        )
        process = ServerProcess.start(command, self.folder, self.core, name=f"rollout-{self.candidate.name}")
        served = Served(f"http://{process.address.host}:{process.address.port}", process=process)
        try:
            yield served
        finally:
            facts = served.facts
            facts.peak_mib = peak_mib(process.pid)
            process.stop()
            if times.exists():
                taken: dict[str, tuple[int, float, float]] = json.loads(times.read_text())
                facts.environment_seconds = sum(seconds for _, seconds, _ in taken.values())
                facts.environment_opening = sum(taken[name][1] for name in _OPENING if name in taken)
                facts.environment_closing = sum(taken[name][1] for name in _CLOSING if name in taken)
                facts.environment_cpu = sum(cpu for _, _, cpu in taken.values())
            else:
                # A server that was killed writes none; an empty file keeps the serial numbers apart.
                served.died = True
                times.touch()


@dataclass
class ServedElsewhere:
    """A server that this benchmark did not start."""

    url: str

    @property
    def title(self) -> str:
        """Title in tables."""
        return without_user(self.url)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[Served]:
        """Yield it; nothing is started."""
        yield Served(self.url)


@dataclass
class Served:
    """A running server."""

    url: str
    #: Complete once the server has ended.
    facts: ServerFacts = field(default_factory=ServerFacts)
    process: ServerProcess | None = None
    #: Whether it ended before it was stopped.
    died: bool = False


@asynccontextmanager
async def played_environment(
    url: str, client: str, *, environment: str | None, split: str | None, count: int
) -> AsyncGenerator[tuple[PlayedEnvironment, Sequence[int]]]:
    """Return an environment of a server as a client sees it, and the indices of its first ``count`` tasks.

    ``client`` is one of ``CLIENTS``, ``environment`` the server's name for it (its first if None), ``split`` one of its
    splits (the first if None). Raises ``NoEnvironment`` where the server is not there, or has no such thing, and
    ``PeerUnavailable``.
    """
    try:
        client_of_ours = AsyncClient(url, retries=RETRIES)
    except ClientError as error:
        raise NoEnvironment(f"{without_user(url)!r} is not an address of a server", error.remedy) from None
    async with client_of_ours as ours:
        try:
            names = await ours.environments()
            name = _named(environment, names, "environment", url)
            chosen = ours.environment(name)
            part = _named(split, [found.name for found in await chosen.splits()], "split", name)
            total = await chosen.num_tasks(part)
            if not total:
                raise NoEnvironment(f"The split {part!r} of {name!r} has no tasks", "Choose another with --split.")
            tasks = range(min(count, total))
            specs: dict[int, Mapping[str, Any]] = {index: (await chosen.task(part, index)).spec for index in tasks}
        except ClientError as error:
            raise NoEnvironment(
                f"The server at {without_user(url)} cannot be used: {str(error).replace(url, without_user(url))}",
                "Is it running, and the URL right?",
            ) from error
        if client == "ours":

            def session(index: int) -> AheadSession:
                return chosen.session(split=part, index=index)

            yield PlayedEnvironment(session, specs.__getitem__), tasks
        else:
            async with peer_sessions(url, name, part) as theirs:
                yield PlayedEnvironment(theirs, specs.__getitem__), tasks


def peak_mib(process: int) -> float | None:
    """Return the peak resident memory of a process in MiB; None if it has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")), None)


def _named(wanted: str | None, known: Sequence[str], what: str, where: str) -> str:
    if wanted is None and known:
        return known[0]
    for name in known:
        if name.lower() == (wanted or "").lower():
            return name
    raise NoEnvironment(f"{where} has no {what} {wanted!r}", f"It has {', '.join(known) or 'none'}.")


def _absolute(target: str) -> str:
    """Return the target with an absolute path."""
    location, colon, name = target.partition(":")
    return f"{Path(location).resolve()}{colon}{name}" if Path(location).exists() else target
