"""``ors-server bench``: the benchmarks, a package of their own that parses its options itself."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import typer

__all__ = ["bench"]

#: By subcommand: the module whose ``main`` runs it, imported when it is used, and its line of help.
_BENCHMARKS: Mapping[str, tuple[str, str]] = {
    "server": (
        "ors_benchmarks.server.command",
        "Measure it beside ors-sdk, openreward and bare uvicorn: CPU, latency, memory, every answer verified.",
    ),
    "sandboxes": (
        "ors_benchmarks.sandboxes.command",
        "Measure sandboxes beside the same programs by hand: starts, commands, hundreds at once, every answer "
        "verified.",
    ),
    "scale": (
        "ors_benchmarks.scale.command",
        "Measure several workers behind a gateway beside nginx, HAProxy and one worker, every answer verified.",
    ),
    "rollout": (
        "ors_benchmarks.rollout.command",
        "Measure what environments cost an engine: real episodes, and the same generations without them.",
    ),
    "clients": (
        "ors_benchmarks.clients.command",
        "Measure our client beside openreward's: CPU, rate, memory and start, every answer verified.",
    ),
}

bench = typer.Typer(
    no_args_is_help=True,
    help="Measure this server beside others.",
    epilog="[bold]Examples[/bold]\n"
    "  ors-server bench server --quick      a first impression, in a minute or so\n"
    "  ors-server bench sandboxes --quick   the same of the sandboxes\n"
    "  ors-server bench clients --quick     the same of the client\n"
    "  ors-server bench scale --quick       several workers, and what the gateway costs\n"
    "  ors-server bench rollout --quick     an engine with environments between its turns",
)


@bench.callback()
def _group() -> None:
    """Measure this server beside others."""


def _add(name: str, module: str, summary: str) -> None:
    # All options, --help among them, are the benchmark's own.
    settings: dict[str, Any] = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}

    @bench.command(name, help=summary, add_help_option=False, context_settings=settings)
    def run(context: typer.Context) -> None:  # pyright: ignore[reportUnusedFunction] - typer calls it
        importlib.import_module(module).main(context.args, program=f"ors-server bench {name}")


for _name, (_module, _summary) in _BENCHMARKS.items():
    _add(_name, _module, _summary)
