"""The table of what published environments need and this machine has, as ``ors-server host`` prints it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ors_server.checkouts.loaded_checkouts import FoundCheckout
from ors_server.checkouts.report import Host, Row, rows_of
from ors_server.telemetry.logs import note

__all__ = ["console_of", "print_needs"]

#: Characters of a line where the table goes to a file.
_WIDTH = 200


def console_of(stream: TextIO) -> Console:
    """Return a console whose lines in a file are not those of a narrow terminal."""
    width = None if stream.isatty() or "COLUMNS" in os.environ else _WIDTH
    return Console(file=stream, highlight=False, width=width)


def print_needs(console: Console | None, environments: Sequence[FoundCheckout], secrets: Mapping[str, str]) -> bool:
    """Print the table, or without a console lines of a log in JSON; return whether something is missing."""
    missing = False
    for each in environments:
        checkout = each.checkout
        named = frozenset((*secrets, "api_key"))  # each environment has a key of this server
        offered = Host(checkout.name, each.data, each.data_named, named, os.environ, _missing_image)
        rows = rows_of(each.needs, offered)
        at = f" at {checkout.commit[:12]}{'+' if checkout.commit.endswith('+') else ''}" if checkout.commit else ""
        relative = checkout.program.relative_to(checkout.folder)
        lacking = [row for row in rows if row.there is False]
        missing = missing or bool(lacking)
        if console is None:
            reasons = [f"{row.need} {row.wanted}: {row.state}. {row.remedy}" for row in lacking]
            note("needs", environment=checkout.name, commit=checkout.commit, program=str(relative), missing=reasons)
            continue
        console.print(Text(f"{checkout.name}{at}: {relative}, {each.requirements.source.name}"), soft_wrap=True)
        if rows:
            console.print(_table(rows), soft_wrap=True)
        else:
            console.print("  needs nothing but Python")
    return missing


def _table(rows: Sequence[Row]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 2), show_header=False)
    for _ in range(3):
        table.add_column(overflow="fold")
    for row in rows:
        mark = {True: "ok", False: "missing", None: "?"}[row.there]
        style = {True: "green", False: "bold red", None: "yellow"}[row.there]
        state = Text.assemble((mark, style), f"  {row.state}", f"\n{row.remedy}" if row.remedy else "")
        table.add_row(row.need, Text(row.wanted), state)
    return table


def _missing_image(image: str) -> tuple[str, str] | None:
    """Return why there is no image for a name, and the remedy; None where it exists or can be made."""
    from ors_containers.errors import SandboxError
    from ors_containers.images import ImageMap, ImageStore

    try:
        with contextlib.closing(ImageStore()) as store:
            problem = ImageMap(store).look_up(image).problem
    except SandboxError as error:
        problem = error
    if problem is None:
        return None
    cause, _, remedy = str(problem).partition(". ")
    return cause, remedy or f"`ors-server image map {image}` says more."
