"""The driver: the one process of ours that imports Ray. It places a node on every fitting machine of the cluster.

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

from ors_server.cluster.ray.node_actor import NodeActor
from ors_server.cluster.ray.orders import REFUSED, DriverOrder, NodeFailed, NodeOrder
from ors_server.settings import Settings
from ors_server.telemetry.logs import start_logging

__all__ = ["NAMESPACE", "fits"]

logger = logging.getLogger("ors_server.ray")

NAMESPACE = "ors-server"
#: Label by which Ray pins an actor to a machine, which it calls a node.
_MACHINE_LABEL = "ray.io/node-id"
#: Seconds between looks at the machines of the cluster.
_LOOK = 2.0
#: Seconds before a machine whose node failed gets another.
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
        self._actors: dict[str, Any] = {}
        #: The machine of each call to an actor that runs: for the node's process, then for its end.
        self._starts: dict[Any, str] = {}
        self._ends: dict[Any, str] = {}
        self._has_started = False
        #: When a machine whose node failed gets another, by machine.
        self._retries: dict[str, float] = {}
        here = str(ray.util.get_node_ip_address())
        #: Addresses of the gateways, as nodes reach them.
        self._join = ",".join(re.sub(r"//(0\.0\.0\.0|\[::\])(?=[:/])", f"//{here}", url) for url in order.join)

    def look(self) -> None:
        """Start nodes on new machines, and forget those that have gone. Raises ``NodeFailed``."""
        fitting = {str(node["NodeID"]) for node in self._ray.nodes() if fits(node, self._order)}
        for machine in self._actors.keys() - fitting:
            # Ray would wait for the machine without end: an actor that is pinned to it fits nowhere else.
            self._ray.kill(self._actors.pop(machine), no_restart=True)
            logger.error("machine left Ray", extra={"machine": machine[:16]})
        now = time.monotonic()
        for machine in fitting - self._actors.keys():
            if self._retries.get(machine, now) <= now:
                actor = self._actors[machine] = self._make(machine)
                self._starts[actor.process.remote()] = machine
        self._note_starts()
        self._note_ends()

    def _make(self, machine: str) -> Any:
        order = self._order
        arguments = [*order.arguments, "--join", self._join, "--name", f"ray-{machine[:12]}"]
        # The actor itself computes nothing: these are the resources of its node.
        remote = self._ray.remote(NodeActor).options(
            name=f"node-{order.cluster}-{machine}",
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            max_restarts=-1,
            max_task_retries=-1,
            max_concurrency=4,
            num_cpus=order.cpus,
            memory=order.memory,
            label_selector={_MACHINE_LABEL: machine},
        )
        return remote.remote(NodeOrder(order.key, arguments, order.variables, order.folder))

    def _note_starts(self) -> None:
        for machine, process, failure in self._answers(self._starts):
            if failure is None:
                self._has_started = True
                logger.info("node started", extra={"machine": machine[:16], "pid": process})
                self._ends[self._actors[machine].wait.remote()] = machine
                continue
            # An actor that could not be made; its machine may also have died meanwhile.
            self._give_up(machine)
            if not self._has_started:
                raise NodeFailed(failure)
            logger.error("no node here", extra={"machine": machine[:16], "reason": failure})

    def _note_ends(self) -> None:
        for machine, status, failure in self._answers(self._ends):
            logger.error("node ended", extra={"machine": machine[:16], "status": status, "reason": failure})
            self._give_up(machine)

    def _answers(self, calls: dict[Any, str]) -> list[tuple[str, Any, str | None]]:
        """Take out calls that have ended, of machines that are there: the machine, the answer, the failure or None."""
        answers: list[tuple[str, Any, str | None]] = []
        if not calls:
            return answers
        for reference in self._ray.wait(list(calls), num_returns=len(calls), timeout=0)[0]:
            machine = calls.pop(reference)
            try:
                answer, failure = self._ray.get(reference), None
            except self._ray.exceptions.RayError as error:
                answer, failure = None, _last_line(error)
            if machine in self._actors:
                answers.append((machine, answer, failure))
        return answers

    def _give_up(self, machine: str) -> None:
        """Have a machine without a node until the next try."""
        self._ray.kill(self._actors.pop(machine), no_restart=True)
        self._retries[machine] = time.monotonic() + _RETRY

    def stop(self) -> None:
        """Stop all nodes, and end their actors."""
        seconds = self._settings.shutdown_timeout + _GRACE
        stops = [actor.stop.remote(seconds) for actor in self._actors.values()]
        if stops:
            self._ray.wait(stops, num_returns=len(stops), timeout=seconds + _GRACE)
        for actor in self._actors.values():
            self._ray.kill(actor, no_restart=True)

    def hurry(self) -> None:
        """End the wait of stopped nodes for their sessions."""
        for actor in self._actors.values():
            actor.hurry.remote()


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
    ray = import_module("ray")
    try:
        ray.init(address=order.address, namespace=NAMESPACE, logging_level="warning")
        logging.setLogRecordFactory(logging.LogRecord)  # Ray's adds a time to each line
    except ConnectionError as error:
        raise NodeFailed(f"There is no Ray at {order.address!r}: {_last_line(error)}") from None
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
    except NodeFailed as error:
        logger.error(str(error))
        return REFUSED
    finally:
        logs.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
