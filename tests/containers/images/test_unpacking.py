"""Layers made from tar archives, valid and faulty ones."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import lzma
import os
import shutil
import stat
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ors_containers.errors import ImageTooLarge, InvalidArchive, ProgramMissing
from ors_containers.layers.tar import copy_layer, decompressed, unpack_layer
from ors_containers.layers.tree import LayeredTree

Make = Callable[..., Any]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "layer"
    path.mkdir()
    return path


def _unpack(content: bytes, folder: Path, *below: Path, **options: Any) -> Any:
    return unpack_layer(io.BytesIO(content), folder, below, owners=os.geteuid() == 0, **options)


def test_every_kind_of_member_is_unpacked(folder: Path, tar: Make, member: Make, is_root: bool) -> None:
    content = tar(
        member("./etc/", kind=tarfile.DIRTYPE, mode=0o750),
        member("/etc/conf", b"content", mode=0o640, user=7, group=8),
        member("etc/again", kind=tarfile.LNKTYPE, link="etc/conf"),
        member("etc/link", kind=tarfile.SYMTYPE, link="/outside"),
        member("pipe", kind=tarfile.FIFOTYPE),
        member("null", kind=tarfile.CHRTYPE),
        member("umläut\udcff", b""),
        member("tool", b"", mode=0o6755),
        member("far", b"", user=3_000_000, group=1),
    )
    done = _unpack(content, folder)
    assert (done.size, done.skipped) == (7, 1)
    assert stat.S_IMODE((folder / "etc").stat().st_mode) == 0o750
    found = (folder / "etc/conf").stat()
    assert (stat.S_IMODE(found.st_mode), found.st_nlink, found.st_mtime) == (0o640, 2, 1_000_000_000)
    assert (folder / "etc/link").readlink() == Path("/outside")
    assert stat.S_ISFIFO((folder / "pipe").stat().st_mode)
    assert stat.S_IMODE((folder / "tool").stat().st_mode) == 0o755
    assert not (folder / "null").exists()
    assert (folder / "umläut\udcff").exists()
    if is_root:
        assert (found.st_uid, found.st_gid) == (7, 8)
        assert ((folder / "far").stat().st_uid, (folder / "far").stat().st_gid) == (65534, 1)


def test_every_user_can_read_the_root(tmp_path: Path, folder: Path, tar: Make, member: Make) -> None:
    _unpack(tar(member("./", kind=tarfile.DIRTYPE, mode=0o700), member("a", b"")), folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755
    (tmp_path / "private").mkdir(mode=0o700)
    copy_layer(tmp_path / "private", folder, owners=False)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755


def test_whiteouts(tmp_path: Path, folder: Path, tar: Make, member: Make) -> None:
    lower = tmp_path / "lower"
    lower.mkdir()
    _unpack(tar(member("d/a", b"1"), member("d/b", b"2"), member("e/old", b"3"), member("f/old", b"4")), lower)
    content = tar(
        member("d/.wh.a"),
        member("e/", kind=tarfile.DIRTYPE),
        member("e/.wh..wh..opq"),
        member("e/new", b"5"),
        member(".wh.f"),
        member("f/new", b"6"),
        member(".wh.never"),
        member(".wh..wh.plnk/x"),
    )
    _unpack(content, folder, lower)
    tree = LayeredTree([folder, lower])
    assert [tree.read(name) for name in ("d/a", "d/b", "e/old", "e/new", "f/old", "f/new")] == [
        *(None, b"2", None, b"5", None, b"6")
    ]
    assert not os.path.lexists(folder / "never"), "a whiteout of nothing"


def test_hard_links_to_files_of_layers_below(tmp_path: Path, folder: Path, tar: Make, member: Make) -> None:
    lower = tmp_path / "lower"
    lower.mkdir()
    _unpack(tar(member("d/a", b"1", mode=0o600), member("l", kind=tarfile.SYMTYPE, link="d")), lower)
    _unpack(tar(member("second", kind=tarfile.LNKTYPE, link="l/a")), folder, lower)
    assert (folder / "second").read_bytes() == b"1"
    assert stat.S_IMODE((folder / "second").stat().st_mode) == 0o600
    with pytest.raises(InvalidArchive, match="second name of /etc/none"):
        _unpack(tar(member("third", kind=tarfile.LNKTYPE, link="etc/none")), folder, lower)


@pytest.mark.parametrize(
    "attack",
    [
        [("../outside", b"x", tarfile.REGTYPE, "")],
        [("a/../../outside", b"x", tarfile.REGTYPE, "")],
        [("..", b"", tarfile.DIRTYPE, "")],
        [("x", b"", tarfile.LNKTYPE, "../outside")],
        [("x", b"", tarfile.LNKTYPE, "/etc/passwd")],
        [(".wh...", b"", tarfile.REGTYPE, "")],
        [(".", b"x", tarfile.REGTYPE, "")],
        [("a/.wh..", b"", tarfile.REGTYPE, "")],
    ],
)
def test_archives_that_lead_out_are_refused(
    tmp_path: Path, folder: Path, tar: Make, member: Make, attack: list[tuple[str, bytes, bytes, str]]
) -> None:
    content = tar(*(member(name, text, kind=kind, link=link) for name, text, kind, link in attack))
    with pytest.raises(InvalidArchive):
        _unpack(content, folder)
    assert [path.name for path in tmp_path.iterdir()] == ["layer"]


@pytest.mark.parametrize("name", ["x" * 256, "/".join(["x" * 250] * 20), "usr/" + "y" * 300 + "/z"])
def test_names_that_are_too_long_are_refused(folder: Path, tar: Make, member: Make, name: str) -> None:
    with pytest.raises(InvalidArchive, match="longer than a file's can be: '") as failed:
        _unpack(tar(member("usr/fine", b""), member(name, b"")), folder)
    assert len(str(failed.value)) < 200
    with pytest.raises(InvalidArchive, match="longer than a file's can be: 'link'"):
        _unpack(tar(member("link", kind=tarfile.SYMTYPE, link="x" * 5000)), folder)


def test_links_that_lead_out_are_not_followed_outside(tmp_path: Path, folder: Path, tar: Make, member: Make) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    content = tar(
        member("up", kind=tarfile.SYMTYPE, link="../outside"),
        member("up/file", b"x"),
        member("root", kind=tarfile.SYMTYPE, link=str(outside)),
        member("root/file", b"x"),
        member("file", kind=tarfile.SYMTYPE, link=str(outside / "written")),
        member("file", b"replaces the link"),
        member("up/.wh.other"),
    )
    _unpack(content, folder)
    assert list(outside.iterdir()) == []
    assert (folder / "file").read_bytes() == b"replaces the link"


def test_truncated_archives_are_refused(tmp_path: Path, rootfs_tar: bytes, tar: Make, member: Make) -> None:
    content = tar(member("a", b"x" * 3000), member("b/c", b"y" * 700))
    packed = gzip.compress(content)
    end = content.rstrip(b"\0")
    whole = -(-len(end) // 512) * 512  # all members, without the mark of the end
    for number, cut in enumerate([0, 100, 512, 600, 2048, 4096, len(end) // 512 * 512, len(end), whole]):
        folder = tmp_path / f"plain{number}"
        folder.mkdir()
        with pytest.raises(InvalidArchive):
            _unpack(content[:cut], folder)
    for number, cut in enumerate([0, 5, len(packed) // 2, len(packed) - 1]):
        folder = tmp_path / f"packed{number}"
        folder.mkdir()
        with pytest.raises(InvalidArchive), decompressed(io.BytesIO(packed[:cut])) as plain:
            unpack_layer(plain, folder, owners=False)


def test_the_digest_is_checked(folder: Path, tar: Make, member: Make) -> None:
    content = tar(member("a", b"content"))
    digest = hashlib.sha256(content).hexdigest()
    _unpack(content, folder, digest=digest)
    altered = content.replace(b"content", b"c0ntent")
    with pytest.raises(InvalidArchive, match="does not match its digest"):
        _unpack(altered, folder, digest=digest)


def test_an_archive_has_its_limit(folder: Path, tar: Make, member: Make) -> None:
    with pytest.raises(ImageTooLarge):
        _unpack(tar(member("a", b"x" * 600), member("b", b"y" * 600)), folder, limit=1000)


def test_compressions(tar: Make, member: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    content = tar(member("a", os.urandom(300_000)))
    for compress in (gzip.compress, bz2.compress, lzma.compress, bytes):
        with decompressed(io.BytesIO(compress(content))) as plain:
            assert b"".join(iter(lambda plain=plain: plain.read(4096), b"")) == content
    zstd = shutil.which("zstd")
    if zstd is not None:
        packed = subprocess.run([zstd, "-qc"], input=content, capture_output=True, check=True).stdout
        with decompressed(io.BytesIO(packed)) as plain:
            assert b"".join(iter(lambda: plain.read(4096), b"")) == content
        with pytest.raises(InvalidArchive, match="cut short"), decompressed(io.BytesIO(packed[:-7])) as plain:
            b"".join(iter(lambda: plain.read(4096), b""))
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setitem(__import__("sys").modules, "compression.zstd", None)
    with pytest.raises(ProgramMissing, match="apt install zstd"), decompressed(io.BytesIO(b"\x28\xb5\x2f\xfd??")):
        pass


def test_a_folder_is_copied_with_its_links(tmp_path: Path, folder: Path) -> None:
    source = tmp_path / "source"
    (source / "d").mkdir(parents=True)
    (source / "d/a").write_bytes(b"1")
    os.link(source / "d/a", source / "second")
    (source / "out").symlink_to("/etc")
    os.mkfifo(source / "pipe")
    (source / "d").chmod(0o500)
    done = copy_layer(source, folder, owners=False)
    assert (done.size, done.skipped) == (1, 0)
    assert (folder / "second").stat().st_ino == (folder / "d/a").stat().st_ino
    assert (folder / "out").readlink() == Path("/etc")
    assert stat.S_IMODE((folder / "d").stat().st_mode) == 0o500
