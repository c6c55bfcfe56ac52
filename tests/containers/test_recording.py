"""The record of the files that a container's command executes, opens and looks for."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from ors_containers import Container, ContainerSettings, RuntimeUnavailable
from ors_containers.linux.path_record import PathRecord
from ors_containers.runtimes.containers import recording
from ors_containers.runtimes.namespace_runtime import NamespaceRuntime
from ors_containers.sandbox import RecordedPaths

from tests.support.processes import parent, processes
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

_PREPARE = """
mkdir -p /work/real /work/empty; ln -s real /work/link; echo data >/work/real/file; echo data >/work/unread
printf '#!/work/interpreter -x\\n' >/work/script; printf '#!/bin/sh\\n' >/work/interpreter
chmod 755 /work/script /work/interpreter
"""


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def container(runtime: NamespaceRuntime) -> AsyncIterator[Container]:
    settings = ContainerSettings(disk=64 * 2**20)
    async with await runtime.open_container(runtime.host_image(), settings) as container:
        assert (await container.run(_PREPARE)).exit_status == 0
        yield container


async def recorded(container: Container, *argv: str, status: int = 0) -> RecordedPaths:
    result = await container.execute(argv, timeout=60, record=True)
    assert result.exit_status == status, result
    assert result.recorded is not None
    return result.recorded


async def test_what_a_command_uses_is_recorded(container: Container) -> None:
    paths = await recorded(container, "/bin/sh", "-c", "cd /work/real; cat file; ls /work/empty; cat ../none; true")
    assert {"/bin/sh", "/usr/bin/cat", "/usr/bin/ls"} <= paths.executed
    assert "/work/real/file" in paths.opened
    assert "/work/unread" not in paths.opened
    assert "/work/empty" in paths.listed
    assert "/work/none" in paths.missing
    assert any("libc.so" in path for path in paths.opened)
    assert not any(path.startswith(("/proc", "/dev", "/sys")) for kind in paths for path in kind)


async def test_links_on_the_way_are_recorded(container: Container) -> None:
    paths = await recorded(container, "/usr/bin/cat", "/work/link/file")
    assert {"/work/link", "/work/link/file", "/work/real/file"} <= paths.opened


async def test_a_folder_by_another_name_is_the_same_folder(container: Container) -> None:
    paths = await recorded(
        container, "/bin/sh", "-c", "ls /work/real/. /work/empty/../real /work/real/; cat /work/real/file"
    )
    assert "/work/real/file" in paths.opened
    assert {"/work/real"} == {path for path in paths.listed if path.startswith("/work")}
    assert not any(path.startswith("/work") for path in paths.missing)


async def test_interpreters_are_recorded(container: Container) -> None:
    paths = await recorded(container, "/work/script")
    assert {"/work/script", "/work/interpreter", "/bin/sh"} <= paths.executed
    assert any(Path(path).name.startswith("ld-linux") for path in paths.executed)


async def test_what_an_interpreter_is_given_is_recorded(container: Container) -> None:
    command = "cd /work/real; PYTHONPATH=../empty /usr/bin/python3 -c ''; /usr/bin/python3 file; exec sh ./file"
    paths = await recorded(container, "/bin/sh", "-c", command, status=127)
    assert paths.scripts == {"/work/real/file"}
    assert paths.searched == {"/work/real", "/work/empty"}


async def test_places_where_a_program_was_looked_for_are_missing(container: Container) -> None:
    result = await container.execute(["env", "true"], env={"PATH": "/work/empty:/usr/bin"}, record=True)
    assert result.recorded is not None
    assert "/work/empty/true" in result.recorded.missing


async def test_files_that_are_written_are_not_read(container: Container) -> None:
    paths = await recorded(container, "/bin/sh", "-c", "echo 1 >/work/new; echo 2 >>/work/unread")
    assert not {"/work/new", "/work/unread"} & (paths.opened | paths.missing)


async def test_paths_of_a_chroot_are_those_of_the_container(container: Container) -> None:
    command = "import os; os.chroot('/work'); os.chdir('/'); open('/unread').read(); open('real/file').read()"
    paths = await recorded(container, "/usr/bin/python3", "-c", command)
    assert {"/work/unread", "/work/real/file"} <= paths.opened


async def test_background_processes_go_on(container: Container) -> None:
    command = "(until cat /work/go; do sleep 0.05; done; cat /work/unread; echo yes >/work/went) >/dev/null 2>&1 &"
    paths = await recorded(container, "/bin/sh", "-c", command)
    assert "/work/went" not in paths.opened
    wait = "touch /work/go; until test -s /work/went; do sleep 0.05; done"
    assert (await container.run(wait, timeout=30)).exit_status == 0


async def test_commands_are_recorded_apart(container: Container) -> None:
    one, other = await asyncio.gather(
        recorded(container, "/usr/bin/cat", "/work/real/file"), recorded(container, "/usr/bin/cat", "/work/unread")
    )
    assert "/work/unread" not in one.opened
    assert "/work/real/file" not in other.opened
    assert (await container.execute(["true"])).recorded is None


async def test_the_end_of_a_recorded_command(container: Container) -> None:
    result = await container.execute(["/usr/bin/sleep", "60"], timeout=0.5, record=True)
    assert result.timed_out
    assert result.recorded is not None
    assert "/usr/bin/sleep" in result.recorded.executed
    result = await container.execute(["/nothing"], record=True)
    assert (result.exit_status, result.started) == (127, False)
    running = asyncio.create_task(container.execute(["/bin/sh", "-c", "echo >/work/runs; sleep 60"], record=True))
    assert (await container.run("until test -e /work/runs; do sleep 0.02; done", timeout=30)).exit_status == 0
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await container.run("pgrep -c sleep || true")).text.strip() == "0"


async def test_no_process_is_left_behind(container: Container) -> None:
    def recorders() -> list[int]:
        found = processes(lambda arguments: b"path_recorder" in arguments)
        return [process for process in found if parent(process) == os.getpid()]

    await recorded(container, "true")
    await until(lambda: not recorders())


async def test_a_process_that_fails_to_record_is_an_error(
    container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "interpreter", lambda *_: ["/bin/false"])  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    with pytest.raises(RuntimeUnavailable, match="cannot be recorded here"):
        await container.execute(["true"], timeout=30, record=True)


async def test_a_refusal_of_the_kernel_is_an_error() -> None:
    async with recording.Recording(-1) as refused:
        with socket.socket(fileno=os.dup(refused.descriptor)) as launcher:
            launcher.send(b"Function not implemented")
        with pytest.raises(RuntimeUnavailable, match="cannot be recorded here: Function not implemented"):
            await refused.paths(started=False)


async def test_loops_of_links_end(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("/a")
    (tmp_path / "up").symlink_to("../../../up-there")
    root = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    try:
        record = PathRecord(root)
        record.open("/a/x", os.O_RDONLY)
        record.open("/up", os.O_RDONLY)
    finally:
        os.close(root)
    assert record.paths["opened"] == {"/a", "/b", "/up"}
    assert "/up-there" in record.paths["missing"]


async def test_what_no_file_can_be_called_is_not_missing(tmp_path: Path) -> None:
    root = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    try:
        record = PathRecord(root)
        for name in ("n" * 255, "n" * 256, "é" * 128):
            record.look(f"/{name}/x")
        record.interpret("/bin/python3", ["python3", "-c", ""], "/", "p" * 300)
    finally:
        os.close(root)
    assert record.paths["missing"] == {f"/{'n' * 255}/x"}
    assert record.paths["searched"] == {"/"}
