"""Imports of images from every kind of file, and every fault that a file may have."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import os
import shutil
import struct
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ors_containers import BubblewrapRuntime, Image, InvalidImage, SandboxError
from ors_containers.errors import ImageTooLarge, InvalidArchive, ProgramMissing, UnknownImage
from ors_containers.images import ImageStore, Recipe, RecipeFile, Step
from ors_containers.images.archive_formats import find_squashfs
from ors_containers.images.importers import check_image

pytestmark = pytest.mark.asyncio(loop_scope="module")

Make = Callable[..., Any]
_CONFIG = {
    "Env": ["WORD=from the image", "PATH=/opt/bin:/usr/bin:/bin", "EMPTY="],
    "WorkingDir": "/work",
    "Labels": {"maker": "somebody"},
}


async def _say(runtime: BubblewrapRuntime, image: Image, command: str) -> str:
    async with runtime.sandbox(image) as sandbox:
        return (await sandbox.run(command, timeout=10)).text


def _fast(content: bytes) -> bytes:
    return gzip.compress(content, 1)


def _cut(content: bytes) -> bytes:
    return gzip.compress(content)[:-9]


@pytest.fixture
def archive(make: Make, tar: Make, member: Make, rootfs_tar: bytes) -> Any:
    """Write two layers; the second removes a file, replaces one, and writes through a link of the first."""
    upper = tar(
        member("etc/.wh.group"),
        member("opt/bin/tool", b"#!/bin/sh\necho tool\n", mode=0o755),
        member("bin/other", b"#!/bin/sh\necho other\n", mode=0o755),
        member("data/", kind=tarfile.DIRTYPE, user=1000, group=1000),
        member("data/mine", b"mine\n", user=1000, group=1000),
    )
    return make([rootfs_tar, upper], dict(_CONFIG))


@pytest.mark.parametrize("form", ["oci.tar", "oci", "docker.tar", "docker.tar.gz"])
async def test_layered_archives(
    store: ImageStore, runtime: BubblewrapRuntime, archive: Any, tmp_path: Path, form: str, is_root: bool
) -> None:
    path = tmp_path / form.removesuffix(".gz")
    (archive.docker if form.startswith("docker") else archive.oci)(path)
    if form.endswith(".gz"):
        (tmp_path / form).write_bytes(gzip.compress(path.read_bytes(), 1))
        path = tmp_path / form
    steps: list[Step] = []
    image = await store.import_image(path, progress=steps.append)
    assert image.name == form.partition(".")[0]
    assert "Unpacking layer 2 of 2" in [step.text for step in steps]
    assert (image.user, image.user_name, image.home) == (1000, "user", "/home/user")
    said = await _say(
        runtime, image, "id -un; pwd; tool; other; echo $WORD; ls /etc; ls -ld /bin | grep -c ^l; cat /data/mine"
    )
    assert said == "user\n/work\ntool\nother\nfrom the image\ngroup\npasswd\n1\nmine\n"
    if is_root:
        assert await _say(
            runtime, image, "stat -c %u /data /bin/bash; touch /data/x && touch /etc/x 2>/dev/null; ls /data"
        ) == ("1000\n0\nmine\nx\n")
    record = store.record(image.name)
    assert record.labels == {"maker": "somebody"}
    assert record.size > 10**6


async def test_images_share_layers(
    store: ImageStore, make: Make, tar: Make, member: Make, rootfs_tar: bytes, tmp_path: Path
) -> None:
    one = await store.import_image(make([rootfs_tar, tar(member("a", b"1"))]).oci(tmp_path / "one.tar"))
    two = await store.import_image(make([rootfs_tar, tar(member("b", b"2"))]).docker(tmp_path / "two.tar"))
    assert len(set(one.layers) & set(two.layers)) == 1
    before = sorted(path.name for path in (store.root / "layers").iterdir())
    again = await store.import_image(tmp_path / "one.tar", "again")
    assert again.layers == one.layers
    assert sorted(path.name for path in (store.root / "layers").iterdir()) == before


async def test_root_file_systems(
    store: ImageStore, runtime: BubblewrapRuntime, rootfs: Path, rootfs_tar: bytes, tmp_path: Path
) -> None:
    packed = tmp_path / "tiny_1.tar.gz"
    packed.write_bytes(gzip.compress(rootfs_tar, 1))
    for path, name in ((packed, "tiny_1"), (rootfs, "tiny")):
        image = await store.import_image(path)
        assert image.name == name
        said = await _say(runtime, image, "id; echo x > ~/mine; touch /usr/mine 2>&1 | grep -c .; stat -c '%u %a' /tmp")
        assert said.startswith("uid=1000(user) gid=1000(user)")
        if os.geteuid() == 0:
            assert said.endswith("1\n0 1777\n")
    # Not copied again while nothing has changed; copied when something has.
    layers = len(store.usage())
    await store.import_image(rootfs)
    assert len(store.usage()) == layers
    (rootfs / "new").write_text("")
    try:
        await store.import_image(rootfs)
        assert len(store.usage()) == layers + 2
    finally:
        (rootfs / "new").unlink()


async def test_the_account_of_an_image(
    store: ImageStore, make: Make, tar: Make, member: Make, rootfs_tar: bytes, tmp_path: Path
) -> None:
    accounts = b"root:x:0:0::/root:/bin/bash\nme:x:1000:1000::/home/me:/bin/bash\nserver:x:33:34::/srv:/bin/sh\n"
    groups = tar(member("etc/passwd", accounts), member("etc/group", b"files:x:77:\n"))
    for wanted, expected in {
        "": (1000, 1000, "me", "/home/me"),
        "server": (33, 34, "server", "/srv"),
        "33:files": (33, 77, "server", "/srv"),
        "root": (0, 0, "root", "/root"),
        "4711": (4711, 4711, "user", "/home/user"),
    }.items():
        path = make([rootfs_tar, groups], {"User": wanted}).oci(tmp_path / f"x{wanted.replace(':', '-')}.tar")
        image = await store.import_image(path)
        assert (image.user, image.group, image.user_name, image.home) == expected
    overridden = await store.import_image(tmp_path / "xroot.tar", user="server")
    assert overridden.user == 33
    for wanted, problem in {"nobody-such": "not in its /etc/passwd", "0:none": "group", "70000": "beyond"}.items():
        with pytest.raises(InvalidImage, match=problem):
            await store.import_image(tmp_path / "xroot.tar", "other", user=wanted)
    with pytest.raises(UnknownImage):
        store.find("other")


async def test_broken_archives_leave_nothing(
    store: ImageStore, make: Make, tar: Make, member: Make, rootfs_tar: bytes, tmp_path: Path
) -> None:
    good = make([rootfs_tar]).oci(tmp_path / "good.tar").read_bytes()
    layer = tar(member("a", b"x" * 5000))
    wrong = f"sha256:{hashlib.sha256(b'other').hexdigest()}"

    def edited(name: str, change: Callable[[Any], Any]) -> Path:
        target = make([layer]).oci(tmp_path / name)
        (target / "index.json").write_text(json.dumps(change(json.loads((target / "index.json").read_text()))))
        return target

    def without_blob() -> Path:
        target = make([layer]).oci(tmp_path / "without")
        largest = max((target / "blobs/sha256").iterdir(), key=lambda path: path.stat().st_size)
        largest.unlink()
        return target

    def altered() -> Path:
        target = make([layer]).oci(tmp_path / "altered")
        for path in (target / "blobs/sha256").iterdir():
            if b"mediaType" in path.read_bytes():
                path.write_bytes(path.read_bytes() + b" ")
        return target

    def written(name: str, content: bytes) -> Path:
        (tmp_path / name).write_bytes(content)
        return tmp_path / name

    cases: list[tuple[Path, type[SandboxError], str]] = [
        (tmp_path / "absent.tar", InvalidImage, "absent.tar cannot be read: No such file"),
        (written("empty", b""), InvalidArchive, "not an image"),
        (written("text", b"hello " * 200), InvalidArchive, "not an image"),
        (written("half.tar", good[: len(good) // 2]), InvalidArchive, "damaged"),
        (written("half.tar.gz", gzip.compress(good, 1)[:5000]), InvalidArchive, "ended before"),
        (make([layer], diff_ids=[wrong]).oci(tmp_path / "digest.tar"), InvalidArchive, "does not match its digest"),
        (make([layer], diff_ids=[wrong, wrong]).oci(tmp_path / "count.tar"), InvalidArchive, "has 1 layers"),
        (make([layer], diff_ids=["md5:1"]).docker(tmp_path / "md5.tar"), InvalidArchive, "not a SHA-256 digest"),
        (make([layer[:3000]]).oci(tmp_path / "short.tar"), InvalidArchive, "cut short"),
        (make([]).oci(tmp_path / "none.tar"), InvalidArchive, "no layers"),
        (make([layer], compress=_cut).oci(tmp_path / "gzip"), InvalidArchive, "cut"),
        (without_blob(), InvalidArchive, "which its manifest names"),
        (altered(), InvalidArchive, "does not match its digest"),
        (edited("foreign", lambda index: {"manifests": index["manifests"][:1]}), InvalidArchive, "no image for linux"),
        (edited("strange", lambda _: ["no", "index"]), InvalidArchive, "manifest cannot be read"),
        (make([tar(member("../x", b""))]).oci(tmp_path / "out.tar"), InvalidArchive, "leads out"),
        (make([tar(member("bin/sh", b"", mode=0o755))]).oci(tmp_path / "bash.tar"), InvalidImage, "Install bash"),
        (written("SIF", b"#!/usr/bin/env run-singularity\n\0SIF_MAGIC\0" + b"0" * 40), InvalidArchive, "cut short"),
    ]  # fmt: skip
    piped = make([layer]).oci(tmp_path / "piped")
    for path in (piped / "blobs/sha256").iterdir():
        if b"config" in path.read_bytes():  # no process will ever write to it
            path.unlink()
            os.mkfifo(path)
    cases.append((piped, InvalidArchive, "which its manifest names"))
    for path, kind, problem in cases:
        with pytest.raises(kind, match=problem) as failed:
            await store.import_image(path, "broken")
        assert not isinstance(failed.value, ProgramMissing)
    assert store.images() == []
    assert list((store.root / "tmp").iterdir()) == []
    for name in ("", "host", "a\nb", " x", "x" * 200):
        with pytest.raises(InvalidImage, match="cannot be called"):
            await store.import_image(tmp_path / "good.tar", name or " ")
    # The good archive is imported.
    await store.import_image(tmp_path / "good.tar", "localhost/my image:1.0")
    assert store.find("localhost/my image:1.0").layers


async def test_folders_that_are_not_images_are_refused(store: ImageStore, tmp_path: Path) -> None:
    with pytest.raises(InvalidImage, match="neither bin nor usr"):
        await store.import_image(tmp_path)
    (tmp_path / "bin").mkdir()
    with pytest.raises(InvalidImage, match="Install bash"):
        await store.import_image(tmp_path)
    assert store.images() == []


async def test_an_image_over_its_limit(
    state: Path, make: Make, rootfs_tar: bytes, rootfs: Path, tmp_path: Path
) -> None:
    store = ImageStore(tmp_path / "store", max_size=2**20, state=state)
    files = [rootfs, make([rootfs_tar]).oci(tmp_path / "a.tar"), tmp_path / "b.tar.gz", tmp_path / "c.tar.gz"]
    files[2].write_bytes(gzip.compress(rootfs_tar, 1))
    files[3].write_bytes(gzip.compress(files[1].read_bytes(), 1))
    for path in files:
        with pytest.raises(ImageTooLarge, match="more than 1 MiB"):
            await store.import_image(path)
    assert store.images() == store.usage() == []
    assert list((store.root / "tmp").iterdir()) == []
    store.close()


async def test_layers_together_have_the_limit(state: Path, make: Make, tar: Make, member: Make, tmp_path: Path) -> None:
    store = ImageStore(tmp_path / "store", max_size=2**20, state=state)
    layers = [tar(member(f"file{number}", bytes([number]) * 400_000)) for number in range(4)]
    with pytest.raises(ImageTooLarge):
        await store.import_image(make(layers).oci(tmp_path / "a.tar"))
    store.close()


async def test_an_import_that_is_cancelled_leaves_nothing(
    store: ImageStore, make: Make, tar: Make, member: Make, tmp_path: Path
) -> None:
    large = make([tar(member("large", bytes(60_000_000)))], compress=_fast)
    started = asyncio.Event()
    importing = asyncio.create_task(
        store.import_image(large.oci(tmp_path / "large.tar"), progress=lambda _: started.set())
    )
    await started.wait()
    importing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await importing
    assert store.images() == store.usage() == []
    assert list((store.root / "tmp").iterdir()) == []


def _sif(squashfs: bytes, *, claimed: int | None = None) -> bytes:
    """Return a SIF with one partition, as its specification defines it."""
    begin = 4096
    size = len(squashfs) if claimed is None else claimed
    header = struct.pack(
        "<32s10s3s3s16sqqqqqqqq", b"#!/usr/bin/env run-singularity\n", b"SIF_MAGIC\0", b"01\0", b"02\0", bytes(16),
        0, 0, 47, 48, 128, 48 * 585, begin, size,
    )  # fmt: skip
    extra = struct.pack("<ii3s", 1, 2, b"02\0")
    descriptor = struct.pack(
        "<i?IIIqqqqqqq128s384s", 0x4004, True, 1, 1, 0, begin, size, size, 0, 0, 0, 0, b"squashfs", extra
    )
    return (header.ljust(128, b"\0") + descriptor).ljust(begin, b"\0") + squashfs


async def test_the_offset_of_the_file_system_in_a_sif(tmp_path: Path) -> None:
    path = tmp_path / "x.sif"
    path.write_bytes(_sif(b"squashfs"))
    assert find_squashfs(path) == 4096
    path.write_bytes(_sif(b"squashfs", claimed=100))
    with pytest.raises(InvalidArchive, match="cut short"):
        find_squashfs(path)
    path.write_bytes(_sif(b"").replace(struct.pack("<i", 0x4004), struct.pack("<i", 0x4001)))
    with pytest.raises(InvalidArchive, match="without the file system"):
        find_squashfs(path)


async def test_a_sif(store: ImageStore, runtime: BubblewrapRuntime, rootfs: Path, tmp_path: Path) -> None:
    programs = [shutil.which(name) for name in ("mksquashfs", "unsquashfs")]
    if None in programs:
        pytest.skip("mksquashfs and unsquashfs are not installed (apt install squashfs-tools)")
    source = tmp_path / "source"
    shutil.copytree(rootfs, source, symlinks=True)
    (source / ".singularity.d/env").mkdir(parents=True)
    (source / ".singularity.d/env/90-environment.sh").write_text("export WORD='from the image'\n")
    command = [str(programs[0]), str(source), str(tmp_path / "squashfs"), "-all-root", "-no-progress", "-quiet"]
    await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)
    path = tmp_path / "tiny.sif"
    path.write_bytes(_sif((tmp_path / "squashfs").read_bytes()))
    assert check_image(path) == "sif"
    image = await store.import_image(path)
    assert await _say(runtime, image, "echo $WORD; id -un; stat -c %U /bin/bash") == "from the image\nuser\nroot\n"
    path.write_bytes(_sif((tmp_path / "squashfs").read_bytes()[:-100_000] + bytes(100_000)))
    with pytest.raises(InvalidArchive, match="cannot be unpacked"):
        await store.import_image(path, "damaged")


async def test_a_sif_without_its_programs(store: ImageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.sif"
    path.write_bytes(_sif(b"squashfs"))
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ProgramMissing, match="apt install squashfs-tools"):
        await store.import_image(path)


async def test_real_podman(
    store: ImageStore,
    runtime: BubblewrapRuntime,
    rootfs_tar: bytes,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    """An image that podman built and saved, in both of its formats."""
    podman = shutil.which("podman")
    if podman is None:
        pytest.skip("podman is not installed")
    # Podman's run root may have at most 50 characters.
    run = tempfile.mkdtemp(prefix="ors-")
    request.addfinalizer(lambda: shutil.rmtree(run))
    options = ["--root", str(tmp_path / "root"), "--runroot", run, "--storage-driver", "vfs"]

    async def call(*arguments: str) -> None:
        done = await asyncio.to_thread(
            subprocess.run, [podman, *options, *arguments], capture_output=True, text=True, timeout=120
        )
        if done.returncode != 0:
            pytest.skip(f"podman does not work here: {done.stderr.strip().splitlines()[-1]}")

    (tmp_path / "rootfs.tar").write_bytes(rootfs_tar)
    await call(
        "import", "--change", "ENV WORD=podman", "--change", "USER nobody", str(tmp_path / "rootfs.tar"), "tiny:1"
    )
    for form in ("oci-archive", "docker-archive"):
        await call("save", "--format", form, "-o", str(tmp_path / f"{form}.tar"), "tiny:1")
        image = await store.import_image(tmp_path / f"{form}.tar")
        assert await _say(runtime, image, "echo $WORD; id -u") == "podman\n65534\n"


async def test_the_host_and_unknown_names(store: ImageStore) -> None:
    assert store.find("host").name == "host"
    with pytest.raises(UnknownImage, match="There are: host"):
        store.find("ubuntu")
    assert store.resolve("./ubuntu_22.04.sif") is None
    assert store.resolve("host") == "host"


async def test_names_that_resolve_to_other_names(
    store: ImageStore, make: Make, rootfs_tar: bytes, tmp_path: Path
) -> None:
    path = make([rootfs_tar]).oci(tmp_path / "x.tar")
    await store.import_image(path, "ubuntu:22.04")
    for name in (
        "ubuntu:22.04",
        "./ubuntu_22.04.sif",
        "/far/away/ubuntu_22.04.sif",
        "ubuntu_22.04",
        "ubuntu_22.04.tar.gz",
    ):
        assert store.resolve(name) == "ubuntu:22.04"
    await store.import_image(path, "ubuntu_22.04")
    assert store.resolve("./ubuntu_22.04.sif") == "ubuntu_22.04"
    assert store.resolve("ubuntu_20.04") is None


async def test_an_image_whose_layer_was_lost(store: ImageStore, make: Make, rootfs_tar: bytes, tmp_path: Path) -> None:
    image = await store.import_image(make([rootfs_tar]).oci(tmp_path / "x.tar"))
    store.close()
    for layer in image.layers:
        await store.layers.owners.remove(layer)
    with pytest.raises(UnknownImage, match="has lost a layer"):
        store.find("x")
    with pytest.raises(InvalidImage, match="not in the store any more"):
        await store.derive(image, Recipe({"/a": RecipeFile()}))
    # Another import restores it.
    assert (await store.import_image(tmp_path / "x.tar")).layers == image.layers
    store.record("x").path(store.root / "images").write_text("{")
    with pytest.raises(InvalidImage, match="damaged"):
        store.find("x")
    (store.root / "images" / "x.json").unlink()
