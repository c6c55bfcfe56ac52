"""The supervisor of a server with several workers: it starts workers and gateways, and starts them again when they end.

It imports no author's code. Sessions live in the workers and end with them; the supervisor holds no session, so that
the server goes on where it dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import secrets
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from ors_containers.linux.limits.cgroups import make_room

from ors_server.cluster.errors import EnvironmentNotServed, NoWorkerLeft, WorkerFailed
from ors_server.cluster.gateway.members.health import watch
from ors_server.cluster.gateway.members.placed_ids import INCARNATIONS, KEY_VARIABLE, Place
from ors_server.cluster.gateway.members.workers import Life, Member, Worker
from ors_server.cluster.supervisor.children import Child, GatewayChild, WorkerChild
from ors_server.cluster.supervisor.dead_worker_cleanup import sweep_dead_workers
from ors_server.cluster.supervisor.pools import Pool
from ors_server.cluster.supervisor.restart_pauses import RestartBudget
from ors_server.cluster.supervisor.slots import Network, Slot
from ors_server.cluster.supervisor.socket_folders import own_folder
from ors_server.cluster.supervisor.task_lists import TaskLists
from ors_server.errors import OrsError
from ors_server.http.delivery import GREETING
from ors_server.settings import Settings
from ors_server.wire.version import HANDSHAKE, VERSION
from ors_server.worker import Announcement

__all__ = ["Supervisor", "gateways_for"]

logger = logging.getLogger("ors_server.supervisor")

#: Workers that one gateway serves without being busier than they are.
_WORKERS_PER_GATEWAY = 6
#: Settings that are limits of the whole server, of which each worker gets its part.
_DIVIDED = ("max_sessions", "max_calls", "sandbox_warm_total", "sandbox_queue")
#: File of the supervisor's folder in which the workers share what they reserve for sandboxes.
_TABLE = "reservations"
#: Settings of the listening socket, which are the gateways'.
_OF_GATEWAYS = ("host", "port", "listen")
#: Seconds between reminders that a worker is not ready yet.
_REMINDER = 30.0
#: Seconds before a process is started that the machine had no room for.
_NO_ROOM = 1.0
#: Seconds that a process gets at a stop, beyond those in which the sessions end.
_PATIENCE = 10.0
#: Seconds for which a drained worker must report no session: a gateway may have placed one just before.
_EMPTY_FOR = 2.0


Started = TypeVar("Started", bound=Child)


def gateways_for(workers: int) -> int:
    """Return the number of gateways that so many workers keep busy."""
    return math.ceil(workers / _WORKERS_PER_GATEWAY)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


class Supervisor:
    """The processes of one server on this machine: the workers of its ``pools``, the default environment's first.

    ``sandboxes`` starts a worker for the sandboxes and the data folders. Gateways are then started at once, for
    environments that want a sandbox while they are imported. With a ``network`` the workers listen on TCP for gateways
    elsewhere, and ``on_change`` is called when they change.
    """

    def __init__(
        self,
        pools: Sequence[Pool],
        settings: Settings,
        *,
        gateways: int,
        sandboxes: Pool | None = None,
        first_slot: int = 0,
        network: Network | None = None,
        on_change: Callable[[], None] | None = None,
    ) -> None:
        self._settings = settings
        self._gateway_count = gateways
        self._network = network
        self._on_change = on_change
        places = [pool for pool in pools for _ in range(pool.workers)]
        #: Those of environments.
        self.hosts = [Slot(number, pool) for number, pool in enumerate(places, first_slot)]
        self.slots = list(self.hosts)
        if sandboxes is not None:
            self.slots.append(Slot(first_slot + len(places), sandboxes, of_sandboxes=True))
        self._gateways: list[GatewayChild] = []
        self.task_lists = TaskLists()
        self._key = secrets.token_bytes(32)
        #: Versions of workers that the log has.
        self._versions = {VERSION}
        self._stopping = asyncio.Event()
        #: Set when the wait for sessions is to end.
        self._hurry = asyncio.Event()
        #: Seconds of this wait.
        self._patience = settings.shutdown_timeout
        self._tasks = set[asyncio.Task[None]]()
        self._failure: OrsError | None = None
        self._started, self._ready_once = time.monotonic(), False
        dumped: dict[str, Any] = settings.model_dump(mode="json", exclude=set(_OF_GATEWAYS), exclude_none=True)
        for name in _DIVIDED:
            dumped[name] = max(math.ceil(dumped[name] / len(places)), 1 if name.startswith("max") else 0)
        self._variables: Mapping[str, str] = {f"ORS_{name.upper()}": str(value) for name, value in dumped.items()}

    async def run(self, listening: socket.socket | None, on_ready: Callable[[], None]) -> None:
        """Serve until SIGTERM or SIGINT; ``on_ready`` is called once all workers serve for the first time.

        ``listening`` is the socket of the gateways.

        Raises ``WorkerFailed`` where the first worker cannot be started, and ``NoWorkerLeft``.
        """
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stopping.set if self._network is None else self._interrupt)
        loop.add_signal_handler(signal.SIGINT, self._interrupt)
        make_room()
        with own_folder() as folder:
            for slot in self.slots:
                slot.folder_in(folder).mkdir()
            try:
                for slot in self.slots:
                    if slot.given_up is None:
                        self._spawn(self._keep(slot, folder))
                at_once = len(self.slots) > len(self.hosts)
                if at_once:
                    self._start_gateways(listening, folder)
                if await self._all_serve():
                    self._ready_once = True
                    if at_once:
                        self._announce()
                        knowing = asyncio.gather(*(gateway.knows_workers() for gateway in self._gateways))
                        stopping = self._spawn(self._pause(_PATIENCE))
                        await asyncio.wait((knowing, stopping), return_when="FIRST_COMPLETED")
                        knowing.cancel()
                    else:
                        self._start_gateways(listening, folder)
                    on_ready()
                    await self._stopping.wait()
                    if self._network is not None:
                        await self._empty()
            finally:
                await self._stop()
        if self._failure is not None:
            raise self._failure

    def _start_gateways(self, listening: socket.socket | None, folder: Path) -> None:
        if listening is not None:
            for number in range(self._gateway_count):
                self._spawn(self._keep_gateway(listening, number, folder))

    def stop(self, patience: float | None = None) -> None:
        """Begin to stop; the sessions of a node get ``patience`` seconds, or ``shutdown_timeout``."""
        if patience is not None and not self._stopping.is_set():
            self._patience = patience
        self._stopping.set()

    def _interrupt(self) -> None:
        """Begin to stop; a second Ctrl-C ends the wait for sessions, as it does for one process."""
        if self._stopping.is_set():
            for gateway in self._gateways:
                gateway.kill()
            for slot in self.slots:
                if slot.child is not None and (self._network is None or self._hurry.is_set()):
                    slot.child.interrupt()
            self._hurry.set()
        self._stopping.set()

    async def _empty(self) -> None:
        """Place no new sessions on this node, and wait for those it has, for a limited time."""
        for slot in self.slots:
            slot.draining = True
        self._announce()
        loop = asyncio.get_running_loop()
        begun = empty_since = loop.time()
        while not self._hurry.is_set() and loop.time() - begun < self._patience:
            if any(slot.worker is not None and slot.worker.sessions for slot in self.slots):
                empty_since = loop.time()
            elif loop.time() - empty_since > _EMPTY_FOR:
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), 0.1)

    async def _start(self, start: Callable[[], Awaitable[Started]]) -> Started | None:
        """Start a process as soon as the machine has room for it; return None where the server stops meanwhile."""
        while not self._stopping.is_set():
            try:
                child = await start()
            except OSError as error:
                remedy = "Allow this user more processes, memory or open files"
                logger.error("cannot start a process", extra={"cause": error.strerror, "remedy": remedy})
                await self._pause(_NO_ROOM)
                continue
            if not self._stopping.is_set():
                return child
            child.kill()
            await child.wait()
        return None

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # --- workers -----------------------------------------------------------------------------

    async def _all_serve(self) -> bool:
        while not self._stopping.is_set():
            if all(slot.worker is not None or slot.given_up for slot in self.slots):
                return True
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), 0.02)
        return False

    async def _keep(self, slot: Slot, folder: Path) -> None:
        """Keep a worker in a slot."""
        while not self._stopping.is_set():
            slot.incarnation = (slot.incarnation + 1) % INCARNATIONS
            path = slot.folder_in(folder) / f"worker-{slot.incarnation}.sock"
            start = partial(
                WorkerChild.start,
                slot.pool,
                f"unix:{path}" if self._network is None else self._tcp_address(slot, self._network),
                folder,
                slot.number,
                slot.incarnation,
                restarted=slot.restarts > 0,
                verifier="" if self._network is None else self._network.verifier,
                prefix=f"{slot.pool.name} | " if self._settings.log_format == "text" else "",
                others=[other.folder_in(folder) for other in self.slots if other is not slot],
                variables={
                    "ORS_NODE_TABLE": str(folder / _TABLE),
                    **self._variables,
                    **({KEY_VARIABLE: self._key.hex()} if slot.of_sandboxes else {}),
                },
            )
            slot.child = await self._start(start)
            if slot.child is None:
                return
            announced = await self._ready(slot.child, slot)
            if announced is not None and announced.handshake != HANDSHAKE:
                slot.child.kill()
                await slot.child.wait()
                self._give_up(
                    slot,
                    f"it has ors-server {announced.version} with private protocol {announced.handshake}, and this "
                    f"server {VERSION} with {HANDSHAKE}: start the server again",
                )
                return
            if announced is not None and announced.version not in self._versions:
                self._versions.add(announced.version)
                versions = {"version": announced.version, "of_supervisor": VERSION}
                logger.warning("workers have another version; a start of the server updates the rest", extra=versions)
            if announced is not None:
                await self._serve(slot, announced)
            status = await slot.child.wait()
            slot.child.kill()  # what it has started in its group
            path.unlink(missing_ok=True)
            sweeping = None if status == 0 else self._spawn(sweep_dead_workers())
            if self._stopping.is_set():
                if sweeping is not None:
                    await sweeping
                return
            if announced is None and slot.restarts == 0:
                # Its log says why; started again it would fail again.
                failure: OrsError = WorkerFailed(slot.number, status)
                if slot.pool.name:
                    failure = EnvironmentNotServed(slot.pool.name, status, *await slot.child.output.explain())
                if slot.pool.names and len(self.hosts) > 1:  # the others serve
                    slot.environments = [slot.pool.names]
                    self._give_up(slot, failure.text)
                else:
                    self._failure = failure
                    self._stopping.set()
                return
            if slot.draining:
                slot.draining, slot.since = False, None
                pause: float | None = 0.0
            else:
                logger.error("worker ended", extra={**slot.label, "status": status})
                pause = slot.budget.pause()
            if pause is None:
                self._give_up(slot, f"it ended too often, at last with status {status}")
                return
            slot.restarts += 1
            await self._pause(pause)

    def _joined(self) -> float:
        """Return when a worker joins that is ready now: all that are ready at the start join at the same time."""
        return time.monotonic() if self._ready_once else self._started

    def _give_up(self, slot: Slot, reason: str) -> None:
        slot.given_up = reason
        logger.error("worker given up", extra={**slot.label, "reason": reason})
        self._announce()
        if all(each.given_up for each in self.hosts):
            self._failure = NoWorkerLeft(reason)
            self._stopping.set()

    def _tcp_address(self, slot: Slot, network: Network) -> str:
        port = network.first_port and network.first_port + self.slots.index(slot)
        return f"tcp:{_bracketed(network.bind)}:{port}"

    async def _ready(self, child: WorkerChild, slot: Slot) -> Announcement | None:
        waiting = asyncio.create_task(child.announcement())
        # A process that an environment has forked keeps the pipe open beyond the worker's end.
        ended = asyncio.create_task(child.wait())
        try:
            while not (await asyncio.wait((waiting, ended), timeout=_REMINDER, return_when="FIRST_COMPLETED"))[0]:
                logger.info("worker is still loading its environments", extra=slot.label)
            return waiting.result() if waiting.done() else None
        finally:
            waiting.cancel()
            ended.cancel()

    async def _serve(self, slot: Slot, announced: Announcement) -> None:
        address, slot.environments, slot.unavailable = (
            announced.address,
            announced.environments,
            announced.unavailable,
        )
        if self._network is not None:
            address = f"tcp:{_bracketed(self._network.advertised)}:{address.rpartition(':')[2]}"
        slot.worker = Worker(
            Place(slot.number, slot.incarnation),
            address,
            GREETING if self._network is None else self._network.greeting,
        )

        def note(state: Mapping[str, Any]) -> None:
            slot.calls = int(state["calls"])
            self.task_lists.report(slot.number, state["task_lists"])

        slot.since = slot.since or self._joined()
        self._announce()
        assert slot.child is not None
        slot.watching = asyncio.create_task(watch(slot.worker, note))
        try:
            await slot.child.wait()
        finally:
            slot.watching.cancel()
            slot.worker.die()
            self.task_lists.forget(slot.number)

    async def drain(self, slot: Slot, deadline: float) -> None:
        """Place no new sessions in a slot, end its worker when it is empty or at the deadline, and start another."""
        if slot.worker is None or slot.draining or slot.child is None or slot.worker.life is Life.DEAD:
            return  # its next worker will be a new one
        child, worker, slot.draining = slot.child, slot.worker, True
        self._announce()
        loop = asyncio.get_running_loop()
        end, empty_since = loop.time() + deadline, None
        while loop.time() < end and not child.ended:
            if worker.sessions:
                empty_since = None
            elif empty_since is None:
                empty_since = loop.time()
            elif loop.time() - empty_since > _EMPTY_FOR:
                break
            await asyncio.sleep(0.1)
        await child.stop(self._settings.shutdown_timeout + _PATIENCE)

    async def drain_all(self, numbers: Sequence[int], deadline: float) -> None:
        """Drain slots one after the other: the rest takes their sessions."""
        for slot in self.slots:
            if slot.number in numbers and slot.given_up is None:
                await self.drain(slot, deadline)
                await self._wait_until_serving(slot)
                if slot.given_up is not None:
                    # The next slots would be emptied as well, by a new version that cannot serve.
                    logger.error("drain ends", extra={"slot": slot.number, "reason": slot.given_up})
                    return

    async def _wait_until_serving(self, slot: Slot) -> None:
        """Wait for a slot's next worker, or the end of the server."""
        while slot.state in ("starting", "restarting", "draining") and not self._stopping.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), 0.1)

    # --- gateways ----------------------------------------------------------------------------

    async def _keep_gateway(self, listening: socket.socket, number: int, folder: Path) -> None:
        budget = RestartBudget()
        variables = {
            **self._variables,
            "ORS_KEEP_ALIVE": str(self._settings.keep_alive),
            "ORS_MAX_HEADERS": str(self._settings.max_headers),
        }
        while not self._stopping.is_set():
            gateway = await self._start(partial(GatewayChild.start, listening, self._key, number, folder, variables))
            if gateway is None:
                return
            self._gateways.append(gateway)
            gateway.send(self.members())
            status = await gateway.wait()
            self._gateways.remove(gateway)
            gateway.close()
            if self._stopping.is_set():
                return
            logger.error("gateway ended", extra={"status": status})
            pause = budget.pause()
            if pause is None:
                logger.error("gateway given up", extra={"reason": "it ended too often"})
                if not self._gateways:
                    self._stopping.set()
                return
            # The others serve meanwhile; where there is none, clients wait: so there is no pause before the first.
            await self._pause(pause if self._gateways else min(pause, 0.05))

    def members(self) -> list[Member]:
        """Return the workers as they are now; of environments only after all have served for the first time.

        An environment that cannot be served is among them, without an address.
        """
        now = time.monotonic()
        return [
            Member(
                slot.number,
                slot.incarnation if slot.worker is None else slot.worker.place.incarnation,
                "" if slot.worker is None else slot.worker.address,
                slot.draining,
                now - (slot.since or now),
                slot.environments,
                slot.unavailable,
                slot.of_sandboxes,
                slot.why_out,
            )
            for slot in self.slots
            if slot.worker is not None or slot.environments
            if self._ready_once or slot.of_sandboxes or self._network is not None
        ]

    def _announce(self) -> None:
        members = self.members()
        for gateway in self._gateways:
            gateway.send(members)
        if self._on_change is not None:
            self._on_change()

    # --- the end -----------------------------------------------------------------------------

    async def _stop(self) -> None:
        """Stop everything: gateways accept nothing more, and end when the workers have ended the sessions."""
        self._stopping.set()
        sessions = sum(slot.worker.sessions for slot in self.slots if slot.worker is not None)
        logger.info("stopping", extra={"sessions": sessions})
        for slot in self.slots:
            if slot.watching is not None:
                slot.watching.cancel()
        limit = self._settings.shutdown_timeout + _PATIENCE
        workers = [slot.child for slot in self.slots if slot.child is not None and not slot.child.ended]
        await asyncio.gather(*(child.stop(limit) for child in [*self._gateways, *workers]))
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_PATIENCE)
        logger.info("stopped")
