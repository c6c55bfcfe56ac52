"""The state streams by which a gateway, or a supervisor, knows how its workers are.

A worker writes a line every second. The end of the stream is news of its death within milliseconds; its silence is
the loss of its sessions (``workers``).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

from ors_server.cluster.gateway.members.workers import ENDED, LOST_AFTER, Worker
from ors_server.http.addresses import open_stream
from ors_server.wire.version import HANDSHAKE, VERSION

__all__ = ["watch"]

logger = logging.getLogger("ors_server.gateway")

#: Seconds before a stream that ended is opened again, on a worker that still listens; and where it had reports, so that
#: its worker has most likely ended and refuses the next one.
_PAUSE, _MOMENT = 0.2, 0.005
#: Seconds before a stream that could not be opened is tried again.
_LONG_PAUSE = 1.0
#: Warnings about one worker that are logged.
_REASONS = 10


async def watch(worker: Worker, on_report: Callable[[Mapping[str, Any]], None] | None = None) -> None:
    """Keep a worker's state up to date until it has ended. ``on_report`` gets each report."""
    warnings = _Warnings(worker)
    while True:
        pause = _PAUSE
        try:
            reader, writer = await asyncio.wait_for(open_stream(worker.address), LOST_AFTER)
        except ENDED as error:
            _report_death(worker, str(error))
            return
        except (OSError, TimeoutError) as error:
            warnings.unreadable(str(error) or "it does not accept connections")
            await asyncio.sleep(_LONG_PAUSE)
            continue
        reports = 0
        try:
            writer.write(b"GET /_ors/state HTTP/1.1\r\nhost: worker\r\n" + worker.greeting + b"\r\n")
            while line := await asyncio.wait_for(reader.readline(), LOST_AFTER):
                if not line.startswith(b"{"):
                    continue  # the head, and the sizes of chunks
                state: Mapping[str, Any] = json.loads(line)
                if (state["slot"], state["incarnation"]) != worker.place:
                    _report_death(worker, "another worker listens at its address")
                    return
                if state.get("handshake") != HANDSHAKE:
                    of_worker = f"{state.get('version', 'of an older version')} with {state.get('handshake', 0)}"
                    reason = f"it has ors-server {of_worker} as private protocol"
                    _report_death(worker, f"{reason}, and this gateway {VERSION} with {HANDSHAKE}")
                    return
                worker.report(state)
                pause = _MOMENT if reports else _PAUSE
                reports += 1
                if on_report is not None:
                    on_report(state)
        except TimeoutError:
            warnings.unreadable(f"no report for {LOST_AFTER:g} s")  # a new connection may reach it again
        except (OSError, ValueError, LookupError, ArithmeticError, RecursionError, TypeError, AttributeError) as error:
            warnings.unreadable(f"{type(error).__name__}: {error}")
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        await asyncio.sleep(pause)


class _Warnings:
    """The warnings about one worker, each of them once."""

    def __init__(self, worker: Worker) -> None:
        self._slot = worker.place.slot
        self._reasons = set[str]()

    def unreadable(self, reason: str) -> None:
        if reason not in self._reasons and len(self._reasons) < _REASONS:
            self._reasons.add(reason)
            logger.warning("a worker's state cannot be read", extra={"slot": self._slot, "reason": reason})


def _report_death(worker: Worker, reason: str) -> None:
    logger.info("worker lost", extra={"slot": worker.place.slot, "reason": reason})
    worker.die()
