"""The data folder that a name means, for each key, and uploads to it."""

import errno
import json
import sys
import threading
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from ors_server.hosting.errors import UnknownEnvironment
from ors_server.http.routes.files import files_router
from ors_server.keys.key import ANYONE, Key
from ors_server.keys.keys import Keys
from ors_server.sandbox_service.data_folders import DataFolder, DiskRefused, FindFolder, folders_below, listed_folders

OF_WALK = Key("hosted:Walk", b"", environment="Walk")


@pytest.fixture
def find(tmp_path: Path) -> FindFolder:
    file = tmp_path / "folders.json"
    file.write_text(json.dumps({"walk": "/data/walk", "owner/walk": "/data/walk", "swim": "/data/swim"}))
    return listed_folders(file)


@pytest.mark.parametrize("name", ["walk", "Walk", " Owner/Walk", "other/WALK"])
def test_a_listed_name(find: FindFolder, name: str) -> None:
    assert find(name, ANYONE) == find(name, OF_WALK) == Path("/data/walk")


def test_anothers_folder_does_not_exist_for_an_environments_key(find: FindFolder) -> None:
    assert find("owner/swim", Key("trainer", b"")) == Path("/data/swim")
    with pytest.raises(UnknownEnvironment, match="swim") as caught:
        find("owner/swim", OF_WALK)
    assert "hosts: walk, owner/walk" in str(caught.value)


def test_a_name_that_is_not_listed(find: FindFolder, tmp_path: Path) -> None:
    with pytest.raises(UnknownEnvironment, match="walk, owner/walk, swim"):
        find("GR/Stroll", ANYONE)
    assert find("GR/Stroll", OF_WALK) == Path("/data/walk")
    (tmp_path / "folders.json").write_text('{"walk": "/data/walk", "owner/walk": "/data/walk"}')
    assert find("GR/Stroll", ANYONE) == Path("/data/walk")


# --- uploads ---------------------------------------------------------------------------------------------------------

#: The folder in which uses of files are noted, and the threads of these uses by their audit event; one hook for the
#: process, because hooks cannot be removed.
watched: list[str] = []
uses: list[tuple[str, int]] = []


def note_use(event: str, arguments: tuple[Any, ...]) -> None:
    if watched and event.startswith(("open", "os.")) and str(arguments[0] if arguments else "").startswith(watched[0]):
        uses.append((event, threading.get_ident()))


@pytest.fixture
def uses_of_files(tmp_path: Path) -> Iterator[list[tuple[str, int]]]:
    sys.addaudithook(note_use)
    watched.append(str(tmp_path))
    yield uses
    watched.clear()
    uses.clear()


async def chunks(*given: bytes) -> AsyncGenerator[bytes]:
    for chunk in given:
        yield chunk


async def test_an_upload_uses_no_file_on_the_event_loop(tmp_path: Path, uses_of_files: list[tuple[str, int]]) -> None:
    app = FastAPI()
    app.include_router(files_router(folders_below(tmp_path), Keys(Path("/nowhere/keys"))))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
        files = {"environmentId": "walk", "files": [{"fileName": "below/a.bin"}]}
        (address,) = (await client.post("/v1/files/upload-urls", json=files)).json()["urls"]
        answer = await client.put(address["uploadUrl"], content=b"x" * 2**20)

    assert answer.json() == {"path": "below/a.bin", "size": 2**20}
    assert {"open", "os.mkdir", "os.rename"} <= {event for event, _ in uses_of_files}
    assert threading.get_ident() not in {thread for _, thread in uses_of_files}


async def test_an_upload_that_breaks_leaves_the_file_before_it(tmp_path: Path) -> None:
    async def broken() -> AsyncGenerator[bytes]:
        yield b"half"
        raise OSError(errno.ENOSPC, "No space left on device")

    folder = DataFolder(tmp_path)
    await folder.write("a", chunks(b"whole ", b"file"))
    with pytest.raises(DiskRefused, match="No space left"):
        await folder.write("a", broken())

    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a", b"whole file")]
