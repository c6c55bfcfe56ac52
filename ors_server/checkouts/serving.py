"""Checkouts served: each in a pool of its own behind the gateways of one server.

The worker of an environment runs in the checkout's folder, with the interpreter of its virtual environment, and sees
its data folder at ``/orwd_data``. It asks this server for sandboxes with a key of its own, and ends with the server,
also when the server is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import ors_containers
from ors_containers.distribution import DISTRIBUTION
from ors_containers.linux.isolated_program import View, apart

import ors_server
from ors_server.checkouts.errors import HostError
from ors_server.checkouts.system_needs import DATA_MOUNT
from ors_server.cluster.supervisor.children import HASH_SEED
from ors_server.cluster.supervisor.control import Control, control_folder
from ors_server.cluster.supervisor.pools import SANDBOX_WORKER, Pool
from ors_server.cluster.supervisor.supervisor import Supervisor, gateways_for
from ors_server.keys.keys import make_inner_keys
from ors_server.sessions.secrets import LOCAL_TOKEN
from ors_server.settings import Settings
from ors_server.worker import PROGRAM

__all__ = ["Plan", "link_packages", "serve_plans", "variables_of_environments"]

logger = logging.getLogger("ors_server.host")

_BOUND_FOLDER = ("-P", "-m", "ors_containers.linux.bound_folder")
#: Folders of ``listed_folders``, and of each environment's secrets, in that of a server of hosted environments.
_FOLDERS, _SECRETS = "sandboxes", "secrets"
#: The addresses of the web tools of ``openreward``, each with its path at the platform.
_WEB_TOOLS = {
    "OPENREWARD_WEB_SEARCH_URL": "/search",
    "OPENREWARD_WEB_FETCH_URL": "/fetch",
    "OPENREWARD_WEB_DOMAIN_INFO_URL": "/policy/domain_info",
}


class Plan(NamedTuple):
    """The program, arguments and folders of one environment."""

    name: str
    #: More names for its first environment.
    aliases: Sequence[str]
    python: Path
    #: The argument of ``ors-server serve``.
    target: str
    folder: Path
    data: Path
    #: Whether the data folder is mounted for its worker alone.
    mounted: bool
    #: Whether its worker is kept apart from the others.
    apart: bool = False
    #: Why it cannot be served; the rest of the plan is then empty.
    failure: str = ""

    @classmethod
    def not_served(cls, name: str, failure: str) -> Plan:
        """Return the plan of an environment that cannot be served: requests for it get the reason."""
        return cls(name, [], Path(), "", Path(), Path(), mounted=False, failure=failure)


#: The names of each environment of a plan, its own first.
Names = Sequence[Sequence[str]]


def serve_plans(
    plans: Sequence[Plan],
    settings: Settings,
    environ: Mapping[str, str],
    listening: socket.socket,
    url: str,
    secrets: Mapping[str, str],
    ready: Callable[[Sequence[Names | None]], None],
) -> None:
    """Serve until SIGTERM or SIGINT; ``ready`` gets the names of each plan once all environments serve.

    It gets None for an environment that cannot be served. Requests that name it are refused with the reason; the server
    ends where no environment is left.

    ``environ`` has the variables of this process, ``url`` is the address of the server, and ``secrets`` are those of
    sessions whose client sends none. Raises ``HostError`` and what the supervisor raises.
    """
    service = settings.sandbox_service or "sandbox_service" not in settings.model_fields_set
    changed: dict[str, object] = {"sandbox_service": service, "secrets_file": None}
    if "log_level" not in settings.model_fields_set:
        changed["log_level"] = "warning"  # each worker would list its environments
    with tempfile.TemporaryDirectory(prefix="ors-server-host-") as folder:
        packages, folders = link_packages(Path(folder)), Path(folder, _FOLDERS, "folders.json")
        folders.parent.mkdir()
        served = [plan for plan in plans if not plan.failure]
        keys = make_inner_keys(plan.name for plan in served)
        variables = {**variables_of_environments(environ, url), "PYTHONPATH": str(packages)}
        files = {
            plan.name: _write_secrets(Path(folder, _SECRETS, str(number)), {**secrets, "api_key": keys[plan.name]})
            for number, plan in enumerate(served)
        }
        private = [folders.parent, control_folder(), _uploads(settings)]
        _write_folders(folders, served, [() for _ in served])
        sandboxes = Pool(
            ["--folders", str(folders)],
            1,
            module=SANDBOX_WORKER,
            program=_ending_with_the_server,
        )
        supervisor = Supervisor(
            [
                Pool([], 1, name=plan.name, names=[plan.name], failure=plan.failure)
                if plan.failure
                else _pool(
                    plan,
                    {**variables, "OPENREWARD_API_KEY": keys[plan.name], "ORS_SECRETS_FILE": str(files[plan.name])},
                    _view(
                        plan,
                        served,
                        packages,
                        [*private, *(file.parent for name, file in files.items() if name != plan.name)],
                    ),
                )
                for plan in plans
            ],
            settings.model_copy(update=changed),
            gateways=gateways_for(len(plans)),
            sandboxes=sandboxes,
        )

        def on_ready() -> None:
            names = [None if slot.given_up else slot.environments for slot in supervisor.hosts]
            serving = [(plan, found) for plan, found in zip(plans, names, strict=True) if found is not None]
            _write_folders(folders, [plan for plan, _ in serving], [found for _, found in serving])
            ready(names)

        async def run() -> None:
            async with Control(supervisor, *listening.getsockname()[:2]):
                await supervisor.run(listening, on_ready)

        asyncio.run(run())


def _ending_with_the_server(others: Sequence[Path], data: str = "") -> Sequence[str]:
    del others
    return sys.executable, *_BOUND_FOLDER, data, DATA_MOUNT


def _pool(plan: Plan, variables: Mapping[str, str], view: View) -> Pool:
    def program(others: Sequence[Path]) -> Sequence[str]:
        if plan.apart:
            return apart(view._replace(hide=[*view.hide, *map(str, others)]))
        return _ending_with_the_server(others, str(plan.data) if plan.mounted else "")

    programs = plan.python.parent  # for code that starts them
    environ = {
        **variables,
        "PATH": f"{programs}:{variables.get('PATH', '')}".rstrip(":"),
        "VIRTUAL_ENV": str(programs.parent),
    }
    arguments = ["serve", plan.target, *(f"--alias={alias}=*" for alias in plan.aliases)]
    return Pool(
        arguments,
        1,
        str(plan.python),
        name=plan.name,
        folder=plan.folder,
        environ=environ,
        program=program,
        names=list(dict.fromkeys((plan.name, *plan.aliases))),
    )


def _uploads(settings: Settings) -> Path:
    """Return the folder of the data that is uploaded, which has to exist before it can be hidden."""
    folder = settings.data_dir / "files"
    with contextlib.suppress(OSError):  # there will be no uploads either
        settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _view(plan: Plan, plans: Sequence[Plan], packages: Path, private: Sequence[Path]) -> View:
    """Return what an environment sees: neither the others' folders nor what is private to the server."""
    own = [plan.folder, _virtualenv(plan)]
    hidden, shared = list(private), [packages, *(folder.resolve() for folder in packages.iterdir())]
    if sys.prefix != sys.base_prefix:
        shared.append(Path(sys.prefix))
    for other in plans:
        if other is not plan:
            hidden += [other.data, other.folder, _virtualenv(other)]
            if _virtualenv(other) == _virtualenv(plan):
                shared.append(_virtualenv(plan))  # else either could change the other's code
    return View(
        bind=(str(plan.data), DATA_MOUNT) if plan.mounted else None,
        hide=[str(folder) for folder in hidden if not any(_contains(folder, each) for each in own)],
        read_only=[str(folder) for folder in shared if not _contains(folder, plan.folder)],
    )


def _virtualenv(plan: Plan) -> Path:
    return plan.python.parent.parent


def _contains(folder: Path, inner: Path) -> bool:
    return inner.resolve().is_relative_to(folder.resolve())


def _write_secrets(folder: Path, secrets: Mapping[str, str]) -> Path:
    folder.mkdir(mode=0o700, parents=True)
    file = folder / "secrets"
    file.touch(mode=0o600)
    file.write_text("".join(f"{name}={value}\n" for name, value in secrets.items()), "utf-8")
    return file


def variables_of_environments(environ: Mapping[str, str], url: str) -> dict[str, str]:
    """Return the variables of all environments: those of this process, and this server as the platform.

    A platform's key of the operator stays here: an environment's code sends what it finds to this server, and
    has a key for it. The web tools of ``openreward`` send that key along: they get this server's address, which has no
    such service, also where the operator names another. Of Python's own variables only the seed of
    hashes passes: tasks made by way of ``hash`` or of a set's order are then the same in every process.
    """
    variables = {name: value for name, value in environ.items() if not name.startswith("PYTHON") or name == HASH_SEED}
    if "OPENAI_BASE_URL" in variables:
        variables.setdefault("OPENAI_API_KEY", LOCAL_TOKEN)
    for name in sorted(_WEB_TOOLS.keys() & variables.keys()):
        logger.warning(
            "variable not passed on: environments would send their key of this server there", extra={"variable": name}
        )
    return {
        **variables,
        **{name: url + path for name, path in _WEB_TOOLS.items()},
        "OPENREWARD_API_URL": url,
        "OPENREWARD_SESSION_URL": url,
        "OPENREWARD_DISABLE_UPDATE_CHECK": "1",
        "PYTHONUNBUFFERED": "1",
    }


def link_packages(folder: Path) -> Path:
    """Make a folder with the packages that a hosted process needs of ors-server, and none of its dependencies."""
    packages = folder / "packages"
    packages.mkdir()
    for name in (ors_server.__name__, ors_containers.__name__, PROGRAM):
        spec = find_spec(name)
        assert spec is not None and spec.origin is not None
        (packages / name).symlink_to(Path(spec.origin).resolve().parent)
    # The version, and the runtimes of sandboxes as entry points.
    for place in map(Path, sys.path):
        for found in place.glob(f"{DISTRIBUTION}-*.dist-info"):
            (packages / found.name).symlink_to(found.resolve())
            return packages
    return packages


def _write_folders(file: Path, plans: Sequence[Plan], names: Sequence[Names]) -> None:
    """Write the data folder of each name. Raises ``HostError`` where two plans have the same name."""
    owners: dict[str, Plan] = {}
    for plan, found in zip(plans, names, strict=True):
        for name in (plan.name, *plan.aliases, *(name for each in found for name in each)):
            first = owners.setdefault(name.lower(), plan)
            if first is not plan:
                raise HostError(
                    f"{first.folder} and {plan.folder} have an environment of the same name, {name}",
                    "Host them on two ports.",
                )
    written = file.with_suffix(".new")
    written.write_text(json.dumps({name: str(plan.data) for name, plan in owners.items()}), "utf-8")
    written.replace(file)
