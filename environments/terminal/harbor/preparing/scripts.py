"""One run of a task's script with a network, in a build sandbox, whose files become a layer.

A build sandbox has what a Dockerfile's ``RUN`` has: this machine's network, and every right over the image's files.

Invariant: the script and the rest of its folder are never part of the layer.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ors_containers import Image

if TYPE_CHECKING:
    from ors_containers.images import ImageStore

__all__ = ["ScriptRun", "run_with_network"]

#: Where the run's own results lie; removed from the layer.
_RESULTS = "/logs/verifier"
_MOST_OUTPUT = 1 << 20


@dataclass(frozen=True)
class ScriptRun:
    """The result of a run. ``files`` are those in ``/logs/verifier``, by name."""

    exit_status: int
    output: str
    files: Mapping[str, bytes]
    #: Bytes of the layer.
    size: int


async def run_with_network(
    store: ImageStore,
    image: Image,
    script: str,
    folder: Path,
    *,
    environment: Mapping[str, str],
    user: str,
    seconds: float,
) -> ScriptRun:
    """Run the program ``script`` of an image; ``folder`` is empty, and has the layer in ``upper`` afterwards.

    Whatever its exit status. Raises ``BuildFailed`` after ``seconds``, ``ImageTooLarge``, ``StartFailed`` and
    ``OSError``.
    """
    from ors_containers.builds.client import BuildLimits, run_scripts
    from ors_containers.builds.scripts import Script
    from ors_containers.images.accounts import docker_account
    from ors_containers.layers.tree import LayeredTree

    account = docker_account(LayeredTree(image.layers), user) if user else None
    results = shlex.quote(_RESULTS)
    text = (
        f"{shlex.quote(script)} >{results}/.output 2>&1; echo $? >{results}/.status; "
        f"chmod -R a+rX {results} 2>/dev/null; exit 0"
    )
    run = Script(
        label=script,
        text="",
        arguments=("/bin/bash", "-c", text),  # it runs a script without "#!" as well
        user=image.user if account is None else account.user,
        group=image.group if account is None else account.group,
        groups=image.groups if account is None else account.groups,
        environment={**image.variables, **({"HOME": account.home} if account else {}), **environment},
        directory=image.directory or "/",
    )
    async with store.layers.builds:
        built = await run_scripts(
            image,
            [run],
            folder,
            owners=store.layers.owners,
            limits=BuildLimits(disk=store.max_size, seconds=seconds),
            network=True,
            state=store.state,
        )
    results_here = folder / "upper" / _RESULTS.lstrip("/")
    files = {path.name: _content(path) for path in results_here.iterdir()} if results_here.is_dir() else {}
    if results_here.parent.is_dir():
        await store.layers.owners.remove(results_here.parent)
    status = files.pop(".status", b"").strip()
    output = files.pop(".output", b"").decode(errors="replace")
    return ScriptRun(int(status) if status.isdigit() else -1, output, files, built.size)


def _content(path: Path) -> bytes:
    """Return the first bytes of a regular file; none where it is anything else."""
    if path.is_symlink() or not path.is_file():
        return b""
    with path.open("rb") as stream:
        return stream.read(_MOST_OUTPUT + 1)
