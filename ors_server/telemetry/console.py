"""Errors as programs print them."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from ors_server.errors import OrsError

__all__ = ["print_error"]


def print_error(error: OrsError) -> None:
    """Print an error to standard error: its cause and, on the next line, its remedy."""
    console = Console(stderr=True, highlight=False)
    console.print(Text.assemble(("Error: ", "bold red"), error.cause.rstrip(".") + "."), soft_wrap=True)
    if error.remedy:
        console.print(Text(error.remedy), soft_wrap=True)
