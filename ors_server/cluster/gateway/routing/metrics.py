"""``/metrics`` of a gateway: the figures of its workers, of the gateways beside it, and its own.

Each worker's series have its slot as label ``worker``. They are not summed here: the counters of a worker that was
started again begin at zero, which Prometheus recognises in each series, and could not in a sum. For the same reason a
gateway that is started again keeps its number, the label ``gateway``. Clients do not choose which gateway answers them,
so each asks the others of its server, over Unix sockets in their folder.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path

from ors_server.cluster.gateway.members.workers import Life, Worker, Workers
from ors_server.cluster.gateway.proxy.answers import text_response
from ors_server.cluster.gateway.proxy.framing import Head
from ors_server.cluster.gateway.proxy.worker_requests import ask, key_lines
from ors_server.cluster.gateway.routing.auth import credential_in
from ors_server.telemetry import definitions
from ors_server.telemetry.counts import Sample
from ors_server.telemetry.exposition import CONTENT_TYPE, expose, merge

__all__ = ["GatewayCounts", "GatewayMetrics"]

#: Seconds in which another gateway has to answer; Prometheus waits for 10.
_PATIENCE = 4.0


class GatewayCounts:
    """The requests of one gateway."""

    __slots__ = ("by_gateway", "by_worker", "lost", "unreachable")

    def __init__(self) -> None:
        self.by_worker = 0
        self.by_gateway = 0
        self.unreachable = 0
        self.lost = 0


class GatewayMetrics:
    """The figures of one gateway. ``number`` and ``folder`` are those of a gateway with others beside it."""

    def __init__(
        self,
        workers: Workers,
        counts: GatewayCounts,
        connections: Collection[object],
        number: int | None = None,
        folder: Path | None = None,
    ) -> None:
        self._workers = workers
        self._counts = counts
        self._connections = connections
        self._labels = {} if number is None else {"gateway": str(number)}
        self._socket = None if folder is None else folder / f"gateway-{number}.sock"
        self._listening: asyncio.Server | None = None

    async def listen(self) -> None:
        """Answer the gateways beside this one, until ``close``."""
        if self._socket is not None:
            self._socket.unlink(missing_ok=True)  # of an earlier gateway of this number
            self._listening = await asyncio.start_unix_server(self._tell, self._socket)

    def close(self) -> None:
        """Answer no more."""
        if self._listening is not None:
            self._listening.close()

    async def respond(self, head: Head) -> bytes:
        """Return the response to a scrape, whose key the gateway has checked; its workers check it as well."""
        if b"workers=no" in head.target.partition(b"?")[2].split(b"&"):
            return text_response(await self._own(), CONTENT_TYPE)
        workers = sorted(self._workers, key=lambda worker: worker.place.slot)
        figures = await asyncio.gather(*(_ask(worker, head) for worker in workers))
        up = [
            Sample(definitions.WORKER_UP, (str(worker.place.slot),), int(bool(text)))
            for worker, text in zip(workers, figures, strict=True)
        ]
        others = await self._others()
        own = [await self._own(), *others, await expose(up, {}, process=False)]
        return text_response(merge([*own, *figures]), CONTENT_TYPE)

    async def _own(self) -> bytes:
        return await expose(self._samples(), self._labels)

    def _samples(self) -> Iterable[Sample]:
        counts = self._counts
        yield Sample(definitions.GATEWAY_REQUESTS, ("worker",), counts.by_worker)
        yield Sample(definitions.GATEWAY_REQUESTS, ("gateway",), counts.by_gateway)
        yield Sample(definitions.GATEWAY_ERRORS, ("connect",), counts.unreachable)
        yield Sample(definitions.GATEWAY_ERRORS, ("lost",), counts.lost)
        yield Sample(definitions.GATEWAY_CONNECTIONS, (), len(self._connections))
        yield Sample(definitions.GATEWAY_UPSTREAMS, (), sum(len(worker.connections) for worker in self._workers))
        lives = Counter(worker.life for worker in self._workers)
        for life in Life:
            yield Sample(definitions.GATEWAY_WORKERS, (life.value,), lives[life])

    # --- the gateways beside it --------------------------------------------------------------

    async def _tell(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            writer.write(await self._own())
            await writer.drain()
        writer.close()

    async def _others(self) -> list[bytes]:
        if self._socket is None:
            return []
        found = [path for path in sorted(self._socket.parent.glob("gateway-*.sock")) if path != self._socket]
        return list(await asyncio.gather(*map(_read, found)))


async def _read(path: Path) -> bytes:
    """Read the figures of another gateway; empty where it has ended or hangs."""
    try:
        async with asyncio.timeout(_PATIENCE):
            reader, writer = await asyncio.open_unix_connection(path)
            try:
                return await reader.read()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return b""


async def _ask(worker: Worker, head: Head) -> bytes:
    """Return a worker's figures, asked for with the key of a scrape; empty where it does not answer."""
    if worker.life not in (Life.SERVING, Life.SILENT):
        return b""
    status, text = await ask(worker, "/_ors/figures", *key_lines(credential_in(head)))
    return text if status == 200 else b""
