"""``ors-server image``: make, list and remove the images of sandboxes.

The store (``ors_containers.images``) does the work; this module calls it and shows its progress.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.markup import escape
from rich.status import Status
from rich.table import Table
from rich.text import Text

from ors_server.errors import OrsError

if TYPE_CHECKING:
    from ors_containers.images import ImageRecord, ImageStore, MapRow, Step

__all__ = ["image"]

T = TypeVar("T")

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_DAY = 86400.0

_EXAMPLES = """[bold]Examples[/bold]
  ors-server image list                      what there is; `host` is always there
  ors-server image import ubuntu_22.04.tar   a tar, OCI or docker archive, folder, SIF
  ors-server image build -f Dockerfile .     a Dockerfile, with the folder as its context
  ors-server image build container.def       an Apptainer definition
  ors-server image map ubuntu:22.04          the local image that stands for this name
  ors-server image prune --max-total 50G     until all take 50 GiB or less

[bold]An archive to import, made where there is a network[/bold]
  podman pull ubuntu:22.04
  podman save --format oci-archive -o ubuntu_22.04.tar ubuntu:22.04"""

_MAP = """[bold]An image map[/bold]
  \\[images]
  "generalreasoning/python-ds:3.12-tools" = { dockerfile = "python-ds/Dockerfile", network = true }
  "ubuntu:22.04" = "ubuntu_22.04"
  "swerebench/*" = { archive = "swerebench/{1}.tar" }
  "*" = { registry = "docker.io" }"""

image = typer.Typer(
    no_args_is_help=True,
    help="Make, list and remove the images that sandboxes start from.\n\n"
    "An image is a list of layers, kept once however many images and tasks have them. They lie in $ORS_IMAGES, by "
    "default ~/.cache/ors-server/images. The image `host` is this machine's own /usr, read-only, and nothing else of "
    "it.",
    epilog=_EXAMPLES,
)


class ImageError(OrsError):
    """An image could not be made, found or removed."""


@image.callback()
def _group() -> None:
    """Make, list and remove the images that sandboxes start from."""


_Name = Annotated[
    str | None,
    typer.Option("--name", "-n", "--tag", "-t", help="What it is called; an image of that name is replaced."),
]
_MaxSize = Annotated[
    str, typer.Option("--max-size", help="The most one image may have: bytes, or with K, M, G or T behind.")
]


@image.command("import")
def import_(
    path: Annotated[Path, typer.Argument(help="A folder, tar archive, OCI or docker archive, OCI layout or SIF.")],
    name: _Name = None,
    user: Annotated[
        str, typer.Option("--user", help="Name or id of the user of its sandboxes. Default: what the image says.")
    ] = "",
    max_size: _MaxSize = "16G",
) -> None:
    """Take an image into the store, without a daemon.

    An image that names no user gets the one called `user`, or id 1000: never root, unless it or --user says so.
    """
    with _store(max_size) as store, _Display() as display:
        made = _run(store.import_image(path, name, user=user, progress=display.show))
        record = store.record(made.name)
    _tell(record, "Imported")


@image.command("build", no_args_is_help=True)
def build(
    source: Annotated[
        Path, typer.Argument(help="A folder, the context of its Dockerfile; or an Apptainer definition file (.def).")
    ],
    name: _Name = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="The Dockerfile. Default: Dockerfile in the folder.")
    ] = None,
    build_arg: Annotated[
        list[str] | None, typer.Option("--build-arg", help="NAME=VALUE of an ARG of the Dockerfile; may be repeated.")
    ] = None,
    target: Annotated[str, typer.Option("--target", help="The stage of the Dockerfile to build.")] = "",
    network: Annotated[
        bool, typer.Option("--network", help="Let RUN and %post use this machine's network (apt, pip).")
    ] = False,
    host_files: Annotated[
        bool,
        typer.Option(
            "--host-files",
            help="Trust a definition as your own: %files and From may name any file of this machine, debootstrap may "
            "run.",
        ),
    ] = False,
    max_size: _MaxSize = "16G",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Do not show what its scripts say.")] = False,
) -> None:
    """Build a Dockerfile or an Apptainer definition file in a sandbox, as root of that sandbox only.

    Of a Dockerfile every instruction is known, but remote sources of ADD, and RUN --mount=type=bind. FROM names images
    of the image map (`ors-server image map`) and of the store. Each instruction that was built before, on the same
    layers and from the same files, is not run again. COPY and ADD read the folder only, without what .dockerignore
    lists.

    Kept of a definition: %post, %files, %environment, %labels, %test. Bootstraps: localimage (a file beside the
    definition, or an image of the store by name, so that `From: ./ubuntu_22.04.sif` finds `ubuntu_22.04`), docker
    (fetched through skopeo, podman or apptainer), debootstrap, oci, oci-archive, docker-archive. Built before and not
    changed, it is there at once.

    What a definition copies and starts from must lie in its own folder: a definition may be a stranger's, and an agent
    can read what is in an image. For one of your own there is --host-files.
    """
    from ors_containers.images import ImageMap

    with _store(max_size) as store, _Display(quiet=quiet) as display:
        if file is not None or source.is_dir():
            if host_files:
                raise ImageError("--host-files is for definition files", "Put the files into the Dockerfile's context")
            made = _run(
                store.build_dockerfile(
                    file or source / "Dockerfile",
                    source,
                    name=name,
                    arguments=_arguments(build_arg or []),
                    target=target,
                    network=network,
                    find_base=ImageMap(store).record,
                    progress=display.show,
                ),
                quiet=quiet,
            )
        else:
            if build_arg or target:
                raise ImageError("--build-arg and --target are for Dockerfiles", "Name the Dockerfile: -f FILE FOLDER")
            made = _run(
                store.build(source, name=name, network=network, host_files=host_files, progress=display.show),
                quiet=quiet,
            )
        record = store.record(made.name)
    _tell(record, "Built")


@image.command("map", epilog=_MAP)
def map_(
    names: Annotated[list[str] | None, typer.Argument(help="Names of images, as environments use them.")] = None,
    make: Annotated[bool, typer.Option("--make", help="Make the images of these names now.")] = False,
) -> None:
    """Show which local image stands for a name, and whether it is there.

    The image map is a TOML file that you write: $ORS_IMAGE_MAP, by default ~/.config/ors-server/images.toml. Its first
    pattern that matches a name decides; a name without a pattern is looked for among the images of the store.

    Without names, shows the file's patterns. Ends with 2 where a name has no image.
    """
    from ors_containers.images import ImageMap

    console = Console(highlight=False)
    missing: list[str] = []
    with _store() as store:
        images = ImageMap(store)
        rows = _called(images.rows)
        if not names:
            _show_rows(console, images.path, rows)
        for name in names or ():
            if make:
                with _Display() as display:
                    _run(images.record(name, progress=display.show))
            found = _called(lambda name=name: images.look_up(name))
            source = "the store" if found.row is None else f"{found.row.kind} {found.row.value}"
            state = "ready" if found.ready else "missing" if found.problem is not None else "made at its first use"
            console.print(f"[bold]{escape(name)}[/bold]: {escape(source)}, {state}", soft_wrap=True)
            if found.problem is not None:
                missing.append(name)
                console.print(f"  {escape(str(found.problem))}", soft_wrap=True)
    if missing:
        raise typer.Exit(2)


def _show_rows(console: Console, path: Path, rows: Sequence[MapRow]) -> None:
    console.print(f"{escape(str(path))}{'' if path.exists() else ' (there is no such file)'}", soft_wrap=True)
    table = Table(box=None, header_style="bold")
    for title in ("Pattern", "Source", "Options"):
        table.add_column(title, overflow="fold")
    for row in rows:
        options = ", ".join(f"{key} = {json.dumps(value)}" for key, value in row.options.items())
        table.add_row(escape(row.pattern), escape(f"{row.kind} {row.value}"), escape(options))
    if rows:
        console.print(table)


def _arguments(texts: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise ImageError(f"--build-arg {text!r} is not NAME=VALUE")
        found[name] = value
    return found


@image.command("list")
def list_(as_json: Annotated[bool, typer.Option("--json", help="As a JSON list, for programs.")] = False) -> None:
    """List the images: size (shared layers count in each), layers, when it was used last, what it was made from."""
    console = Console(highlight=False)
    with _store() as store:
        records = _called(store.images)
        usage = _called(store.usage)
        held = sum(not hold.expired for hold in store.holds())
    if as_json:
        rows: list[dict[str, Any]] = [
            {"name": "host", "size": 0, "layers": [], "used": None, "created": None, "source": "/usr", "user": "user"},
            *(
                {
                    "name": record.name,
                    "size": record.size,
                    "layers": list(record.all_layers),
                    "used": record.used,
                    "created": record.created,
                    "source": record.source,
                    "user": record.user_name,
                    "home": record.home,
                    "environment": dict(record.environment),
                    "labels": dict(record.labels),
                }
                for record in records
            ),
        ]
        console.print(json.dumps(rows, indent=2), markup=False, soft_wrap=True)
        return
    table = Table(box=None, header_style="bold")
    for title, right in (("Name", False), ("Size", True), ("Layers", True), ("Used", False), ("Made from", False)):
        table.add_column(title, justify="right" if right else "left", overflow="fold")
    table.add_row("host", "0", "", "", "this machine's /usr, read-only")
    for record in records:
        used = _ago(record.used)
        table.add_row(escape(record.name), _size(record.size), str(len(record.all_layers)), used, escape(record.source))
    console.print(table)
    recipes = [layer for layer in usage if layer.recipe]
    total = _size(sum(layer.size for layer in usage))
    kept = f"; {held} final states of episodes are kept for a time" if held else ""
    console.print(
        f"\n{total} in {len(usage)} layers, {len(recipes)} of them made by tasks, in {escape(str(store.root))}{kept}",
        style="dim",
        soft_wrap=True,
    )


@image.command("prune")
def prune(
    unused_days: Annotated[
        float | None,
        typer.Option(
            "--unused-days",
            min=0.0,
            help="Also remove images that were not used for so many days; what tasks made goes after these days, too.",
        ),
    ] = None,
    max_total: Annotated[
        str | None,
        typer.Option("--max-total", help="Then remove what was used longest ago, until the rest has so many bytes."),
    ] = None,
) -> None:
    """Remove layers that no image has, and what tasks made and did not use for 30 days (or --unused-days).

    What a living server was given is never removed.
    """
    total = None if max_total is None else _bytes(max_total, "--max-total")
    with _store() as store, _Display() as display:
        pruned = _run(store.prune(unused_days=unused_days, max_total=total, progress=display.show))
    images = f"{len(pruned.images)} image{'' if len(pruned.images) == 1 else 's'}"
    layers = f"{pruned.layers} layer{'' if pruned.layers == 1 else 's'}"
    Console(highlight=False).print(f"Removed {images} and {layers}: {_size(pruned.size)}")


@image.command("remove", no_args_is_help=True)
def remove(names: Annotated[list[str], typer.Argument(help="Names of images.")]) -> None:
    """Remove images by name, with the layers that no other image has.

    What a living server was given stays until it ends; the next `prune` removes it.
    """
    with _store() as store:
        for name in names:
            if name == "host":
                raise ImageError("`host` is this machine's own /usr and cannot be removed")
            freed = _run(store.remove(name))
            Console(highlight=False).print(f"Removed {escape(name)}: {_size(freed)}", soft_wrap=True)


class _Display:
    """Progress on standard error: one line that changes, with the output of scripts above it."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._quiet = quiet
        self._status: Status | None = None
        self._last = ""

    def __enter__(self) -> _Display:
        if self._console.is_terminal:
            self._status = self._console.status("")
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def show(self, step: Step) -> None:
        """Show a step."""
        if step.output:
            if not self._quiet:
                self._console.print(Text(f"  {step.text}", style="dim"), soft_wrap=True)
            return
        text = f"{step.text} ({_size(step.done)})" if step.done else step.text
        if self._status is not None:
            self._status.update(Text(text))
        elif step.text != self._last:
            self._console.print(Text(step.text), soft_wrap=True)
        self._last = step.text


@contextmanager
def _store(max_size: str = "16G") -> Generator[ImageStore]:
    from ors_containers.images import ImageStore

    store = _called(lambda: ImageStore(max_size=_bytes(max_size, "--max-size")))
    try:
        yield store
    finally:
        store.close()


def _run(work: Coroutine[Any, Any, T], *, quiet: bool = False) -> T:
    return _called(lambda: asyncio.run(work), quiet=quiet)


def _called(work: Callable[[], T], *, quiet: bool = False) -> T:
    from ors_containers import BuildFailed, SandboxError

    try:
        return work()
    except BuildFailed as error:
        # The output of its scripts has been shown already, except with --quiet.
        cause = str(error).removesuffix(error.remedy).rstrip() if quiet else error.cause
        raise ImageError(cause, error.remedy) from error
    except SandboxError as error:
        raise ImageError(error.cause, error.remedy) from error


def _tell(record: ImageRecord, what: str) -> None:
    console = Console(highlight=False)
    layers = f"{len(record.all_layers)} layer{'' if len(record.all_layers) == 1 else 's'}"
    who = f"user {record.user_name} ({record.user}) in {record.home}"
    console.print(
        f"{what} [bold]{escape(record.name)}[/bold]: {_size(record.size)} in {layers}, {escape(who)}", soft_wrap=True
    )


def _bytes(text: str, flag: str) -> int:
    number, unit = text.strip().upper().removesuffix("IB").removesuffix("B"), ""
    if number and number[-1] in _UNITS:
        number, unit = number[:-1], number[-1]
    try:
        value = int(float(number) * _UNITS[unit])
    except ValueError as error:
        raise ImageError(f"{flag} {text!r} is not a size", "Write bytes, or a number with K, M, G or T: 20G") from error
    if value <= 0:
        raise ImageError(f"{flag} {text!r} leaves nothing", "Write bytes, or a number with K, M, G or T: 20G")
    return value


def _size(size: int) -> str:
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 10 else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def _ago(moment: float) -> str:
    seconds = max(0.0, time.time() - moment)
    for unit, length in (("day", _DAY), ("hour", 3600.0), ("minute", 60.0)):
        if seconds >= length:
            count = int(seconds / length)
            return f"{count} {unit}{'' if count == 1 else 's'} ago"
    return "now"
