"""Tries to turn a 0 of a Harbor task into a lost episode, by files that are hard to keep: each ends with 0."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import Service
from .harbor_folders import write_harbor_folder
from .harbor_playing import ON_HOST, played, prepared

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("docker_like")]


def _python(program: str) -> str:
    return f'/usr/bin/python3 -c "{program}"'


def _nested(depth: int, name: str) -> str:
    return _python(f"import os\nos.chdir('/app')\nfor _ in range({depth}):\n    os.mkdir({name}); os.chdir({name})\n")


EXCUSES = {
    "folders that no path names": _nested(20_000, "'d'"),
    "folders of long names": _nested(3000, "'long' * 50"),
    "a pipe in the answer's place": "mkfifo /app/answer.txt",
    "a socket in the answer's place": _python("import socket; socket.socket(socket.AF_UNIX).bind('/app/answer.txt')"),
    "a device in the answer's place": "mknod /app/answer.txt c 1 5 || mknod /app/answer.txt c 0 0",
    "a file of four terabytes": "truncate -s 4T /app/answer.txt",
    "2,000 names of a file": "touch /app/0; for n in $(seq 1 2000); do ln /app/0 /app/$n; done",
    "150,000 files": "cd /app; seq 1 150000 | xargs touch",
    "a full disk": "cat /dev/zero >/app/full; touch /app/x",
    "names that are no text": "touch \"/app/$(printf 'a\\377\\376')\" \"/app/$(printf 'a\\nb')\"",
    "closed files": "echo 41 >/app/answer.txt; chmod 000 /app/answer.txt /app; chown -R 12345:54321 /app",
    "a closed root of another user": "chown 65000 /; chmod 000 /",
    "a folder that is a link to itself": "cd /; rm -rf /app; ln -s /app /app",
    "a folder that is a link into a process": "cd /; rm -rf /app; ln -s /proc/1/root/app /app",
    "a folder that is a pipe": "cd /; rm -rf /app; mkfifo /app",
    "a verifier's folder that is a file": "rm -rf /logs /tests; touch /logs /tests",
    "a verifier's folder that is a link": "rm -rf /logs /tests; ln -s /app /logs; ln -s /app /tests",
    "marks of overlays": "mkdir /app/x; "
    + _python(
        "import os\nfor name in ('opaque', 'redirect', 'origin'): os.setxattr('/app/x', f'user.overlay.{name}', b'y')"
    ),
    "names of another format's marks": "mkdir /app/x; touch /app/x/.wh..wh..opq /app/.wh.answer.txt",
    "no files for temporary ones": "chmod 000 /tmp; rm -rf /tmp; touch /tmp",
    "no system": "cd /; rm -rf --no-preserve-root / 2>/dev/null; true",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the task's folder."""
    config = "[environment]\nstorage_mb = 1024\n[verifier]\ntimeout_sec = 4.0\n"  # "a full disk" is not the machine's
    return write_harbor_folder(tmp_path_factory.mktemp("excuses"), "excused", ON_HOST, config)


@pytest.mark.parametrize(
    "excuse",
    [
        "folders that no path names",
        *(pytest.param(excuse, marks=pytest.mark.long) for excuse in EXCUSES if excuse != "folders that no path names"),
    ],
)
async def test_files_that_are_hard_to_keep_excuse_nothing(service: Service, folder: Path, excuse: str) -> None:
    ((record,), _) = await prepared(service, folder)
    assert record.ready, record.problem
    done = await played(service, folder, EXCUSES[excuse])
    assert (done.reward, done.finished) == (0.0, True)
