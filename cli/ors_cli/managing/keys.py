"""``ors-server keys``: the keys by which clients enter a server."""

from __future__ import annotations

import json
import math
from functools import partial
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from ors_cli.flags import with_settings
from ors_server.keys.errors import KeysError
from ors_server.keys.key import NAME, Limits
from ors_server.keys.machine_size import MachineSize
from ors_server.settings import Settings

__all__ = ["keys"]

keys = typer.Typer(
    no_args_is_help=True,
    help="Add, list and revoke the keys by which clients enter a server.\n\n"
    "They lie as digests in keys.json in the data directory, and a running server reads it again when it changes. With "
    "the first key, every request wants one.",
    epilog="[bold]Examples[/bold]\n"
    "  export ORS_API_KEY=$(ors-server keys add me)              a key for the clients of this shell\n"
    "  ors-server keys add team --sessions 512 --rate 1000       with limits\n"
    "  ors-server keys list\n"
    "  ors-server keys revoke team                               its sessions end at once\n"
    "  ors-server keys add me --keys-file /etc/ors/keys.json     in the file that ORS_KEYS_FILE names to the server",
)

_of_file = partial(with_settings, names=("data_dir", "keys_file"))


def _check_name(name: str) -> str:
    if not NAME.fullmatch(name):
        raise typer.BadParameter(
            "a name has letters, digits and . _ @ -, at most 64, and begins with a letter or digit"
        )
    return name


@keys.command(no_args_is_help=True)
@_of_file
def add(
    name: Annotated[str, typer.Argument(help="Name of the key: the owner of what is made with it.")],
    settings: Settings,
    sessions: Annotated[int | None, typer.Option(min=1, metavar="N", help="Most sessions at once.")] = None,
    calls: Annotated[int | None, typer.Option(min=1, metavar="N", help="Most tool calls in flight.")] = None,
    sandboxes: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Most sandboxes of the sandbox service at once.")
    ] = None,
    sandbox_size: Annotated[
        str | None, typer.Option(metavar="CPUS:GB", help="Largest size of one of these sandboxes, as 2:4.")
    ] = None,
    rate: Annotated[float | None, typer.Option(min=0.001, metavar="R", help="Most requests a second.")] = None,
) -> None:
    """Make a key and print it, alone, on standard output. It is shown this once."""
    from ors_server.keys.exposure import add_key
    from ors_server.keys.file import keys_file

    if rate is not None and not math.isfinite(rate):
        raise typer.BadParameter("--rate is a number of requests a second")
    if sandbox_size is not None:
        try:
            MachineSize.read(sandbox_size)
        except ValueError as error:
            raise typer.BadParameter(f"--sandbox-size: {error}") from None
    limits = Limits(sessions=sessions, calls=calls, sandboxes=sandboxes, sandbox_size=sandbox_size, rate=rate)
    secret = add_key(settings, _check_name(name), limits)
    typer.echo(secret)
    typer.echo(
        f"Key {name} is in {keys_file(settings)}, as a digest. Clients send it when ORS_API_KEY is set to it, those of"
        " openreward and TRL when OPENREWARD_API_KEY is.",
        err=True,
    )


@keys.command("list")
@_of_file
def list_(
    settings: Settings, as_json: Annotated[bool, typer.Option("--json", help="As JSON, for programs.")] = False
) -> None:
    """List the keys: names and limits, never a secret."""
    from ors_server.keys.file import keys_file, read_keys

    path = keys_file(settings)
    found = read_keys(path)
    if as_json:
        rows: list[dict[str, Any]] = [
            {"name": key.name, "created": key.created, **key.limits.model_dump()} for key in found or ()
        ]
        typer.echo(json.dumps(rows, indent=2))
        return
    if not found:
        typer.echo(
            f"There is no key in {path}."
            + ("" if found is None else " All were revoked: a server that reads it lets no client in."),
            err=True,
        )
        return
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for heading in ("Name", "Created", "Sessions", "Calls", "Sandboxes", "Largest", "Requests/s"):
        table.add_column(heading)
    for key in found:
        found_limits = key.limits
        values = (
            *(found_limits.sessions, found_limits.calls, found_limits.sandboxes),
            *(found_limits.sandbox_size, found_limits.rate),
        )
        words = ("-" if value is None else value if isinstance(value, str) else f"{value:g}" for value in values)
        table.add_row(key.name, key.created, *words)
    Console(highlight=False).print(table)


@keys.command(no_args_is_help=True)
@_of_file
def revoke(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Names of keys.")], settings: Settings
) -> None:
    """Revoke keys: requests with them get 401 from now on, and their sessions end."""
    import time

    from ors_server.keys.file import changed, keys_file
    from ors_server.keys.keys import LOOK_EVERY

    with changed(keys_file(settings)) as found:
        known = {key.name for key in found}
        if unknown := [name for name in names if name not in known]:
            raise KeysError(f"There is no key {unknown[0]!r}", "`ors-server keys list` shows the keys.")
        found[:] = [key for key in found if key.name not in names]
    time.sleep(2 * LOOK_EVERY)  # when this command has ended, no server of this machine takes the key
    left = "" if found else " No key is left, and clients without one stay out until the file is removed."
    typer.echo(f"Revoked: {', '.join(names)}.{left}", err=True)
