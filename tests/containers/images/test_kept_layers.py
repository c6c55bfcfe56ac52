"""Layers of ended containers in the store, and files that layers share."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from ors_containers import BubblewrapRuntime, ContainerSettings, UnknownImage
from ors_containers.images import ImageStore
from ors_containers.images.storing.layer_store import new_upper
from ors_containers.layers.leaving_out import LeftOut
from ors_containers.layers.sharing import STAMP, remove_unshared, share_layer

pytestmark = pytest.mark.asyncio(loop_scope="module")

_SETTINGS = ContainerSettings(disk=64 * 2**20)


def layer_of(folder: Path, files: Mapping[str, str]) -> Path:
    for name, content in files.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(content)
    return folder


def inode(place: Path) -> int:
    return place.stat().st_ino


async def test_a_composed_image_has_the_layers_and_the_configuration(
    store: ImageStore, runtime: BubblewrapRuntime, rootfs: Path, tmp_path: Path
) -> None:
    await store.import_image(rootfs, "tiny")
    container = await runtime.open_container(store.docker_image(store.record("tiny")), _SETTINGS)
    await container.run("echo fetched >/opt-file; rm /etc/passwd", timeout=20)
    async with await container.freeze(tmp_path) as frozen:
        kept = await store.keep(frozen, "a verifier")
    record = store.compose("tiny-verifier", [kept.key, *store.record("tiny").layers], like="tiny")
    assert record.docker_config == store.record("tiny").docker_config
    async with await runtime.open_container(store.docker_image(record), _SETTINGS) as container:
        result = await container.run("cat /opt-file; test -e /etc/passwd || echo gone", timeout=20)
    assert result.text == "fetched\ngone\n"
    with pytest.raises(UnknownImage, match="not in the store"):
        store.compose("other", ["0" * 64], like="tiny")


async def test_a_grader_runs_nothing_that_the_agent_has_written(
    store: ImageStore, runtime: BubblewrapRuntime, rootfs: Path, tmp_path: Path
) -> None:
    await store.import_image(rootfs, "tiny")
    image = replace(store.docker_image(store.record("tiny")), directory="/work")
    grade = ["bash", "-c", "cat /work/answer"]
    path = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
    async with await runtime.open_container(image, _SETTINGS) as container:
        recorded = (await container.execute(grade, env=path, record=True)).recorded
    assert recorded is not None
    agent = await runtime.open_container(image, _SETTINGS)
    forge = (
        "echo solved >/work/answer; mkdir -p /usr/local/bin; rm /usr/bin/cat; "
        "for name in /usr/bin/cat /usr/local/bin/cat; do echo '#!/bin/bash\necho forged' >$name; chmod 755 $name; done"
    )
    assert (await agent.run(forge)).exit_status == 0
    async with await agent.freeze(tmp_path) as frozen:

        async def graded() -> bytes:
            over = replace(image, layers=(frozen.layer, *image.layers))
            async with await runtime.open_container(over, _SETTINGS) as container:
                return (await container.execute(grade, env=path)).stdout

        assert await graded() == b"forged\n"
        paths = recorded.executed | recorded.opened | recorded.missing
        rules = LeftOut(sorted(paths - {"/work/answer"}), sorted(recorded.listed), ["/work"])
        await store.layers.owners.leave_out(frozen.layer, rules, image.layers)
        assert await graded() == b"solved\n"


async def test_the_same_content_is_the_same_layer(
    store: ImageStore, runtime: BubblewrapRuntime, rootfs: Path, tmp_path: Path
) -> None:
    image = await store.import_image(rootfs, "tiny")
    keys: list[str] = []
    for number, text in enumerate(("same", "same", "other")):
        folder = tmp_path / str(number)
        folder.mkdir()
        container = await runtime.open_container(image, _SETTINGS)
        await container.run(f"echo {text} >/tmp/x", timeout=20)
        async with await container.freeze(folder) as frozen:
            keys.append((await store.keep(frozen, "test")).key)
    assert keys[0] == keys[1] != keys[2]


async def test_a_layer_that_keeps_its_times(
    store: ImageStore, runtime: BubblewrapRuntime, rootfs: Path, tmp_path: Path
) -> None:
    image = await store.import_image(rootfs, "tiny")
    container = await runtime.open_container(image, _SETTINGS)
    await container.run("touch -d @1000 /tmp/old; ln /tmp/old /tmp/again; echo x >/tmp/new", timeout=20)
    async with await container.freeze(tmp_path) as frozen:
        made = (frozen.layer / "tmp/new").stat().st_mtime_ns
        kept = store.layers.path((await store.keep(frozen, "test", times=True)).key) / "tmp"
    assert [(kept / name).stat().st_mtime for name in ("old", "again")] == [1000, 1000]
    assert (kept / "new").stat().st_mtime_ns == made
    assert inode(kept / "old") == inode(kept / "again")


async def test_shared_layers_have_equal_files_once(store: ImageStore) -> None:
    async def fill(folder: Path) -> int:
        layer_of(new_upper(folder), {"lib/big": "x" * 100_000, "own": folder.name})
        return 1

    first, second = [await store.layers.provide(key * 64, "test", fill, shared=True) for key in "ab"]
    assert inode(first / "lib/big") == inode(second / "lib/big")
    assert inode(first / "own") != inode(second / "own")
    await store.layers.remove_unused([])
    store.layers.close()
    removed = await store.layers.remove_unused(["a" * 64])
    assert removed.keys == ["a" * 64]
    assert 0 < removed.size < 100_000
    # The pool keeps what the other layer has, and nothing else.
    assert (second / "lib/big").stat().st_nlink == 2
    assert len(list(store.layers.pool.glob("*/*"))) == 2
    assert 100_000 < (await store.prune()).size < 200_000


async def test_two_files_of_a_layer_stay_two(tmp_path: Path) -> None:
    first, second = (layer_of(tmp_path / name, {"a": "same", "b": "same"}) for name in ("1", "2"))
    os.link(first / "a", first / "linked")
    os.link(second / "a", second / "linked")
    pool = tmp_path / "pool"
    pool.mkdir()
    digests = [share_layer(layer, pool, 0) for layer in (first, second)]
    assert digests[0] == digests[1]
    assert inode(second / "a") == inode(first / "a") == inode(second / "linked") != inode(second / "b")
    assert inode(second / "b") == inode(first / "b")


@pytest.mark.parametrize("change", ["content", "mode", "link", "opaque"])
async def test_the_digest_tells_layers_apart(tmp_path: Path, change: str) -> None:
    layers = [layer_of(tmp_path / name, {"d/a": "1", "b": "1"}) for name in ("1", "2")]
    for layer in layers:
        (layer / "link").symlink_to("a")
    if change == "content":
        (layers[1] / "b").write_text("2")
    elif change == "mode":
        (layers[1] / "b").chmod(0o600)
    elif change == "link":
        (layers[1] / "link").unlink()
        (layers[1] / "link").symlink_to("b")
    else:
        os.setxattr(layers[1] / "d", "user.overlay.opaque", b"y")
    pool = tmp_path / "pool"
    pool.mkdir()
    assert share_layer(layers[0], pool, 0) != share_layer(layers[1], pool, 0)


async def test_files_of_another_time_or_mode_are_not_shared(tmp_path: Path) -> None:
    layers = [layer_of(tmp_path / name, {"a": "1", "b": "2", "same": "3"}) for name in ("1", "2")]
    for time, layer in enumerate(layers):
        for name in ("a", "same"):
            os.utime(layer / name, (0, 0))
        os.utime(layer / "b", (0, time))
    (layers[1] / "a").chmod(0o600)
    pool = tmp_path / "pool"
    pool.mkdir()
    for layer in layers:
        share_layer(layer, pool, 1_000)
    assert inode(layers[0] / "a") != inode(layers[1] / "a")
    assert inode(layers[0] / "b") != inode(layers[1] / "b")
    assert inode(layers[0] / "same") == inode(layers[1] / "same")
    assert (layers[1] / "b").stat().st_mtime == 1


async def test_compiled_modules_stay_valid(tmp_path: Path) -> None:
    layer = layer_of(tmp_path / "layer", {"m/a.py": "A = 1\n"})
    cache = layer / "m/__pycache__"
    cache.mkdir()
    compiled = cache / "a.cpython-311.pyc"
    time = int((layer / "m/a.py").stat().st_mtime)
    compiled.write_bytes(struct.pack("<4sIII", b"\xa7\r\r\n", 0, time, 6) + b"code")
    stale = cache / "a.cpython-310.pyc"
    stale.write_bytes(struct.pack("<4sIII", b"o\r\r\n", 0, time - 9, 6) + b"code")
    pool = tmp_path / "pool"
    pool.mkdir()
    share_layer(layer, pool, 0)
    assert (layer / "m/a.py").stat().st_mtime == STAMP
    assert struct.unpack("<4sIII", compiled.read_bytes()[:16])[2] == STAMP
    assert struct.unpack("<4sIII", stale.read_bytes()[:16])[2] == time - 9


async def test_the_pool_forgets_what_no_layer_has(tmp_path: Path) -> None:
    layer = layer_of(tmp_path / "layer", {"a": "1"})
    pool = tmp_path / "pool"
    pool.mkdir()
    share_layer(layer, pool, 0)
    remove_unshared(pool)
    assert len(list(pool.glob("*/*"))) == 1
    (layer / "a").unlink()
    remove_unshared(pool)
    assert not list(pool.glob("*/*"))
