"""Deliver a call's result to a client: in one response if the call ends soon, else as an event stream.

The stream opens with ``task_id`` at once, and comments keep it alive until the result comes. The ledger learns whether
the last byte was written before the connection was lost, and behind a proxy whether it has reached the client
(``delivery``): that decides what a repeated request means (``call_ledger``).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from ors_server.http.exchange import Exchange
from ors_server.sessions.calls.call import LARGE, Call
from ors_server.sessions.calls.call_ledger import CallLedger
from ors_server.sessions.calls.result_store import ResultStore
from ors_server.wire.sse import task_frame

__all__ = ["await_lost_twin", "deliver"]

#: Seconds that a call without a key waits behind a proxy while the same call runs for another connection.
_TWIN_WAIT = 0.05


async def await_lost_twin(exchange: Exchange, ledger: CallLedger, name: str, input: Mapping[str, Any]) -> None:
    """Wait a moment behind a proxy where the same call runs for another connection.

    A client that has lost its connection to a proxy may be back before the proxy has reported the loss.
    """
    if exchange.delivery is not None and ledger.has_connected_twin(name, input):
        await asyncio.sleep(_TWIN_WAIT)


async def deliver(
    exchange: Exchange, ledger: CallLedger, results: ResultStore, call: Call, *, stream_after: float, heartbeat: float
) -> None:
    """Answer ``exchange`` with a call's events, however long the call takes. Times in seconds."""
    written = False
    watcher = asyncio.create_task(exchange.watch()) if exchange.needs_watch else None
    ledger.begin_response(call, exchange)
    try:
        if not call.done:
            await asyncio.sleep(0)  # most tools end in their first turn: a timer would cost more than they do
            if not call.done:
                await call.wait(stream_after)
        elif watcher is not None:
            await asyncio.sleep(0)  # so that it has run at least once
        if exchange.disconnected:
            return
        if not call.done:
            await exchange.begin_stream(task_frame(call.task_id))
            while not call.done and not exchange.disconnected:
                await call.wait(heartbeat, exchange)
                if not call.done and not exchange.disconnected:
                    await exchange.send_frames(b": ping - %b\r\n\r\n" % str(datetime.now(UTC)).encode())
            if not exchange.disconnected:
                written = await _end_stream(exchange, ledger, results, call)
            return
        if watcher is not None:
            watcher.cancel()
        if call.length > LARGE:
            ledger.begin_large_response(call)
            await exchange.large_events(task_frame(call.task_id), call.length, results.pieces(call))
        else:
            frames = call.frames if call.frames is not None else await results.frames(call)
            await exchange.events(task_frame(call.task_id) + frames)
        written = not exchange.disconnected
    finally:
        if watcher is not None:
            watcher.cancel()
        delivery = exchange.delivery if written else None
        if delivery is None:
            ledger.end_response(call, exchange, delivered=written)
        else:
            delivery.await_confirmation(lambda delivered: ledger.end_response(call, exchange, delivered=delivered))


async def _end_stream(exchange: Exchange, ledger: CallLedger, results: ResultStore, call: Call) -> bool:
    """Send the result; return whether it was written."""
    if call.length > LARGE:
        ledger.begin_large_response(call)
        async with contextlib.aclosing(results.pieces(call)) as pieces:
            async for piece in pieces:
                await exchange.send_frames(piece)
                if exchange.disconnected:
                    return False
        # Waits until the socket has taken nearly all of it; a lost connection is known by then.
        await exchange.send_frames(b"", last=True)
    else:
        await exchange.send_frames(await results.frames(call), last=True)
    return not exchange.disconnected
