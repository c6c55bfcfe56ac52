"""The image store: imports, builds and derived images.

    store = ImageStore()
    base = await store.import_image(Path("ubuntu.tar"), name="ubuntu_22.04")
    base = await ImageMap(store).resolve("ubuntu:22.04")  # by the operator's map of names
    image = await store.derive(base, Recipe({"/home/user/notes": RecipeFile(b"hello\\n")}))

An image is a list of layers (``image.Image``). The store keeps a layer under a digest of its inputs, so images share
layers, and concurrent requests for a layer make it once. See ``docs/images.md``.
"""

from __future__ import annotations

from ors_containers.images.building.recipe import Recipe, RecipeFile
from ors_containers.images.image_map import ImageMap, Lookup
from ors_containers.images.map_file import MapRow, default_map_path
from ors_containers.images.progress import Progress, Step
from ors_containers.images.store import ImageStore
from ors_containers.images.storing.holds import Hold
from ors_containers.images.storing.records import ImageRecord

__all__ = [
    "Hold",
    "ImageMap",
    "ImageRecord",
    "ImageStore",
    "Lookup",
    "MapRow",
    "Progress",
    "Recipe",
    "RecipeFile",
    "Step",
    "default_map_path",
]
