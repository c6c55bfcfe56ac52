"""The programs of an image, resolved by its own links and layers."""

from __future__ import annotations

from pathlib import Path

import pytest
from ors_containers import ImageStore, UnknownImage

from .parts import preparation


def root_folder(folder: Path) -> Path:
    """Create a root file system with bash, and links that resolve differently in the image than on the machine."""
    programs = folder / "usr" / "bin"
    programs.mkdir(parents=True)
    (folder / "bin").symlink_to("/usr/bin")
    for name in ("bash", "inside"):
        (programs / name).write_bytes(b"\x7fELF")
        (programs / name).chmod(0o755)
    (programs / "linked").symlink_to("/usr/bin/inside")
    (programs / "ls").symlink_to("/nowhere/ls")
    return folder


async def test_links_are_the_images_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORS_IMAGES", str(tmp_path / "store"))
    store = ImageStore()
    await store.import_image(root_folder(tmp_path / "root"), "made")
    store.close()
    has_program = preparation.program_finder("made")
    assert has_program("inside")
    assert has_program("linked")
    assert not has_program("ls")
    assert not has_program("env")


def test_the_machines_own_programs() -> None:
    has_program = preparation.program_finder("host")
    assert has_program("ls")
    assert not has_program("no-such-program")


def test_a_missing_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORS_IMAGES", str(tmp_path / "store"))
    with pytest.raises(UnknownImage):
        preparation.program_finder("absent")
