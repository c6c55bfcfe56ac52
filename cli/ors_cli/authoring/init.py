"""``ors-server init``: a folder with a working environment."""

from __future__ import annotations

import re
import shlex
import unicodedata
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from ors_cli.authoring.template_folders import (
    TEMPLATES,
    FolderError,
    Names,
    check_empty,
    read_environment,
    write_folder,
)
from ors_cli.authoring.wheel import put_wheel, wheel

__all__ = ["INIT_EXAMPLES", "class_name_of", "init", "names_of"]

_NAME = re.compile(r"[a-z][a-z0-9]*([_-][a-z0-9]+)*")

_SHOWN = "\n".join(f"  {name:10}{shows}" for name, shows in TEMPLATES.items())

INIT_EXAMPLES = f"""[bold]Templates[/bold]
{_SHOWN}

[bold]Examples[/bold]
  ors-server init my_env && ors-server serve my_env
  ors-server init my_env --template images

The environment of a template is complete: play it, then replace it part by part."""


def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to write; it is made where it is missing.")],
    template: Annotated[str, typer.Option(metavar="NAME", help="What the environment shows; see below.")] = "basic",
    name: Annotated[str | None, typer.Option(help="The environment's name; the folder's own name by default.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Write into a folder that is not empty.")] = False,
) -> None:
    """Write a folder with a working environment, its tests, a Dockerfile and a README."""
    names = names_of(name or folder.resolve().name)
    files = read_environment(template, names)
    overwritten = check_empty(folder, files, force=force)
    # Made before anything is written: where it cannot be made, the folder stays as it was.
    wheel_name, content = wheel()
    write_folder(folder, files)
    replaced = put_wheel(folder, wheel_name, content)

    console = Console(highlight=False)
    console.print(f"Wrote the environment [bold]{names.name}[/bold] to {escape(str(folder))}:", soft_wrap=True)
    for file in (*files, wheel_name):
        console.print(Text(f"  {file}{' (overwritten)' if file in overwritten else ''}"), soft_wrap=True)
    for file in replaced:
        console.print(Text(f"  {file} (removed)"), soft_wrap=True)
    quoted = shlex.quote(str(folder))
    console.print(Text(f"\nNext:\n  ors-server serve {quoted}\n  pytest {quoted}"), soft_wrap=True)


def names_of(name: str) -> Names:
    """Check an environment's name and derive its class. Raises ``FolderError``."""
    from ors_server.http.routes.operations import RESERVED_NAMES

    rule = "A name is made of lower-case words of letters and digits, joined by - or _, as in my_env."
    if not _NAME.fullmatch(name):
        proposal = _proposal(name)
        proposal = proposal if _NAME.fullmatch(proposal) and proposal not in RESERVED_NAMES else "my_environment"
        raise FolderError(f"{name!r} is not a name for an environment", f"{rule} Try --name {proposal}.")
    if name in RESERVED_NAMES:
        raise FolderError(
            f"No environment can be named {name!r}: the server answers that path itself", f"Try --name {name}_env."
        )
    return Names(name, class_name_of(name))


def _proposal(name: str) -> str:
    """Propose a valid name near an invalid one: ``My Env`` is ``my_env``, ``Häuser`` is ``hauser``.

    "" where letters would be lost: what is left of a word in another script says nothing.
    """
    plain = "".join(
        character
        for character in unicodedata.normalize("NFKD", name.casefold())  # casefold makes ss of ß
        if not unicodedata.combining(character)
    )
    if any(character.isalnum() and not character.isascii() for character in plain):
        return ""
    return re.sub(r"[^a-z0-9]+", "_", plain).strip("_")


def class_name_of(name: str) -> str:
    """Return the class of an environment: ``my_env`` is ``MyEnv``, ``word-count`` is ``WordCountEnvironment``.

    It always ends in Env or Environment, so that it is never a keyword or a name that the template imports.
    """
    words = re.split(r"[_-]", name)
    if len(words) == 1 or words[-1] not in {"env", "environment"}:
        words.append("environment")
    return "".join(word.capitalize() for word in words)
