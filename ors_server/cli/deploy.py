"""``ors-server deploy``: folders that become services elsewhere. No command here uses the network."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from ors_server.cli.folders import FolderError, Names, check_empty, read_template, write_folder
from ors_server.cli.wheel import WHEEL_PATTERN, put_wheel, wheel
from ors_server.targets import ENVIRONMENT_FILE

__all__ = ["deploy", "space", "with_front_matter"]

deploy = typer.Typer(no_args_is_help=True, help="Write a folder that serves an environment elsewhere.")

#: Caches, virtual environments and repositories have no place in a Space.
_LEFT_OUT = frozenset(
    {
        ".git",
        ".hg",
        ".mypy_cache",
        ".pytest_cache",
        ".ruff_cache",
        ".venv",
        "__pycache__",
        "node_modules",
        "venv",
    }
)
_SECRET = frozenset({".env", ".netrc", ".pypirc"})
_FRONT_MATTER = re.compile(r"\A---[ \t]*\r?\n(.*?)^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)
_KEY = re.compile(r"^([A-Za-z_][\w-]*)[ \t]*:", re.MULTILINE)


@deploy.callback()
def _deploy() -> None:
    # A callback keeps `space` a command of its own while it is the only one.
    pass


@deploy.command(
    no_args_is_help=True,
    epilog="[bold]Example[/bold]\n"
    "  ors-server deploy space my_env --output my_space\n\n"
    "The commands that push the folder to the Space are printed at the end.",
)
def space(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The environment's folder, with environment.py in it.")],
    output: Annotated[
        Path | None, typer.Option(metavar="OUT", help="The folder to write; DIR-space beside DIR by default.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write into a folder that is not empty.")] = False,
) -> None:
    """Write the files of a Hugging Face Space that serves an environment.

    The Space is DIR's files, a README with the front matter a Space needs, a Dockerfile (user 1000, port 7860) and
    ors-server as a wheel. A Dockerfile of DIR that starts ors-server is kept.
    """
    if not (folder / ENVIRONMENT_FILE).is_file():
        raise FolderError(
            f"{folder} has no {ENVIRONMENT_FILE}" if folder.is_dir() else f"There is no folder {folder}",
            f"Name an environment's folder; `ors-server init {folder}` writes one.",
        )
    source = folder.resolve()
    target = (output or source.with_name(f"{source.name}-space")).resolve()
    if target == source or target.is_relative_to(source) or source.is_relative_to(target):
        raise FolderError(
            f"The output {target} and the environment {source} lie in each other", "Name another --output."
        )

    # Also the tag of an image in the Dockerfile, and a value in the front matter: no capitals, no spaces, no colons.
    names = Names(re.sub(r"[^a-z0-9._-]+", "-", source.name.lower()).strip("-._") or "environment", "")
    shared = read_template("shared", names)
    own, secret = _files(source)
    files: dict[str, bytes | Path] = {**shared, **own}
    notes = [f"{name}: left out, because such files hold secrets." for name in secret]
    if "Dockerfile" in own and not _starts_ors_server(own["Dockerfile"]):
        files["Dockerfile"] = shared["Dockerfile"]
        notes.append("Dockerfile: written anew, because the folder's own does not start ors-server.")
    elif "Dockerfile" in own and b"7860" not in own["Dockerfile"].read_bytes():
        notes.append("Dockerfile: kept, but 7860 is not in it; a Space reaches it on the app_port of README.md.")
    if ".gitattributes" in own:
        files[".gitattributes"] = _together(own[".gitattributes"].read_bytes(), shared[".gitattributes"])
    readme = read_template("space", names)["README.md"].decode()
    if "README.md" in own:
        readme, changes = with_front_matter(own["README.md"].read_text("utf-8", errors="replace"), readme)
        notes.extend(f"README.md: {change}." for change in changes)
    files["README.md"] = readme.encode()
    if overwritten := check_empty(target, files, force=force):
        notes.append(f"Overwritten: {', '.join(overwritten)}.")
    wheel_name, content = wheel()
    write_folder(target, files)
    notes.extend(
        f"{replaced}: removed, {wheel_name} takes its place." for replaced in put_wheel(target, wheel_name, content)
    )
    _explain(Console(highlight=False), target, names.name, notes)


def _files(folder: Path) -> tuple[dict[str, Path], list[str]]:
    """The files that go into a Space, by their path in the folder, and those left out because they hold secrets.

    Raises ``FolderError`` for a linked folder, which may lead anywhere.
    """
    files: dict[str, Path] = {}
    secret: list[str] = []
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in _LEFT_OUT)
        for name in folders:
            if (Path(root) / name).is_symlink():
                raise FolderError(f"{Path(root) / name} is a link to a folder", "Put the folder itself in its place.")
        for name in sorted(names):
            path = Path(root) / name
            inside = path.relative_to(folder).as_posix()
            if name in _SECRET or name.startswith(".env."):
                secret.append(inside)
            elif name not in _LEFT_OUT and path.suffix != ".pyc" and not path.match(WHEEL_PATTERN):
                files[inside] = path
    return files, secret


def _together(own: bytes, added: bytes) -> bytes:
    """Git attributes of both; ours come last and win."""
    return own if added.strip() in own else own.rstrip() + b"\n\n" + added


def _starts_ors_server(dockerfile: Path) -> bool:
    return any(
        b"ors-server" in line or b"ors_server" in line
        for line in dockerfile.read_bytes().splitlines()
        if line.lstrip().upper().startswith((b"CMD", b"ENTRYPOINT"))
    )


def with_front_matter(readme: str, template: str) -> tuple[str, list[str]]:
    """A README with what a Space needs at its head, and what was changed to get there.

    Keys that are missing are taken from the template's head; ``sdk`` has to be ``docker``; everything else stays as it
    is.
    """
    wanted = _FRONT_MATTER.match(template)
    assert wanted is not None, "the template has a front matter"
    lines = {key: line for line in wanted[1].splitlines() if (key := line.partition(":")[0])}
    found = _FRONT_MATTER.match(readme)
    if found is None:
        return f"{wanted[0]}\n{readme.lstrip()}", ["front matter added"]
    changes: list[str] = []
    head = found[1]
    if "sdk" in _KEY.findall(head):
        replaced = re.sub(r"^sdk[ \t]*:.*$", lines["sdk"], head, flags=re.MULTILINE)
        if replaced.rstrip() != head.rstrip() and not re.search(r"^sdk[ \t]*:[ \t]*[\"']?docker\b", head, re.MULTILINE):
            head = replaced
            changes.append(f"changed to {lines['sdk']}")
    missing = [key for key in lines if key not in _KEY.findall(head)]
    if missing:
        head = f"{head.rstrip()}\n" if head.strip() else ""
        head += "".join(f"{lines[key]}\n" for key in missing)
        changes.append(f"front matter got {', '.join(missing)}")
    return f"---\n{head}---\n{readme[found.end() :]}", changes


def _explain(console: Console, target: Path, name: str, notes: list[str]) -> None:
    console.print(Text(f"Wrote the Space to {target}."), soft_wrap=True)
    for note in notes:
        console.print(Text(f"  {note}"), soft_wrap=True)
    steps = [
        "Create a Space with the SDK Docker at https://huggingface.co/new-space, then, with OWNER and SPACE as there:",
        "",
        f"  cd {shlex.quote(str(target))}",
        "  git init --initial-branch=main && git lfs install --local",
        "  git remote add space https://huggingface.co/spaces/OWNER/SPACE",
        f"  git add . && git commit --message 'Serve {name}'",
        "  git push --force space main",
        "",
        "When it runs, clients find it with:",
        "",
        "  export OPENREWARD_API_URL=https://OWNER-SPACE.hf.space",
        "  export OPENREWARD_SESSION_URL=https://OWNER-SPACE.hf.space",
        "",
        "A public Space shows its files to everyone, tasks and grading included.",
    ]
    console.print()
    for step in steps:
        console.print(Text(step), soft_wrap=True)
