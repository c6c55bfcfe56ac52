"""Servers with any umask: sandboxes, images and examinations are the same, and no other user can write them."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from ors_containers import BubblewrapRuntime, RuntimeUnavailable
from ors_containers.graders.portable_python import python_toolset
from ors_containers.images import ImageStore, Recipe, RecipeFile
from ors_containers.linux.public_folders import make_folder

DOCKERFILE = (
    "FROM base:1\nCOPY file /opt/copied\nRUN mkdir /opt/made && echo made > /opt/made/file\nUSER nobody\nRUN id\n"
)


@pytest.fixture(params=[0o077, 0])
def folder(request: pytest.FixtureRequest, rootfs_tar: bytes) -> Iterator[Path]:
    """Return a folder that every user may pass through. From now on this process makes nothing, or all, for others."""
    with tempfile.TemporaryDirectory(prefix="ors-test-") as directory:
        path = Path(directory)
        path.chmod(0o755)
        (path / "file").write_text("copied\n")
        before = os.umask(request.param)
        try:
            yield path
        finally:
            os.umask(before)


@pytest_asyncio.fixture
async def runtime(folder: Path) -> AsyncIterator[BubblewrapRuntime]:
    runtime = BubblewrapRuntime(folder / "state")
    try:
        await runtime.start()
    except RuntimeUnavailable as error:
        pytest.skip(str(error))
    yield runtime
    await runtime.close()


@pytest.fixture
def store(folder: Path) -> Iterator[ImageStore]:
    store = ImageStore(folder / "new" / "images", state=folder / "state")
    yield store
    store.close()


async def test_the_umask_changes_nothing(
    folder: Path, runtime: BubblewrapRuntime, store: ImageStore, make: Callable[..., Any], rootfs_tar: bytes
) -> None:
    base = await store.import_image(make([rootfs_tar]).oci(folder / "base.tar"), "base:1")
    (folder / "Dockerfile").write_text(DOCKERFILE)
    built = await store.build_dockerfile(folder / "Dockerfile", folder, name="built")
    recipe = Recipe({"/srv/file": RecipeFile(b"copied\n")}, "mkdir /tmp/x && touch made")
    derived = [await store.derive(image, recipe) for image in (runtime.host_image(), base)]
    toolset = await python_toolset(folder / "new" / "toolsets")
    for image in (runtime.host_image(), base, built, *derived):
        bound = dataclasses.replace(image, binds=(*image.binds, toolset.bind))
        async with runtime.sandbox(bound) as sandbox:
            seen = await sandbox.run("cd /tmp && touch new && stat -c %a / /etc /etc/passwd new", timeout=20)
            assert seen.text.split() == ["755", "755", "644", "644"], image
            result = await sandbox.examine([*toolset.command, "-c", "print(1)"], timeout=20)
            assert result.output == b"1\n", image
    async with runtime.sandbox(built) as sandbox:
        assert (await sandbox.run("cat /opt/copied /opt/made/file", timeout=20)).text == "copied\nmade\n"
    for image in derived:
        async with runtime.sandbox(image) as sandbox:
            assert (await sandbox.run("cat /srv/file; ls made", timeout=20)).text == "copied\nmade\n"
    made = [path for name in ("state", "new") for path in (folder / name, *folder.glob(f"{name}/*"))]
    made += [*folder.glob("new/images/*"), *folder.glob("new/images/*/*.json"), *folder.glob("new/toolsets/*/*")]
    assert [path for path in made if path.lstat().st_mode & 0o022 and not path.is_symlink()] == []


def test_a_link_opens_no_folder(tmp_path: Path) -> None:
    """The state of an ordinary user's server is in /tmp, where another user may have made the link."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(closed)
    make_folder(tmp_path / "link")
    assert closed.stat().st_mode & 0o777 == 0o700
    make_folder(closed)
    assert closed.stat().st_mode & 0o777 == 0o755
