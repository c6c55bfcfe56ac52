"""What the benchmarks' commands share: choosing by name, and ending a process that was started with ``python -m``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import typer

from ors_server.errors import OrsError

__all__ = ["choose", "run_command"]


class _Choice(Protocol):
    @property
    def name(self) -> str: ...


Choice = TypeVar("Choice", bound=_Choice)


def choose(names: str | None, known: Sequence[Choice], option: str) -> list[Choice]:
    """The choices that ``names`` has, separated by commas, each once and in that order; all for None.

    Raises ``typer.BadParameter`` for a name that is none of them, which names ``option``.
    """
    if names is None:
        return list(known)
    by_name = {item.name: item for item in known}
    found: list[Choice] = []
    for name in dict.fromkeys(part.strip() for part in names.split(",")):
        if name not in by_name:
            raise typer.BadParameter(f"{name!r} is none of {', '.join(by_name)}.", param_hint=option)
        found.append(by_name[name])
    return found


def run_command(main: Callable[[], None]) -> None:
    """Run a benchmark as the program of this process; an error that can be corrected is told in two lines."""
    from ors_server.cli.application import report

    try:
        main()
    except OrsError as error:
        report(error)
        sys.exit(2)
