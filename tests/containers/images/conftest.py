"""A small root file system of this machine's own programs, archives made from it, and a store for each test."""

from __future__ import annotations

import asyncio
import functools
import gzip
import hashlib
import io
import json
import os
import platform
import tarfile
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from ors_containers import BubblewrapRuntime, RuntimeUnavailable
from ors_containers.images import ImageStore
from ors_containers.layers.ownership import LayerOwners

from tests.support.root_folders import make_root_folder


@pytest.fixture(scope="session")
def rootfs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create an unpacked root file system, with its programs in /usr as distributions have them."""
    return make_root_folder(tmp_path_factory.mktemp("rootfs") / "tiny")


@pytest.fixture(scope="module")
def state() -> Iterator[Path]:
    """Create a directory for the leases of build sandboxes; pytest's own directories are private."""
    with tempfile.TemporaryDirectory(prefix="ors-test-") as directory:
        path = Path(directory)
        path.chmod(0o755)
        yield path
        owners = path / "owners"
        assert not owners.exists() or not list(owners.iterdir()), "a lease was left behind"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runtime(state: Path) -> AsyncIterator[BubblewrapRuntime]:
    """Return a runtime; skip where this machine cannot isolate."""
    runtime = BubblewrapRuntime(state)
    try:
        await runtime.start()
    except RuntimeUnavailable as error:
        pytest.skip(str(error))
    yield runtime
    await runtime.close()


@pytest.fixture
def store(state: Path) -> Iterator[ImageStore]:
    with tempfile.TemporaryDirectory(prefix="ors-test-") as directory:
        root = Path(directory) / "images"
        store = ImageStore(root, state=state)
        yield store
        store.close()
        left = [path.name for name in ("tmp", "locks") for path in (root / name).glob("*")]
        asyncio.run(LayerOwners().remove(root))
        assert not left, f"left behind in the store: {left}"


@dataclass
class Member:
    """One entry of a layer."""

    name: str
    content: bytes = b""
    kind: bytes = tarfile.REGTYPE
    link: str = ""
    mode: int = 0o644
    user: int = 0
    group: int = 0


def tar_of(*members: Member) -> bytes:
    """Return an uncompressed tar archive."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for member in members:
            about = tarfile.TarInfo(member.name)
            about.type, about.linkname, about.size = member.kind, member.link, len(member.content)
            about.mode = 0o755 if member.kind == tarfile.DIRTYPE and member.mode == 0o644 else member.mode
            about.uid, about.gid, about.mtime = member.user, member.group, 1_000_000_000
            archive.addfile(about, io.BytesIO(member.content))
    return target.getvalue()


def tar_of_folder(folder: Path) -> bytes:
    """Return a tar archive of a folder, with everything owned by root."""
    target = io.BytesIO()

    def roots(about: tarfile.TarInfo) -> tarfile.TarInfo:
        about.uid = about.gid = 0
        return about

    with tarfile.open(fileobj=target, mode="w") as archive:
        archive.add(folder, "", filter=roots)
    return target.getvalue()


@functools.lru_cache(maxsize=8)
def _compress(content: bytes) -> bytes:
    return gzip.compress(content, 1)


@dataclass
class ArchiveMaker:
    """An image archive, assembled by hand so that it can have any fault."""

    layers: list[bytes]
    config: dict[str, Any] = field(default_factory=dict[str, Any])
    compress: Callable[[bytes], bytes] = _compress
    #: Written instead of the layers' own digests.
    diff_ids: list[str] | None = None

    def _config(self) -> bytes:
        diff_ids = self.diff_ids or [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in self.layers]
        return json.dumps({"config": self.config, "rootfs": {"type": "layers", "diff_ids": diff_ids}}).encode()

    def oci(self, target: Path) -> Path:
        """Write an OCI archive where ``target`` ends in .tar, else an OCI layout."""
        blobs: dict[str, bytes] = {}

        def blob(content: bytes, kind: str) -> dict[str, Any]:
            digest = hashlib.sha256(content).hexdigest()
            blobs[f"blobs/sha256/{digest}"] = content
            return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(content)}

        prefix = "application/vnd.oci.image"
        layers = [blob(self.compress(layer), f"{prefix}.layer.v1.tar+gzip") for layer in self.layers]
        config = blob(self._config(), f"{prefix}.config.v1+json")
        content = json.dumps({"schemaVersion": 2, "config": config, "layers": layers}).encode()
        manifest = blob(content, f"{prefix}.manifest.v1+json")
        machine = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
        other = {**manifest, "digest": f"sha256:{'0' * 64}", "platform": {"os": "linux", "architecture": "s390x"}}
        manifest["platform"] = {"os": "linux", "architecture": machine}
        files = {
            "oci-layout": b'{"imageLayoutVersion": "1.0.0"}',
            "index.json": json.dumps({"schemaVersion": 2, "manifests": [other, manifest]}).encode(),
            **blobs,
        }
        return _write(target, files)

    def docker(self, target: Path) -> Path:
        """Write an archive as ``docker save`` does."""
        config = self._config()
        name = f"{hashlib.sha256(config).hexdigest()}.json"
        names = [f"{number:064x}/layer.tar" for number in range(len(self.layers))]
        manifest = json.dumps([{"Config": name, "RepoTags": ["tiny:1"], "Layers": names}]).encode()
        return _write(target, {**dict(zip(names, self.layers, strict=True)), name: config, "manifest.json": manifest})


def _write(target: Path, files: dict[str, bytes]) -> Path:
    if target.suffix == ".tar":
        target.write_bytes(tar_of(*(Member(name, content) for name, content in files.items())))
        return target
    for name, content in files.items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_bytes(content)
    return target


@pytest.fixture(scope="session")
def make() -> type[ArchiveMaker]:
    return ArchiveMaker


@pytest.fixture(scope="session")
def member() -> type[Member]:
    return Member


@pytest.fixture(scope="session")
def tar() -> Callable[..., bytes]:
    return tar_of


@pytest.fixture(scope="session")
def rootfs_tar(rootfs: Path) -> bytes:
    return tar_of_folder(rootfs)


@pytest.fixture(scope="session")
def is_root() -> bool:
    return os.geteuid() == 0
