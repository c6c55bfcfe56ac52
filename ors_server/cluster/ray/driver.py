"""The driver: the one process of ours that imports Ray. It places a holder on every fitting node of the cluster.

The launcher starts it, and starts it again when it ends: Ray ends drivers when its head has been away for a minute.
Nothing depends on it while requests run. The launcher writes its ``DriverOrder`` as a line of JSON to the standard
input; the next line, ``stop``, has the driver stop all nodes. The end of the input alone is the end of the launcher:
the nodes then stay for the next one with the same key and port.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from ors_server.cluster.ray.holder import Holder
from ors_server.cluster.ray.orders import REFUSED, DriverOrder, HolderFailed, NodeOrder, refuse_subreaper
from ors_server.settings import Settings
from ors_server.telemetry.logs import start_logging

__all__ = ["NAMESPACE", "fits"]

logger = logging.getLogger("ors_server.ray")

NAMESPACE = "ors-server"
#: Label by which Ray pins an actor to a node.
_NODE_LABEL = "ray.io/node-id"
#: Seconds between looks at the nodes of the cluster.
_LOOK = 2.0
#: Seconds before a holder that failed is tried again.
_RETRY = 30.0
#: Seconds that a stopped node gets beyond those in which its sessions end.
_GRACE = 20.0


def fits(node: Mapping[str, Any], order: DriverOrder) -> bool:
    """Return whether one of ``ray.nodes()`` lives and has the labels and the resources."""
    labels: Mapping[str, str] = node.get("Labels") or {}
    resources: Mapping[str, float] = node.get("Resources") or {}
    return (
        bool(node["Alive"])
        and all(labels.get(name) == value for name, value in order.labels.items())
        and resources.get("CPU", 0.0) >= order.cpus
        and resources.get("memory", 0.0) >= (order.memory or 0)
    )


class _Driver:
    def __init__(self, ray: Any, order: DriverOrder, settings: Settings) -> None:
        self._ray = ray
        self._order = order
        self._settings = settings
        self._holders: dict[str, Any] = {}
        #: Holders that are being made: the first answer of each.
        self._pending: dict[Any, str] = {}
        self._held = False
        #: When a holder that failed is tried again, by node.
        self._retries: dict[str, float] = {}
        here = str(ray.util.get_node_ip_address())
        #: Addresses of the gateways, as nodes reach them.
        self._join = ",".join(re.sub(r"//(0\.0\.0\.0|\[::\])(?=[:/])", f"//{here}", url) for url in order.join)

    def look(self) -> None:
        """Start holders on new nodes, and forget those of nodes that have gone. Raises ``HolderFailed``."""
        fitting = {str(node["NodeID"]) for node in self._ray.nodes() if fits(node, self._order)}
        for node_id in self._holders.keys() - fitting:
            # Ray would wait for the node without end: an actor that is pinned to it fits nowhere else.
            self._ray.kill(self._holders.pop(node_id), no_restart=True)
            logger.error("node left Ray", extra={"node": node_id[:16]})
        now = time.monotonic()
        for node_id in fitting - self._holders.keys():
            if self._retries.get(node_id, now) > now:
                continue
            holder = self._holders[node_id] = self._make(node_id)
            self._pending[holder.state.remote()] = node_id
        self._note_answers()

    def _make(self, node_id: str) -> Any:
        order = self._order
        arguments = [*order.arguments, "--join", self._join, "--name", f"ray-{node_id[:12]}"]
        node_order = NodeOrder(order.cluster, node_id, order.key, arguments, order.variables, order.folder)
        # The holder itself computes nothing: these are the resources of its node.
        remote = self._ray.remote(Holder).options(
            name=f"holder-{order.cluster}-{node_id}",
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            max_restarts=-1,
            max_task_retries=-1,
            max_concurrency=4,
            num_cpus=order.cpus,
            memory=order.memory,
            label_selector={_NODE_LABEL: node_id},
        )
        return remote.remote(node_order)

    def _note_answers(self) -> None:
        if not self._pending:
            return
        for reference in self._ray.wait(list(self._pending), num_returns=len(self._pending), timeout=0)[0]:
            node_id = self._pending.pop(reference)
            try:
                state = self._ray.get(reference)
            except self._ray.exceptions.RayError as error:
                # A holder that could not be made; its node may also have died meanwhile.
                self._ray.kill(self._holders.pop(node_id), no_restart=True)
                self._retries[node_id] = time.monotonic() + _RETRY
                if not self._held:
                    raise HolderFailed(_last_line(error)) from None
                logger.error("no node here", extra={"node": node_id[:16], "reason": _last_line(error)})
                continue
            self._held = True
            logger.info("node held", extra={"node": node_id[:16], "pid": state["pid"], "adopted": state["adopted"]})

    def stop(self) -> None:
        """Stop all nodes, and end their holders."""
        seconds = self._settings.shutdown_timeout + _GRACE
        stops = [holder.stop.remote(seconds) for holder in self._holders.values()]
        if stops:
            self._ray.wait(stops, num_returns=len(stops), timeout=seconds + _GRACE)
        for holder in self._holders.values():
            self._ray.kill(holder, no_restart=True)

    def hurry(self) -> None:
        """End the wait of stopped nodes for their sessions."""
        for holder in self._holders.values():
            holder.hurry.remote()


class _Launcher:
    """The launcher's commands: ``stop``, and ``hurry`` after it."""

    def __init__(self) -> None:
        self.stop = False
        self.ended = threading.Event()
        self._driver: _Driver | None = None

    def follow(self, driver: _Driver) -> None:
        """Read commands in a thread of its own."""
        self._driver = driver
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in sys.stdin:
            if line == "hurry\n" and self._driver is not None:
                self._driver.hurry()
            else:
                self.stop = True
                self.ended.set()
        self.ended.set()


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def _run(order: DriverOrder, settings: Settings, events: int) -> None:
    refuse_subreaper(os.environ)
    ray = import_module("ray")
    try:
        ray.init(address=order.address, namespace=NAMESPACE, logging_level="warning")
        logging.setLogRecordFactory(logging.LogRecord)  # Ray's adds a time to each line
    except ConnectionError as error:
        raise HolderFailed(f"There is no Ray at {order.address!r}: {_last_line(error)}") from None
    os.write(events, b"connected\n")
    driver, launcher = _Driver(ray, order, settings), _Launcher()
    launcher.follow(driver)
    while not launcher.ended.is_set():
        driver.look()
        launcher.ended.wait(_LOOK)
    if launcher.stop:
        driver.stop()
    ray.shutdown()


def main() -> int:
    """Follow the launcher's order; return the exit status."""
    events = os.dup(1)
    os.dup2(2, 1)  # Ray prints the logs of nodes on the standard output
    order = DriverOrder(**json.loads(sys.stdin.readline()))
    logs = start_logging(Settings())
    try:
        _run(order, Settings(), events)
    except HolderFailed as error:
        logger.error(str(error))
        return REFUSED
    finally:
        logs.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
