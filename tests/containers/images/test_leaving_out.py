"""A layer without what its rules leave out."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

import pytest
from ors_containers.layers.leaving_out import LeftOut, leave_out
from ors_containers.layers.messages import LeaveOut, Request
from ors_containers.layers.ownership import LayerOwners
from ors_containers.layers.tree import OPAQUE, LayeredTree

#: Of a path: content of a file, target of a link after ``->``, a whiteout, or an opaque folder.
Files = Mapping[str, str]
WHITEOUT, OPAQUE_FOLDER = "whiteout", "opaque"


def layer_of(folder: Path, files: Files) -> Path:
    folder.mkdir()
    for name, content in files.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if content == WHITEOUT:
            os.mknod(place, stat.S_IFCHR, os.makedev(0, 0))
        elif content == OPAQUE_FOLDER:
            place.mkdir(exist_ok=True)
            os.setxattr(place, OPAQUE, b"y")
        elif content.startswith("->"):
            place.symlink_to(content[2:])
        else:
            place.write_text(content)
    return folder


def seen(layers: list[Path], folder: str = "") -> dict[str, str]:
    """Return the content of each file that a container over ``layers`` sees."""
    tree = LayeredTree(layers)
    found: dict[str, str] = {}
    for name in tree.names(folder):
        path = f"{folder}/{name}".lstrip("/")
        at = tree.find(path)
        assert at is not None
        if stat.S_ISDIR(at.status.st_mode):
            found |= seen(layers, path)
        else:
            found[path] = str(at.path.readlink()) if at.path.is_symlink() else at.path.read_text()
    return found


IMAGE: Files = {"usr/bin/python": "image", "usr/lib/m/a.py": "image", "etc/conf": "image", "root/data": "image"}


@pytest.mark.parametrize(
    ("agent", "rules", "expected"),
    [
        pytest.param(
            {"usr/bin/python": "agent", "usr/bin/tool": "agent", "root/answer": "agent"},
            LeftOut(paths=["/usr/bin/python"]),
            {"usr/bin/tool": "agent", "root/answer": "agent"},
            id="a program that was replaced",
        ),
        pytest.param(
            {"usr/bin/python": WHITEOUT, "root/data": WHITEOUT},
            LeftOut(paths=["/usr/bin/python"]),
            {"root/data": None},
            id="a program that was removed",
        ),
        pytest.param(
            {"usr/lib/m": OPAQUE_FOLDER, "usr/lib/m/b.py": "agent"},
            LeftOut(paths=["/usr/lib/m/a.py"]),
            {"usr/lib/m/b.py": "agent"},
            id="a folder that was replaced",
        ),
        pytest.param(
            {"usr/lib": "->/root/lib", "root/lib/m/a.py": "agent"},
            LeftOut(paths=["/usr/lib/m/a.py"]),
            {"root/lib/m/a.py": "agent"},
            id="a link in place of a folder above",
        ),
        pytest.param(
            {"usr/lib/sitecustomize.py": "agent", "usr/lib/x.pth": "->a", "usr/lib/json/__init__.py": "agent"},
            LeftOut(folders=["/usr/lib"]),
            {},
            id="additions to a folder",
        ),
        pytest.param(
            {"usr/lib/m/b.py": "agent", "usr/lib/new/c.py": "agent"},
            LeftOut(folders=["/usr/lib"]),
            {"usr/lib/m/b.py": "agent"},
            id="a folder in it that is in the image",
        ),
        pytest.param(
            {"root/answer": "agent", "root/data": WHITEOUT, "root/.local/x.pth": "agent", "root/.other": "agent"},
            LeftOut(paths=["/root/.local"], folders=["/", "/root"], kept=["/root"]),
            {"root/answer": "agent", "root/data": None, "root/.other": "agent"},
            id="the task's folder",
        ),
        pytest.param(
            {"root": OPAQUE_FOLDER, "root/work/answer": "agent", "root/.bashrc": "agent"},
            LeftOut(paths=["/root"], kept=["/root/work"]),
            {"root/work/answer": "agent"},
            id="the task's folder in one that is left out",
        ),
        pytest.param(
            {"root": OPAQUE_FOLDER, "root/answer": "agent"},
            LeftOut(paths=["/root/.local/bin/uv"], kept=["/root"]),
            {"root/answer": "agent", "root/data": None},
            id="deletions in the task's folder",
        ),
        pytest.param(
            {"root/.x": "agent", "root/y": "agent", "root/.local/lib/x.pth": "agent", "home/.x": "agent"},
            LeftOut(homes=["/root"], kept=["/root"]),
            {"root/y": "agent", "home/.x": "agent"},
            id="hidden entries of a home",
        ),
        pytest.param(
            {"root": "->/home/x", "home/x/.y": "a"}, LeftOut(homes=["/root"]), {"home/x/.y": "a"}, id="no home"
        ),
        pytest.param(
            {"work/a": "->/tests/x", "work/b": "->../tests", "work/c": "->c/../d", "work/d": "->/none/../tests/y"},
            LeftOut(closed=["/tests"], kept=["/work"]),
            {"work/c": "c/../d"},
            id="links to a grader's files",
        ),
        pytest.param(
            {"work/a": "->b", "work/b": "->e/tests/x", "work/e": "->/", "work/f": "->g", "work/g": "->/etc/conf"},
            LeftOut(paths=["/etc"], closed=["/tests"]),
            {"work/e": "/", "work/f": "g", "work/g": "/etc/conf"},
            id="links by other links",
        ),
        pytest.param(
            {"work/a": "->/proc/self/root/x", "work/b": "->/dev/fd/3", "work/c": "->/dev/null", "tests/x": "agent"},
            LeftOut(closed=["/tests"]),
            {"work/c": "/dev/null"},
            id="links to files of processes",
        ),
        pytest.param({"etc/conf": "agent"}, LeftOut(paths=["/"]), {}, id="everything"),
        pytest.param({"etc/conf": "agent"}, LeftOut(), {"etc/conf": "agent"}, id="nothing"),
    ],
)
def test_what_is_left_of_a_layer(
    tmp_path: Path, agent: Files, rules: LeftOut, expected: Mapping[str, str | None]
) -> None:
    image = layer_of(tmp_path / "image", IMAGE)
    layer = layer_of(tmp_path / "agent", agent)
    leave_out(layer, rules, [image])
    assert seen([layer, image]) == {path: text for path, text in {**IMAGE, **expected}.items() if text is not None}


def _files(paths: str, content: str) -> dict[str, str]:
    return dict.fromkeys(paths.split(), content)


@pytest.mark.parametrize(
    ("agent", "expected"),
    [
        pytest.param(
            _files("work/json.py work/x/y/z.pyc work/json.abi3.so work/x/__init__.py work/.a.egg-info", "agent")
            | _files("work/x-1.dist-info/a work/a.Egg-Info/b work/a.egg-link", "agent")
            | {"work/data": "->/more-data", "work/file.py": "->answer", "more-data/a.py": "agent"}
            | {"work/__pycache__/old.cpython-311.pyc": "agent"},
            {"more-data/a.py": "agent", "work/old.py": "image", "work/m/old.py": "image"},
            id="modules",
        ),
        pytest.param(
            _files("work/answer work/a-b.py work/x/data.json work/.git/a.py a.py work/old.py work/own.py", "agent")
            | {"work/latest": "->answer", "work/m/old.py": WHITEOUT},
            _files("work/answer work/a-b.py work/x/data.json work/.git/a.py a.py work/old.py work/own.py", "agent")
            | {"work/latest": "answer"},
            id="no modules, and modules that stay",
        ),
        pytest.param(
            {"work/old.py": "->a-b", "work/a-b": "agent", "work/m/new.py": "agent", "work/m/up": "->.."},
            {"work/a-b": "agent", "work/old.py": "image", "work/m/old.py": "image"},
            id="modules where the image has others",
        ),
        pytest.param(
            {"work": "->/other", "other/json.py": "agent"},
            {"work/old.py": "image", "work/m/old.py": "image", "other/json.py": "agent"},
            id="a link in place of the folder",
        ),
    ],
)
def test_added_modules_are_left_out(tmp_path: Path, agent: Files, expected: Files) -> None:
    image = layer_of(tmp_path / "image", _files("work/old.py work/m/old.py", "image"))
    layer = layer_of(tmp_path / "agent", agent)
    leave_out(layer, LeftOut(kept=["/work"], searched=["/work", "/none"], own=["/work/own.py"]), [image])
    assert seen([layer, image]) == expected


def test_links_lead_nowhere(tmp_path: Path) -> None:
    outside = layer_of(tmp_path / "outside", {"bin/python": "outside"})
    layer = layer_of(tmp_path / "agent", {"usr": f"->{outside}"})
    leave_out(layer, LeftOut(paths=["/usr/bin/python"], folders=["/usr/bin"]), [])
    assert (outside / "bin/python").read_text() == "outside"
    assert not os.path.lexists(layer / "usr")


def test_a_closed_folder_is_opened(tmp_path: Path) -> None:
    layer = layer_of(tmp_path / "agent", {"usr/bin/python": "agent", "work/inner/x": "->/tests/x"})
    closed = [layer / "usr", layer / "work/inner"]
    for folder in closed:
        folder.chmod(0)
    leave_out(layer, LeftOut(paths=["/usr/bin"], closed=["/tests"]), [])
    assert [path.relative_to(layer).as_posix() for path in sorted(layer.rglob("*"))] == ["usr", "work", "work/inner"]


def test_the_request_can_be_read() -> None:
    rules = LeftOut(*([f"/{field}"] for field in LeftOut._fields))
    request = Request(1, LayerOwners().mapping.of_sandbox(0), LeaveOut("/x", rules, ["/y"]))
    assert Request.decode(request.encode()) == request
