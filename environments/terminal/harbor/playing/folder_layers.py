"""Folders of a task as layers of a root: ``tests`` and ``solution``, and the folders that Harbor makes for logs.

Invariant: links of a folder are copied as what they lead to inside the task, so nothing outside of it is read.
"""

from __future__ import annotations

import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ors_containers.images import ImageStore
    from ors_containers.layers.writer import Entry

__all__ = ["LOGS", "folder_layer"]

#: The folders for logs. Everybody may write there, as in Harbor.
LOGS = ("/logs", "/logs/agent", "/logs/artifacts", "/logs/verifier")


async def folder_layer(
    store: ImageStore, source: Path, target: str, script: str, digest: str, more: Mapping[str, str] | None = None
) -> str:
    """Return the key of a layer with the files of ``source`` at ``target``, and the folders for logs.

    ``digest`` names the task's content; the file ``script`` can be executed. ``more`` are texts of other files, by
    their paths. Raises ``StoreFailed`` and ``OSError``.
    """
    from ors_containers.images.storing.layer_store import layer_key, new_upper
    from ors_containers.layers.writer import Entry

    texts = dict(more or {})
    key = layer_key("harbor folder", store.layers.owners.tag, digest, target, script, texts)

    async def fill(folder: Path) -> int:
        entries = [_folder(path, 0o777 if path in LOGS[1:] else 0o755) for path in (*LOGS, target)]
        entries += _entries(source, target, script)
        entries += [Entry(path, "file", text.encode(), mode=0o644) for path, text in texts.items()]
        return await store.layers.owners.write(new_upper(folder), entries, [])

    await store.layers.provide(key, f"{target} of {source.parent.name}", fill)
    return key


def _entries(source: Path, target: str, script: str) -> list[Entry]:
    from ors_containers.layers.writer import Entry

    entries: list[Entry] = []
    for path in sorted(source.iterdir()) if source.is_dir() else ():
        inside = f"{target}/{path.name}"
        if path.is_dir():
            entries += [_folder(inside, 0o755), *_entries(path, inside, "")]
        elif path.is_file():
            mode = 0o755 if path.name == script else stat.S_IMODE(path.stat().st_mode)
            entries.append(Entry(inside, "copy", source=str(path.resolve()), mode=mode))
        elif path.is_symlink():  # to a file that is missing
            entries.append(Entry(inside, "link", source=str(path.readlink())))
    return entries


def _folder(path: str, mode: int) -> Entry:
    from ors_containers.layers.writer import Entry

    return Entry(path, "directory", mode=mode)
