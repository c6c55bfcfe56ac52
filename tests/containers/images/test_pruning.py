"""The layers and images that prune and remove delete, and those that they keep."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ors_containers.errors import UnknownImage
from ors_containers.images import ImageStore, Recipe, RecipeFile, Step
from ors_containers.images.storing.pruning import plan_pruning
from ors_containers.images.storing.records import ImageRecord, LayerInformation

Make = Callable[..., Any]
_DAY = 86400.0


@pytest.fixture
def archives(make: Make, tar: Make, member: Make, rootfs_tar: bytes, tmp_path: Path) -> list[Path]:
    """Write archives of two images with a common layer."""
    return [
        make([rootfs_tar, tar(member(name, name.encode() * 1000))]).oci(tmp_path / f"{name}.tar") for name in ("a", "b")
    ]


def _age(store: ImageStore, days: float) -> None:
    """Set the last use of everything to this many days ago."""
    moment = time.time() - days * _DAY
    for folder in ("layers", "images"):
        for path in (store.root / folder).glob("*.json"):
            os.utime(path, (moment, moment))


async def test_an_image_is_removed_with_the_layers_of_no_other_image(store: ImageStore, archives: list[Path]) -> None:
    for path in archives:
        await store.import_image(path)
    store.close()
    before = {layer.key for layer in store.usage()}
    freed = await store.remove("a")
    left = {layer.key for layer in store.usage()}
    assert left == set(store.record("b").all_layers)
    assert len(before - left) == 2  # its own layer, and the layer of accounts on top
    assert freed >= 1000
    with pytest.raises(UnknownImage):
        store.find("a")
    assert store.find("b").layers
    with pytest.raises(UnknownImage):
        await store.remove("a")


async def test_what_a_killed_process_left_is_removed(store: ImageStore) -> None:
    left = store.root / "tmp" / "0123456789abcdef"
    (left / "upper").mkdir(parents=True)
    left.with_suffix(".lock").touch()
    await store.prune()
    assert list((store.root / "tmp").iterdir()) == []


async def test_layers_of_a_living_process_are_kept(store: ImageStore, archives: list[Path]) -> None:
    await store.import_image(archives[0])
    store.close()
    script = (
        "import sys\nfrom pathlib import Path\nfrom ors_containers.images import ImageStore\n"
        "store = ImageStore(Path(sys.argv[1]))\nstore.find('a')\nprint('has it', flush=True)\nsys.stdin.read()\n"
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", script, str(store.root)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None and process.stdout is not None
    assert await process.stdout.readline() == b"has it\n"
    layers = len(store.usage())
    _age(store, 100)
    pruned = await store.prune(unused_days=1, max_total=1)
    assert (pruned.images, pruned.layers, len(store.usage())) == ((), 0, layers)
    assert await store.remove("a") == 0
    assert len(store.usage()) == layers
    # Killed: the kernel releases its lease.
    process.kill()
    await process.wait()
    pruned = await store.prune()
    assert (pruned.layers, store.usage()) == (layers, [])


async def test_images_that_are_unused_for_long_are_pruned(store: ImageStore, archives: list[Path]) -> None:
    for path in archives:
        await store.import_image(path)
    image = await store.derive(store.find("a"), Recipe({"/srv/x": RecipeFile(b"x")}))
    store.close()
    _age(store, 5)
    assert (await store.prune()).layers == 0
    assert (await store.prune(unused_days=6)).layers == 0
    store.find("b")
    store.close()
    steps: list[Step] = []
    pruned = await store.prune(unused_days=4, progress=steps.append)
    assert pruned.images == ("a",)
    assert [step.text for step in steps] == ["Removed image a"]
    assert pruned.layers == 3
    assert not image.layers[0].exists()
    assert {layer.key for layer in store.usage()} == set(store.record("b").all_layers)


async def test_the_oldest_are_pruned_until_the_rest_fits(store: ImageStore, archives: list[Path]) -> None:
    for path in archives:
        await store.import_image(path)
    base = store.find("b")
    derived = [await store.derive(base, Recipe({"/srv/x": RecipeFile(bytes([n]) * 100_000)})) for n in range(3)]
    store.close()
    now = time.time()
    for age, image in enumerate(derived):
        os.utime(f"{image.layers[0]}.json", (now - age, now - age))
    total = sum(layer.size for layer in store.usage())
    assert (await store.prune(max_total=total)).layers == 0
    pruned = await store.prune(max_total=total - 150_000)
    assert (pruned.images, pruned.layers) == ((), 2)
    assert 200_000 <= pruned.size < 250_000
    assert [image.layers[0].exists() for image in derived] == [True, False, False]
    os.utime(store.root / "images" / "b.json", (now - 100, now - 100))
    pruned = await store.prune(max_total=total - 300_500)
    assert pruned.images == ("b",)
    assert [record.name for record in store.images()] == ["a"]
    assert (await store.prune(max_total=0)).images == ("a",)
    assert store.usage() == []


async def test_an_image_that_was_replaced_frees_its_layers(store: ImageStore, archives: list[Path]) -> None:
    await store.import_image(archives[0], "x")
    await store.import_image(archives[1], "x")
    store.close()
    assert (await store.prune()).layers == 2
    assert store.find("x").layers


def test_the_plan() -> None:
    now = time.time()

    def layer(key: str, days: float, *, recipe: bool = False) -> LayerInformation:
        return LayerInformation(key, 10, "", recipe, now - days * _DAY)

    layers = {
        about.key: about
        for about in (
            layer("base", 50), layer("top", 50), layer("loose", 1),
            layer("young", 1, recipe=True), layer("old", 40, recipe=True), layer("used", 40, recipe=True),
        )
    }  # fmt: skip
    records = [
        ImageRecord("one", ("top", "base"), used=now - 20 * _DAY),
        ImageRecord("two", ("base",), used=now - 10 * _DAY),
    ]

    def planned(**options: Any) -> tuple[list[str], list[str]]:
        plan = plan_pruning(records, layers, {"used"}, **{"unused_days": None, "max_total": None, **options})
        return [record.name for record in plan.images], sorted(plan.layers)

    assert planned() == ([], ["loose", "old"])
    assert planned(unused_days=15) == (["one"], ["loose", "old", "top"])
    assert planned(unused_days=0) == (["one", "two"], ["base", "loose", "old", "top", "young"])
    assert planned(max_total=40) == ([], ["loose", "old"])
    assert planned(max_total=30) == ([], ["loose", "old", "young"])
    assert planned(max_total=20) == (["one"], ["loose", "old", "top", "young"])
    assert planned(max_total=0) == (["one", "two"], ["base", "loose", "old", "top", "young"])
