"""The application of all commands, which turns errors into messages and exit codes.

Every error that the user can correct is an ``OrsError``: its cause and its remedy are printed, without a traceback. Any
other exception is a bug and keeps its traceback.

A command's module is imported when the command is called.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ors_cli.lazy_commands import with_commands

__all__ = ["application", "run"]


def _serve(to: typer.Typer) -> None:
    from ors_cli.serving.serve import SERVE_EXAMPLES, serve

    to.command("serve", no_args_is_help=True, epilog=SERVE_EXAMPLES)(serve)


def _host(to: typer.Typer) -> None:
    from ors_cli.serving.host import HOST_EXAMPLES, host

    to.command("host", no_args_is_help=True, epilog=HOST_EXAMPLES)(host)


def _gateway(to: typer.Typer) -> None:
    from ors_cli.serving.gateway import GATEWAY_EXAMPLES, gateway

    to.command("gateway", epilog=GATEWAY_EXAMPLES)(gateway)


def _node(to: typer.Typer) -> None:
    from ors_cli.serving.node import NODE_EXAMPLES, node

    to.command("node", no_args_is_help=True, epilog=NODE_EXAMPLES)(node)


def _workers(to: typer.Typer) -> None:
    from ors_cli.serving.workers import workers

    to.command("workers")(workers)


def _drain(to: typer.Typer) -> None:
    from ors_cli.serving.workers import DRAIN_EXAMPLES, drain

    to.command("drain", epilog=DRAIN_EXAMPLES, no_args_is_help=True)(drain)


def _eval(to: typer.Typer) -> None:
    from ors_cli.measuring.eval import EVAL_EXAMPLES, evaluate

    to.command("eval", no_args_is_help=True, epilog=EVAL_EXAMPLES)(evaluate)


def _train(to: typer.Typer) -> None:
    from ors_cli.measuring.train import TRAIN_EXAMPLES, train

    to.command("train", no_args_is_help=True, epilog=TRAIN_EXAMPLES)(train)


def _init(to: typer.Typer) -> None:
    from ors_cli.authoring.init import INIT_EXAMPLES, init

    to.command("init", no_args_is_help=True, epilog=INIT_EXAMPLES)(init)


def _keys(to: typer.Typer) -> None:
    from ors_cli.managing.keys import keys

    to.add_typer(keys, name="keys")


def _deploy(to: typer.Typer) -> None:
    from ors_cli.authoring.deploy import deploy

    to.add_typer(deploy, name="deploy")


def _tasks(to: typer.Typer) -> None:
    from ors_cli.managing.tasks import tasks

    to.add_typer(tasks, name="tasks")


def _image(to: typer.Typer) -> None:
    from ors_cli.managing.image import image

    to.add_typer(image, name="image")


def _sandbox(to: typer.Typer) -> None:
    from ors_cli.managing.sandbox import sandbox

    to.add_typer(sandbox, name="sandbox")


def _rollouts(to: typer.Typer) -> None:
    from ors_cli.managing.rollouts import rollouts

    to.add_typer(rollouts, name="rollouts")


def _check(to: typer.Typer) -> None:
    from ors_cli.authoring.check import CHECK_EXAMPLES, check

    to.command("check", no_args_is_help=True, epilog=CHECK_EXAMPLES)(check)


def _bench(to: typer.Typer) -> None:
    from ors_cli.measuring.bench import bench

    to.add_typer(bench, name="bench")


def _settings(to: typer.Typer) -> None:
    from ors_cli.managing.settings import SETTINGS_EXAMPLES, settings

    to.command("settings", epilog=SETTINGS_EXAMPLES)(settings)


#: In the order of the list. A line of help is the first sentence of the command's own (a test compares them).
_COMMANDS = {
    "serve": ("Serve environments over the Open Reward Standard, until Ctrl-C or SIGTERM.", _serve),
    "host": ("Serve published environments as they are, each with its own packages, data folder and process.", _host),
    "gateway": (
        "Serve the nodes of a cluster at one address, until Ctrl-C or SIGTERM. It runs no environment itself.",
        _gateway,
    ),
    "node": ("Serve environments on this machine behind the gateways of a cluster, until Ctrl-C or SIGTERM.", _node),
    "workers": ("List the workers of a server on this machine, or of a cluster.", _workers),
    "drain": ("Place no new sessions in a slot, and replace its worker once it is empty.", _drain),
    "eval": (
        "Play a model on an environment's tasks and report how many it solves, how surely, and at what price.",
        _eval,
    ),
    "train": (
        "Train a model on an environment, and measure what it learnt on tasks that it never saw.",
        _train,
    ),
    "init": ("Write a folder with a working environment, its tests, a Dockerfile and a README.", _init),
    "keys": ("Add, list and revoke the keys by which clients enter a server.", _keys),
    "deploy": ("Write a folder that serves an environment elsewhere.", _deploy),
    "tasks": ("Check and prepare folders of terminal tasks, and write generated and converted ones.", _tasks),
    "image": ("Make, list and remove the images that sandboxes start from.", _image),
    "sandbox": ("Show what isolates sandboxes on this machine, and what they left behind.", _sandbox),
    "rollouts": (
        "List, show, export and bundle rollouts: what clients uploaded, and what the server recorded.",
        _rollouts,
    ),
    "check": (
        "Check that a server keeps the promises of the Open Reward Standard, and what breaks where it does not.",
        _check,
    ),
    "bench": ("Measure this server beside others.", _bench),
    "settings": (
        "List every setting of the server: its flag, its variable, its default, its value here and its meaning.",
        _settings,
    ),
}

application = with_commands(
    _COMMANDS,
    name="ors-server",
    epilog="[bold]A first environment[/bold]\n"
    "  ors-server init my_env    writes the folder my_env with a working environment\n"
    "  ors-server serve my_env   serves it on http://127.0.0.1:8080\n"
    "  ors-server serve echo     serves an environment of ours",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ors-server {installed_version()}")
        raise typer.Exit


def installed_version() -> str:
    """Return the version of the installed package."""
    from importlib.metadata import PackageNotFoundError, version

    from ors_containers.distribution import DISTRIBUTION

    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "(not installed)"


@application.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Serve reinforcement-learning environments for language models over the Open Reward Standard."""


def run() -> None:
    """Run the command line of this process and end it."""
    try:
        application(prog_name="ors-server")
    except (
        Exception
    ) as error:  # whether it can be corrected is asked below: the errors need not be imported without one
        from ors_containers.distribution import conflicting_distribution

        if isinstance(error, ImportError) and (conflict := conflicting_distribution()):
            typer.echo(f"Error: {error}. {conflict[0]}.\n{conflict[1]}", err=True)
            sys.exit(2)
        from ors_server.errors import OrsError
        from ors_server.http.errors import PortInUse
        from ors_server.telemetry.console import print_error

        if not isinstance(error, OrsError):
            raise

        print_error(error)
        sys.exit(1 if isinstance(error, PortInUse) else 2)
