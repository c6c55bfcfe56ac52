"""``ors-server serve --engine ray``: nodes on the machines of a Ray cluster."""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import logging
import os
import secrets
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ors_containers.distribution import install_command

from ors_cli.serving.banner import client_url
from ors_server.cluster.errors import RayFailed
from ors_server.keys.cluster_key import KEY_FILE_VARIABLE, KEY_VARIABLE, ClusterKey, take_secret
from ors_server.settings import Settings
from ors_server.telemetry.logs import start_logging

__all__ = ["RayOptions", "serve_on_ray"]

logger = logging.getLogger("ors_server.ray")

#: Settings of the gateway alone.
_OF_GATEWAYS = ("host", "port", "listen", "keep_alive")


class RayOptions(NamedTuple):
    """The options of ``--engine ray``."""

    address: str
    workers: int
    #: None for one for each worker.
    cpus: float | None
    memory: int | None
    labels: Sequence[str]
    join: Sequence[str]


def serve_on_ray(arguments: Sequence[str], settings: Settings, options: RayOptions) -> None:
    """Serve until SIGTERM or Ctrl-C. ``arguments`` start one worker. Raises ``RayFailed``."""
    if importlib.util.find_spec("ray") is None:
        raise RayFailed("Ray is not installed", f"Install it: {install_command('ray')}.")
    from ors_server.cluster.ray.launcher import Launcher
    from ors_server.cluster.ray.orders import DriverOrder

    key = take_secret() or secrets.token_hex(32)
    ClusterKey(key.encode())  # refuses a short one before anything is started
    join = [url.strip() for text in options.join for url in text.split(",") if url.strip()]
    port = None if join else settings.port or _free_port(settings.host)
    url = f"http://{settings.host}:{port}"
    order = DriverOrder(
        address=options.address,
        cluster=hashlib.blake2b(f"{key} {join or port}".encode(), digest_size=4).hexdigest(),
        key=key,
        join=join or [url],
        arguments=["node", *arguments[1:], "--workers", str(options.workers)],
        variables=_variables(settings, options.memory),
        folder=str(Path.cwd()),
        labels=dict(_label(text) for text in options.labels),
        cpus=float(options.workers) if options.cpus is None else options.cpus,
        memory=options.memory,
    )
    logs = start_logging(settings)

    def connected() -> None:
        logger.info("connected to Ray; nodes are placed on it, and on machines that join; Ctrl-C stops all of them")
        for each in join or [url]:
            logger.info(
                f"Clients of openreward, TRL among them, find the server with:\n\nexport OPENREWARD_API_URL="
                f"{client_url(each)}\nexport OPENREWARD_SESSION_URL={client_url(each)}\n"
            )

    try:
        asyncio.run(Launcher(order, settings, port).run(connected))
    finally:
        logs.stop()


def _variables(settings: Settings, memory: int | None) -> dict[str, str]:
    """Return the variables of nodes: this process's that begin with ORS_, and all settings."""
    own = {name: value for name, value in os.environ.items() if name.startswith("ORS_")}
    own.setdefault("ORS_ORPHAN_TTL", "900")  # a node and its actor outlive a ``serve`` that was killed
    for name in (KEY_VARIABLE, KEY_FILE_VARIABLE):
        own.pop(name, None)
    dumped: dict[str, Any] = settings.model_dump(mode="json", exclude=set(_OF_GATEWAYS), exclude_none=True)
    own.update((f"ORS_{name.upper()}", str(value)) for name, value in dumped.items())
    if memory is not None:
        own["ORS_SANDBOX_MEMORY"] = str(memory)
    return own


def _label(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not (separator and name.strip()):
        raise RayFailed(f"--node-label {text!r} is not a label", "Write it as NAME=VALUE.")
    return name.strip(), value.strip()


def _free_port(host: str) -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
