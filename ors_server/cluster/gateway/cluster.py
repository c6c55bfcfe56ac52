"""A gateway of a cluster, which nodes join (``ors-server gateway``)."""

from __future__ import annotations

import logging
import socket
import time

import uvloop
from ors_containers.linux.limits.file_limit import raise_file_limit

from ors_server.cluster.gateway.gateway import Gateway
from ors_server.cluster.gateway.members.nodes import Nodes
from ors_server.cluster.gateway.members.workers import Workers
from ors_server.cluster.gateway.routing.private_routes import PrivateRoutes
from ors_server.http.delivery import greeting
from ors_server.keys.cluster_key import ClusterKey
from ors_server.settings import Settings

__all__ = ["serve_cluster"]

logger = logging.getLogger("ors_server.gateway")

#: Seconds after the start in which nodes that are part of the cluster may not have registered here yet.
_LEARNING = 5.0


class ClusterGateway(Gateway):
    """A gateway whose workers are those of the nodes that register."""

    def __init__(self, settings: Settings, key: ClusterKey) -> None:
        super().__init__(settings, Workers(greeting(key.gateway_token), settings.session_ttl), key.ids)
        self._nodes = Nodes(self.workers)
        self.private = PrivateRoutes(self._nodes, key, self._refresh)
        self.workers.complete = False
        self._started = time.monotonic()

    async def ready(self) -> None:
        """Return at once: nodes register with requests."""

    def stop(self) -> None:
        """Begin to stop."""
        if not self._stopping.is_set():
            logger.info("stopping", extra={"connections": len(self._connections)})
        super().stop()

    def pass_time(self, seconds: float) -> None:
        """Count seconds in which nodes and workers were silent."""
        super().pass_time(seconds)
        if not self.workers.complete and time.monotonic() - self._started > _LEARNING:
            self.workers.complete = True
            if not list(self.workers):
                logger.warning("no node has joined yet; `ors-server node --join` starts one")
        self._nodes.pass_time(seconds)
        self._refresh()

    def _refresh(self) -> None:
        self.update(self._nodes.members())


def serve_cluster(listening: socket.socket, settings: Settings, key: ClusterKey) -> None:
    """Run a gateway until SIGTERM or SIGINT."""
    raise_file_limit()

    async def run() -> None:
        await ClusterGateway(settings, key).serve(listening)
        logger.info("stopped")

    uvloop.run(run())
