"""What to remove from a store that has grown: decided here, done by ``LayerStore.take_away``.

Invariant: nothing that a living process was given is removed, and no layer of an image that stays.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ors_containers.images.layer_store import LayerInformation
from ors_containers.images.records import ImageRecord

__all__ = ["RECIPE_DAYS", "Plan", "plan_pruning"]

#: Days without use after which what a recipe made goes, where nobody says otherwise.
RECIPE_DAYS = 30.0
_DAY = 86400.0


@dataclass(frozen=True, slots=True)
class Plan:
    """Images to forget, and layers to remove."""

    images: tuple[ImageRecord, ...]
    layers: tuple[str, ...]


def plan_pruning(
    records: Sequence[ImageRecord],
    layers: Mapping[str, LayerInformation],
    in_use: Collection[str],
    *,
    unused_days: float | None,
    max_total: int | None,
) -> Plan:
    """See ``ImageStore.prune``."""
    used = set(in_use)
    limit = time.time() - _DAY * (RECIPE_DAYS if unused_days is None else unused_days)
    staying = sorted(records, key=lambda record: record.used)
    if unused_days is not None:
        staying = [record for record in staying if record.used >= limit or used & set(record.all_layers)]

    def removable() -> list[LayerInformation]:
        kept = used | {key for record in staying for key in record.all_layers}
        return [layer for layer in layers.values() if layer.key not in kept]

    doomed = {layer.key for layer in removable() if not layer.recipe or layer.used < limit}
    if max_total is not None:
        left = sum(layer.size for layer in layers.values() if layer.key not in doomed)
        for layer in sorted(removable(), key=lambda layer: layer.used):
            if left > max_total and layer.key not in doomed:
                doomed.add(layer.key)
                left -= layer.size
        for record in list(staying):
            if left > max_total and not used & set(record.all_layers):
                staying.remove(record)
                freed = [layer for layer in removable() if layer.key not in doomed]
                doomed |= {layer.key for layer in freed}
                left -= sum(layer.size for layer in freed)
    kept_names = {record.name for record in staying}
    return Plan(tuple(record for record in records if record.name not in kept_names), tuple(doomed))
