"""``ors-server host``: published environments, unchanged, each in a process and a virtual environment of its own."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, TextIO

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ors_server._version import VERSION
from ors_server.cli.flags import misspelt_variables, with_settings
from ors_server.settings import Settings

if TYPE_CHECKING:
    from ors_server.checkouts.checkout import Checkout
    from ors_server.checkouts.needs import Needs
    from ors_server.checkouts.report import Row
    from ors_server.checkouts.requirements import Requirements
    from ors_server.checkouts.serving import Names, Plan

__all__ = ["HOST_EXAMPLES", "host"]

HOST_EXAMPLES = """[bold]Checkouts[/bold]
  countdown/                        a folder: what its Dockerfile starts, else its server.py or app.py
  countdown/server.py:Countdown     one file of a checkout, or one class of it
  https://host/owner/Name@COMMIT    a repository's commit, which is fetched once

[bold]Examples[/bold]
  ors-server host countdown/ sokoban/            two environments on one address
  ors-server host SolPredict/ --data ~/solpredict-data
  ors-server host LAB-Bench/ DSBench/ --data LAB-Bench=/data/lab --data DSBench=/data/ds
  ors-server host LAB-Bench/ --check             the table of what it needs, and no more
  OPENAI_BASE_URL=http://127.0.0.1:8000/v1 ors-server host liars_dice/   judged by a local model"""

logger = logging.getLogger("ors_server.host")

#: Characters of a line where the table of needs goes to a file.
_WIDTH = 200


class _Environment(NamedTuple):
    """A checkout that was read."""

    checkout: Checkout
    needs: Needs
    requirements: Requirements
    data: Path
    data_named: bool


@with_settings
def host(
    checkouts: Annotated[
        list[str], typer.Argument(metavar="CHECKOUT", help="Folders of environments, or URL@COMMIT; the default first.")
    ],
    settings: Settings,
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]DIR", help="Folder at /orwd_data for an environment; NAME where there are several."
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Print what is needed and end; status 1 where a need is missing.")
    ] = False,
) -> None:
    """Serve published environments as they are, each with its own packages, data folder and process."""
    from ors_server.checkouts.virtualenv import provide_virtualenv
    from ors_server.http.listeners import listen_publicly
    from ors_server.keys.exposure import refuse_open_address
    from ors_server.keys.file import keys_file
    from ors_server.rollouts.location import data_directory

    refuse_open_address(settings, [settings.host])
    for warning in misspelt_variables():
        typer.echo(f"Warning: {warning}", err=True)
    # The processes run in other folders.
    root = data_directory(settings.data_dir).absolute()
    settings = settings.model_copy(update={"data_dir": root, "keys_file": keys_file(settings).absolute()})
    environments = _read(checkouts, data or [], root)
    secrets = _secrets(settings, os.environ)
    if "api_key" in secrets:
        typer.echo(f"Warning: api_key in {settings.secrets_file} is not used: each environment has its own", err=True)
    console = _console(sys.stdout if check else sys.stderr)
    missing = _print_needs(console, environments, secrets)
    if check:
        raise typer.Exit(1 if missing else 0)
    mounted, apart = _mounts(environments), _kept_apart()
    with listen_publicly(settings.host, settings.port):
        pass  # an address in use is reported before minutes of installing
    pythons = [
        provide_virtualenv(each.checkout.name, each.requirements, root / "virtualenvs", _Progress(each.checkout.name))
        for each in environments
    ]
    _serve(environments, pythons, mounted, apart, settings, secrets)


# --- reading -------------------------------------------------------------------------------------


def _read(targets: Sequence[str], data: Sequence[str], root: Path) -> list[_Environment]:
    from ors_server.checkouts.checkout import find_checkout, refuse_same_names
    from ors_server.checkouts.needs import read_needs
    from ors_server.checkouts.requirements import find_requirements
    from ors_server.checkouts.sources import Sources

    found = [find_checkout(target, root / "checkouts") for target in targets]
    refuse_same_names(found)
    folders = _data_folders(data, [checkout.name for checkout in found])
    environments: list[_Environment] = []
    for checkout in found:
        sources = Sources(checkout.folder, checkout.program)
        requirements = find_requirements(checkout.folder, checkout.program, sources.installed)
        folder = folders.get(checkout.name)
        own = root / "files" / checkout.name.lower()
        environments.append(
            _Environment(checkout, read_needs(sources), requirements, folder or own, folder is not None)
        )
    return environments


def _data_folders(texts: Sequence[str], names: Sequence[str]) -> dict[str, Path]:
    from ors_server.checkouts.errors import HostError

    folders: dict[str, Path] = {}
    for text in texts:
        name, separator, folder = text.partition("=")
        if not separator or name not in names:
            if len(names) > 1:
                raise HostError(f"--data {text} names no environment", f"Write NAME=DIR; hosted: {', '.join(names)}.")
            name, folder = names[0], text
        path = Path(folder).expanduser().absolute()
        if not path.is_dir():
            raise HostError(f"The data folder {folder} of {name} does not exist", "Make it, or name another.")
        folders[name] = path
    return folders


def _secrets(settings: Settings, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the secrets that sessions get where their client sends none: the operator's, and those of a judge."""
    from ors_server.sessions.secrets import LOCAL_TOKEN, read_secrets_file

    secrets: dict[str, str] = {}
    if key := variables.get("OPENAI_API_KEY") or (LOCAL_TOKEN if variables.get("OPENAI_BASE_URL") else ""):
        secrets["openai_api_key"] = key
    return {**secrets, **({} if settings.secrets_file is None else read_secrets_file(settings.secrets_file))}


# --- needs ---------------------------------------------------------------------------------------


def _console(stream: TextIO) -> Console:
    """Return a console whose lines in a file are not those of a narrow terminal."""
    width = None if stream.isatty() or "COLUMNS" in os.environ else _WIDTH
    return Console(file=stream, highlight=False, width=width)


def _print_needs(console: Console, environments: Sequence[_Environment], secrets: Mapping[str, str]) -> bool:
    """Print the table; return whether something is missing."""
    from ors_server.checkouts.report import Host, rows_of

    missing = False
    for each in environments:
        checkout = each.checkout
        named = frozenset((*secrets, "api_key"))  # each environment has a key of this server
        offered = Host(checkout.name, each.data, each.data_named, named, os.environ, _missing_image)
        rows = rows_of(each.needs, offered)
        at = f" at {checkout.commit[:12]}{'+' if checkout.commit.endswith('+') else ''}" if checkout.commit else ""
        relative = checkout.program.relative_to(checkout.folder)
        console.print(Text(f"{checkout.name}{at}: {relative}, {each.requirements.source.name}"), soft_wrap=True)
        if rows:
            console.print(_table(rows), soft_wrap=True)
        else:
            console.print("  needs nothing but Python")
        missing = missing or any(row.there is False for row in rows)
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


def _mounts(environments: Sequence[_Environment]) -> list[bool]:
    """Return for each environment whether its data folder is mounted. Raises ``HostError`` where it cannot be."""
    from ors_server.checkouts.errors import HostError
    from ors_server.checkouts.needs import DATA_MOUNT
    from ors_server.sandbox_service.data_folders import DataFolder

    # An environment with no data of its own on this machine may fall back to files of its checkout.
    wanted = [each.data_named or (bool(each.needs.data) and not DataFolder(each.data).empty) for each in environments]
    if not any(wanted):
        return wanted
    first = next(each for each, wants in zip(environments, wanted, strict=True) if wants)
    program = (sys.executable, "-m", "ors_containers.linux.bound_folder", str(first.data), DATA_MOUNT, "true")
    tried = subprocess.run(program, capture_output=True, text=True, check=False)
    if tried.returncode == 0:
        return wanted
    owner = ""
    for each, wants in zip(environments, wanted, strict=True):
        if not wants:
            continue
        if owner:
            raise HostError(
                f"{each.checkout.name} and {owner} both want {DATA_MOUNT}, and this machine does not let a process have"
                f" mounts of its own: {tried.stderr.strip()}",
                f"Host {each.checkout.name} on another machine, or allow user namespaces here.",
            )
        owner = each.checkout.name
        if not Path(DATA_MOUNT).exists() or not Path(DATA_MOUNT).samefile(each.data):
            raise HostError(
                f"{owner} wants {each.data} at {DATA_MOUNT}, and this machine does not let a process have mounts of its"
                f" own: {tried.stderr.strip()}",
                f"As root, `ln -s {each.data} {DATA_MOUNT}`.",
            )
    return [False] * len(environments)


def _kept_apart() -> bool:
    """Return whether this machine can keep environments apart; say why where it cannot."""
    from ors_containers.linux.apart import View, apart

    tried = subprocess.run((*apart(View()), "true"), capture_output=True, text=True, check=False)
    if tried.returncode:
        reason = " ".join(tried.stderr.split())
        typer.echo(f"Warning: environments can read and end each other's processes: {reason}", err=True)
    return not tried.returncode


class _Progress:
    """The installer's progress: one line that changes on a terminal, else one line for each step of ours."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._console = Console(stderr=True, highlight=False)

    def __call__(self, line: str) -> None:
        text = f"{self._name}: {line}"
        if self._console.is_terminal:
            width = self._console.width - 1
            self._console.file.write(f"\r{text[:width]:<{width}}\r")
            self._console.file.flush()
        elif not line[:1].isupper():
            self._console.print(Text(text), soft_wrap=True)


# --- serving -------------------------------------------------------------------------------------


def _serve(
    environments: Sequence[_Environment],
    pythons: Sequence[Path],
    mounted: Sequence[bool],
    apart: bool,
    settings: Settings,
    secrets: Mapping[str, str],
) -> None:
    from ors_server.checkouts.serving import Plan, serve_plans
    from ors_server.cli.banner import client_url
    from ors_server.http.listeners import listen_publicly, url_of
    from ors_server.logs import start_logging

    plans: list[Plan] = []
    for each, python, mount in zip(environments, pythons, mounted, strict=True):
        checkout = each.checkout
        target = str(checkout.program) + (f":{checkout.class_name}" if checkout.class_name else "")
        aliases = list(dict.fromkeys((*checkout.names, *_named_in_source(each.needs))))
        plans.append(Plan(checkout.name, aliases, python, target, checkout.folder, each.data, mount, apart))
    logs = start_logging(settings)
    try:
        with listen_publicly(settings.host, settings.port) as listening:
            url = client_url(url_of(listening, settings.host))
            serve_plans(plans, settings, os.environ, listening, url, secrets, partial(_announce, url, plans))
    finally:
        logs.stop()


def _named_in_source(needs: Needs) -> list[str]:
    """Return the names by which the platform knows the environment, as far as its sandboxes tell."""
    return [name for name in needs.environments if name.count("/") == 1 and "*" not in name]


def _announce(url: str, plans: Sequence[Plan], names: Sequence[Names]) -> None:
    lines = [f"ors-server {VERSION} listens on {url}; Ctrl-C stops it. It hosts:", ""]
    for plan, found in zip(plans, names, strict=True):
        own = [each[0] for each in found]
        also = ", ".join(alias for alias in plan.aliases if alias.lower() not in own)
        lines.append(f"  {', '.join(own)}" + (f"   (also called {also})" if also else ""))
    lines += ["", "Clients of openreward, TRL among them, find it with:", ""]
    lines += [f"export {variable}={url}" for variable in ("OPENREWARD_API_URL", "OPENREWARD_SESSION_URL")]
    logger.info("\n".join(lines) + "\n")
