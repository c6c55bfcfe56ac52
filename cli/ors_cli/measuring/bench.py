"""``ors-server bench``: the benchmarks."""

from __future__ import annotations

import typer

from ors_cli.lazy_commands import with_commands

__all__ = ["bench"]


def _server(to: typer.Typer) -> None:
    from ors_benchmarks.server.command import main

    main.add_to(to, "server")


def _sandboxes(to: typer.Typer) -> None:
    from ors_benchmarks.sandboxes.command import main

    main.add_to(to, "sandboxes")


def _terminal(to: typer.Typer) -> None:
    from ors_benchmarks.terminal.command import main

    main.add_to(to, "terminal")


def _scale(to: typer.Typer) -> None:
    from ors_benchmarks.scale.command import main

    main.add_to(to, "scale")


def _rollout(to: typer.Typer) -> None:
    from ors_benchmarks.rollout.command import main

    main.add_to(to, "rollout")


def _clients(to: typer.Typer) -> None:
    from ors_benchmarks.clients.command import main

    main.add_to(to, "clients")


def _harbor(to: typer.Typer) -> None:
    from ors_benchmarks.harbor.command import main

    main.add_to(to, "harbor")


bench = with_commands(
    {
        "server": (
            "Measure this server beside the ones it replaces, every answer verified.",
            _server,
        ),
        "sandboxes": (
            "Measure sandboxes: starts, commands, examinations, hundreds at once, every answer verified.",
            _sandboxes,
        ),
        "terminal": (
            "Measure graded terminal episodes beside the same by hand and in podman, every verdict verified.",
            _terminal,
        ),
        "scale": (
            "Measure what several workers behind a gateway cost and gain, every answer verified.",
            _scale,
        ),
        "rollout": (
            "Measure what environments cost an engine: real episodes, and the same generations without them.",
            _rollout,
        ),
        "clients": (
            "Measure our client beside openreward's: CPU, rate, memory and start, every answer verified.",
            _clients,
        ),
        "harbor": (
            "Measure trials inside Harbor's runner: our containers beside podman's, every reward verified.",
            _harbor,
        ),
    },
    help="Measure this server beside others.",
    epilog="[bold]Examples[/bold]\n"
    "  ors-server bench server --quick      a first impression, in a minute or so\n"
    "  ors-server bench sandboxes --quick   the same of the sandboxes\n"
    "  ors-server bench terminal --quick    graded episodes, beside the same by hand\n"
    "  ors-server bench clients --quick     the same of the client\n"
    "  ors-server bench scale --quick       several workers, and what the gateway costs\n"
    "  ors-server bench rollout --quick     an engine with environments between its turns\n"
    "  ors-server bench harbor --quick      trials under Harbor's runner, beside podman",
)
