"""Generated tasks written as folders of Endless Terminals tasks.

Their images start from the image ``host``, the machine's own programs: the definition lays the files over it and runs
the set-up. Invariant: a folder that was written loads back as the same task.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ors_server import DefinitionError

from ..preparation import Service, program_finder
from ..reference_states import completed
from ..settings import TerminalSettings
from ..task import PreparedImage, TerminalTask
from .generated import generated_task, usable_families

__all__ = ["write_task", "write_tasks"]

_USER = 1000
_HOME = "/home/user"
_FILES = "files.tar"
_ARCHIVE = "/.task/files.tar"


async def write_tasks(
    service: Service,
    settings: TerminalSettings,
    out: Path,
    families: Sequence[str],
    *,
    count: int,
    seed: int,
    jobs: int = 1,
    on_written: Callable[[int, str], None] = lambda number, name: None,
) -> list[Path]:
    """Write ``count`` tasks of each family, from ``seed`` on, into ``out``. Return the folders.

    The tests of a folder are complete: each solution is played once in a sandbox, ``jobs`` at a time. ``on_written`` is
    called with the number of finished folders and the name of the last one.

    Raises ``DefinitionError`` for an unknown family, one whose programs are missing, and a folder that exists already,
    and ``InfrastructureFailure`` where a solution cannot be played.
    """
    names = usable_families(program_finder(settings.image), families)
    if missing := set(families) - set(names):
        raise DefinitionError(f"Programs of {', '.join(sorted(missing))} are missing", "Install what the log names.")
    turn = asyncio.Semaphore(jobs)
    finished = 0

    async def write(folder: Path, task: TerminalTask) -> None:
        nonlocal finished
        async with turn:
            write_task(folder, await completed(service, task, settings))
            finished += 1
            on_written(finished, task.name)

    tasks = list(_tasks(names, count, seed))
    folders = await asyncio.to_thread(_make_folders, out, [task.name for task in tasks])
    try:
        async with asyncio.TaskGroup() as group:
            for folder, task in zip(folders, tasks, strict=True):
                group.create_task(write(folder, task))
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None  # the first one ended the others
    return folders


def _make_folders(out: Path, names: Sequence[str]) -> list[Path]:
    out.mkdir(parents=True, exist_ok=True)
    folders = [
        out / f"task_{number:06d}_{hashlib.sha256(name.encode()).hexdigest()[:8]}" for number, name in enumerate(names)
    ]
    for folder in folders:
        try:
            folder.mkdir()
        except FileExistsError as error:
            raise DefinitionError(f"{folder} is there already", "Name another folder with --output.") from error
    return folders


def _tasks(names: Sequence[str], count: int, seed: int) -> Iterator[TerminalTask]:
    for number in range(seed, seed + count):
        for name in names:
            yield generated_task(name, number)


def write_task(folder: Path, task: TerminalTask) -> None:
    """Write one generated task into an empty folder."""
    assert isinstance(task.image, PreparedImage)
    words: dict[str, str] = {"description": task.prompt, "truth": task.truth, "name": task.name}
    if task.grading != "frozen":
        words["grading"] = task.grading
    if task.start:
        words["start"] = task.start
    (folder / "task.json").write_text(json.dumps(words, indent=2, ensure_ascii=False) + "\n", "utf-8")
    (folder / "test_initial_state.py").write_text(task.initial_tests, "utf-8")
    (folder / "test_final_state.py").write_text(task.final_tests, "utf-8")
    (folder / "solution.sh").write_text(task.solution or "", "utf-8")
    (folder / "near_miss.sh").write_text(task.near_miss or "", "utf-8")
    (folder / "container.def").write_text(_definition(task.name, task.image), "utf-8")
    (folder / _FILES).write_bytes(_archive(task.image))


def _definition(name: str, image: PreparedImage) -> str:
    lines = [
        f"# The image of the generated task {name}: its files over this machine's own programs.",
        "Bootstrap: localimage",
        "From: host",
        "",
        "%files",
        f"    {_FILES} {_ARCHIVE}",
        "",
        "%post",
        "    set -e",
        f"    mkdir -p {_HOME}",
        f"    tar --extract --preserve-permissions --no-same-owner --directory=/ --file={_ARCHIVE}",
        "    rm -r /.task",
        # Refused on a machine with a single user, who owns everything then.
        f"    chown -hR {_USER}:{_USER} {_HOME} 2>/dev/null || true",
    ]
    if image.setup:
        # Run as the user, where there is more than one. In base64, because a line of the script may begin with a `%`.
        script = base64.b64encode(image.setup.encode()).decode()
        variables = f"HOME={_HOME} USER=user LOGNAME=user LANG=C.UTF-8"
        user = f"setpriv --reuid={_USER} --regid={_USER} --clear-groups"
        lines += [
            f"    cd {_HOME}",
            f'    as_user="{user}"',
            "    $as_user true 2>/dev/null || as_user=",
            f"    echo {script} | base64 -d > /setup.sh",
            "    chmod 644 /setup.sh",
            f'    $as_user env -i PATH="$PATH" {variables} bash -e /setup.sh',
            "    rm /setup.sh",
        ]
    return "\n".join(lines) + "\n"


def _archive(image: PreparedImage) -> bytes:
    """Return the task's files as an archive whose bytes depend on the files alone."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as archive:
        # Parents come first.
        for path, file in sorted(image.files.items()):
            entry = tarfile.TarInfo(path.removeprefix("/"))
            entry.uid = entry.gid = _USER
            entry.mode = file.mode
            if file.link is not None:
                entry.type, entry.linkname = tarfile.SYMTYPE, file.link
                archive.addfile(entry)
            elif file.directory:
                entry.type = tarfile.DIRTYPE
                archive.addfile(entry)
            else:
                entry.size = len(file.content)
                archive.addfile(entry, io.BytesIO(file.content))
    return content.getvalue()
