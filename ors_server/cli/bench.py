"""``ors-server bench``: the benchmarks, which are a package of their own and describe their options themselves."""

from __future__ import annotations

import typer

__all__ = ["bench"]

bench = typer.Typer(
    no_args_is_help=True,
    help="Measure this server beside others.",
    epilog="[bold]Examples[/bold]\n"
    "  ors-server bench server --quick      a first impression, in a minute or so\n"
    "  ors-server bench sandboxes --quick   the same of the sandboxes\n"
    "  ors-server bench clients --quick     the same of the client\n"
    "  ors-server bench rollout --quick     an engine with environments between its turns",
)


@bench.callback()
def _group() -> None:
    """Measure this server beside others."""


# The options, --help among them, are those of the benchmark itself; it is imported when it is asked for.
@bench.command(
    "server",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
)
def server(context: typer.Context) -> None:
    """Measure it beside ors-sdk, openreward and bare uvicorn: CPU, latency, memory, every answer verified."""
    from ors_benchmarks.server.command import main

    main(context.args, program="ors-server bench server")


@bench.command(
    "sandboxes",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
)
def sandboxes(context: typer.Context) -> None:
    """Measure sandboxes beside the same programs by hand: starts, commands, hundreds at once, every answer verified."""
    from ors_benchmarks.sandboxes.command import main

    main(context.args, program="ors-server bench sandboxes")


@bench.command(
    "rollout",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
)
def rollout(context: typer.Context) -> None:
    """Measure what environments cost an engine: real episodes, and the same generations without them."""
    from ors_benchmarks.rollout.command import main

    main(context.args, program="ors-server bench rollout")


@bench.command(
    "clients",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
)
def clients(context: typer.Context) -> None:
    """Measure our client beside openreward's: CPU, rate, memory and start, every answer verified."""
    from ors_benchmarks.clients.command import main

    main(context.args, program="ors-server bench clients")
