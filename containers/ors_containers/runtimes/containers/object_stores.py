"""Folders of git objects in the layers of images, which a clone links file by file (``launcher.whole_files``)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable

__all__ = ["object_stores_in"]

#: By layer, which is never written.
_found: dict[str, list[str]] = {}


async def object_stores_in(layers: Iterable[str]) -> list[str]:
    """Return the folders of git objects in any of the layers, relative to the layer."""
    wanted = list(layers)
    for layer in wanted:
        if layer not in _found:
            _found[layer] = await asyncio.to_thread(_find, layer)
    return sorted({store for layer in wanted for store in _found[layer]})


def _find(layer: str) -> list[str]:
    found: list[str] = []
    for folder, folders, files in os.walk(layer):
        if "HEAD" in files and "objects" in folders and "refs" in folders:
            found.append(os.path.relpath(f"{folder}/objects", layer))
            folders.remove("objects")
    return found
