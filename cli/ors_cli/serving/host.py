"""``ors-server host``: published environments, unchanged, each in a process and a virtual environment of its own."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Container, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from ors_cli.flags import misspelt_variables, with_settings
from ors_server.settings import Settings
from ors_server.wire.version import VERSION

if TYPE_CHECKING:
    from ors_server.checkouts.loaded_checkouts import Failures, FoundCheckout
    from ors_server.checkouts.serving import Names, Plan
    from ors_server.checkouts.system_needs import Needs

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
    from ors_cli.serving.host_needs import console_of, print_needs
    from ors_server.checkouts.loaded_checkouts import Failures
    from ors_server.checkouts.mounts import kept_apart, mounted_data
    from ors_server.http.listeners import listen_publicly
    from ors_server.keys.exposure import refuse_open_address
    from ors_server.keys.file import keys_file
    from ors_server.rollouts.location import data_directory
    from ors_server.telemetry.logs import warn

    in_json = settings.log_format == "json"
    refuse_open_address(settings, [settings.host])
    for warning in misspelt_variables():
        warn(settings, warning)
    # The processes run in other folders.
    root = data_directory(settings.data_dir).absolute()
    settings = settings.model_copy(update={"data_dir": root, "keys_file": keys_file(settings).absolute()})
    say = partial(warn, settings)
    failures = Failures(say)
    names, environments = _read(checkouts, data or [], root, failures)
    secrets = _secrets(settings, os.environ)
    if "api_key" in secrets:
        say(f"api_key in {settings.secrets_file} is not used: each environment has its own")
    missing = print_needs(
        console_of(sys.stdout) if check else None if in_json else console_of(sys.stderr), environments, secrets
    )
    if check:
        raise typer.Exit(1 if missing or failures.errors else 0)
    failures.require_served(len(environments))
    with listen_publicly(settings.host, settings.port):
        pass  # an address in use is reported before minutes of installing
    mounted, apart = mounted_data(environments, failures), kept_apart(say)
    plans = _plans(names, environments, mounted, apart, _Progress(in_json=in_json), root, failures)
    _serve(plans, settings, secrets)


# --- reading -------------------------------------------------------------------------------------


def _read(
    targets: Sequence[str], data: Sequence[str], root: Path, failures: Failures
) -> tuple[list[str], list[FoundCheckout]]:
    """Return the names of the checkouts in their order, and those that could be read.

    Raises ``HostError`` for arguments that are wrong.
    """
    from ors_server.checkouts.checkout import Checkout, find_checkout, name_of, refuse_same_names
    from ors_server.checkouts.loaded_checkouts import FoundCheckout
    from ors_server.checkouts.requirements import find_requirements
    from ors_server.checkouts.sources import Sources
    from ors_server.checkouts.system_needs import read_needs

    names: list[str] = []
    found: list[Checkout] = []
    for target in targets:
        names.append(name_of(target))
        with failures.of(names[-1]):
            found.append(find_checkout(target, root / "checkouts"))
            names[-1] = found[-1].name
    refuse_same_names(found)
    folders = _data_folders(data, names)
    environments: list[FoundCheckout] = []
    for checkout in found:
        folder = folders.get(checkout.name)
        own = root / "files" / checkout.name.lower()
        with failures.of(checkout.name):
            sources = Sources(checkout.folder, checkout.program)
            requirements = find_requirements(checkout.folder, checkout.program, sources.installed)
            needs = read_needs(sources)
            environments.append(FoundCheckout(checkout, needs, requirements, folder or own, folder is not None))
    return names, environments


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


# --- installing ----------------------------------------------------------------------------------


class _Progress:
    """The installer's progress: one line that changes on a terminal, else one line for each step of ours."""

    def __init__(self, *, in_json: bool) -> None:
        self._in_json = in_json
        self._console = Console(stderr=True, highlight=False)

    def __call__(self, name: str, line: str) -> None:
        from ors_server.telemetry.logs import note

        text = f"{name}: {line}"
        if self._in_json:
            if not line[:1].isupper():
                note("preparing", environment=name, step=line)
        elif self._console.is_terminal:
            width = self._console.width - 1
            self._console.file.write(f"\r{text[:width]:<{width}}\r")
            self._console.file.flush()
        elif not line[:1].isupper():
            self._console.print(Text(text), soft_wrap=True)


def _plans(
    names: Sequence[str],
    environments: Sequence[FoundCheckout],
    mounted: Container[str],
    apart: bool,
    progress: _Progress,
    root: Path,
    failures: Failures,
) -> list[Plan]:
    """Return a plan for each name, of those that cannot be served too. Raises ``HostError`` where none can."""
    from ors_server.checkouts.serving import Plan
    from ors_server.checkouts.virtualenv import provide_virtualenv

    plans: dict[str, Plan] = {}
    for found in environments:
        checkout = found.checkout
        if checkout.name in failures.errors:
            continue
        with failures.of(checkout.name):
            virtualenvs, told = root / "virtualenvs", partial(progress, checkout.name)
            python = provide_virtualenv(checkout.name, found.requirements, virtualenvs, told)
            target = str(checkout.program) + (f":{checkout.class_name}" if checkout.class_name else "")
            aliases = list(dict.fromkeys((*checkout.names, *_named_in_source(found.needs))))
            mount = checkout.name in mounted
            plans[checkout.name] = Plan(
                checkout.name, aliases, python, target, checkout.folder, found.data, mount, apart
            )
    failures.require_served(len(plans))
    return [plans.get(name) or Plan.not_served(name, str(failures.errors[name])) for name in names]


# --- serving -------------------------------------------------------------------------------------


def _serve(plans: Sequence[Plan], settings: Settings, secrets: Mapping[str, str]) -> None:
    from ors_cli.serving.banner import client_url
    from ors_server.checkouts.serving import serve_plans
    from ors_server.http.listeners import listen_publicly, url_of
    from ors_server.telemetry.logs import start_logging

    logs = start_logging(settings)
    try:
        with listen_publicly(settings.host, settings.port) as listening:
            url = client_url(url_of(listening, settings.host))
            announce = partial(_log_names if settings.log_format == "json" else _announce, url, plans)
            serve_plans(plans, settings, os.environ, listening, url, secrets, announce)
    finally:
        logs.stop()


def _named_in_source(needs: Needs) -> list[str]:
    """Return the names by which the platform knows the environment, as far as its sandboxes tell."""
    return [name for name in needs.environments if name.count("/") == 1 and "*" not in name]


def _log_names(url: str, plans: Sequence[Plan], names: Sequence[Names | None]) -> None:
    environments = [each[0] for found in names if found is not None for each in found]
    left_out = [plan.name for plan, found in zip(plans, names, strict=True) if found is None]
    fields = {"url": url, "environments": environments, "not_served": left_out, "version": VERSION}
    logger.info("serving", extra=fields)


def _announce(url: str, plans: Sequence[Plan], names: Sequence[Names | None]) -> None:
    lines = [f"ors-server {VERSION} listens on {url}; Ctrl-C stops it. It hosts:", ""]
    for plan, found in zip(plans, names, strict=True):
        if found is None:
            lines.append(f"  not {plan.name}: its reason is above")
            continue
        own = [each[0] for each in found]
        also = ", ".join(alias for alias in plan.aliases if alias.lower() not in own)
        lines.append(f"  {', '.join(own)}" + (f"   (also called {also})" if also else ""))
    lines += ["", "Clients of openreward, TRL among them, find it with:", ""]
    lines += [f"export {variable}={url}" for variable in ("OPENREWARD_API_URL", "OPENREWARD_SESSION_URL")]
    logger.info("\n".join(lines) + "\n")
