"""What ``ors-server serve`` prints once it listens: the address, the environments, and what a client has to be told."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar
from urllib.parse import urlsplit

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ors_server._version import VERSION
from ors_server.cli.output import StandardOutput
from ors_server.server import Server

__all__ = ["client_url", "print_banner"]

#: Seconds that counting tasks may hold the table back.
COUNTING_LIMIT = 2.0

Result = TypeVar("Result")
_running: set[asyncio.Task[Any]] = set()


def print_banner(server: Server, url: str) -> None:
    """Print the address now and the rest as soon as the tasks are counted; called on the server's event loop."""
    console, output = Console(highlight=False), StandardOutput()
    with console.capture() as capture:
        console.print(f"ors-server {VERSION} listens on [bold]{url}[/bold]; Ctrl-C stops it.", soft_wrap=True)
    output.write(capture.get())
    _background(_print_rest(console, output, server, client_url(url)))


def _background(work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
    task = asyncio.get_running_loop().create_task(work)
    _running.add(task)  # The loop itself keeps only a weak reference.
    task.add_done_callback(_running.discard)
    return task


async def _print_rest(console: Console, output: StandardOutput, server: Server, url: str) -> None:
    counts = {hosted.name: _background(server.count_tasks(hosted.name)) for hosted in server.environments}
    # A count that takes longer goes on: the first client that asks for these tasks will be glad of it.
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
                Text(hosted.name if first else "", style="bold"),
                Text(split.name if split.name == split.type else f"{split.name} ({split.type})"),
                Text(number, justify="right"),
                Text(", ".join(hosted.aliases) if first else ""),
            ]
            table.add_row(*row[: len(headings)])
    with console.capture() as capture:
        console.print()
        console.print(table)
        for name, reason in server.catalogue.reasons.items():
            console.print(Text(f"\nNot served here: {name}. {reason}", style="yellow"), soft_wrap=True)
        console.print("\nClients of openreward, TRL among them, find it with:\n")
        for variable in ("OPENREWARD_API_URL", "OPENREWARD_SESSION_URL"):
            console.print(Text(f"export {variable}={url}"), soft_wrap=True)
        console.print()
    output.write(capture.get())


def client_url(url: str) -> str:
    """The address a client on this machine uses: that of a server on every interface is no address to call."""
    parts = urlsplit(url)
    local = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(parts.hostname or "")  # noqa: S104 - recognised, not listened on
    return url if local is None else f"{parts.scheme}://{local}:{parts.port}"
