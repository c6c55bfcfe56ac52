"""The disk that prepared Harbor folders take which have one base."""

from __future__ import annotations

from pathlib import Path

import pytest
from ors_containers.layers.tree import exclusive_bytes

from tests.long.sandboxed.debian import debian_root

from .conftest import Service
from .harbor_folders import write_harbor_folder
from .harbor_playing import TESTS, prepared

pytestmark = [pytest.mark.long, pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("docker_like")]

_FOLDERS = 20
#: As published ones: a file that all have, of each folder's own time, then what is installed, then what differs.
_DOCKERFILE = "FROM debian\nWORKDIR /app\nCOPY simulator.py .\nRUN cp -r /usr/share/doc /opt/doc\nCOPY data /app/data\n"
#: Fetched once by each verifier: some 20 MB, as of uv with a test runner.
_FETCH = "[ -d ~/.cache/tool ] || { mkdir -p ~/.cache; cp -r /usr/lib/python3.11 ~/.cache/tool; }\n"


async def test_folders_of_one_base_take_little_more_than_one(service: Service, tmp_path: Path) -> None:
    own = Service(service.runtime, tmp_path / "images", await service.toolset())
    await own.store.import_image(debian_root(tmp_path), "debian")
    folders = [
        write_harbor_folder(
            tmp_path / "tasks",
            f"task-{number:02}",
            {
                "environment/Dockerfile": _DOCKERFILE,
                "environment/simulator.py": "print(1)\n",
                "environment/data": f"of task {number}\n" * 10_000,
                "tests/test.sh": TESTS.replace("reward=0", f"{_FETCH}reward=0"),
            },
        )
        for number in range(_FOLDERS)
    ]
    sizes: list[int] = []
    for tasks in (folders[:1], folders):
        records, _ = await prepared(own, *tasks)
        assert all(record.ready for record in records), [record.problem for record in records]
        sizes.append(exclusive_bytes(own.store.root))
    one, all_of_them = sizes
    print(
        f"{one / 1e6:.0f} MB for one folder, {all_of_them / 1e6:.0f} MB for {_FOLDERS}: {all_of_them / one:.2f} times"
    )
    assert all_of_them <= 1.5 * one
