"""Promises about hard links to files of an image, tried where the store of images is.

A file system may lack what the kernel needs for them, and the kernel does not say so.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from ors_containers.errors import StoreFailed
from ors_containers.images.storing.store_folder import default_root
from ors_containers.launcher.whole_files import SMALL_LAYER_SIZE
from ors_containers.limits import MIB, Limits
from ors_containers.runtime import HardLinks, Runtime
from ors_containers.sandbox import Sandbox
from ors_containers.self_check.promises import ExpectedDifference, PromiseBroken, Promises

__all__ = ["promise", "try_hard_links"]

promise = Promises()

_LIMITS = Limits(memory=96 * MIB, pids=48, disk=64 * MIB, output=4000)
_GIT_PATH = "/usr/bin:/bin"
#: git, as the machine's administrator and as no user.
_GIT = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@localhost",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@localhost",
}
_WHOLE = """(
set -e; cd /srv/files; before=$(stat -c %d:%i plain); ln plain new
for name in plain new; do [ $(stat -c %d:%i:%h $name) = $before:2 ]; done
[ plain -ef new ]; [ "$(find /srv -samefile plain | wc -l)" = 2 ]
echo more >> new; [ "$(cat plain)" = "$(printf 'plain\\nmore')" ]
[ one -ef other ]; ln one third; [ third -ef other ]; ln -P link link2; [ $(stat -c %h link) = 2 ]; echo whole
)"""
_COPIES = """(
set -e; cd /srv; cp -al files linked; cp -a files copied
tar -cf /tmp/files.tar files; mkdir unpacked; tar -xf /tmp/files.tar -C unpacked
if command -v rsync > /tmp/rsync; then rsync -aH files/ synced; else cp -a files synced; fi
for name in plain one other link; do [ linked/$name -ef files/$name ]; done
for folder in copied unpacked/files synced; do [ $folder/one -ef $folder/other ]; [ $(cat $folder/plain) = plain ]; done
echo kept
)"""
_CLONE = """(
set -e; cd /srv; cp -a repository copy; git clone -q repository clone
for folder in copy clone; do git -C $folder fsck --strict; git -C $folder rev-parse HEAD; done | sort | uniq -c | wc -l
cat clone/file copy/file
)"""


@promise("a hard link to a file of the image is the same file")
async def hard_links_are_whole(runtime: Runtime, sandbox: Sandbox) -> None:
    await _expect(runtime, _WHOLE, "whole\n")


@promise("hard links to files of the image are copied, packed and unpacked as such")
async def hard_links_are_copied(runtime: Runtime, sandbox: Sandbox) -> None:
    await _expect(runtime, _COPIES, "kept\n")


@promise("a repository of the image can be cloned and copied")
async def repositories_can_be_cloned(runtime: Runtime, sandbox: Sandbox) -> None:
    if (await sandbox.run("command -v git", timeout=20)).exit_status != 0:
        raise ExpectedDifference("git is not installed")
    for size in (0, SMALL_LAYER_SIZE + 1):
        await _expect(runtime, _CLONE, "1\ncontent\ncontent\n", size)


@promise("a hard link to a file of a large layer of the image is the same file")
async def hard_links_in_large_layers_are_whole(runtime: Runtime, sandbox: Sandbox) -> None:
    await _expect(runtime, _WHOLE, "whole\n", SMALL_LAYER_SIZE + 1, unless=("small layers", "broken"))


async def try_hard_links(runtime: Runtime, folder: Path) -> bool:
    """Return whether a hard link to a file of an image that is kept in ``folder`` is the same file."""
    async with _image_sandbox(runtime, folder=folder) as linked:
        return (await linked.run(_WHOLE, timeout=20)).text == "whole\n"


async def _expect(
    runtime: Runtime, script: str, expected: str, size: int = 0, unless: tuple[HardLinks, ...] = ("broken",)
) -> None:
    """Expect the output of a script on an image; another one is expected where the runtime says ``unless``."""
    async with _image_sandbox(runtime, size) as linked:
        result = await linked.run(script, timeout=20)
    if result.text == expected and result.exit_status == 0:
        return
    said = runtime.describe().hard_links
    if said in unless:
        where = f"in layers of more than {SMALL_LAYER_SIZE >> 20} MiB " if said == "small layers" else ""
        raise ExpectedDifference(f"expected here: hard links to files {where}of an image are other files")
    raise PromiseBroken(f"it gave {result.exit_status} and {result.text!r}")


@asynccontextmanager
async def _image_sandbox(runtime: Runtime, size: int = 0, folder: Path | None = None) -> AsyncGenerator[Sandbox]:
    """Yield a sandbox, as root inside, with files and a repository in a layer that has ``size`` bytes more."""
    with tempfile.TemporaryDirectory(dir=folder or _store(), prefix="links-") as made:
        layer = Path(made, "layer")
        await asyncio.to_thread(_make_layer, layer, size)
        host = runtime.host_image()
        user = {"user": 0, "group": 0, "user_name": "root", "home": "/root"}
        image = replace(host, layers=(layer, *host.layers), environment=_GIT, **user)
        async with runtime.sandbox(image, _LIMITS) as sandbox:
            yield sandbox


def _store() -> Path | None:
    """Return the folder of the image store; None where there is no store that can be written."""
    try:
        root = default_root()
    except StoreFailed:
        return None
    return root if os.access(root, os.W_OK) else None


def _make_layer(layer: Path, size: int) -> None:
    files, repository = layer / "srv/files", layer / "srv/repository"
    files.mkdir(parents=True)
    repository.mkdir()
    (files / "plain").write_text("plain\n")
    (files / "one").write_text("one\n")
    (files / "other").hardlink_to(files / "one")
    (files / "link").symlink_to("one")
    with (layer / "srv/large").open("wb") as large:
        large.truncate(size)
    git = shutil.which("git", path=_GIT_PATH)
    if git is not None:
        (repository / "file").write_text("content\n")
        for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
            done = subprocess.run([git, *arguments], cwd=repository, env=_GIT, capture_output=True, text=True)
            if done.returncode != 0:
                raise PromiseBroken(f"git {arguments[0]} failed on this machine: {done.stderr}")
    for place in (layer, *layer.rglob("*")):
        if place.is_dir() and not place.is_symlink():
            place.chmod(0o755)
