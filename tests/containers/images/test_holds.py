"""Layers that a hold keeps stay in the store until its time is over, and are freed afterwards."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from ors_containers.errors import UnknownImage
from ors_containers.images import ImageRecord, ImageStore
from ors_containers.images.storing.layer_store import new_upper

A, B = "a" * 64, "b" * 64
HOUR = 3600.0


async def layers(store: ImageStore, *keys: str) -> None:
    """Make layers that this process does not use afterwards."""

    async def fill(folder: Path) -> int:
        (new_upper(folder) / "file").write_text("words")
        return 5

    for key in keys:
        await store.layers.provide(key, "test", fill)


def left(store: ImageStore) -> set[str]:
    return {layer.key for layer in store.usage()}


async def test_a_held_layer_stays_until_its_time_is_over(store: ImageStore) -> None:
    await layers(store, A, B)
    hold = store.hold([A], time.time() + HOUR, {"task": "one"})
    store.layers.release([A, B])
    assert store.holds() == [hold]
    assert (await store.prune(unused_days=0, max_total=0)).layers == 1
    assert await store.free_expired() == 0
    assert left(store) == {A}
    assert (await store.layers.remove_unused([A])).keys == []

    over = ImageStore(store.root, state=store.state)
    (path,) = (store.root / "holds").glob("*.json")
    path.write_text(path.read_text().replace(str(hold.until), str(time.time() - 1)))
    assert await over.free_expired() == 1
    assert (left(store), store.holds()) == (set(), [])


@pytest.mark.parametrize("prune", [True, False])
async def test_what_others_need_stays(store: ImageStore, prune: bool) -> None:
    await layers(store, A, B, "c" * 64)
    store.save(ImageRecord("image", (A,)))
    store.hold([A, B, "c" * 64], time.time() - 1, {})
    other = store.hold([B], time.time() + HOUR, {})
    store.layers.release([A, B, "c" * 64])
    freed = (await store.prune()).layers if prune else await store.free_expired()
    assert (freed, left(store), store.holds()) == (1, {A, B}, [other])


async def test_a_layer_is_used_until_it_is_released(store: ImageStore) -> None:
    await layers(store, A, B)
    other = ImageStore(store.root, state=store.state)
    assert (await other.layers.remove_unused([A, B])).keys == []
    store.layers.release([A])
    assert (await other.layers.remove_unused([A, B])).keys == [A]
    assert not store.layers.use([A])
    (lease,) = (path for path in (store.root / "leases").iterdir() if path.stat().st_size)
    assert lease.read_text().split() == [B]
    store.layers.release([A, B])
    assert (await other.layers.remove_unused([B])).keys == [B]


async def test_a_hold_names_layers_that_are_there(store: ImageStore) -> None:
    with pytest.raises(UnknownImage, match="not in the store"):
        store.hold([A], time.time() + HOUR, {})
    await layers(store, A)
    store.hold([A], time.time() + HOUR, {})
    (path,) = (store.root / "holds").iterdir()
    for damage in ("", "{}", "[]", '{"format": 2}', '{"format": 1, "layers": 3, "until": 1, "notes": {}}'):
        path.write_text(damage)
        assert store.holds() == []
