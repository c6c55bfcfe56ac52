"""The serving of an application: its socket, its HTTP server, its announcement as a worker, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import uvicorn
from ors_containers.linux.limits.file_limit import raise_file_limit

from ors_server.http.acceptor import Acceptor
from ors_server.http.hot_app import HotApp
from ors_server.http.listeners import listen_privately, listen_publicly, url_of
from ors_server.http.uvicorn_protocol import http_protocol
from ors_server.settings import Settings
from ors_server.telemetry.counts import Sample
from ors_server.telemetry.definitions import CONNECTIONS
from ors_server.telemetry.logs import start_logging
from ors_server.telemetry.tracing import start_tracing, stop_tracing
from ors_server.wire.version import HANDSHAKE, VERSION
from ors_server.worker import Announcement, Identity, announce, identity, supervisor_ended

__all__ = ["Served", "serve_application"]

logger = logging.getLogger("ors_server.server")

#: Seconds that a proxy's connection may be idle: practically without limit. A proxy that reuses a connection at the
#: moment when the server closes it could not tell this from the death of the server.
_NO_LIMIT = 365 * 24 * 3600
#: Seconds that a worker without a supervisor must have had no session before it ends: clients collect what is left.
_IDLE = 5.0


class Served(Protocol):
    """The sessions, or sandboxes, of an application."""

    def __len__(self) -> int:
        """Return how many live."""
        ...

    def take_no_more(self) -> None:
        """Refuse new ones from now on; those that live go on."""
        ...

    async def close(self) -> None:
        """End all of them, and wait for them up to their limits."""
        ...

    def abandon(self) -> None:
        """Free what they hold without waiting for any of them."""
        ...


def serve_application(
    app: HotApp,
    settings: Settings,
    sessions: Served,
    environments: Sequence[Sequence[str]],
    unavailable: Mapping[str, str],
    on_ready: Callable[[str], None],
) -> None:
    """Serve until interrupted, at the settings' host and port or where they say to ``listen`` for a proxy.

    A worker announces the names of its ``environments``, and the reasons why others
    are ``unavailable``. ``on_ready`` gets the address once the server listens. Raises ``PortInUse``.
    """
    listener = start_logging(settings)
    try:
        if settings.traces:
            start_tracing()
        with (
            listen_publicly(settings.host, settings.port)
            if settings.listen is None
            else listen_privately(settings.listen)
        ) as sock:
            _check_file_limit()
            worker = identity()
            config = uvicorn.Config(
                app,
                loop="uvloop",
                http=http_protocol(
                    settings.max_headers,
                    behind_proxy=settings.listen is not None,
                    behind_gateway=worker is not None,
                    verifier=bytes.fromhex(worker.verifier) if worker is not None else b"",
                ),
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=(int(settings.keep_alive) or 1) if settings.listen is None else _NO_LIMIT,
                timeout_graceful_shutdown=3,
            )
            url = url_of(sock, settings.host)

            def ready() -> None:
                on_ready(url)
                if worker is not None:
                    server.end_with_supervisor(worker)
                    address = f"tcp:{url.removeprefix('http://')}" if sock.family != socket.AF_UNIX else url
                    names = [list(each) for each in environments]
                    announce(worker, Announcement(address, names, VERSION, HANDSHAKE, dict(unavailable)))

            server = _UvicornServer(config, ready, sessions)
            if app.metrics is not None:
                app.metrics.sources.append(server.samples)
            with contextlib.suppress(KeyboardInterrupt):
                server.run(sockets=[sock])
    finally:
        stop_tracing()
        listener.stop()


class _UvicornServer(uvicorn.Server):
    """uvicorn that calls ``ready`` once it listens, and ends the sessions before it waits for their connections."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None], sessions: Served) -> None:
        super().__init__(config)
        self._ready = ready
        self._sessions = sessions
        self._ending: asyncio.Task[None] | None = None

    def samples(self) -> list[Sample]:
        """Return its part of ``/metrics``."""
        return [Sample(CONNECTIONS, (), len(self.server_state.connections))]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        # Without sockets uvicorn does not listen; an ``Acceptor`` accepts and hands it the connections.
        await super().startup([])
        if self.started:
            loop = asyncio.get_running_loop()
            self.servers.extend(Acceptor(sock, self._protocol, loop) for sock in sockets or [])  # pyright: ignore[reportArgumentType] - it has what uvicorn calls of an asyncio.Server
            self._ready()

    def end_with_supervisor(self, worker: Identity) -> None:
        """Take no new sessions once the supervisor has ended, and stop when none is left."""

        async def end() -> None:
            await supervisor_ended(worker)
            logger.error("the supervisor has ended; this worker takes no new sessions, and ends with its last one")
            self._sessions.take_no_more()
            idle_since = time.monotonic()
            while time.monotonic() < idle_since + _IDLE:
                await asyncio.sleep(0.5)
                if len(self._sessions):
                    idle_since = time.monotonic()
            self.should_exit = True

        self._ending = asyncio.get_running_loop().create_task(end())

    def _protocol(self) -> asyncio.Protocol:
        protocol: type[Any] = self.config.http_protocol_class
        return protocol(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        logger.info("stopping", extra={"sessions": len(self._sessions)})
        if self._ending is not None:
            self._ending.cancel()
        # Sessions end first: their open streams then end with an event that has the reason, and uvicorn cuts none.
        closing = asyncio.create_task(self._sessions.close())
        while not closing.done() and not self.force_exit:  # a second Ctrl-C ends the wait
            await asyncio.wait((closing,), timeout=0.1)
        if not closing.done():
            closing.cancel()
            self._sessions.abandon()
        await super().shutdown(sockets)
        logger.info("stopped")
        # uvicorn would raise the signal again, which would end the process before its logs are written.
        self._captured_signals.clear()


def _check_file_limit() -> None:
    raise_file_limit()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if sys.platform == "linux" and hard < 8192:
        logger.info("few open files allowed", extra={"limit": hard, "remedy": "ulimit -n 65536"})
