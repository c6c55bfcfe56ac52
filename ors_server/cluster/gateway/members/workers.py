"""The workers that a gateway knows: their addresses, their last reported state, and the choice of one for a session.

New sessions go to the less loaded of two workers that are chosen at random. Always taking the least loaded by report
would send the sessions of a whole second to one worker, where several gateways read the same report. Ids that a client
chose follow rendezvous hashing over slots, which a restart of a worker does not change.
"""

from __future__ import annotations

import random
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple, Protocol

from ors_server.cluster.gateway.members.placed_ids import Place
from ors_server.cluster.gateway.members.views import Views, weight
from ors_server.http.delivery import GREETING

__all__ = ["ENDED", "LOST_AFTER", "SILENT_AFTER", "Life", "Member", "Worker", "Workers"]

#: Seconds without a report after which a worker gets no new sessions, and after which its sessions count as lost.
SILENT_AFTER, LOST_AFTER = 3.0, 10.0
#: Errors of a connection to a worker that has ended. Any other says nothing about the worker: the gateway may be out of
#: descriptors, or the worker too busy to accept.
ENDED = (ConnectionRefusedError, FileNotFoundError)


class Life(Enum):
    """State of a worker's life, as far as a gateway knows it."""

    STARTING = "starting"
    SERVING = "serving"
    SILENT = "silent"
    DEAD = "dead"


class Member(NamedTuple):
    """A slot's worker as the supervisor announces it."""

    slot: int
    incarnation: int
    #: ``unix:PATH`` or ``tcp:HOST:PORT``; empty where no worker has served or will (``given_up``).
    address: str
    #: Whether it gets no new sessions, because it is to end.
    draining: bool = False
    #: Seconds since the slot has been in the view.
    age: float = 0.0
    #: The names of each of its environments, its own first; the default environment first.
    environments: Sequence[Sequence[str]] = ()
    #: Reasons why environments cannot be served there, by their names.
    unavailable: Mapping[str, str] = {}
    #: Whether it has the sandboxes and the data folders of the server, and no environments.
    of_sandboxes: bool = False
    #: Why its worker will not be started again; empty while it will.
    given_up: str = ""

    @property
    def place(self) -> Place:
        """Its place."""
        return Place(self.slot, self.incarnation)


class Connection(Protocol):
    """A connection to a worker (``upstream.Upstream``)."""

    def fail(self) -> None:
        """End it because the worker has ended."""
        ...

    def close(self) -> None:
        """Close it in an orderly way."""
        ...


class Worker:
    """One incarnation of the worker in a slot."""

    def __init__(self, place: Place, address: str, greeting: bytes = GREETING) -> None:
        self.place = place
        self.address = address
        #: The first header on each connection to it.
        self.greeting = greeting
        self.sessions = 0
        #: Sessions placed here since the last report.
        self.placed = 0
        self.accepts = False
        self.draining = False
        self.given_up = ""
        #: Open connections, and those of them that carry no request.
        self.connections: set[Connection] = set()
        self.idle: list[Connection] = []
        #: Seconds without a report, counted while this process runs: after a pause of its own no worker seems silent.
        self._silence = 0.0
        self._reported = False
        self._ended = False
        #: True once its process has ended, and while it has been silent for too long.
        self.dead = False

    def report(self, state: Mapping[str, Any]) -> None:
        """Take a report of the worker's state."""
        self._silence = 0.0
        self._reported = True
        self.dead = self._ended
        self.sessions = int(state["sessions"])
        self.placed = 0
        self.accepts = self.sessions < int(state["max_sessions"])

    def pass_time(self, seconds: float) -> None:
        """Count seconds without a report. After too many, requests that wait for the worker are ended."""
        self._silence += seconds
        if not self.dead and self._silence > LOST_AFTER:
            self.dead = True
            self._fail_requests()

    def die(self) -> None:
        """Note that the process has ended, and end the requests that wait for it."""
        self._ended = self.dead = True
        self._fail_requests()

    def _fail_requests(self) -> None:
        for connection in list(self.connections):
            connection.fail()

    @property
    def life(self) -> Life:
        """The state of the worker's life now."""
        if self.dead:
            return Life.DEAD
        if not self._reported:
            return Life.STARTING
        return Life.SILENT if self._silence > SILENT_AFTER else Life.SERVING

    @property
    def load(self) -> int:
        """Sessions, with those placed since the last report."""
        return self.sessions + self.placed


class Workers:
    """The current worker of every slot."""

    def __init__(self, greeting: bytes = GREETING, remembered: float = 900.0) -> None:
        self._greeting = greeting
        #: False while workers may live that this gateway has not learned of.
        self.complete = True
        #: False once no worker is to get new sessions, whatever it reports.
        self.takes_new = True
        self._by_slot: dict[int, Worker] = {}
        #: The slots with environments, and those with sandboxes.
        self._hosts: frozenset[int] = frozenset()
        self.sandboxes: frozenset[int] = frozenset()
        #: Reasons why environments cannot be served, by their names in lower case.
        self.unavailable: dict[str, str] = {}
        self._views = Views(remembered)
        #: Environments in the order of the slots, without those that no worker has served; for each name of an
        #: environment, one of these too, the slots that have it; and the slots of the first.
        self.environments: list[str] = []
        self._slots_of: dict[str, frozenset[int]] = {}
        self._first: frozenset[int] | None = None
        #: The different sets of slots that have an environment in common; one where all have the same environments.
        self._groups: list[frozenset[int]] = []

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._by_slot.values())

    def replace(self, members: Sequence[Member]) -> tuple[list[Worker], list[Worker]]:
        """Take the members as they are now; return the workers that are new and those that are none any longer."""
        added: list[Worker] = []
        removed = [self._by_slot.pop(slot) for slot in self._by_slot.keys() - {member.slot for member in members}]
        for member in members:
            worker = self._by_slot.get(member.slot)
            if worker is None or worker.place != member.place or worker.address != member.address:
                if worker is not None:
                    removed.append(worker)
                worker = self._by_slot[member.slot] = Worker(member.place, member.address, self._greeting)
                added.append(worker)
            worker.draining, worker.given_up = member.draining, member.given_up
            if not member.address:
                worker.die()
        self.sandboxes = frozenset(member.slot for member in members if member.of_sandboxes)
        self._hosts = frozenset(self._by_slot) - self.sandboxes
        now = time.monotonic()
        since = {member.slot: (now - member.age, member.draining) for member in members if not member.of_sandboxes}
        self._views.update(
            {slot: time for slot, (time, draining) in since.items() if not draining},
            now,
            {slot: time for slot, (time, draining) in since.items() if draining},
        )
        self._group(members)
        return added, removed

    def _group(self, members: Sequence[Member]) -> None:
        environments: dict[str, None] = {}
        first = ""
        slots_of: dict[str, set[int]] = {}
        for member in sorted(members):
            for names in member.environments:
                if member.address:
                    environments[names[0]] = None
                first = first or names[0].lower()
                for name in names:
                    slots_of.setdefault(name.lower(), set()).add(member.slot)
        self.environments = list(environments)
        self.unavailable = {name.lower(): reason for member in members for name, reason in member.unavailable.items()}
        self._slots_of = {name: frozenset(slots) for name, slots in slots_of.items()}
        self._first = self._slots_of.get(first)
        self._groups = list(dict.fromkeys(self._slots_of.values()))

    @property
    def in_pools(self) -> bool:
        """True where some workers have environments that others do not have."""
        return len(self._groups) > 1

    def slots_of(self, name: str | None) -> frozenset[int] | None:
        """Return the slots that have an environment, as ``X-Deployment`` or a path names it; None where none has."""
        if not name:
            return None
        name = name.strip().lower()
        return self._slots_of.get(name) or self._slots_of.get(name.rpartition("/")[2])

    @property
    def groups(self) -> Sequence[frozenset[int]]:
        """The different sets of slots that have an environment in common."""
        return self._groups

    def why_out(self, among: Container[int] | None = None) -> str:
        """Return why no worker of these slots will serve again; empty where one serves or will be started."""
        reasons = {worker.given_up for worker in self._among(among)}
        return "" if "" in reasons else next(iter(reasons), "")

    def _among(self, slots: Container[int] | None) -> list[Worker]:
        """Return the workers of some slots; with None those of all environments."""
        slots = self._hosts if slots is None else slots
        return [worker for slot, worker in self._by_slot.items() if slot in slots]

    @property
    def default_slots(self) -> frozenset[int] | None:
        """The slots that have the default environment."""
        return self._first if self.in_pools else None

    def at(self, place: Place) -> Worker | None:
        """Return the living worker of a session's place; None where it has ended."""
        worker = self._by_slot.get(place.slot)
        if worker is None or worker.place != place or worker.life is Life.DEAD:
            return None
        return worker

    def in_slot(self, slot: int) -> Worker | None:
        """Return the living worker in a slot, if there is one."""
        worker = self._by_slot.get(slot)
        return None if worker is None or worker.life is Life.DEAD else worker

    def living_slots(self) -> list[int]:
        """Return the slots whose workers live, in their order."""
        return sorted(slot for slot, worker in self._by_slot.items() if worker.life is not Life.DEAD)

    def may_be_unknown(self, place: Place) -> bool:
        """Return whether a worker may live at a place although this gateway has not learned of it."""
        return not self.complete and place.slot not in self._by_slot

    def take_no_more(self) -> None:
        """Place no new sessions from now on."""
        self.takes_new = False

    def accepting(self, among: Container[int] | None = None) -> list[Worker]:
        """Return the workers that take new sessions."""
        return [
            worker
            for worker in self._among(among)
            if self.takes_new and worker.accepts and not worker.draining and worker.life is Life.SERVING
        ]

    def for_new_session(self, among: Container[int] | None = None) -> Worker | None:
        """Choose a worker for a new session, and count the session to its load; None where no worker accepts one."""
        accepting = self.accepting(among)
        if not accepting:
            return None
        chosen = min(random.sample(accepting, min(2, len(accepting))), key=lambda worker: worker.load)
        chosen.placed += 1
        return chosen

    def owners(self, name: str, among: Container[int] | None = None) -> list[Worker | None]:
        """Return the owner of a name that is not a placed id, and after it those of earlier times.

        They may have ended; None is the owner in a slot that has left.
        """
        return [self._by_slot.get(slot) for slot in self._views.owners(name, among)]

    def possible_owners(self, name: str) -> list[Worker | None]:
        """Return all workers in which a session of this name may live, whatever its environment."""
        owners = self.owners(name, self.default_slots)
        for group in self._groups if self.in_pools else ():
            owners += self.owners(name, group)
        return list(dict.fromkeys(owners))

    def serving(self, name: str = "", among: Container[int] | None = None) -> Worker | None:
        """Return a worker that serves, the same one for the same name as long as it lives."""
        serving = [worker for worker in self._among(among) if worker.life in (Life.SERVING, Life.SILENT)]
        return max(serving, key=lambda worker: weight(worker.place.slot, name), default=None)

    def keeper(self) -> Worker | None:
        """Return the worker that keeps the rollouts: that of the lowest slot that lives."""
        living = [worker for worker in self._among(None) if worker.life in (Life.SERVING, Life.SILENT)]
        return min(living, key=lambda worker: worker.place.slot, default=None)
