"""Apptainer definition files: read, refused with file and line, built."""

from __future__ import annotations

import asyncio
import os
import shutil
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ors_containers import BubblewrapRuntime, Image
from ors_containers.errors import BuildFailed, ImageTooLarge, InvalidDefinition, InvalidImage, ProgramMissing
from ors_containers.images import ImageStore, Step
from ors_containers.images.apptainer_def.parser import read_definition

pytestmark = pytest.mark.asyncio(loop_scope="module")

Make = Callable[..., Any]

#: As in the published task folders.
_ENDLESS = """\
Bootstrap: localimage
From: ./ubuntu_22.04.sif

%post
    # Install pytest
    printf 'installed\\n' > /opt/pytest

    # Create home directory and files
    mkdir -p /home/user/data
    cat > /home/user/data/numbers.csv << 'EOF'
a,b
1,2
EOF
    chmod 755 /home/user
    chmod -R 700 /home/user/data

%environment
    export HOME=/home/user
    export LC_ALL=C.UTF-8

%labels
    Author tasks
    Version 1.0 of it

%runscript
    exec /bin/bash "$@"
"""


@pytest.fixture
async def base(store: ImageStore, make: Make, rootfs_tar: bytes, tmp_path: Path) -> Path:
    """Create a folder for definitions; the store has the image ``tiny``."""
    (tmp_path / "archives").mkdir()
    await store.import_image(make([rootfs_tar], {"Env": ["WORD=base"]}).oci(tmp_path / "archives" / "tiny.tar"))
    return tmp_path


def _write(folder: Path, text: str, name: str = "x.def") -> Path:
    path = folder / name
    path.write_text(textwrap.dedent(text))
    return path


async def _say(runtime: BubblewrapRuntime, image: Image, command: str) -> str:
    async with runtime.sandbox(image) as sandbox:
        return (await sandbox.run(command, timeout=10)).text


async def test_a_published_task(store: ImageStore, runtime: BubblewrapRuntime, base: Path) -> None:
    await store.import_image(base / "archives/tiny.tar", "ubuntu_22.04")
    (base / "task_000000_ab12cd34").mkdir()
    path = _write(base / "task_000000_ab12cd34", _ENDLESS, "container.def")
    image = await store.build(path, runtime)
    assert image.name == "task_000000_ab12cd34"
    said = await _say(
        runtime, image, "id -un; pwd; cat data/numbers.csv /opt/pytest; echo $HOME $LC_ALL; touch data/x y && ls; umask"
    )
    # Files that root has created in the home belong to the user.
    assert said == "user\n/home/user\na,b\n1,2\ninstalled\n/home/user C.UTF-8\ndata\ny\n0022\n"
    assert store.record(image.name).labels == {"Author": "tasks", "Version": "1.0 of it"}


async def test_every_part_of_a_definition_is_built(store: ImageStore, runtime: BubblewrapRuntime, base: Path) -> None:
    (base / "files/inner").mkdir(parents=True)
    (base / "files/a.txt").write_text("a\n")
    (base / "files/b c.txt").write_text("b\n")
    (base / "files/inner/tool").write_text("#!/bin/sh\necho tool\n")
    (base / "files/inner/tool").chmod(0o755)
    text = """\
        # A comment
        bootstrap: LocalImage   # another
        From: tiny

        %files
            files/*.txt /data/
            files/inner/tool /usr/local/bin/tool
            "files/b c.txt"   /srv/renamed
            files/inner       /opt/

        %post -c /bin/bash
            [[ $WORD = base ]]
            [[ -f /data/a.txt && $HOME = /root && $(id -u) = 0 ]]
            echo "user:x:1234:1235::/home/me:/bin/bash" >> /etc/passwd
            mkdir -p /home/me/.config
            echo lost > /tmp/lost
            echo lost > /var/tmp/lost
            echo "export LATER='written in %post'" >> "$APPTAINER_ENVIRONMENT"
            rm /usr/bin/seq
        %post
            echo second >> /home/me/second
        %environment
            export PATH=/opt/bin:$PATH
            TWO='two
        lines'
            export TWO MINE="$HOME/mine"
            echo "said at start-up"
        %test
            test -f /data/a.txt
        """
    steps: list[Step] = []
    image = await store.build(_write(base, text), runtime, name="full", progress=steps.append)
    assert (image.user, image.group, image.home) == (1234, 1235, "/home/me")
    said = await _say(
        runtime,
        image,
        "cat /data/*.txt /srv/renamed; tool; ls /opt/inner /tmp /var/tmp; stat -c '%u %n' .config second; echo $LATER; "
        'echo "$TWO"; echo $WORD $PATH; echo $MINE; type seq >/dev/null 2>&1 || echo gone',
    )
    assert said.splitlines() == [
        *("a", "b", "b", "tool", "/opt/inner:", "tool", "", "/tmp:", "", "/var/tmp:"),
        *("1234 .config", "1234 second", "written in %post", "two", "lines"),
        "base /opt/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        *("/home/user/mine", "gone"),
    ]
    assert "Building full on tiny" in [step.text for step in steps]


async def test_an_unchanged_definition_is_not_built_again(
    store: ImageStore, runtime: BubblewrapRuntime, base: Path
) -> None:
    steps: list[str] = []
    path = _write(base, "Bootstrap: localimage\nFrom: tiny\n%post\n    echo ran\n")
    first = await store.build(path, runtime, progress=lambda step: steps.append(step.text))
    again = await store.build(path, runtime, progress=lambda step: steps.append(step.text))
    other = await store.build(path, runtime, name="other", progress=lambda step: steps.append(step.text))
    assert (again.layers, other.layers) == (first.layers, first.layers)
    assert steps.count("ran") == 1
    path.write_text(path.read_text().replace("ran", "ran again"))
    changed = await store.build(path, runtime, progress=lambda step: steps.append(step.text))
    assert changed.layers != first.layers
    assert steps.count("ran again") == 1
    assert store.find("x").layers == changed.layers


async def test_bases(store: ImageStore, runtime: BubblewrapRuntime, base: Path, rootfs: Path, make: Make) -> None:
    shutil.copy(base / "archives/tiny.tar", base / "beside.tar")
    shutil.copytree(rootfs, base / "folder", symlinks=True)
    for text in (
        "Bootstrap: localimage\nFrom: beside.tar",
        "Bootstrap: localimage\nFrom: ./folder",
        "Bootstrap: oci-archive\nFrom: beside.tar:tiny",
        f"Bootstrap: localimage\nFrom: {base}/beside.tar",
        "Bootstrap: docker\nFrom: tiny",
    ):
        image = await store.build(_write(base, f"{text}\n%post\n    touch /built\n"), runtime)
        assert await _say(runtime, image, "ls /built; id -un") == "/built\nuser\n"
    image = await store.build(_write(base, "Bootstrap: localimage\nFrom: host\n%post\n    touch /built\n"), runtime)
    assert await _say(runtime, image, "ls /built; python3 -c 'print(1)'") == "/built\n1\n"
    assert image.binds


@pytest.mark.parametrize(
    ("text", "line", "problem", "remedy"),
    [
        ("", 0, "It says no `Bootstrap:`", "localimage, docker"),
        ("From: x\n", 0, "It says no `Bootstrap:`", "Begin it"),
        ("Bootstrap: localimage\n\n%post\n", 1, "needs a `From:`", ""),
        ("Bootstrap: debootstrap\nMirrorURL: x\n", 1, "needs a `OSVersion:`", ""),
        ("Bootstrap:\nFrom: x\n", 1, "Bootstrap has no value", ""),
        ("\nBootstrap: magic\nFrom: x\n", 2, "The bootstrap 'magic' is not known", "Known: localimage"),
        ("Bootstrap: library\nFrom: x\n", 1, "Apptainer's own", "here: localimage"),
        ("Bootstrap: localimage\nFrom: x\nNonsense\n", 3, "is not a `Keyword: value`", "begin with a %"),
        ("Bootstrap: localimage\nFrom: x\nForm: y\n", 3, "'form' is not known", "Known: Bootstrap, From"),
        ("Bootstrap: localimage\nFrom: x\nFrom: y\n", 3, "said twice, first in line 2", "several stages"),
        ("Bootstrap: localimage\nFrom: x\n\n%psot\n  x\n", 4, "%psot is not known", "Known: %post"),
        ("Bootstrap: localimage\nFrom: x\n%\n", 3, "The section % is not known", ""),
        (
            "Bootstrap: localimage\nFrom: x\n%setup\n  rm -r /\n",
            3,
            "runs on the machine that builds",
            "Move it to %post",
        ),
        ("Bootstrap: localimage\nFrom: x\n%post\n  a\nBootstrap: docker\n", 5, "several stages", "first stage"),
        ("Bootstrap: localimage\nFrom: x\n%files from build\n  /a /b\n", 3, "another stage", "by itself"),
        ("Bootstrap: localimage\nFrom: x\n%post -x\n", 3, "%post -x is not known", "-c /bin/bash"),
    ],
)
async def test_errors_name_the_line_of_the_definition(
    tmp_path: Path, text: str, line: int, problem: str, remedy: str
) -> None:
    path = tmp_path / "x.def"
    path.write_text(text)
    with pytest.raises(InvalidDefinition) as failed:
        read_definition(path)
    assert failed.value.line == line
    assert str(failed.value).startswith(f"{path}, line {line}: " if line else f"{path}: ")
    assert problem in failed.value.cause
    assert remedy in failed.value.remedy


async def test_files_that_are_not_definitions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidDefinition, match=r"none\.def: it cannot be read: No such file"):
        read_definition(tmp_path / "none.def")
    (tmp_path / "x.def").write_bytes(b"\x7fELF\0\0")
    with pytest.raises(InvalidDefinition, match="not a definition file"):
        read_definition(tmp_path / "x.def")
    (tmp_path / "x.def").write_bytes(b"Bootstrap: docker\r\nFrom: a\r\n%setup\r\n\r\n%post\r\n  echo a\r\n")
    definition = read_definition(tmp_path / "x.def")
    assert definition.required("From") == ("a", 2)
    assert definition.sections["post"].text == "  echo a\n"


@pytest.mark.parametrize(
    ("files", "line", "problem"),
    [
        ("nothing-there /x", 4, "names nothing-there, which is not there"),
        ("\n  x.def relative", 5, "not an absolute path"),
        ("x.def /a b", 4, "has 3 words"),
        ("x.def '/a", 4, "No closing quotation"),
        ("*.nothing /x", 4, "which is not there"),
    ],
)
async def test_missing_sources_of_files_are_errors(
    store: ImageStore, base: Path, files: str, line: int, problem: str
) -> None:
    path = _write(base, f"Bootstrap: localimage\nFrom: tiny\n%files\n  {files}\n")
    with pytest.raises(InvalidDefinition, match=problem) as failed:
        await store.build(path)
    assert failed.value.line == line


#: Lines of %files that name files of this machine, by the entry of the folder `base` that they use.
_OUTSIDE = {
    "absolute": ("/etc/hostname /x", "outside of the definition's folder"),
    "environment": ("/proc/self/environ /x", "outside of the definition's folder"),
    "own folder by its whole name": ("BASE/x.def /x", "outside of the definition's folder"),
    "upwards": ("../secret /x", "outside of the definition's folder"),
    "upwards by a pattern": ("*/../../secret /x", "outside of the definition's folder"),
    "link": ("link /x", "leads out of the definition's folder"),
    "link among others": ("*link* /x", "leads out of the definition's folder"),
    "through a link to a directory": ("up/secret /x", "leads out of the definition's folder"),
    "pattern through a link": ("up/secre? /x", "leads out of the definition's folder"),
    "link to a link": ("second /x", "leads out of the definition's folder"),
    "link in a directory": ("tree /x", "leads out of the definition's folder"),
    "link to a directory in a directory": ("deep /x", "leads out of the definition's folder"),
}


@pytest.fixture
def base_with_foreign_files(base: Path) -> Path:
    """Create a folder for definitions, a file outside of it, and every kind of path that leads to the file."""
    folder = base / "definitions"
    (base / "secret").write_text("SECRET")
    (folder / "tree/inner").mkdir(parents=True)
    (folder / "deep/inner").mkdir(parents=True)
    (folder / "link").symlink_to("/etc/hostname")
    (folder / "second").symlink_to("third")
    (folder / "third").symlink_to("../secret")
    (folder / "up").symlink_to("..")
    (folder / "tree/inner/link").symlink_to(base / "secret")
    (folder / "deep/inner/up").symlink_to("../../..")
    (folder / "mine").write_text("mine")
    return folder


async def test_files_stay_in_the_definitions_folder(store: ImageStore, base_with_foreign_files: Path) -> None:
    layers = [layer.key for layer in store.usage()]
    for how, (line, problem) in _OUTSIDE.items():
        lines = f"  mine /y\n  {line.replace('BASE', str(base_with_foreign_files))}\n"
        path = _write(base_with_foreign_files, f"Bootstrap: localimage\nFrom: tiny\n%files\n{lines}")
        with pytest.raises(InvalidDefinition, match=problem) as failed:
            await store.build(path)
        assert failed.value.line == 5, how
        assert "SECRET" not in str(failed.value)
        with pytest.raises(InvalidDefinition, match=problem):
            store.check_definition(path)
    assert [record.name for record in store.images()] == ["tiny"]
    assert [layer.key for layer in store.usage()] == layers


async def test_links_inside_of_the_folder_are_followed(
    store: ImageStore, runtime: BubblewrapRuntime, base_with_foreign_files: Path
) -> None:
    (base_with_foreign_files / "kept").mkdir()
    (base_with_foreign_files / "kept/alias").symlink_to("../mine")
    (base_with_foreign_files / "again").symlink_to("kept")
    path = _write(
        base_with_foreign_files, "Bootstrap: localimage\nFrom: tiny\n%files\n  again /opt/\n  kept/alias /opt/alias\n"
    )
    store.check_definition(path)
    image = await store.build(path, runtime)
    assert await _say(runtime, image, "cat /opt/again/alias /opt/alias; find /opt -type l") == "minemine"


async def test_host_files_are_copied_when_the_builder_allows_it(
    store: ImageStore, runtime: BubblewrapRuntime, base_with_foreign_files: Path, base: Path
) -> None:
    lines = f"  {base}/secret\n  ../secret /opt/up\n  tree /opt/tree\n"
    path = _write(base_with_foreign_files, f"Bootstrap: localimage\nFrom: {base}/archives/tiny.tar\n%files\n{lines}")
    with pytest.raises(InvalidDefinition, match=r"%files names .*/secret, which is outside"):
        await store.build(path, runtime)
    image = await store.build(path, runtime, host_files=True)
    assert await _say(runtime, image, f"cat {base}/secret /opt/up /opt/tree/inner/link") == "SECRETSECRETSECRET"
    # Without the permission, the image is not reused, either.
    with pytest.raises(InvalidDefinition, match="outside of the definition's folder"):
        await store.build(path, runtime)


async def test_a_base_lies_in_the_definitions_folder(store: ImageStore, base: Path) -> None:
    folder = base / "definitions"
    folder.mkdir()
    (folder / "root").symlink_to("/")
    shutil.copy(base / "archives/tiny.tar", base / "archives/beside.tar")
    (folder / "archive").symlink_to("../archives/beside.tar")
    for source in ("/", "..", "../archives/beside.tar", "root", "archive"):
        path = _write(folder, f"Bootstrap: localimage\nFrom: {source}\n")
        problem = "outside of the definition's folder, and not an image of the store"
        with pytest.raises(InvalidDefinition, match=f"line 2: .* {problem}"):
            await store.build(path)
        with pytest.raises(InvalidDefinition, match=problem):
            store.check_definition(path)


async def test_sources_that_are_not_files_are_refused(store: ImageStore, base: Path) -> None:
    os.mkfifo(base / "pipe")
    (base / "tree").mkdir()
    os.mkfifo(base / "tree/pipe")
    (base / "dangling").mkdir()
    (base / "dangling/link").symlink_to("nowhere")
    (base / "loop").mkdir()
    (base / "loop/back").symlink_to("../loop")
    (base / "itself").symlink_to("itself")
    for source, problem in {
        "pipe": "neither a regular file nor a directory",
        "tree": "tree/pipe, which is neither a regular file nor a directory",
        "dangling": "dangling/link, which cannot be read: No such file",
        "loop": "leads back to a directory that it lies in",
        "itself": "itself, which cannot be read: Too many levels",
        "/dev/zero": "neither a regular file nor a directory",
    }.items():
        path = _write(base, f"Bootstrap: localimage\nFrom: tiny\n%files\n  {source} /x\n")
        async with asyncio.timeout(20):
            with pytest.raises(InvalidDefinition, match=problem) as failed:
                await store.build(path, host_files=source.startswith("/"))
        assert failed.value.line == 4
        assert len(str(failed.value)) < 500
    (base / "big").touch()
    os.truncate(base / "big", store.max_size + 1)  # takes no disk, and would take minutes to read
    path = _write(base, "Bootstrap: localimage\nFrom: tiny\n%files\n  big /x\n")
    with pytest.raises(ImageTooLarge):
        await store.build(path)


async def test_a_pipe_is_not_waited_for(store: ImageStore, base: Path) -> None:
    os.mkfifo(base / "x.sif")
    os.mkfifo(base / "pipe.def")
    path = _write(base, "Bootstrap: localimage\nFrom: ./x.sif\n")
    async with asyncio.timeout(20):
        with pytest.raises(InvalidImage, match="neither a regular file nor a directory"):
            await store.build(path)
        with pytest.raises(InvalidDefinition, match=r"line 2: .*neither a regular file nor a directory"):
            store.check_definition(path)
        with pytest.raises(InvalidImage, match="neither a regular file nor a directory"):
            await store.import_image(base / "x.sif")
        with pytest.raises(InvalidDefinition, match="not a regular file"):
            await store.build(base / "pipe.def")


async def test_a_missing_base_says_how_to_get_it(store: ImageStore, base: Path) -> None:
    path = _write(base, _ENDLESS)
    with pytest.raises(InvalidDefinition) as failed:
        await store.build(path)
    assert failed.value.line == 2
    assert "./ubuntu_22.04.sif is neither at" in failed.value.cause
    assert "ors-server image import FILE --name ubuntu_22.04" in failed.value.remedy


async def test_programs_that_fetch_a_base(
    store: ImageStore, base: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    docker = _write(base, "Bootstrap: docker\nFrom: far:1\nRegistry: registry.invalid\n")
    debootstrap = _write(
        base, "Bootstrap: debootstrap\nOSVersion: bookworm\nMirrorURL: http://mirror.invalid\n", "y.def"
    )
    programs = tmp_path / "programs"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    with pytest.raises(
        ProgramMissing, match=r"line 2: fetching registry\.invalid/far:1 takes skopeo, podman or apptainer"
    ):
        await store.build(docker)
    # A program of that name that fails as it does without a network, and one that succeeds.
    skopeo = programs / "skopeo"
    skopeo.write_text("#!/bin/sh\necho dial tcp: lookup registry.invalid: no such host >&2\nexit 1\n")
    skopeo.chmod(0o755)
    with pytest.raises(BuildFailed, match="no such host") as failed:
        await store.build(docker)
    assert "ors-server image import FILE --name registry.invalid/far:1" in str(failed.value)
    skopeo.write_text(f'#!/bin/sh\n/bin/cp {base}/archives/tiny.tar "${{3#oci-archive:}}"\n')
    image = await store.build(docker)
    assert image.layers
    skopeo.unlink()
    assert (await store.build(docker, name="again")).layers == image.layers, "it was fetched again"
    # It works as root of this machine, with scripts and packages that the definition names.
    with pytest.raises(InvalidDefinition, match=r"y\.def, line 2: debootstrap works as root of this machine"):
        await store.build(debootstrap)
    if shutil.which("debootstrap", path="/usr/sbin:/sbin") is None or os.geteuid() != 0:
        with pytest.raises(ProgramMissing, match="debootstrap"):
            await store.build(debootstrap, host_files=True)


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("Bootstrap: docker\nFrom: --authfile=/etc/shadow\n", 2, "not the name of a registry's image"),
        ("Bootstrap: docker\nFrom: dir:/srv/images\n", 2, "not the name of a registry's image"),
        ("Bootstrap: debootstrap\nOSVersion: ../../../tmp/mine\n", 2, "not the name of a release"),
        ("Bootstrap: debootstrap\nOSVersion: --foreign\n", 2, "not the name of a release"),
        ("Bootstrap: debootstrap\nOSVersion: sid\nMirrorURL: file:///srv\n", 3, "not an http:// or https:// address"),
    ],
)
async def test_references_that_a_fetching_program_could_misread_are_refused(
    store: ImageStore, tmp_path: Path, text: str, line: int, problem: str
) -> None:
    with pytest.raises(InvalidDefinition, match=problem) as failed:
        await store.build(_write(tmp_path, text), host_files=True)
    assert failed.value.line == line


async def test_a_failed_post_shows_its_line_and_output(
    store: ImageStore, runtime: BubblewrapRuntime, base: Path
) -> None:
    text = """\
        Bootstrap: localimage
        From: tiny
        %post
            # A comment
            echo begins
            for n in 1 2; do
                echo $n
            done
            cat <<EOF > /file
        text
        EOF
            apt-get install \\
                -y nothing
            echo never
        """
    path = _write(base, text)
    with pytest.raises(BuildFailed) as failed:
        await store.build(path, runtime)
    assert str(failed.value).startswith(f"{path}, line 12: %post failed with 127: apt-get install \\")
    assert failed.value.output.splitlines()[:3] == ["begins", "1", "2"]
    assert "apt-get: not found" in failed.value.output
    # In a function, at the end of a pipe, and in a loop: the line of the command in %post.
    for body, line in {
        "f() {\n  false\n}\necho a\nf\necho b": 8,
        "true\necho x | grep y\n": 5,
        "for n in 1 2; do\n  echo $n\n  false\ndone\n": 4,
        "echo a; false; echo b": 4,
        "exit 7": 4,
        "if true; then\n\n  nothing-like-it\nfi": 4,
    }.items():
        path = _write(base, f"Bootstrap: localimage\nFrom: tiny\n%post\n{body}\n")
        with pytest.raises(BuildFailed, match=rf"x\.def, line {line}: %post failed"):
            await store.build(path, runtime)
    path = _write(base, "Bootstrap: localimage\nFrom: tiny\n%post\n  true\n%test\n\n  false\n")
    with pytest.raises(BuildFailed, match=r"line 7: %test failed with 1: false"):
        await store.build(path, runtime)
    path = _write(base, "Bootstrap: localimage\nFrom: tiny\n%post -c /bin/zsh\n  true\n")
    with pytest.raises(BuildFailed, match=r"/bin/zsh: .*No such file"):
        await store.build(path, runtime)
    assert [record.name for record in store.images()] == ["tiny"]


async def test_a_network_is_there_only_when_asked_for(
    store: ImageStore, runtime: BubblewrapRuntime, base: Path
) -> None:
    path = _write(
        base, "Bootstrap: localimage\nFrom: tiny\n%post\n  cat /proc/net/dev > /opt/devices; cat /etc/hosts\n"
    )
    with pytest.raises(BuildFailed, match="No such file"):
        await store.build(path, runtime)
    listener = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    post = f"%post -c /bin/bash\n  : < /dev/tcp/127.0.0.1/{port}\n  test -e /etc/hosts\n"
    path = _write(base, f"Bootstrap: localimage\nFrom: tiny\n{post}")
    with pytest.raises(BuildFailed, match="Connection refused"):
        await store.build(path, runtime)
    image = await store.build(path, runtime, network=True)
    listener.close()
    await listener.wait_closed()
    assert await _say(runtime, image, "grep -c . /etc/hosts") == "0\n", "the machine's names stayed in the image"
    # An error for lack of a network says how to allow it.
    words = "  echo 'E: Could not resolve example.org' ; exit 100\n"
    path = _write(base, f"Bootstrap: localimage\nFrom: tiny\n%post\n{words}")
    with pytest.raises(BuildFailed) as failed:
        await store.build(path, runtime)
    assert "--network" in failed.value.remedy
    with pytest.raises(BuildFailed) as failed:
        await store.build(path, runtime, network=True)
    assert "--network" not in str(failed.value)


async def test_a_build_has_its_limit(
    state: Path, runtime: BubblewrapRuntime, base: Path, make: Make, rootfs_tar: bytes
) -> None:
    store = ImageStore(base / "store", max_size=20 * 2**20, state=state)
    await store.import_image(base / "archives/tiny.tar")
    path = _write(
        base,
        "Bootstrap: localimage\nFrom: tiny\n%post\n  for n in 1 2 3; do dd if=/dev/zero of=/$n bs=1M count=9; done\n",
    )
    with pytest.raises(ImageTooLarge, match="more than 20 MiB"):
        await store.build(path, runtime)
    assert [record.name for record in store.images()] == ["tiny"]
    assert list((store.root / "tmp").iterdir()) == []
    store.close()
