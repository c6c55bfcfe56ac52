"""``ors-server deploy``: folders that become services elsewhere. No command here uses the network."""

from __future__ import annotations

import ast
import fnmatch
import os
import re
import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from ors_cli.authoring.template_folders import FolderError, Names, check_empty, read_template, write_folder
from ors_cli.authoring.wheel import WHEEL_PATTERNS, put_wheel, wheel
from ors_server.hosting.loading.targets import ENVIRONMENT_FILES, environment_files

__all__ = ["deploy", "space", "with_front_matter"]

deploy = typer.Typer(no_args_is_help=True, help="Write a folder that serves an environment elsewhere.")

#: Caches, virtual environments and repositories, which a Space does not need.
_NO_CONTENT = frozenset(
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
#: The only names with a dot that go along: they say what is published and built, .gitignore also what is not.
_PUBLISHED_DOTS = frozenset({".dockerignore", ".gitattributes", ".gitignore"})
#: Names, in lower case, of files that usually hold passwords, tokens or private keys.
_SECRET = (
    "*.env",
    "*.env.*",
    "*.jks",
    "*.kdbx",
    "*.key",
    "*.keystore",
    "*.p12",
    "*.pem",
    "*.pfx",
    "*.ppk",
    "*.tfstate",
    "*.tfvars",
    "client_secret*.json",
    "credentials",
    "credentials.json",
    "htpasswd",
    "id_dsa*",
    "id_ecdsa*",
    "id_ed25519*",
    "id_rsa*",
    "kubeconfig",
    "secrets.json",
    "secrets.toml",
    "secrets.yaml",
    "secrets.yml",
    "service-account*.json",
    "service_account*.json",
    "token",
    "token.txt",
)
#: A private key under a name of the user's choice; not data such as id_map.json.
_KEY_FILE = re.compile(r"id_[^.]*(\.pub)?")
#: Imports that open sandboxes.
_SANDBOXES = re.compile(r"ors_containers\b|ors_server\.sandboxes\b|openreward\..*[Ss]andbox|openreward\.\w*OpenReward$")
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
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The environment's folder, with environment.py or server.py in it.")
    ],
    output: Annotated[
        Path | None, typer.Option(metavar="OUT", help="The folder to write; DIR-space beside DIR by default.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write into a folder that is not empty.")] = False,
) -> None:
    """Write the files of a Hugging Face Space that serves an environment.

    The Space is DIR's files, a README with the front matter a Space needs, a Dockerfile (user 1000, port 7860) and
    ors-server as a wheel. A Dockerfile of DIR that starts ors-server is kept. Names that begin with a dot, and files
    that usually hold secrets, such as keys, are left out and listed.
    """
    if not environment_files(folder):
        raise FolderError(
            f"{folder} has no {ENVIRONMENT_FILES[0]}" if folder.is_dir() else f"There is no folder {folder}",
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
    own, notes = _files(source)
    files: dict[str, bytes | Path] = {**shared, **own}
    if "Dockerfile" in own and not _starts_ors_server(own["Dockerfile"]):
        files["Dockerfile"] = shared["Dockerfile"]
        notes.append("Dockerfile: written again, because the folder's own does not start ors-server.")
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
    if users := sorted(name for name, path in own.items() if name.endswith(".py") and _uses_sandboxes(path)):
        notes.append(
            f"{', '.join(users)}: uses sandboxes, which a Space does not have: its container can make no namespaces. "
            "Episodes that need one end as infrastructure failures there. Serve such an environment on a machine of "
            "yours, or with `docker run` (docs/deploy.md)."
        )
    wheel_name, content = wheel()
    write_folder(target, files)
    notes.extend(
        f"{replaced}: removed, {wheel_name} takes its place." for replaced in put_wheel(target, wheel_name, content)
    )
    _explain(Console(highlight=False), target, names.name, notes)


def _files(folder: Path) -> tuple[dict[str, Path], list[str]]:
    """Return the files that go into a Space, by their path in the folder, and notes about the others.

    Raises ``FolderError`` for a link to a folder or out of the folder: it may lead anywhere, and a Space is public.
    """
    files: dict[str, Path] = {}
    left_out: dict[str, list[str]] = {}
    for root, folders, names in os.walk(folder, onerror=_raise_unreadable):
        kept: list[str] = []
        for name in sorted(folders):
            path = Path(root) / name
            if reason := _reason_to_leave_out(name, folder=True):
                left_out.setdefault(reason, []).append(f"{path.relative_to(folder).as_posix()}/")
            elif name not in _NO_CONTENT:
                if path.is_symlink():
                    raise FolderError(f"{path} is a link to a folder", "Put the folder itself in its place.")
                kept.append(name)
        folders[:] = kept
        for name in sorted(names):
            path = Path(root) / name
            inside = path.relative_to(folder).as_posix()
            if name in _NO_CONTENT or path.suffix == ".pyc" or any(map(path.match, WHEEL_PATTERNS)):
                continue
            reason = _reason_to_leave_out(name)
            if not reason and path.is_symlink():
                reason = _reason_of_linked(folder, path)
            if not reason and not path.is_file():
                reason = "neither a file nor a folder"
            if reason:
                left_out.setdefault(reason, []).append(inside)
            else:
                files[inside] = path
    return files, [f"Left out ({reason}): {', '.join(names)}." for reason, names in sorted(left_out.items())]


def _reason_to_leave_out(name: str, *, folder: bool = False) -> str:
    """Why a file or folder of this name does not go into a Space; "" where it may."""
    if name in _NO_CONTENT or (name in _PUBLISHED_DOTS and not folder):
        return ""
    if name.startswith("."):
        return "the name begins with a dot"
    lowered = name.lower()
    if not folder and (_KEY_FILE.fullmatch(lowered) or any(fnmatch.fnmatchcase(lowered, form) for form in _SECRET)):
        return "such files usually hold secrets"
    return ""


def _reason_of_linked(folder: Path, link: Path) -> str:
    """Why what a link of the folder leads to does not go into a Space; "" where it may. Raises ``FolderError``."""
    target = Path(os.path.realpath(link))
    if not target.is_relative_to(folder):
        raise FolderError(f"{link} is a link out of the folder, to {target}", "Put the file itself in its place.")
    if not target.exists():
        raise FolderError(f"{link} is a link to {target}, which does not exist", "Remove it, or put the file there.")
    *folders, name = target.relative_to(folder).parts
    if any(part in _NO_CONTENT for part in (*folders, name)):
        return "a link into what is left out"
    reasons = (*(_reason_to_leave_out(part, folder=True) for part in folders), _reason_to_leave_out(name))
    return next((reason for reason in reasons if reason), "")


def _raise_unreadable(error: OSError) -> None:
    raise FolderError(f"{error.filename} cannot be read: {error.strerror}") from error


def _uses_sandboxes(program: Path) -> bool:
    """Return whether a Python file imports what opens sandboxes: of ors-server, or of ``openreward``."""
    try:
        tree = ast.parse(program.read_bytes())
    except (SyntaxError, ValueError):
        return False
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return any(_SANDBOXES.match(name) for name in names)


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
    """Add the front matter of a Space to a README; returns it with the changes.

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
        "  export OPENREWARD_API_KEY=…",
        "",
        "The key is the Space's secret ORS_SERVER_KEY, which you set in its settings (`openssl rand -hex 32`). Without "
        "it the Space makes a key at each start, and its log has it. A variable ORS_INSECURE=1 lets everyone in.",
        "",
        "A public Space shows its files to everyone, tasks and grading included.",
    ]
    console.print()
    for step in steps:
        console.print(Text(step), soft_wrap=True)
