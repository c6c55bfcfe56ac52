"""``ors-server serve``: environments on a port, until it is stopped."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from ors_cli.flags import TestsImportCode, misspelt_variables, with_settings
from ors_server.hosting.errors import TargetError
from ors_server.hosting.loading.targets import building_of_authors_code, load_targets
from ors_server.http.addresses import parse_address
from ors_server.keys.exposure import refuse_open_address
from ors_server.settings import Settings
from ors_server.telemetry.logs import warn
from ors_server.worker import identity

if TYPE_CHECKING:
    from ors_server.server import Server

__all__ = ["SERVE_EXAMPLES", "serve", "worker_arguments"]

#: Seconds that an author's threads get to end after the server.
_THREADS_PATIENCE = 5.0

SERVE_EXAMPLES = """[bold]Targets[/bold]
  my_env/                those of its environment.py, server.py, …
  server.py:MyEnv        one class of a file; or server.py, all of it
  package.module:MyEnv   a class of an importable module
  echo, terminal         environments that come with ors-server

[bold]Examples[/bold]
  ors-server serve my_env/ echo               the first is the default
  ors-server serve my_env/ --reload           starts again after a change
  ors-server serve my_env/ --host 0.0.0.0     for others, with ors-server keys
  ors-server serve terminal --tasks my_tasks  terminal tasks of your own
  ors-server serve terminal --workers 4       see ors-server workers
  ORS_SESSION_TTL=3600 ors-server serve echo  a setting as a variable"""


_RAY = "With --engine ray"


class Engine(StrEnum):
    """The place of the workers."""

    local = "local"
    ray = "ray"


@with_settings
def serve(
    targets: Annotated[
        list[str], typer.Argument(metavar="TARGET", help="What to serve: the first is the default environment.")
    ],
    settings: Settings,
    alias: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=ENV",
            help="Another name for an environment, * for the default.",
        ),
    ] = None,
    tasks: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR",
            help="Tasks for environments that take some, as terminal.",
        ),
    ] = None,
    tests_import_code: Annotated[
        TestsImportCode | None,
        typer.Option(
            help="Tasks whose tests import the agent's code: left out, or marked.",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, max=1024, help="Processes for the sessions."),
    ] = None,
    gateways: Annotated[
        int | None,
        typer.Option(metavar="M", min=1, max=64, help="Processes in front of the workers."),
    ] = None,
    pools: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Other workers (scale.md)."),
    ] = None,
    reload: Annotated[
        bool,
        typer.Option("--reload", help="Restart when a file changes."),
    ] = False,
    engine: Annotated[Engine, typer.Option(help="Run the workers here, or on a Ray cluster.")] = Engine.local,
    address: Annotated[str, typer.Option(metavar="URL", help="Address of Ray.", rich_help_panel=_RAY)] = "auto",
    workers_per_node: Annotated[
        int,
        typer.Option(metavar="N", min=1, max=1024, help="Workers on each machine.", rich_help_panel=_RAY),
    ] = 1,
    cpus: Annotated[
        float | None,
        typer.Option(metavar="N", min=0, help="Processors to reserve on each.", rich_help_panel=_RAY),
    ] = None,
    memory: Annotated[
        int | None,
        typer.Option(
            metavar="BYTES",
            min=1,
            help="Memory to reserve on each.",
            rich_help_panel=_RAY,
        ),
    ] = None,
    node_label: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Only machines with this label.", rich_help_panel=_RAY),
    ] = None,
    join: Annotated[
        list[str] | None,
        typer.Option(metavar="URL[,URL]", help="Gateways that run elsewhere.", rich_help_panel=_RAY),
    ] = None,
) -> None:
    """Serve environments over the Open Reward Standard, until Ctrl-C or SIGTERM."""
    if identity() is None:
        refuse_open_address(settings, _reached_at(settings, elsewhere=engine is Engine.ray and bool(join)))
    if reload:
        _serve_with_reload(
            worker_arguments(targets, alias or [], tasks or [], tests_import_code),
            targets,
            settings,
            tasks or [],
            several=workers is not None or pools is not None,
            engine=engine,
        )
        return
    if engine is Engine.ray:
        from ors_cli.serving.serve_ray import RayOptions, serve_on_ray

        options = RayOptions(address, workers_per_node, cpus, memory, node_label or [], join or [])
        arguments = worker_arguments(targets, alias or [], tasks or [], tests_import_code)
        arguments += [] if pools is None else ["--pools", str(pools.absolute())]
        serve_on_ray(arguments, settings, options)
        return
    if workers is not None or pools is not None:
        from ors_cli.serving.serve_workers import serve_with_workers

        arguments = worker_arguments(targets, alias or [], tasks or [], tests_import_code)
        serve_with_workers(arguments, settings, workers or 1, gateways, pools)
        return
    end = _End()
    signal.signal(signal.SIGTERM, end)
    for warning in misspelt_variables():
        warn(settings, warning)
    aliases = dict(_parse_alias(text) for text in alias or [])
    try:
        server = _build(targets, settings, aliases, tasks or [], tests_import_code)
    finally:
        end.if_asked()
    from ors_cli.serving.banner import print_banner

    server.serve(on_ready=partial(print_banner, server) if identity() is None else None)
    threading.Thread(target=_leave_threads_behind, daemon=True).start()


def _reached_at(settings: Settings, *, elsewhere: bool) -> list[str]:
    """Return the host at which clients reach the server; none where a proxy or another machine decides."""
    if settings.listen is None:
        return [] if elsewhere else [settings.host]
    host = parse_address(settings.listen).host
    return [host] if host else []


def _serve_with_reload(
    arguments: Sequence[str],
    targets: Sequence[str],
    settings: Settings,
    tasks: Sequence[Path],
    *,
    several: bool,
    engine: Engine,
) -> None:
    from ors_cli.serving.reload import refuse_reload, serve_with_reload

    if several:
        raise refuse_reload("several workers: each would load the new files at another time")
    if engine is Engine.ray:
        raise refuse_reload("--engine ray: the files are on other machines")
    serve_with_reload(arguments, targets, tasks, settings)


def worker_arguments(
    targets: Sequence[str],
    aliases: Sequence[str],
    task_folders: Sequence[Path],
    tests_import_code: TestsImportCode | None = None,
) -> list[str]:
    """Return the arguments that start one worker."""
    arguments = ["serve", *targets]
    for alias in aliases:
        arguments += ["--alias", alias]
    for folder in task_folders:
        arguments += ["--tasks", str(folder.absolute())]
    if tests_import_code is not None:
        arguments += ["--tests-import-code", tests_import_code.value]
    return arguments


def _build(
    targets: Sequence[str],
    settings: Settings,
    aliases: Mapping[str, str],
    task_folders: Sequence[Path],
    tests_import_code: TestsImportCode | None,
) -> Server:
    environments = load_targets(targets)
    for environment in environments:
        variable: str | None = getattr(environment, "tests_import_code_variable", None)
        if variable is not None and tests_import_code is not None:
            os.environ[variable] = tests_import_code.value
    for environment in environments if task_folders else ():
        variable = getattr(environment, "task_folders_variable", None)
        if variable is not None:
            os.environ[variable] = os.pathsep.join(str(folder.absolute()) for folder in task_folders)
    # Imported late: --help and a wrong target do not wait for the web framework.
    from ors_server.server import Server

    with building_of_authors_code():
        return Server(environments, settings=settings, aliases=aliases)


class _End:
    """The handler of SIGTERM, which ends a server with status 0, as Ctrl-C does.

    It raises ``SystemExit``, perhaps while an author's file is imported. That file may catch it, or it is taken for the
    author's own ``sys.exit()``; ``if_asked`` ends the process all the same.
    """

    def __init__(self) -> None:
        self._asked = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        # uvicorn has its own handler while it serves, and raises the signal again after its shutdown.
        if not self._asked:
            self._asked = True
            threading.Thread(target=_leave_threads_behind, daemon=True).start()
        sys.exit(0)

    def if_asked(self) -> None:
        """End the process after a SIGTERM, whatever is being raised."""
        if self._asked:
            sys.exit(0)


def _leave_threads_behind() -> None:
    """End the process if only threads of an environment's author, which cannot be stopped, keep it alive."""
    threading.main_thread().join()
    time.sleep(_THREADS_PATIENCE)
    os._exit(0)


def _parse_alias(text: str) -> tuple[str, str]:
    name, separator, environment = text.rpartition("=")  # a folder's name may have one, and is an alias of host's
    if not (separator and name.strip() and environment.strip()):
        raise TargetError(
            f"--alias {text!r} is not an alias", "Write it as NAME=ENVIRONMENT, for example owner/Name=my_env."
        )
    return name.strip(), environment.strip()
