"""Derived images: the files of a recipe as one layer over an image, the result of its script as another.

The layer of files is written directly, without a sandbox. Invariant: a layer's key covers all its inputs, so a recipe
is applied to an image once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ors_containers.builds.client import BuildLimits, run_scripts
from ors_containers.builds.scripts import Script
from ors_containers.errors import InvalidImage
from ors_containers.image import Image
from ors_containers.images.building.recipe import Recipe
from ors_containers.images.storing.layer_store import LayerStore, layer_key, new_upper
from ors_containers.layers.tree import LayeredTree
from ors_containers.layers.writer import Entry

__all__ = ["derived_image", "entries_of", "layer_identity"]


def layer_identity(layers: LayerStore, image: Image) -> list[object]:
    """Return JSON values that identify an image's layers: keys of the store; path, inode and time of other folders."""
    identities: list[object] = []
    for layer in image.layers:
        key = layers.key_of(layer)
        if key is not None:
            identities.append(key)
        elif image.name == "host" and layer.name.startswith("host-"):
            identities.append(layer.name)  # the name is a digest of its content
        else:
            found = layer.stat()
            identities.append([str(layer), found.st_ino, found.st_mtime_ns])
    return identities


async def derived_image(
    layers: LayerStore,
    base: Image,
    recipe: Recipe,
    *,
    limit: int,
    state: Path | None,
    on_line: Callable[[str], None] | None = None,
) -> Image:
    """Apply ``recipe`` to ``base``; see ``ImageStore.derive``. ``on_line`` gets each line of the script's output."""
    keys = [key for layer in base.layers if (key := layers.key_of(layer)) is not None]
    if not layers.use(keys):
        raise InvalidImage(f"A layer of image {base.name} is not in the store any more", "Import or build it again")
    image = replace(base, environment={**base.environment, **recipe.environment})
    if recipe.files:
        image = replace(image, layers=(await _provide_files(layers, image, recipe, limit), *image.layers))
    if recipe.script:
        layer = await _provide_script(layers, image, recipe, limit, state, on_line)
        image = replace(image, layers=(layer, *image.layers))
    if image.layers != base.layers:
        image = replace(image, name=f"{base.name}+{recipe.key[:12]}")
    return image


def entries_of(image: Image, recipe: Recipe) -> list[Entry]:
    """Return the layer entries of a recipe's files over ``image``, parents first.

    Raises ``InvalidImage`` for a file below a bind of ``image``.
    """
    entries: list[Entry] = []
    tree = LayeredTree(image.layers)
    for path, file in sorted(recipe.files.items()):
        resolved = f"/{tree.resolve(path)}"
        for _, target in image.binds:
            if resolved == target or resolved.startswith(f"{target}/"):
                raise InvalidImage(
                    f"A recipe's file {path} would be hidden: image {image.name} has {target} of this machine there"
                )
        user, group = (image.user, image.group) if file.owner == "user" else (0, 0)
        if file.link is not None:
            entries.append(Entry(path, "link", source=file.link, user=user, group=group))
        else:
            kind = "directory" if file.directory else "file"
            entries.append(Entry(path, kind, file.content, mode=file.permissions, user=user, group=group))
    return entries


async def _provide_files(layers: LayerStore, image: Image, recipe: Recipe, limit: int) -> Path:
    entries = entries_of(image, recipe)
    defaults = {
        place.path.strip("/"): (place.mode, *((image.user, image.group) if place.owned else (0, 0)))
        for place in image.directories
    }
    home = image.home.strip("/")
    for entry in entries:
        # Parents that the recipe does not list: below the home they belong to the user.
        parent = entry.path.strip("/").rpartition("/")[0]
        while parent.startswith(f"{home}/"):
            defaults.setdefault(parent, (0o755, image.user, image.group))
            parent = parent.rpartition("/")[0]
    described = [
        [entry.path, entry.kind, hashlib.sha256(entry.content).hexdigest(), entry.source, entry.mode, entry.user]
        for entry in entries
    ]
    key = layer_key("files", layers.owners.tag, layer_identity(layers, image), described, image.group, defaults)

    async def fill(folder: Path) -> int:
        return await layers.owners.write(new_upper(folder), entries, image.layers, limit=limit, defaults=defaults)

    return await layers.provide(key, f"files of a recipe on {image.name}", fill, recipe=True)


async def _provide_script(
    layers: LayerStore,
    image: Image,
    recipe: Recipe,
    limit: int,
    state: Path | None,
    on_line: Callable[[str], None] | None,
) -> Path:
    user, group = (0, 0) if recipe.as_root else (image.user, image.group)
    variables = image.variables
    if recipe.as_root:
        variables |= {"HOME": "/root", "USER": "root", "LOGNAME": "root", **recipe.environment}
    script = Script(
        label="the recipe's script",
        text=recipe.script,
        shell=image.shell,
        user=user,
        group=group,
        environment=variables,
        directory=image.directory or image.home,
    )
    binds = [[str(source), target] for source, target in image.binds]
    key = layer_key(
        "script",
        layers.owners.tag,
        layer_identity(layers, image),
        [recipe.script, user, group, image.shell, image.home, image.directory, variables, binds],
    )

    async def fill(folder: Path) -> int:
        limits = BuildLimits(disk=limit, seconds=recipe.timeout)
        async with layers.builds:
            built = await run_scripts(
                image, [script], folder, owners=layers.owners, limits=limits, said=on_line, state=state
            )
        return built.size

    return await layers.provide(key, f"script of a recipe on {image.name}", fill, recipe=True)
