"""Images derived by recipes: their content, single builds, and failures."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from ors_containers import BubblewrapRuntime, Image, InvalidImage, folder_image
from ors_containers.errors import BuildFailed, ImageTooLarge, StoreFailed
from ors_containers.images import ImageStore, Recipe, RecipeFile, Step
from ors_containers.linux.leases import sweep

from tests.support.processes import processes

pytestmark = pytest.mark.asyncio(loop_scope="module")

_FILES = {
    "/home/user/project/deep/notes": RecipeFile(b"hello\n"),
    "/home/user/private": RecipeFile(directory=True, mode=0o700),
    "/home/user/link": RecipeFile(link="project/deep"),
    "/srv/tool": RecipeFile(b"#!/bin/sh\necho tool $WORD\n", mode=0o755, owner="root"),
}


async def _say(runtime: BubblewrapRuntime, image: Image, command: str) -> str:
    async with runtime.sandbox(image) as sandbox:
        return (await sandbox.run(command, timeout=10)).text


async def test_files_and_variables(store: ImageStore, runtime: BubblewrapRuntime, is_root: bool) -> None:
    base = runtime.host_image()
    image = await store.derive(base, Recipe(_FILES, environment={"WORD": "new"}))
    said = await _say(runtime, image, "cat link/notes; /srv/tool; stat -c '%n %a %U' . project project/deep private")
    assert said == "hello\ntool new\n. 755 user\nproject 755 user\nproject/deep 755 user\nprivate 700 user\n"
    assert "user" in await _say(runtime, image, "echo x > project/deep/notes && rm -r project && id -un")
    if is_root:
        assert (
            await _say(runtime, image, "stat -c %U /srv /srv/tool; touch /srv/x 2>&1 | grep -c denied")
            == "root\nroot\n1\n"
        )
    # The base is unchanged, and so is the image.
    assert await _say(runtime, base, "ls; ls /srv") == ""
    assert await _say(runtime, image, "cat link/notes") == "hello\n"


async def test_a_script_runs_once_as_the_user(store: ImageStore, runtime: BubblewrapRuntime) -> None:
    lines: list[Step] = []
    script = """
        id -un; pwd
        echo $WORD > word
        cat project/deep/notes >> word
        rm -r private
        mkdir private
        touch /etc/mine 2>/dev/null && echo wrote || true
        ls -A private /tmp
        echo kept > /tmp/kept
        echo $((1 + 1)) >/dev/null && cat /proc/net/dev | grep -c :
    """
    recipe = Recipe(_FILES, textwrap.dedent(script), environment={"WORD": "new"})
    image = await store.derive(runtime.host_image(), recipe, progress=lines.append)
    expected = ["user", "/home/user", "/tmp:", "", "private:", "1"]
    assert [line.text for line in lines if line.output] in (expected, [*expected[:2], "wrote", *expected[2:]])
    assert (
        await _say(runtime, image, "cat word /tmp/kept; ls -A private; stat -c %U word") == "new\nhello\nkept\nuser\n"
    )


async def test_a_script_runs_as_root_on_request(store: ImageStore, runtime: BubblewrapRuntime, is_root: bool) -> None:
    if not is_root:
        pytest.skip("other owners need a range of ids; see test_ordinary_user")
    script = (
        "id -u; mkdir /opt/tool; chown 5:6 /opt/tool; chmod 4711 /opt/tool; cp /bin/true /opt/su; chmod 4755 /opt/su"
    )
    image = await store.derive(runtime.host_image(), Recipe(script=script, as_root=True))
    said = await _say(
        runtime, image, "stat -c '%u:%g' /opt/tool; stat -c %a /opt/su; touch /opt/x 2>/dev/null || id -u"
    )
    assert said == "5:6\n755\n1000\n"


async def test_concurrent_requests_of_one_process_build_once(
    store: ImageStore, runtime: BubblewrapRuntime, tmp_path: Path
) -> None:
    recipe = Recipe(_FILES, "echo ran; sleep 0.2; cat /proc/sys/kernel/random/uuid > made")
    lines: list[str] = []
    base = runtime.host_image()
    images = await asyncio.gather(
        *(store.derive(base, recipe, progress=lambda step: lines.append(step.text)) for _ in range(16))
    )
    assert lines == ["ran"]
    assert len({image.layers for image in images}) == 1
    # Another store object, as in another server, finds the image.
    other = ImageStore(store.root, state=store.state)
    assert (await other.derive(base, recipe)).layers == images[0].layers
    other.close()
    assert lines == ["ran"]


_OTHER_SERVER = """
import asyncio, json, sys
from pathlib import Path
from ors_containers.image import host_image
from ors_containers.images import ImageStore, Recipe

async def main():
    store = ImageStore(Path(sys.argv[1]), state=Path(sys.argv[2]))
    said = []
    recipe = Recipe(script="sleep 0.3; cat /proc/sys/kernel/random/uuid > made")
    image = await store.derive(host_image(store.state), recipe, progress=said.append)
    print(json.dumps([str(image.layers[0]), (image.layers[0] / "home/user/made").read_text()]))
    store.close()

asyncio.run(main())
"""


async def test_concurrent_requests_of_many_processes_build_once(
    store: ImageStore, state: Path, runtime: BubblewrapRuntime
) -> None:
    command = [sys.executable, "-c", _OTHER_SERVER, str(store.root), str(state)]
    processes = [await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE) for _ in range(4)]
    said = [(await process.communicate())[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 4
    assert len({tuple(json.loads(answer)) for answer in said}) == 1


async def test_a_script_that_fails(store: ImageStore, runtime: BubblewrapRuntime, tmp_path: Path) -> None:
    marker = Recipe(script="echo first\necho a \\\n  b\ncat /nonexistent\necho never")
    with pytest.raises(BuildFailed, match="the recipe's script, line 4 failed with 1: cat /nonexistent") as failed:
        await store.derive(runtime.host_image(), marker)
    assert failed.value.output == "first\na b\ncat: /nonexistent: No such file or directory"
    with pytest.raises(BuildFailed, match=r"was not done after 0\.5 s"):
        await store.derive(runtime.host_image(), Recipe(script="sleep 60 & sleep 60", timeout=0.5))
    assert store.usage() == []


async def test_a_failure_reaches_all_waiters(store: ImageStore, runtime: BubblewrapRuntime) -> None:
    recipe = Recipe(script="sleep 0.1; false")
    done = await asyncio.gather(*(store.derive(runtime.host_image(), recipe) for _ in range(5)), return_exceptions=True)
    assert [type(error) for error in done] == [BuildFailed] * 5


async def test_cancelling_one_waiter_does_not_cancel_the_build(store: ImageStore, runtime: BubblewrapRuntime) -> None:
    recipe = Recipe(script="sleep 0.3; touch made")
    first = asyncio.create_task(store.derive(runtime.host_image(), recipe))
    second = asyncio.create_task(store.derive(runtime.host_image(), recipe))
    await asyncio.sleep(0.1)
    first.cancel()
    assert (await second).layers
    with pytest.raises(asyncio.CancelledError):
        await first
    # Cancelling the last waiter cancels the build, and the waiter returns after clean-up.
    last = asyncio.create_task(store.derive(runtime.host_image(), Recipe(script="touch a; sleep 60")))
    while not list(store.root.glob("tmp/*/upper/home/user/a")):  # noqa: ASYNC110 - made by another process
        await asyncio.sleep(0.01)
    last.cancel()
    await asyncio.wait([last])
    assert list((store.root / "tmp").iterdir()) == list((store.root / "locks").iterdir()) == []
    # A request during the clean-up or after it starts the build again.
    again = asyncio.create_task(store.derive(runtime.host_image(), Recipe(script="sleep 0.2; touch b")))
    await asyncio.sleep(0.1)
    again.cancel()
    assert (await store.derive(runtime.host_image(), Recipe(script="sleep 0.2; touch b"))).layers


async def test_a_recipe_over_the_limit_is_refused(state: Path, runtime: BubblewrapRuntime, tmp_path: Path) -> None:
    store = ImageStore(tmp_path / "images", max_size=2**20, state=state)
    with pytest.raises(ImageTooLarge):
        await store.derive(runtime.host_image(), Recipe({"/srv/x": RecipeFile(b"x" * (2**20 + 1))}))
    # The kernel refuses one file over the limit; the store detects many small files.
    script = "for n in 1 2 3; do dd if=/dev/zero of=$n bs=1k count=600 2>/dev/null; done"
    with pytest.raises(ImageTooLarge):
        await store.derive(runtime.host_image(), Recipe(script=script))
    assert store.usage() == []
    assert list((store.root / "tmp").iterdir()) == []
    store.close()


async def test_a_script_is_isolated_from_the_machine(
    store: ImageStore, runtime: BubblewrapRuntime, state: Path
) -> None:
    """A build is as isolated from the machine as a sandbox, although it is root inside."""
    script = f"""
        ls {store.root} && exit 3
        ls {state} && exit 4
        [ $(ls -d /proc/[0-9]* | wc -l) -lt 9 ] || exit 5
        grep -qv lo: /proc/net/dev && [ $(grep -c : /proc/net/dev) = 1 ] || exit 6
        mount -t tmpfs none /mnt && exit 7
        cat /proc/1/environ && exit 8
        ls /proc/1/root/ && exit 9
        echo 1 > /proc/sys/kernel/panic && exit 10
        mknod /dev/sda b 8 0 && exit 11
        kill -9 1
        [ -e /proc/1 ] || exit 12
        grep -c {store.root} /proc/self/mountinfo && exit 13
        touch /reached
    """
    recipe = Recipe(script=script.replace("\n        ", "\nset +e; "), as_root=True)
    image = await store.derive(runtime.host_image(), recipe)
    assert (image.layers[0] / "reached").exists()


async def test_a_recipe_over_a_folder_outside_of_the_store(
    store: ImageStore, runtime: BubblewrapRuntime, rootfs: Path
) -> None:
    base = folder_image(rootfs)
    image = await store.derive(base, Recipe({"/bin/tool": RecipeFile(b"#!/bin/sh\necho hi\n", mode=0o755)}))
    assert await _say(runtime, image, "tool; ls -ld /bin | grep -c ^l") == "hi\n1\n"
    again = await store.derive(base, Recipe({"/bin/tool": RecipeFile(b"#!/bin/sh\necho hi\n", mode=0o755)}))
    assert again == image


async def test_mistakes_of_a_recipe_are_found_before_anything_is_written(
    store: ImageStore, runtime: BubblewrapRuntime
) -> None:
    base = runtime.host_image()
    with pytest.raises(InvalidImage, match="would be hidden"):
        await store.derive(base, Recipe({"/usr/bin/tool": RecipeFile(b"")}))
    with pytest.raises(InvalidImage, match="would be hidden"):
        await store.derive(base, Recipe({"/bin/tool": RecipeFile(b"")}))
    for path in ("relative", "/a/../b", "/", ""):
        with pytest.raises(InvalidImage, match="not an absolute path"):
            Recipe({path: RecipeFile()})
    with pytest.raises(InvalidImage, match="two things"):
        Recipe({"/a": RecipeFile(b"x", link="y")})
    with pytest.raises(InvalidImage, match="NUL"):
        Recipe(script="a\0b")
    assert await store.derive(base, Recipe()) == base
    assert store.usage() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
async def test_a_full_disk_leaves_nothing(state: Path, tmp_path: Path) -> None:
    """The store is on a disk of 2 MiB, in a mount namespace of its own."""
    script = f"""
import asyncio
from pathlib import Path
from ors_containers.errors import StoreFailed
from ors_containers.image import host_image
from ors_containers.images import ImageStore, Recipe, RecipeFile

async def main():
    store = ImageStore(Path({str(tmp_path)!r}) / "store", state=Path({str(state)!r}))
    base = host_image(store.state)
    small = await store.derive(base, Recipe({{"/srv/a": RecipeFile(b"x" * 10)}}))
    try:
        await store.derive(base, Recipe({{"/srv/b": RecipeFile(b"x" * 2**22)}}))
    except StoreFailed as error:
        print(error)
    print(len(store.usage()), len(list((store.root / "tmp").iterdir())), len(list((store.root / "layers").iterdir())))
    store.close()

asyncio.run(main())
"""
    mount = f'mount -t tmpfs -o size=2m none {tmp_path} && exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", mount, "sh", sys.executable, "-c", script]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    error, left = done.stdout.splitlines()
    assert "No space left on device" in error
    assert "ors-server image prune" in error
    assert left == "1 0 2"


async def test_a_store_that_cannot_be_written(state: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = ImageStore(tmp_path / "file" / "store", state=state)
    recipe = Recipe({"/srv/a": RecipeFile(b"x")})
    with pytest.raises(StoreFailed, match="ORS_IMAGES"):
        await store.derive(store.find("host"), recipe)
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    store = ImageStore(shared, state=state)
    with pytest.raises(StoreFailed, match="not this user's alone"):
        await store.derive(store.find("host"), recipe)


async def test_leftovers_of_a_killed_process_are_removed(
    store: ImageStore, state: Path, runtime: BubblewrapRuntime
) -> None:
    mark = secrets.token_hex(8)
    script = _OTHER_SERVER.replace("sleep 0.3", f"export MARK={mark}; sleep 60 & sleep 60 & touch started; wait")
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", script, str(store.root), str(state))
    for _ in range(200):
        await asyncio.sleep(0.05)
        if list(store.root.glob("tmp/*/upper/home/user/started")):
            break
    else:
        pytest.fail("it never started")
    assert _processes_with(mark)
    process.kill()
    await process.wait()
    for _ in range(200):
        if not _processes_with(mark):
            break
        await asyncio.sleep(0.05)
    else:
        pytest.fail("processes of the build live on")
    image = await store.derive(store.find("host"), Recipe({"/srv/a": RecipeFile(b"x")}))
    assert image.layers
    assert list((store.root / "tmp").iterdir()) == []
    # The next runtime does this at its start.
    assert len(await sweep(state)) == 1


def _processes_with(mark: str) -> list[int]:
    """Return the processes with a variable of this value."""
    return processes(lambda variables: mark.encode() in variables, "environ")
