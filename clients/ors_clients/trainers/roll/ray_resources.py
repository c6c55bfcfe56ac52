"""Ray's resources under whatever names a cluster reports them.

ROLL's ``ResourceManager`` reads ``ray.nodes()`` and ``ray.available_resources()`` by the keys ``CPU`` and ``GPU``, and
fails on a node that has no such key: a node started with ``num_cpus=0`` reports none, and clusters behind other layers
report the names of Ray's options, ``num_cpus`` and ``num_gpus``. ``tolerant_resources`` adds what is missing under the
names that are asked for; ``tolerant_ray`` does it for all that is read of Ray while it is entered, which is what
``python -m ors_clients.roll.start`` does around the pipeline's start.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any

__all__ = ["tolerant_ray", "tolerant_resources"]

_NAMES = {"CPU": ("CPU", "num_cpus", "cpu"), "GPU": ("GPU", "num_gpus", "gpu")}


def tolerant_resources(resources: Mapping[str, float]) -> dict[str, float]:
    """Return the resources with ``CPU``, ``GPU``, ``num_cpus`` and ``num_gpus`` among them; 0 for missing ones."""
    found = dict(resources)
    for names in _NAMES.values():
        amount = next((float(resources[name]) for name in names if name in resources), 0.0)
        for name in names[:2]:
            found.setdefault(name, amount)
    return found


@contextmanager
def tolerant_ray(ray: Any) -> Generator[None, None, None]:
    """While entered, the module ``ray`` reports resources as ``tolerant_resources`` does."""
    nodes: Callable[[], list[dict[str, Any]]] = ray.nodes

    def tolerant_nodes() -> list[dict[str, Any]]:
        return [{**node, "Resources": tolerant_resources(node.get("Resources") or {})} for node in nodes()]

    def tolerant(original: Callable[[], Mapping[str, float]]) -> Callable[[], dict[str, float]]:
        return lambda: tolerant_resources(original())

    originals = {name: getattr(ray, name) for name in ("nodes", "available_resources", "cluster_resources")}
    ray.nodes = tolerant_nodes
    ray.available_resources = tolerant(originals["available_resources"])
    ray.cluster_resources = tolerant(originals["cluster_resources"])
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(ray, name, original)
