"""The messages of ``ors-server serve`` once it listens: address, environments, and the variables a client needs.

They are log records of level info, so they go to standard error and never stop the server.
"""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar
from urllib.parse import urlsplit

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ors_server.server import Server
from ors_server.wire.version import VERSION

__all__ = ["client_url", "print_banner"]

#: Seconds that the table waits for tasks to be counted.
COUNTING_LIMIT = 2.0

logger = logging.getLogger("ors_server.serve")

Result = TypeVar("Result")
_running: set[asyncio.Task[Any]] = set()


def print_banner(server: Server, url: str) -> None:
    """Log the address now and the rest as soon as the tasks are counted. Call it on the server's event loop."""
    logger.info(f"ors-server {VERSION} listens on {url}; Ctrl-C stops it.")
    _background(_print_rest(server, client_url(url)))


def _background(work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
    task = asyncio.get_running_loop().create_task(work)
    _running.add(task)  # The loop itself keeps only a weak reference.
    task.add_done_callback(_running.discard)
    return task


async def _print_rest(server: Server, url: str) -> None:
    counts = {hosted.name: _background(server.count_tasks(hosted.name)) for hosted in server.environments}
    # A slower count goes on: it warms the cache for the first client that asks for these tasks.
    await asyncio.wait(counts.values(), timeout=COUNTING_LIMIT)
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    headings = ["Environment", "Split", "Tasks"]
    if any(hosted.aliases for hosted in server.environments):
        headings.append("Also called")
    for heading in headings:
        table.add_column(heading)
    for hosted in server.environments:
        counted = counts[hosted.name]
        numbers = counted.result() if counted.done() else None
        for index, split in enumerate(hosted.splits):
            if numbers is None:
                number = "many"
            else:
                count = numbers.get(split.name)
                number = "unknown" if count is None else f"{count:,}"
            first = index == 0
            row = [
                Text(hosted.name if first else ""),
                Text(split.name if split.name == split.type else f"{split.name} ({split.type})"),
                Text(number, justify="right"),
                Text(", ".join(hosted.aliases) if first else ""),
            ]
            table.add_row(*row[: len(headings)])
    text = io.StringIO()
    console = Console(file=text, highlight=False, force_terminal=False)
    console.print("It serves:\n")
    console.print(table)
    for name, reason in server.catalogue.reasons.items():
        console.print(Text(f"\nNot served here: {name}. {reason}"), soft_wrap=True)
    if server.settings.listen is None:
        console.print("\nClients of openreward, TRL among them, find it with:\n")
        for variable in ("OPENREWARD_API_URL", "OPENREWARD_SESSION_URL"):
            console.print(Text(f"export {variable}={url}"), soft_wrap=True)
        if server.app.authenticator.keys.wanted:
            console.print("\nand with a key in OPENREWARD_API_KEY, or ORS_API_KEY for ors_clients.")
    else:
        console.print("\nClients find it at the address of the proxy in front of it.")
    logger.info(text.getvalue())


def client_url(url: str) -> str:
    """Return the address for a client on this machine: that of a server on every interface cannot be called."""
    parts = urlsplit(url)
    local = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(parts.hostname or "")  # noqa: S104 - recognised, not listened on
    return url if local is None else f"{parts.scheme}://{local}:{parts.port}"
