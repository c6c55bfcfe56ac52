"""Files that an ended container has written, as a layer of the next one."""

from __future__ import annotations

import dataclasses
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from ors_containers import ContainerSettings, SandboxStopped
from ors_containers.container import Container, FrozenFiles
from ors_containers.layers.deep_folders import DEEPEST, LONGEST
from ors_containers.layers.tree import OPAQUE
from ors_containers.runtimes.namespace_runtime import NamespaceRuntime

from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

_SETTINGS = ContainerSettings(disk=64 * 2**20)


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


async def opened(runtime: NamespaceRuntime, *frozen: FrozenFiles) -> Container:
    image = runtime.host_image()
    layers = (*(each.layer for each in frozen), *image.layers)
    return await runtime.open_container(dataclasses.replace(image, layers=layers), _SETTINGS)


async def written(runtime: NamespaceRuntime, folder: Path, command: str, *below: FrozenFiles) -> FrozenFiles:
    container = await opened(runtime, *below)
    result = await container.run(command, timeout=30)
    assert result.exit_status == 0, result.text
    return await container.freeze(folder)


async def said(runtime: NamespaceRuntime, command: str, *frozen: FrozenFiles) -> str:
    async with await opened(runtime, *frozen) as container:
        return (await container.run(command, timeout=30)).text


async def test_a_container_starts_over_what_another_has_written(runtime: NamespaceRuntime, folder: Path) -> None:
    command = "mkdir /work && echo mine >/work/a && chown 1000:1000 /work/a && chmod 600 /work/a && rm /etc/services"
    async with await written(runtime, folder, command) as frozen:
        assert frozen.size >= len("mine\n")
        look = (
            "cat /work/a; stat -c '%u %g %a' /work/a; ls /etc/services 2>&1 | wc -l; test -e /etc/services || echo gone"
        )
        assert await said(runtime, look, frozen) == "mine\n1000 1000 600\n1\ngone\n"
        # Another container's writes do not reach the layer.
        assert await said(runtime, "echo other >/work/a; cat /work/a", frozen) == "other\n"
        assert await said(runtime, "cat /work/a", frozen) == "mine\n"


async def test_layers_of_several_containers_lie_over_each_other(runtime: NamespaceRuntime, folder: Path) -> None:
    (folder / "first").mkdir()
    (folder / "second").mkdir()
    async with await written(runtime, folder / "first", "mkdir /work; echo 1 >/work/a; echo 1 >/work/b") as first:
        change = "rm -r /work && mkdir /work && echo 2 >/work/a"
        async with await written(runtime, folder / "second", change, first) as second:
            assert os.getxattr(second.layer / "work", OPAQUE) == b"y"
            assert await said(runtime, "grep . /work/*", second, first) == "2\n"


async def test_what_a_layer_cannot_have_is_removed(runtime: NamespaceRuntime, folder: Path) -> None:
    command = "cp /bin/true /x && chmod 6755 /x && chown 1000 / && mkfifo /pipe"
    async with await written(runtime, folder, command) as frozen:
        status = (frozen.layer / "x").stat()
        # The owner of / does not move the others'.
        assert (stat.S_IMODE(status.st_mode), status.st_uid) == (0o755, 0)
        assert frozen.layer.stat().st_uid == 1000
        assert stat.S_ISFIFO((frozen.layer / "pipe").stat().st_mode)


_NEST = """/usr/bin/python3 -c "
import os
for depth, name in ((3000, 'long' * 50), (3000, 'd')):
    os.mkdir('/' + name)
    os.chdir('/' + name)
    for number in range(depth):
        os.mkdir(name)
        os.chdir(name)
        open(str(number), 'w').close()
"
"""


async def test_folders_that_no_path_names_are_removed(runtime: NamespaceRuntime, folder: Path) -> None:
    async with await written(runtime, folder, f"mkdir /work; echo kept >/work/a; {_NEST}") as frozen:
        deepest = frozen.layer / "/".join(["d"] * DEEPEST)
        assert [place.name for place in deepest.iterdir()] == [str(DEEPEST - 2)]
        longest = frozen.layer / "/".join(["long" * 50] * (LONGEST // 201))
        assert [place.name for place in longest.iterdir()] == [str(LONGEST // 201 - 2)]
        assert await said(runtime, "cat /work/a", frozen) == "kept\n"


async def test_a_frozen_container_is_closed(runtime: NamespaceRuntime, folder: Path) -> None:
    container = await opened(runtime)
    await container.run("sleep 1000 & echo $! >/pid", timeout=30)
    async with await container.freeze(folder):
        with pytest.raises(SandboxStopped):
            await container.run("true", timeout=5)
        with pytest.raises(SandboxStopped):
            await container.freeze(folder)


async def test_nothing_is_copied_where_the_container_has_a_disk(runtime: NamespaceRuntime, folder: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("an ordinary user's containers have their files in memory")
    async with await written(runtime, folder, "echo 1 >/a") as frozen:
        assert not list(folder.iterdir())
        assert frozen.layer.is_relative_to("/proc")
    # It is closed in a thread, since unmounting may take long.
    await until(lambda: not frozen.layer.exists())
