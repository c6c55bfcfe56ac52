"""One node of a cluster: a supervisor whose workers listen on TCP, and its registration with the gateways."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ors_server.cluster.supervisor.control import row_of
from ors_server.cluster.supervisor.holding import Holding
from ors_server.cluster.supervisor.joining import Joining
from ors_server.cluster.supervisor.pools import Pool
from ors_server.cluster.supervisor.slots import Network
from ors_server.cluster.supervisor.supervisor import Supervisor
from ors_server.http.delivery import greeting
from ors_server.keys.cluster_key import ClusterKey
from ors_server.settings import Settings
from ors_server.telemetry.logs import start_logging

__all__ = ["Node", "serve_node"]

logger = logging.getLogger("ors_server.node")


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
    #: The socket for a holder of this node, and the seconds without one after which the node ends.
    hold: Path | None
    orphan_ttl: float


def serve_node(node: Node, settings: Settings, key: ClusterKey) -> None:
    """Serve until SIGTERM or SIGINT. Raises ``ClusterError``, ``WorkerFailed`` and ``NoWorkerLeft``."""
    logs = start_logging(settings)
    try:
        with contextlib.suppress(asyncio.CancelledError):
            asyncio.run(_hold(node, settings, key))
    finally:
        logs.stop()


async def _hold(node: Node, settings: Settings, key: ClusterKey) -> None:
    """Run a node, with the socket for its holder if it is to have one."""
    if node.hold is None:
        await _run(node, settings, key, None)
        return
    async with Holding(node.hold) as holding:
        await _run(node, settings, key, holding)


async def _run(node: Node, settings: Settings, key: ClusterKey, holding: Holding | None) -> None:
    total = sum(pool.workers for pool in node.pools)
    joining = Joining(node.urls, key.node_token, node.name, total)
    main = asyncio.current_task()
    assert main is not None
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, main.cancel)  # until the supervisor has its own
    stop: Callable[[], object] = main.cancel

    async def follow_holder(holding: Holding) -> None:
        reason = await holding.lost(node.orphan_ttl, lambda: joining.joined)
        logger.info("node ends", extra={"node": node.name, "reason": reason})
        stop()

    following = None if holding is None else asyncio.create_task(follow_holder(holding))
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
    stop = supervisor.stop
    try:
        await supervisor.run(None, ready)
        if registering.done():
            registering.result()
    finally:
        for task in (registering, following, *draining):
            if task is not None:
                task.cancel()
        await joining.leave()
