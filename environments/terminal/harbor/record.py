"""The record of a prepared task: what each stage found, and what its episodes and its verifier start from.

Records lie beside the images that they name, one file a task, under a digest of the folder's content: a folder that
was changed is another task. Invariants: a record is written whole, after every stage; it names only layers that exist,
and an image of the store has each of them, so that none is pruned.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ors_containers import UnknownImage
from ors_containers.layers.leaving_out import LeftOut

from ..task import FolderProblem

if TYPE_CHECKING:
    from ors_containers.images import ImageStore

__all__ = ["STAGES", "Outcome", "Record", "StageResult", "content_digest", "records_folder"]

#: The stages in their order, and what each one finds out.
STAGES = {
    "image": "the image is built",
    "fetch": "the verifier ran once with a network",
    "seal": "the verifier runs without a network",
    "nothing": "doing nothing earns 0",
    "oracle": "the solution earns 1",
    "cheat": "writing the reward earns 0",
}
_FORMAT = 3
_CHUNK = 1 << 20
#: Digests of this process, by folder and by the times and sizes of its files.
_digests: dict[tuple[str, str], str] = {}

Outcome = Literal["holds", "fails", "absent"]


@dataclass(frozen=True)
class StageResult:
    """The result of a stage; ``absent`` where the folder has nothing to try."""

    outcome: Outcome
    detail: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Record:
    """Results, image and layers of a task's folder with this content."""

    key: str
    name: str
    folder: str
    #: The image of the agent, by its name in the store.
    image: str = ""
    #: Layers above the agent's files in the verifier's root, the top one first: tests, and what their run fetched.
    toolchain: tuple[str, ...] = ()
    #: Files of an agent that the verifier does not see, and the folders that are the agent's.
    left_out: LeftOut = field(default_factory=LeftOut)
    #: The verifier's exit status and reward on the start state, with a network.
    exit_status: int = 0
    reward: float | None = None
    #: Hosts that the sealed verifier did not find, with the same result.
    unneeded: tuple[str, ...] = ()
    #: Why an agent could write the verdict, for a task that is judged all the same; empty for none.
    mark: str = ""
    stages: dict[str, StageResult] = field(default_factory=dict[str, StageResult])

    @property
    def ready(self) -> bool:
        """True where every stage was reached and none failed."""
        return all(name in self.stages and self.stages[name].outcome != "fails" for name in STAGES)

    @property
    def problem(self) -> str:
        """The first stage that failed, with its detail; empty where none did."""
        failed = (f"{name}: {result.detail}" for name, result in self.stages.items() if result.outcome == "fails")
        return next(failed, "")

    def is_kept(self, store: ImageStore) -> bool:
        """Return whether the image and the layers that it names are still in a store; they are in use from now on."""
        try:
            store.base_of(store.record(self.image))
        except UnknownImage:
            return False
        return store.layers.use(self.toolchain)

    @property
    def not_shown(self) -> str:
        """The finding that a stage could not make, because the folder lacks what it tries; empty for none."""
        return next((result.detail for result in self.stages.values() if result.outcome == "absent"), "")

    def with_stage(self, name: str, result: StageResult) -> Record:
        """Return the record with the result of a stage, and without those of the stages after it."""
        before = list(STAGES)[: list(STAGES).index(name)]
        kept = {stage: found for stage, found in self.stages.items() if stage in before}
        return replace(self, stages={**kept, name: result})

    def save(self, folder: Path) -> None:
        """Write the record to its file in ``folder``."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial = folder / f"{self.key}.{os.getpid()}"
        partial.write_text(json.dumps({"format": _FORMAT, **asdict(self)}, indent=1))
        partial.replace(folder / f"{self.key}.json")

    @staticmethod
    def load(folder: Path, key: str) -> Record | None:
        """Read the record of a key; None where there is none, and for one of another format."""
        try:
            content: dict[str, Any] = json.loads((folder / f"{key}.json").read_bytes())
            if content.pop("format") != _FORMAT:
                return None
            left_out = LeftOut(*map(tuple[str, ...], content.pop("left_out")))
            stages = {name: StageResult(**result) for name, result in content.pop("stages").items()}
            toolchain = tuple(content.pop("toolchain"))
            unneeded = tuple(content.pop("unneeded", ()))
            return Record(**content, toolchain=toolchain, left_out=left_out, unneeded=unneeded, stages=stages)
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError, AttributeError):
            return None  # damaged: it is made again


def records_folder(store: Path) -> Path:
    """Return the folder of the records in an image store's folder."""
    return store / "harbor"


def content_digest(folder: Path) -> str:
    """Return a digest of the names, modes and contents below a task's folder. Raises ``FolderProblem``.

    The contents are read once a process, and again when the time or the size of a file has changed.
    """
    try:
        found = sorted(_walk(folder))
        seen = hashlib.sha256()
        for path in found:
            status = path.lstat()
            seen.update(f"{path}\0{status.st_mode}\0{status.st_size}\0{status.st_mtime_ns}\0".encode(errors="replace"))
        cached = (str(folder), seen.hexdigest())
        if cached not in _digests:
            _digests[cached] = _digest(folder, found)
        return _digests[cached]
    except OSError as error:
        raise FolderProblem(folder, f"it cannot be read: {error.strerror}") from error


def _walk(folder: Path) -> list[Path]:
    return [path for part in ("task.toml", "environment", "tests", "solution") for path in _below(folder / part)]


def _below(place: Path) -> list[Path]:
    if place.is_dir() and not place.is_symlink():
        return [place, *place.rglob("*")]
    return [place] if place.exists() else []


def _digest(folder: Path, found: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in found:
        mode = path.lstat().st_mode
        digest.update(f"{path.relative_to(folder)}\0{mode}\0".encode(errors="surrogateescape"))
        if stat.S_ISLNK(mode):
            digest.update(os.fsencode(path.readlink()))
        elif stat.S_ISREG(mode):
            with path.open("rb") as stream:
                while chunk := stream.read(_CHUNK):
                    digest.update(chunk)
        digest.update(b"\0")
    return digest.hexdigest()[:40]
