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

from ors_server.cli.flags import misspelt_variables, with_settings
from ors_server.errors import TargetError
from ors_server.hosting.targets import building_of_authors_code, load_targets
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
  my_env/                the environments of its environment.py, server.py, app.py, main.py or env.py
  server.py              what a file hands to Server([...]), else its classes; server.py:MyEnv is one of them
  package.module:MyEnv   a class of an importable module
  echo, terminal         environments that come with ors-server

[bold]Examples[/bold]
  ors-server serve my_env/ echo             two environments, the first is the default
  ors-server serve echo --port 0            on a free port
  ors-server serve my_env/ --reload         starts again when a file changes
  ors-server keys add me                    a key, which every request wants from now on
  ors-server serve my_env/ --host 0.0.0.0   for other machines; it needs a key, or --insecure
  ors-server serve my_env/ --alias owner/Name=my_env   found as owner/Name too
  ors-server serve terminal --tasks my_tasks           terminal tasks of your own
  ors-server serve terminal --workers 4                with four processes; see `ors-server workers`
  ors-server serve terminal --engine ray --host 0.0.0.0   on each machine of the Ray cluster that runs here
  ORS_SESSION_TTL=3600 ors-server serve my_env/        a setting as a variable"""


_RAY = "With --engine ray"


class TestsImportCode(StrEnum):
    """Treatment of tasks whose tests import the agent's code."""

    refuse = "refuse"
    flag = "flag"


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
            metavar="NAME=ENVIRONMENT",
            help="Another name for an environment, or for the default with NAME=*; may be repeated.",
        ),
    ] = None,
    tasks: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR",
            help="Folder of tasks for environments that take some, such as terminal; may be repeated.",
        ),
    ] = None,
    tests_import_code: Annotated[
        TestsImportCode | None,
        typer.Option(
            help="Tasks whose tests import the agent's code: leave them out (refuse, the default), or run them and "
            "mark their verdicts (flag).",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, max=1024, help="Serve with so many processes, which share the sessions between them."
        ),
    ] = None,
    gateways: Annotated[
        int | None,
        typer.Option(metavar="M", min=1, max=64, help="Processes in front of the workers; one for each six workers."),
    ] = None,
    pools: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="TOML file of further workers, with other environments and interpreters; scale.md."
        ),
    ] = None,
    reload: Annotated[
        bool,
        typer.Option("--reload", help="Start again when a file of the targets changes."),
    ] = False,
    engine: Annotated[
        Engine, typer.Option(help="Where the workers run: on this machine, or on the machines of a Ray cluster.")
    ] = Engine.local,
    address: Annotated[str, typer.Option(help="Address of Ray; auto finds it.", rich_help_panel=_RAY)] = "auto",
    workers_per_node: Annotated[
        int,
        typer.Option(metavar="N", min=1, max=1024, help="Workers on each machine of Ray.", rich_help_panel=_RAY),
    ] = 1,
    cpus: Annotated[
        float | None,
        typer.Option(min=0, help="Processors that each machine reserves; one for each worker.", rich_help_panel=_RAY),
    ] = None,
    memory: Annotated[
        int | None,
        typer.Option(
            metavar="BYTES",
            min=1,
            help="Memory that each machine reserves, and that workers and sandboxes there may use.",
            rich_help_panel=_RAY,
        ),
    ] = None,
    node_label: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Only machines with this label of Ray.", rich_help_panel=_RAY),
    ] = None,
    join: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL[,URL]", help="Gateways that run elsewhere, instead of one here.", rich_help_panel=_RAY
        ),
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
        from ors_server.cli.serve_ray import RayOptions, serve_on_ray

        options = RayOptions(address, workers_per_node, cpus, memory, node_label or [], join or [])
        arguments = worker_arguments(targets, alias or [], tasks or [], tests_import_code)
        arguments += [] if pools is None else ["--pools", str(pools.absolute())]
        serve_on_ray(arguments, settings, options)
        return
    if workers is not None or pools is not None:
        from ors_server.cli.serve_workers import serve_with_workers

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
    from ors_server.cli.banner import print_banner

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
    from ors_server.cli.reload import refuse_reload, serve_with_reload

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
