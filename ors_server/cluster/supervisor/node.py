"""One node of a cluster: a supervisor whose workers listen on TCP, and its registration with the gateways."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from ors_server.cluster.supervisor.control import row_of
from ors_server.cluster.supervisor.joining import Joining
from ors_server.cluster.supervisor.pools import Pool
from ors_server.cluster.supervisor.slots import Network
from ors_server.cluster.supervisor.supervisor import Supervisor
from ors_server.http.delivery import greeting
from ors_server.keys.cluster_key import ClusterKey
from ors_server.keys.errors import ClusterError
from ors_server.settings import Settings
from ors_server.telemetry.logs import start_logging

__all__ = ["Node", "serve_node"]

logger = logging.getLogger("ors_server.node")

#: Seconds between looks at whether a gateway takes the node.
_TICK = 0.2


@dataclass(frozen=True)
class Node:
    """A node as its command describes it."""

    name: str
    urls: Sequence[str]
    #: Its workers, those with the default environment first.
    pools: Sequence[Pool]
    #: Address by which gateways reach it; None for that of its way to them.
    advertise: str | None
    #: Port of the first worker; 0 for free ones.
    first_port: int
    #: Whether the node ends with its standard input, and its sessions with it.
    ends_with_stdin: bool
    #: Seconds without a gateway after which the node ends; None for never.
    orphan_ttl: float | None


def serve_node(node: Node, settings: Settings, key: ClusterKey) -> None:
    """Serve until SIGTERM or SIGINT. Raises ``ClusterError``, ``WorkerFailed`` and ``NoWorkerLeft``."""
    logs = start_logging(settings)
    try:
        with contextlib.suppress(asyncio.CancelledError):
            asyncio.run(_run(node, settings, key))
    finally:
        logs.stop()


async def _run(node: Node, settings: Settings, key: ClusterKey) -> None:
    total = sum(pool.workers for pool in node.pools)
    joining = Joining(node.urls, key.node_token, node.name, total)
    main = asyncio.current_task()
    assert main is not None
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, main.cancel)  # until the supervisor has its own
    stop: Callable[[], object] = main.cancel

    def end_at_once(reason: str) -> None:
        logger.info("node ends", extra={"node": node.name, "reason": reason})
        stop()

    if node.ends_with_stdin:
        _follow_stdin(loop, lambda: end_at_once("its standard input has ended"))
    watching = None
    if node.orphan_ttl is not None:
        watching = asyncio.create_task(_watch_gateways(joining, node.orphan_ttl, end_at_once))
    logger.info("node is looking for the gateways", extra={"node": node.name, "gateways": ",".join(node.urls)})
    await joining.claim()
    # Workers that are reached by another name than this machine's own address listen on all of its addresses.
    bind = "0.0.0.0" if node.advertise else await joining.source()  # noqa: S104 - workers want the cluster's token
    network = Network(bind, node.advertise or bind, node.first_port, key.verifier, greeting(key.gateway_token))
    supervisor = Supervisor(
        node.pools,
        settings,
        gateways=0,
        first_slot=joining.first,
        network=network,
        on_change=joining.change,
    )
    draining = set[asyncio.Task[None]]()

    def drain(slots: Sequence[int], deadline: float) -> None:
        task = asyncio.create_task(supervisor.drain_all(slots, deadline))
        draining.add(task)
        task.add_done_callback(draining.discard)

    joining.members = supervisor.members
    joining.rows = lambda: [row_of(slot) for slot in supervisor.slots]
    joining.task_lists = supervisor.task_lists.digests
    joining.on_drain = drain
    joining.on_stop = supervisor.stop

    def ready() -> None:
        slots = f"{joining.first}-{joining.first + total - 1}"
        logger.info("node serves", extra={"node": node.name, "workers": total, "slots": slots})

    registering = asyncio.create_task(joining.run())
    registering.add_done_callback(lambda _: supervisor.stop())  # it ends by a fault only
    stop = partial(supervisor.stop, 0.0)
    try:
        await supervisor.run(None, ready)
        if registering.done():
            registering.result()
    finally:
        for task in (registering, watching, *draining):
            if task is not None:
                task.cancel()
        await joining.leave()


def _follow_stdin(loop: asyncio.AbstractEventLoop, ended: Callable[[], None]) -> None:
    """Call ``ended`` when the standard input ends. Raises ``ClusterError`` where it is not a pipe."""
    stdin = sys.stdin.fileno()

    def read() -> None:
        if not os.read(stdin, 4096):
            loop.remove_reader(stdin)
            ended()

    try:
        loop.add_reader(stdin, read)
    except PermissionError:  # a file or /dev/null: the kernel tells no end of these
        raise ClusterError("--end-with-stdin needs a pipe as its standard input", "Leave it out.") from None


async def _watch_gateways(joining: Joining, ttl: float, ended: Callable[[str], None]) -> None:
    """Call ``ended`` with the reason when no gateway has taken a node for so many seconds."""
    apart = 0.0
    while apart <= ttl:
        await asyncio.sleep(_TICK)
        apart = 0.0 if joining.joined else apart + _TICK
    ended(f"no gateway has taken this node for {ttl:g} s")
