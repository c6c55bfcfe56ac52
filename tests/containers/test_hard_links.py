"""Hard links to files of an image, and attacks through the overlay that the server mounts as root for them."""

from __future__ import annotations

import dataclasses
import json
import os
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import ors_containers
import pytest
from ors_containers import ContainerSettings, Image
from ors_containers.runtimes.namespace_runtime import NamespaceRuntime
from ors_containers.self_check import links

pytestmark = pytest.mark.asyncio(loop_scope="module")

RUNTIMES = ("bubblewrap", "apptainer")

_ALONE = ("unshare", "--mount", "sh", "-c")


@pytest.fixture
def layer(state: Path) -> Iterator[Path]:
    kind = subprocess.run(["stat", "-f", "-c", "%T", state], capture_output=True, text=True, check=True).stdout.strip()
    if kind in ("overlayfs", "nfs"):
        pytest.skip(f"Linux keeps no hard links to files of images on {kind}")
    with tempfile.TemporaryDirectory(dir=state) as made:
        folder = Path(made, "layer")
        (folder / "srv").mkdir(parents=True)
        (folder / "srv/one").write_text("first\n")
        (folder / "srv/other").hardlink_to(folder / "srv/one")
        for place in (folder, folder / "srv"):
            place.chmod(0o755)
        yield folder


def _image(runtime: NamespaceRuntime, layer: Path, user: int = 0) -> Image:
    host = runtime.host_image()
    return dataclasses.replace(host, layers=(layer, *host.layers), user=user, group=user, home="/root")


async def _in_container(runtime: NamespaceRuntime, image: Image, command: str) -> str:
    async with await runtime.open_container(image, ContainerSettings(disk=64 * 2**20)) as container:
        return (await container.run(command, timeout=20)).text


async def test_a_docker_like_container_keeps_hard_links(runtime: NamespaceRuntime, layer: Path) -> None:
    command = (
        "cd /srv; ln one third; cp -al /srv /linked; stat -c %d:%i:%h one other third /linked/* | sort -u | wc -l; "
        "[ third -ef /linked/other ] && echo same"
    )
    assert await _in_container(runtime, _image(runtime, layer), command) == "1\nsame\n"


async def test_sandboxes_share_no_link_and_write_no_layer(runtime: NamespaceRuntime, layer: Path) -> None:
    image = _image(runtime, layer)
    async with runtime.sandbox(image) as one, runtime.sandbox(image) as two:
        for sandbox, text in ((one, "a"), (two, "b")):
            result = await sandbox.run(f"cd /srv; ln other third; echo {text} >> third; cat one; ls", timeout=20)
            assert result.text == f"first\n{text}\none\nother\nthird\n"
        await one.run("rm /srv/*", timeout=20)
        assert (await two.run("cat /srv/one", timeout=20)).text == "first\nb\n"
    assert (layer / "srv/one").read_text() == "first\n"
    assert sorted(path.name for path in (layer / "srv").iterdir()) == ["one", "other"]
    assert (layer / "srv/one").stat().st_nlink == 2


async def test_a_layer_gives_no_device_and_no_rights(runtime: NamespaceRuntime, layer: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make devices")
    os.mknod(layer / "srv/null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    (layer / "srv/null").chmod(0o666)
    (layer / "srv/id").write_bytes(Path("/usr/bin/id").read_bytes())
    (layer / "srv/id").chmod(0o4755)
    command = "cat /srv/null; echo x > /srv/null; ln /srv/null /srv/again; cat /srv/again"
    async with runtime.sandbox(_image(runtime, layer)) as sandbox:
        said = (await sandbox.run(command, timeout=20)).text
        assert said.count("Permission denied") == 3, said
    async with runtime.sandbox(_image(runtime, layer, user=1000)) as sandbox:
        assert "euid" not in (await sandbox.run("/srv/id", timeout=20)).text
    said = await _in_container(runtime, _image(runtime, layer), command)
    assert said.count("Permission denied") == 3, said


async def test_nothing_inside_makes_marks_of_the_overlay(runtime: NamespaceRuntime, layer: Path) -> None:
    """A whiteout or an attribute of the overlay's, made inside, could uncover or replace what a layer has."""
    if not Path("/usr/bin/python3").exists():
        pytest.skip("there is no Python in /usr/bin")
    command = """cd /srv; mkdir mine; mknod mine/one c 0 0 && echo whiteout
mknod /dev/shm/one c 0 0 && mv /dev/shm/one mine/one && echo moved
/usr/bin/python3 -c '
import os
for name in ("opaque", "redirect", "metacopy", "origin", "upper", "whiteout", "nlink", "impure"):
    for path in ("mine", "one"):
        try:
            os.setxattr(path, f"trusted.overlay.{name}", b"y")
            print(path, name)
        except OSError:
            pass
'; echo tried"""
    async with runtime.sandbox(_image(runtime, layer)) as sandbox:
        assert (await sandbox.run(f"({command}) 2>/dev/null", timeout=20)).text == "tried\n"
    assert await _in_container(runtime, _image(runtime, layer), f"({command}) 2>/dev/null") == "tried\n"


async def test_owners_inside_are_those_of_the_layer(runtime: NamespaceRuntime, layer: Path) -> None:
    if os.geteuid() != 0 or runtime.describe().hard_links != "whole":
        pytest.skip("only root keeps owners")
    os.chown(layer / "srv/one", 1000, 5)
    (layer / "home").mkdir()
    (layer / "home").chmod(0o711)
    os.chown(layer / "home", 7, 8)
    image = dataclasses.replace(_image(runtime, layer, user=1000), home="/home/user")
    strangers = "find / -xdev -uid 65534 ! -path /proc 2>/dev/null | wc -l"
    command = f"stat -c '%n %u:%g %a' / /srv/other /home /home/user /tmp; {strangers}"
    async with runtime.sandbox(image) as sandbox:
        said = (await sandbox.run(command, timeout=20)).text
    assert said == "/ 0:0 755\n/srv/other 1000:5 644\n/home 7:8 711\n/home/user 1000:1000 755\n/tmp 0:0 1777\n0\n"


@pytest.mark.parametrize("runtime", ["bubblewrap"], indirect=True)
async def test_sandboxes_leave_no_mount(runtime: NamespaceRuntime, layer: Path) -> None:
    """A file system that a namespace still holds keeps its device number; a new one gets the least that is free."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a file system to see its number")
    numbers: list[int] = []
    for _ in range(2):
        for _ in range(15):
            async with runtime.sandbox(_image(runtime, layer)) as sandbox:
                await sandbox.run("ln /srv/one /srv/new", timeout=20)
        program = "mount -t tmpfs none /mnt && stat -c %d /mnt"
        done = subprocess.run([*_ALONE, program], capture_output=True, text=True, check=True)  # noqa: ASYNC221 - as below
        numbers.append(os.minor(int(done.stdout)))
    # Three file systems a sandbox; other tests run at the same time.
    assert numbers[1] - numbers[0] < 30
    assert str(runtime.describe().runtime) not in Path("/proc/self/mountinfo").read_text()


@pytest.mark.parametrize("runtime", ["bubblewrap"], indirect=True)
async def test_images_on_an_overlay_are_noticed(runtime: NamespaceRuntime, python: str) -> None:
    """The kernel ignores ``index=on`` there without an error."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount the overlay")
    package = Path(ors_containers.__file__).resolve().parents[1]
    program = Path(__file__).with_name("ordinary.py")
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        for name in ("lower", "upper", "work"):
            Path(made, name).mkdir()
        mounting = (
            "mkdir -p /run/ors-containers && mount -t overlay overlay -o lowerdir=$0/lower,upperdir=$0/upper,"
            'workdir=$0/work /run/ors-containers && exec "$@"'
        )
        command = [*_ALONE, mounting, made, python, program, package, "links", "bubblewrap"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)  # noqa: ASYNC221 - nothing else runs
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["hard links"] == "broken"
    assert any("on ext4, xfs, btrfs or tmpfs" in note for note in said["notes"])
    assert {said["links"][name] for name in links.promise} == {"skipped"}
