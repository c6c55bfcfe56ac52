"""``ors-server serve --workers``: several processes behind one address."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Generator, Sequence
from pathlib import Path

from ors_cli.serving.banner import client_url
from ors_server.cluster.supervisor.control import Control, has_left_gateways
from ors_server.cluster.supervisor.pools import SANDBOX_WORKER, Pool, read_pools
from ors_server.cluster.supervisor.supervisor import Supervisor, gateways_for
from ors_server.http.errors import PortInUse
from ors_server.http.listeners import listen_publicly, url_of
from ors_server.settings import Settings
from ors_server.telemetry.logs import start_logging
from ors_server.wire.version import VERSION

__all__ = ["serve_with_workers"]

logger = logging.getLogger("ors_server.serve")


@contextlib.contextmanager
def _listen(settings: Settings) -> Generator[socket.socket]:
    try:
        with listen_publicly(settings.host, settings.port) as listening:
            yield listening
    except PortInUse as error:
        if not has_left_gateways(settings.port):
            raise
        raise PortInUse(
            f"{error.cause}: the supervisor of the server there was killed; its workers end with their last sessions",
            "Wait for that, or end its processes, or choose another port with --port.",
        ) from None


def serve_with_workers(
    arguments: Sequence[str], settings: Settings, workers: int, gateways: int | None, pools: Path | None = None
) -> None:
    """Serve until SIGTERM or Ctrl-C. ``arguments`` start one worker, and ``pools`` is a file of further ones.

    Raises ``PortInUse``, ``PoolsError`` and ``WorkerFailed``.
    """
    served = [Pool(arguments, workers), *(read_pools(pools) if pools is not None else [])]
    total = sum(pool.workers for pool in served)
    logs = start_logging(settings)
    try:
        with _listen(settings) as listening:
            url = url_of(listening, settings.host)
            supervisor = Supervisor(
                served,
                settings,
                gateways=gateways or gateways_for(total),
                sandboxes=Pool([], 1, module=SANDBOX_WORKER) if settings.sandbox_service else None,
            )

            def ready() -> None:
                port = listening.getsockname()[1]
                if settings.log_format == "json":
                    logger.info("serving", extra={"url": url, "workers": total, "version": VERSION})
                    return
                logger.info(f"ors-server {VERSION} listens on {url}, with {total} workers; Ctrl-C stops it.")
                logger.info(
                    f"`ors-server workers --port {port}` shows the workers. Clients of openreward, TRL among them, find"
                    f" the server with:\n\nexport OPENREWARD_API_URL={client_url(url)}\n"
                    f"export OPENREWARD_SESSION_URL={client_url(url)}\n"
                )

            async def run() -> None:
                async with Control(supervisor, *listening.getsockname()[:2]):
                    await supervisor.run(listening, ready)

            asyncio.run(run())
    finally:
        logs.stop()
