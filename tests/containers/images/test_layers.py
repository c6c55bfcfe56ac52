"""Layers on disk: paths of the files, whiteouts, and entries that are refused."""

from __future__ import annotations

import io
import os
import stat
from pathlib import Path

import pytest
from ors_containers.errors import ImageTooLarge, InvalidArchive
from ors_containers.layers.tree import LayeredTree, clean_layer, measure_layer, remove_layer
from ors_containers.layers.writer import Entry, LayerWriter, write_layer


def _writer(folder: Path, *below: Path, limit: int = 0) -> LayerWriter:
    folder.mkdir(exist_ok=True)
    return LayerWriter(folder, below, owners=False, limit=limit)


def _file(writer: LayerWriter, path: str, content: bytes = b"x", mode: int = 0o644) -> None:
    writer.file(path, io.BytesIO(content), mode, 0, 0)


@pytest.fixture
def below(tmp_path: Path) -> Path:
    """Create a layer with a directory, a file, and links that lead out of it."""
    folder = tmp_path / "below"
    writer = _writer(folder)
    writer.directory("data", 0o700, 0, 0)
    _file(writer, "data/file", b"lower")
    _file(writer, "data/inner/deep", b"deep")
    writer.directory("usr/bin", 0o755, 0, 0)
    writer.link("bin", "usr/bin", 0, 0)
    writer.link("absolute", "/data/inner", 0, 0)
    writer.link("out", "../../../../../../etc", 0, 0)
    writer.link("round", "about", 0, 0)
    writer.link("about", "round", 0, 0)
    writer.finish()
    return folder


def test_a_tree_is_read_as_overlayfs_reads_it(tmp_path: Path, below: Path) -> None:
    middle, top = tmp_path / "middle", tmp_path / "top"
    writer = _writer(middle, below)
    _file(writer, "data/other")
    writer.remove("data/file")
    writer.finish()
    tree = LayeredTree([middle, below])
    assert tree.find("data/file") is None
    assert tree.find("data/other") is not None
    assert tree.read("data/inner/deep") == b"deep"
    assert tree.find("data/inner/deep/deeper") is None

    writer = _writer(top, middle, below)
    writer.opaque("data")
    _file(writer, "data/only")
    writer.finish()
    tree = LayeredTree([top, middle, below])
    assert tree.find("data/other") is None
    assert tree.find("data/inner") is None
    assert tree.read("data/only") == b"x"
    assert tree.find("usr/bin") is not None


def test_links_are_followed_inside(below: Path) -> None:
    tree = LayeredTree([below])
    assert tree.resolve("/bin/tool") == "usr/bin/tool"
    assert tree.resolve("absolute/deep") == "data/inner/deep"
    assert tree.resolve("out/passwd") == "etc/passwd"
    assert tree.resolve("bin") == "bin"
    assert tree.resolve("bin", last=True) == "usr/bin"
    assert tree.resolve("../../a/./b") == "a/b"
    with pytest.raises(InvalidArchive, match="circles"):
        tree.resolve("round/x")


def test_a_path_through_a_link_is_written_inside(tmp_path: Path, below: Path) -> None:
    folder = tmp_path / "layer"
    writer = _writer(folder, below)
    _file(writer, "bin/tool")
    _file(writer, "out/passwd", b"mine")
    writer.link("evil", str(tmp_path / "elsewhere"), 0, 0)
    _file(writer, "evil/file")
    writer.finish()
    assert (folder / "usr/bin/tool").is_file()
    assert not (folder / "bin").exists(), "a link of the image was replaced by a directory"
    assert (folder / "etc/passwd").read_bytes() == b"mine"
    assert not (tmp_path / "elsewhere").exists()
    assert (folder / str(tmp_path).strip("/") / "elsewhere/file").is_file()


def test_modes_of_parents(tmp_path: Path, below: Path) -> None:
    folder = tmp_path / "layer"
    folder.mkdir()
    entries = [Entry("/data/new", "file", b"n", mode=0o600), Entry("/home/user/x/y", "file", mode=0o644)]
    size = write_layer(folder, entries, [below], owners=False, defaults={"home/user/x": (0o711, 0, 0)})
    assert size == 1
    assert stat.S_IMODE((folder / "data").stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "home/user").stat().st_mode) == 0o755
    assert stat.S_IMODE((folder / "home/user/x").stat().st_mode) == 0o711
    assert stat.S_IMODE((folder / "data/new").stat().st_mode) == 0o600


def test_an_entry_replaces_one_of_another_kind(tmp_path: Path, below: Path) -> None:
    folder = tmp_path / "layer"
    writer = _writer(folder, below)
    _file(writer, "a/b/c")
    writer.link("a", "elsewhere", 0, 0)
    writer.directory("a", 0o755, 0, 0)
    _file(writer, "a", b"at last a file")
    writer.remove("data")
    writer.directory("data", 0o755, 0, 0)
    writer.finish()
    assert (folder / "a").read_bytes() == b"at last a file"
    # A directory that was removed and created again hides the old directory.
    assert LayeredTree([folder, below]).find("data/file") is None


def test_a_link_that_replaces_a_directory_is_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "b").mkdir(parents=True)
    (outside / "b").chmod(0o700)
    writer = _writer(tmp_path / "layer")
    writer.directory("a/b", 0o777, 0, 0, 5.0)
    writer.link("a", str(outside), 0, 0)
    writer.finish()
    assert stat.S_IMODE((outside / "b").stat().st_mode) == 0o700


def test_a_directory_without_permissions_is_filled_and_removed(tmp_path: Path) -> None:
    folder = tmp_path / "layer"
    writer = _writer(folder)
    writer.directory("closed", 0, 0, 0)
    _file(writer, "closed/file")
    writer.finish()
    assert stat.S_IMODE((folder / "closed").stat().st_mode) == 0
    remove_layer(folder)
    assert not folder.exists()
    remove_layer(folder)


def test_nothing_setuid_and_no_device_is_in_a_layer(tmp_path: Path) -> None:
    folder = tmp_path / "layer"
    writer = _writer(folder)
    _file(writer, "tool", mode=0o6755)
    writer.finish()
    assert stat.S_IMODE((folder / "tool").stat().st_mode) == 0o755
    # A build's special bits are removed.
    (folder / "tool").chmod(0o4755)
    os.link(folder / "tool", folder / "second")
    os.mkfifo(folder / "pipe")
    os.setxattr(folder, "user.overlay.origin", b"z")
    os.mknod(folder / "gone", stat.S_IFCHR | 0o600, os.makedev(0, 0))
    assert clean_layer(folder) == 1
    assert stat.S_IMODE((folder / "second").stat().st_mode) == 0o755
    assert os.listxattr(folder) == []
    assert {path.name for path in folder.iterdir()} == {"tool", "second", "pipe", "gone"}
    assert measure_layer(folder) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_the_shift_is_subtracted_from_owners(tmp_path: Path) -> None:
    folder = tmp_path / "layer"
    folder.mkdir()
    for name, owner in {"root": 700_000, "user": 701_000, "foreign": 12}.items():
        (folder / name).write_bytes(b"x")
        os.chown(folder / name, owner, owner)
    (folder / "link").symlink_to("nowhere")
    os.chown(folder / "link", 700_007, 700_007, follow_symlinks=False)
    clean_layer(folder, shift=700_000)
    assert {path.name: path.lstat().st_uid for path in folder.iterdir()} == {
        "root": 0,
        "user": 1000,
        "foreign": 65534,  # the account `nobody`, never an id of the host
        "link": 7,
    }


def test_a_layer_has_its_limit(tmp_path: Path) -> None:
    writer = _writer(tmp_path / "layer", limit=10)
    _file(writer, "a", b"x" * 10)
    with pytest.raises(ImageTooLarge, match="more than"):
        _file(writer, "b", b"x")
