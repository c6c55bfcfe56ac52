"""Builds of Dockerfiles: what runs again, what a stranger's context can reach, and errors with their line."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from ors_containers import (
    BubblewrapRuntime,
    BuildFailed,
    BuildNeedsNetwork,
    ImageTooLarge,
    InvalidDefinition,
    StoreFailed,
)
from ors_containers.image import DEFAULT_PATH, Image
from ors_containers.images import ImageStore, Step
from ors_containers.layers.tree import LayeredTree

Make = Callable[..., Any]


class Builder:
    """A store with a base, a context, and the steps of the last build."""

    def __init__(self, store: ImageStore, context: Path) -> None:
        self.store = store
        self.context = context
        self.steps: list[str] = []

    async def build(self, text: str, **options: Any) -> Image:
        self.steps.clear()
        dockerfile = self.context.parent / "Dockerfile"
        dockerfile.write_text(text)
        options = {"name": "made", "progress": self._heard, **options}
        image = await self.store.build_dockerfile(dockerfile, self.context, **options)
        return self.store.docker_image(self.store.record(image.name))

    def _heard(self, step: Step) -> None:
        self.steps.append(step.text)

    @property
    def ran(self) -> list[str]:
        """The instructions that were not cached."""
        return [
            text.partition("] ")[2].split()[0]
            for text in self.steps
            if text.startswith("[") and not text.endswith("(made before)")
        ]


def content(image: Image, path: str) -> str:
    found = LayeredTree(image.layers).read(path)
    assert found is not None, path
    return found.decode()


@pytest_asyncio.fixture
async def builder(
    store: ImageStore, runtime: BubblewrapRuntime, make: Make, rootfs_tar: bytes, tmp_path: Path
) -> Builder:
    await store.import_image(make([rootfs_tar], config={"Env": ["BASE=1"]}).oci(tmp_path / "base.tar"), "base:1")
    context = tmp_path / "context"
    context.mkdir()
    return Builder(store, context)


async def test_an_unchanged_file_runs_nothing(builder: Builder) -> None:
    (builder.context / "a").write_text("one")
    text = "FROM base:1\nRUN echo $RANDOM$RANDOM > /first\nCOPY a /a\nRUN cat /a > /b\nENV X=1\n"
    first = await builder.build(text)
    assert builder.ran == ["RUN", "COPY", "RUN"]
    assert (content(first, "b"), first.environment) == ("one", {"BASE": "1", "X": "1"})
    assert await builder.build(text) == first
    assert builder.ran == []
    (builder.context / "beside").write_text("not copied")
    await builder.build(text + "LABEL a=b\n")
    assert builder.ran == []
    (builder.context / "a").write_text("two")
    second = await builder.build(text)
    assert builder.ran == ["COPY", "RUN"]
    assert (content(second, "b"), content(second, "first")) == ("two", content(first, "first"))


@pytest.mark.parametrize("change", ["mode", "link", "name", "owner", "variable", "user"])
async def test_a_layer_is_that_of_everything_it_depends_on(builder: Builder, change: str) -> None:
    """Two tasks whose inputs differ in anything visible get layers of their own."""
    folder = builder.context / "d"
    folder.mkdir()
    (folder / "a").write_text("one")
    (folder / "l").symlink_to("a")
    text = "FROM base:1\nCOPY d /d\nRUN true\n"
    await builder.build(text)
    match change:
        case "mode":
            (folder / "a").chmod(0o755)
        case "link":
            (folder / "l").unlink()
            (folder / "l").symlink_to("b")
        case "name":
            (folder / "a").rename(folder / "c")
        case "owner":
            text = text.replace("COPY", "COPY --chown=5:6")
        case "variable":
            text = text.replace("COPY", "ENV X=1\nCOPY")
        case _:
            text = text.replace("RUN", "USER 5\nRUN")
    await builder.build(text)
    assert builder.ran == (["RUN"] if change in ("variable", "user") else ["COPY", "RUN"])


async def test_the_time_of_a_checkout_runs_nothing_again(builder: Builder) -> None:
    folder = builder.context / "d"
    folder.mkdir()
    (folder / "a").write_text("one")
    for name in ("a", "."):
        os.utime(folder / name, (1, 1))
    text = "FROM base:1\nCOPY d /d\nADD d/a /a\nRUN true\n"
    first = await builder.build(text)
    for name in ("a", "."):
        os.utime(folder / name)
    assert await builder.build(text) == first
    assert builder.ran == []


async def test_stages_that_are_not_needed_are_not_built(builder: Builder) -> None:
    text = "FROM base:1 AS a\nRUN echo a > /a\nFROM base:1 AS b\nRUN exit 1\nFROM base:1\nCOPY --from=a /a /a\n"
    image = await builder.build(text)
    assert content(image, "a") == "a\n"
    assert builder.ran == ["RUN", "COPY"]
    with pytest.raises(InvalidDefinition, match=r"It has no stage 'c'. Stages: a, b, 2"):
        await builder.build(text, target="c")


async def test_a_build_stage_that_was_pruned_is_not_run_again(builder: Builder) -> None:
    text = "FROM base:1 AS a\nRUN echo a > /a\nFROM base:1\nCOPY --from=a /a /a\n"
    await builder.build(text)
    builder.store.close()
    assert (await builder.store.prune()).layers == 1
    await builder.build(text)
    assert builder.ran == []


async def test_here_documents_mounts_and_arguments(builder: Builder) -> None:
    image = await builder.build(
        "FROM base:1\nARG WHO=world\nRUN <<EOF\necho hello $WHO\nmkdir /x\nEOF\n"
        "RUN --mount=type=cache,target=/cache/x --mount=type=secret,id=s touch /cache/x/y && echo $WHO > /x/who\n"
        "RUN <<EOF\n#!/bin/bash\na=(1 2); echo ${a[1]} > /x/bash\nEOF\n"
        "COPY <<EOF << 'RAW' /x/\nto $WHO\nEOF\n$WHO\nRAW\n"
        "RUN << 'EOF'\necho $WHO > /x/alone\nEOF\nRUN cat << 'EOF' > /x/given\n$WHO\nEOF\n",
        arguments={"WHO": "you", "OTHER": "x"},
    )
    assert [content(image, f"x/{name}") for name in ("who", "bash", "EOF", "RAW", "alone", "given")] == [
        "you\n",
        "2\n",
        "to you\n",
        "$WHO\n",
        "you\n",
        "$WHO\n",
    ]
    tree = LayeredTree(image.layers)
    assert tree.names("cache/x") == []
    assert "hello you" in builder.steps
    assert "No ARG is called OTHER" in builder.steps
    assert any("--mount=type=secret is ignored" in step for step in builder.steps)


@pytest.mark.parametrize("own", ["", "ENV PATH=/y\n"])
async def test_a_path_is_added_to_the_default_one(builder: Builder, own: str) -> None:
    """A base without PATH has the default one: `ENV PATH=/x:$PATH` lost every program."""
    image = await builder.build(f"FROM base:1\n{own}ENV PATH=/x:$PATH\nENV KEPT=${{PATH}}\nRUN /bin/cp /bin/ls /z\n")
    assert image.environment["PATH"] == ("/x:/y" if own else f"/x:{DEFAULT_PATH}")
    assert image.environment["KEPT"] == image.environment["PATH"]
    if not own:
        image = await builder.build("FROM base:1\nENV PATH=/x:$PATH\nRUN ls / > /found\n")
        assert "found" in content(image, "found")


async def test_triggers_of_a_base_run_in_the_next_build(builder: Builder) -> None:
    await builder.build("FROM base:1\nONBUILD COPY a /a\nONBUILD RUN cat /a > /b\n", name="base:2")
    (builder.context / "a").write_text("later")
    image = await builder.build("FROM base:2\n")
    assert content(image, "b") == "later"
    assert builder.store.record("made").docker_config["OnBuild"] == []


async def test_users_and_folders_are_the_images(builder: Builder) -> None:
    image = await builder.build("FROM base:1\nWORKDIR /w\n")
    assert (image.user, image.home, image.directory) == (0, "/root", "/w")
    assert builder.store.find("made").user == 1000  # a strict sandbox is never root unless asked
    groups = "FROM base:1\nRUN echo extra:x:99:x,nobody >> /etc/group; echo big:x:70000:nobody >> /etc/group\n"
    assert (await builder.build(f"{groups}USER nobody\n")).groups == (99,)
    assert (await builder.build(f"{groups}USER nobody:0\n")).groups == ()
    image = await builder.build("FROM base:1\nUSER nobody\n")
    assert (image.user, builder.store.find("made").user) == (65534, 65534)
    with pytest.raises(InvalidDefinition, match=r"line 3: RUN id: The user 'ghost' is not in the image's /etc/passwd"):
        await builder.build("FROM base:1\nUSER ghost\nRUN id\n")


@pytest.mark.parametrize(
    ("text", "problem"),
    {
        "FROM base:1\nRUN echo said; exit 3": "line 2: `RUN echo said; exit 3` failed with 3",
        'FROM base:1\nRUN ["/nothing"]': 'line 2: `RUN ["/nothing"]` failed with 127',
    }.items(),
)
async def test_a_failing_instruction_is_named(builder: Builder, text: str, problem: str) -> None:
    with pytest.raises(BuildFailed, match=problem.replace("[", r"\[")) as raised:
        await builder.build(text)
    assert raised.value.output


@pytest.mark.parametrize("shell", ["/proc/self/exe", "/script"])
async def test_a_shell_cannot_be_the_servers_interpreter(builder: Builder, shell: str) -> None:
    """Root of a build is the server's user where that is an ordinary one, and could change the file."""
    text = f'FROM base:1\nRUN echo \'#!/proc/self/exe\' > /script; chmod 755 /script\nSHELL ["{shell}", "-c"]\n'
    with pytest.raises(BuildFailed, match="failed with 70"):
        await builder.build(f"{text}RUN import os; print(os.readlink('/proc/self/exe'))\n")


async def test_a_build_has_no_network(builder: Builder) -> None:
    text = "FROM base:1\nRUN (exec 3<>/dev/tcp/127.0.0.1/1) 2>/dev/null; echo Could not resolve host; exit 1\n"
    with pytest.raises(BuildNeedsNetwork, match="--network"):
        await builder.build(text)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        probe = f'SHELL ["/bin/bash", "-c"]\nRUN exec 3<>/dev/tcp/127.0.0.1/{port}\n'
        with pytest.raises(BuildFailed):
            await builder.build(f"FROM base:1\n{probe}")
        await builder.build(f"FROM base:1\n{probe}", network=True)
        with pytest.raises(BuildFailed):
            await builder.build(f"FROM base:1\n{probe}".replace("RUN", "RUN --network=none"), network=True)
    # What was made with a network is good enough for a build without one.
    await builder.build(f"FROM base:1\n{probe}")
    assert builder.ran == []


@pytest.mark.parametrize(
    ("text", "problem"),
    {
        "FROM nothing:1": "line 1: There is no image 'nothing:1'",
        "FROM --platform=linux/s390x base:1": "line 1: FROM --platform=linux/s390x is not this machine's",
        "FROM ${X}": "line 1: FROM ${X} names no image",
        "FROM scratch\nRUN x": "line 2: RUN has an empty image",
        "FROM scratch": "The image would be empty",
        "FROM base:1\nCOPY absent /x": "line 2: COPY: The source absent is not in the context",
        "FROM base:1\nCOPY ../x /x": "line 2: COPY: The source ../x is outside of the context",
        "FROM base:1\nCOPY a b": "line 2: COPY: The source a is hidden by .dockerignore",
        "FROM base:1\nCOPY way /x": "line 2: COPY: The source way is hidden by .dockerignore",
        "FROM base:1\nCOPY out/passwd /x": "line 2: COPY: The source out/passwd is not in the context",
        "FROM base:1\nCOPY passwd /x": "line 2: COPY: The source passwd is not in the context",
        "FROM base:1\nCOPY loop /x": "line 2: COPY: The links of /loop lead round in circles",
        "FROM base:1\nCOPY pipes /x": "line 2: COPY: /pipes/pipe is neither a regular file, a directory nor a link",
        "FROM base:1\nCOPY big /x": "more than 16,384 MiB",
        "FROM base:1\nCOPY b c /x": "line 2: COPY copies several sources to /x. A folder ends with a slash",
        "FROM base:1\nCOPY b /etc": "",
        "FROM base:1\nCOPY [z-a]* /x": "line 2: COPY: [z-a]* is not a pattern",
        "FROM base:1 AS s\nFROM base:1\nCOPY --from=s /opt /etc/passwd": "would replace the file /etc/passwd",
        "FROM base:1\nADD https://example.org/x /x": "line 2: ADD https://example.org/x is remote",
        "FROM base:1\nCOPY --chmod=a+x b /x": "line 2: --chmod=a+x is not supported. Write octal digits",
        "FROM base:1\nCOPY --chown=ghost b /x": "The user 'ghost' is not in the image's /etc/passwd",
        "FROM base:1\nRUN --mount=type=bind,source=b,target=/b true": "line 2: RUN --mount=type=bind is not supported",
        "FROM base:1\nRUN --mount=type=secret,id=x,required=true true": "line 2: RUN needs a secret",
        "FROM base:1\nRUN --security=insecure true": "line 2: RUN --security=insecure is not supported",
        "FROM base:1\nENV A=${B/x/y}": "line 2: The expansion",
    }.items(),
)
async def test_what_a_build_refuses(builder: Builder, text: str, problem: str, tmp_path: Path) -> None:
    context = builder.context
    for name in "abc":
        (context / name).write_text(name)
    (context / ".dockerignore").write_text("a\n")
    (context / "way").symlink_to("a")
    (context / "out").symlink_to("/etc")
    (context / "passwd").symlink_to("../../../../../../etc/passwd")
    (context / "loop").symlink_to("loop")
    (context / "pipes").mkdir()
    os.mkfifo(context / "pipes/pipe")
    with (context / "big").open("wb") as big:
        big.truncate(17 << 30)
    if not problem:
        await builder.build(text)
        return
    with pytest.raises((InvalidDefinition, ImageTooLarge)) as raised:
        await builder.build(text)
    assert problem in str(raised.value)


async def test_links_to_this_machine_stay_in_their_tree(builder: Builder) -> None:
    """A link of a context or a stage never leads to a file of this machine, whatever it says."""
    for name, target in {"a": "/etc/hostname", "d": "/etc", "up": "../../../../etc/shadow"}.items():
        (builder.context / name).symlink_to(target)
    (builder.context / "etc").mkdir()
    (builder.context / "etc/hostname").write_text("of the context")
    image = await builder.build(
        "FROM base:1 AS stage\nRUN ln -s /etc/shadow /s; ln -s ../../../../.. /up; mkdir /e; echo stage > /etc/shadow\n"
        "FROM base:1\nCOPY a /opt/a\nCOPY . /all/\nCOPY --from=stage /s /opt/s\n"
        "COPY --from=stage /up/etc/shadow /opt/up\n"
    )
    assert content(image, "opt/a") == "of the context"
    assert (content(image, "opt/s"), content(image, "opt/up")) == ("stage\n", "stage\n")
    found = LayeredTree(image.layers).find("all/up")
    assert found is not None
    assert str(found.path.readlink()) == "../../../../etc/shadow"


async def test_a_target_through_a_link_stays_in_the_image(builder: Builder, tmp_path: Path) -> None:
    (builder.context / "a").write_text("a")
    outside = tmp_path / "outside"
    outside.mkdir()
    image = await builder.build(
        f"FROM base:1\nRUN mkdir -p $(dirname {outside}); ln -s {outside} /out; ln -s ../../../../../..{outside} /up\n"
        "COPY a /out/x\nCOPY a /up/y\nWORKDIR /out/z\n"
    )
    assert list(outside.iterdir()) == []
    assert LayeredTree(image.layers).names(str(outside)) == ["x", "y", "z"]


async def test_a_file_that_changes_while_it_is_copied_makes_no_layer(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the layer would have another content than its key, for every later build."""
    (builder.context / "a").write_text("one")
    copy_files = builder.store.layers.owners.copy_files

    async def late(*arguments: Any, **options: Any) -> int:
        (builder.context / "a").write_text("two")
        return await copy_files(*arguments, **options)

    monkeypatch.setattr(builder.store.layers.owners, "copy_files", late)
    with pytest.raises(InvalidDefinition, match="was changed while it was copied"):
        await builder.build("FROM base:1\nCOPY a /a\n")


async def test_a_folder_that_becomes_a_link_is_not_followed(
    builder: Builder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A process that writes to the context while it is built reads no file of this machine through it."""
    (builder.context / "d").mkdir()
    (builder.context / "d/a").write_text("same")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/a").write_text("same")
    copy_files = builder.store.layers.owners.copy_files

    async def late(*arguments: Any, **options: Any) -> int:
        (builder.context / "d").rename(tmp_path / "d")
        (builder.context / "d").symlink_to(tmp_path / "outside")
        return await copy_files(*arguments, **options)

    monkeypatch.setattr(builder.store.layers.owners, "copy_files", late)
    with pytest.raises((InvalidDefinition, StoreFailed)):
        await builder.build("FROM base:1\nCOPY d /d\n")


async def test_a_very_deep_tree_is_refused(builder: Builder) -> None:
    """Its paths would take minutes to resolve."""
    await asyncio.to_thread(subprocess.run, ["mkdir", "-p", f"{builder.context}/{'d/' * 1100}"], check=True)
    with pytest.raises(InvalidDefinition, match=r"line 2: COPY: .* is deeper than 100 folders"):
        await builder.build("FROM base:1\nCOPY d /d\n")
    await asyncio.to_thread(subprocess.run, ["rm", "-r", f"{builder.context}/d"], check=True)


async def test_concurrent_builds_share_their_steps(builder: Builder) -> None:
    text = "FROM base:1\nRUN echo ran\n"
    images = await asyncio.gather(*(builder.build(text, name=f"made:{number}") for number in range(4)))
    assert len({image.layers for image in images}) == 1
    assert builder.steps.count("ran") == 1


async def test_the_machines_own_programs_can_be_a_base(builder: Builder) -> None:
    (builder.context / "a").write_text("a")
    image = await builder.build("FROM host\nCOPY a /opt/a\nRUN cat /opt/a /opt/a > /opt/b\n")
    assert content(image, "opt/b") == "aa"
    with pytest.raises(InvalidDefinition, match="/usr/a would be hidden: /usr is this machine's own there"):
        await builder.build("FROM host\nCOPY a /usr/a\n")
