"""The choice of images and layers that ``ImageStore.prune`` removes.

Invariant: a layer that a living process uses is kept, and so is every layer of an image that is kept.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ors_containers.images.storing.records import ImageRecord, LayerInformation

__all__ = ["RECIPE_DAYS", "PruningPlan", "plan_pruning"]

#: Days without use after which the layer of a recipe is removed by default.
RECIPE_DAYS = 30.0
_DAY = 86400.0


@dataclass(frozen=True, slots=True)
class PruningPlan:
    """The images and layers to remove."""

    images: tuple[ImageRecord, ...]
    layers: tuple[str, ...]


def plan_pruning(
    records: Sequence[ImageRecord],
    layers: Mapping[str, LayerInformation],
    in_use: Collection[str],
    *,
    unused_days: float | None,
    max_total: int | None,
) -> PruningPlan:
    """Choose what to remove; see ``ImageStore.prune``."""
    used = set(in_use)
    limit = time.time() - _DAY * (RECIPE_DAYS if unused_days is None else unused_days)
    kept = sorted(records, key=lambda record: record.used)
    if unused_days is not None:
        kept = [record for record in kept if record.used >= limit or used & set(record.all_layers)]

    def removable() -> list[LayerInformation]:
        needed = used | {key for record in kept for key in record.all_layers}
        return [layer for layer in layers.values() if layer.key not in needed]

    removed = {layer.key for layer in removable() if not layer.recipe or layer.used < limit}
    if max_total is not None:
        left = sum(layer.size for layer in layers.values() if layer.key not in removed)
        for layer in sorted(removable(), key=lambda layer: layer.used):
            if left > max_total and layer.key not in removed:
                removed.add(layer.key)
                left -= layer.size
        for record in list(kept):
            if left > max_total and not used & set(record.all_layers):
                kept.remove(record)
                freed = [layer for layer in removable() if layer.key not in removed]
                removed |= {layer.key for layer in freed}
                left -= sum(layer.size for layer in freed)
    kept_names = {record.name for record in kept}
    return PruningPlan(tuple(record for record in records if record.name not in kept_names), tuple(removed))
