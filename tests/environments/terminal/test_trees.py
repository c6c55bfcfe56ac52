"""The state of a folder, without a sandbox: what makes two folders different, and what does not."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ors_server.hosting.loading.folder_imports import folder_package

from .parts import FOLDER

_tree = folder_package(FOLDER).load("states.tree")


def fill(root: Path) -> None:
    (root / "sub" / "deep").mkdir(parents=True)
    (root / "a.txt").write_text("a\n")
    (root / "sub" / "b.txt").write_text("b\n")
    (root / "sub" / "link").symlink_to("b.txt")
    os.link(root / "a.txt", root / "one.txt")
    for path in (root, root / "sub", root / "sub" / "deep"):
        path.chmod(0o755)
    for path in (root / "a.txt", root / "sub" / "b.txt"):
        path.chmod(0o644)


def look(root: Path, free: tuple[str, ...] = ()) -> dict[str, list[str]]:
    return _tree.look(str(root), (), {}, free, {})


def compared(tmp_path: Path, change: Callable[[Path], object], *, made: tuple[str, ...] = ()) -> list[str]:
    """Return the differences that a change makes; ``made`` is what the solution made."""
    root = tmp_path.resolve() / "project"
    fill(root)
    after = look(root)
    before = {path: entry for path, entry in after.items() if path not in made}
    reference = _tree.made_by(before, after, {"sub/b.txt": "executable"} if made else {})
    change(root)
    return _tree.differences(reference, look(root))


CHANGES: dict[str, Callable[[Path], object]] = {
    "a byte": lambda root: (root / "a.txt").write_text("a \n"),
    "a mode": lambda root: (root / "a.txt").chmod(0o664),
    "a mode of the folder": lambda root: root.chmod(0o700),
    "a sticky bit": lambda root: (root / "sub").chmod(0o1755),
    "an entry": lambda root: (root / "sub" / "deep" / ".hidden").touch(),
    "an entry less": lambda root: (root / "sub" / "b.txt").unlink(),
    "a link's target": lambda root: ((root / "sub" / "link").unlink(), (root / "sub" / "link").symlink_to("./b.txt")),
    "a pipe": lambda root: os.mkfifo(root / "pipe"),
    "two files for one": lambda root: (
        shutil.copy2(root / "one.txt", root / "c"),
        (root / "c").rename(root / "one.txt"),
    ),
    "one file for two": lambda root: (root / "sub" / "deep" / "c").hardlink_to(root / "sub" / "b.txt"),
    "a name elsewhere": lambda root: (root.parent / "c").hardlink_to(root / "sub" / "b.txt"),
    "an attribute": lambda root: os.setxattr(root / "a.txt", "user.note", b"x"),
    "a folder for a file": lambda root: ((root / "a.txt").unlink(), (root / "a.txt").mkdir()),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_is_seen(tmp_path: Path, what: str) -> None:
    assert compared(tmp_path, CHANGES[what]), what


def test_times_and_an_exchange_for_the_same_are_not(tmp_path: Path) -> None:
    def change(root: Path) -> None:
        os.utime(root / "a.txt", (1, 1))
        shutil.copy(root / "sub" / "b.txt", root.parent / "c")
        (root.parent / "c").replace(root / "sub" / "b.txt")

    assert compared(tmp_path, change) == []


def test_modes_of_what_was_made_are_free_unless_it_must_be_executable(tmp_path: Path) -> None:
    made = ("sub/deep", "sub/b.txt")
    differences = compared(tmp_path, lambda root: (root / "sub" / "deep").chmod(0o700), made=made)
    assert [one.partition(":")[0] for one in differences] == ["sub/b.txt has another mode"]
    shutil.rmtree(tmp_path / "project")
    assert compared(tmp_path, lambda root: (root / "sub" / "b.txt").chmod(0o711), made=made) == []


def test_a_folder_reached_through_a_link_is_refused(tmp_path: Path) -> None:
    root = tmp_path.resolve() / "project"
    fill(root)
    (tmp_path / "other").symlink_to(root)
    for path in (tmp_path.resolve() / "other", tmp_path.resolve() / "other" / "sub"):
        with pytest.raises(AssertionError, match="leads through a link"):
            look(path)


def test_what_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    root = tmp_path.resolve() / "project"
    root.mkdir()
    (root / "large").touch()
    os.truncate(root / "large", 30_000_000)
    with pytest.raises(AssertionError, match="far too large"):
        look(root)
    assert look(root, ("large",)).keys() == {"."}


def test_a_result_elsewhere_is_compared(tmp_path: Path) -> None:
    root = tmp_path.resolve() / "project"
    fill(root)
    also = ("../result.txt",)
    assert "../result.txt" not in _tree.look(str(root), also, {}, (), {})
    (tmp_path / "result.txt").write_text("1\n")
    first = _tree.look(str(root), also, {}, (), {})
    (tmp_path / "result.txt").write_text("2\n")
    assert [one.partition(":")[0] for one in _tree.differences(first, _tree.look(str(root), also, {}, (), {}))] == [
        "../result.txt has another content"
    ]
    (tmp_path / "moved").mkdir()
    (tmp_path / "link").symlink_to("moved")
    with pytest.raises(AssertionError, match="leads through a link"):
        _tree.look(str(root), ("../link/result.txt",), {}, (), {})
