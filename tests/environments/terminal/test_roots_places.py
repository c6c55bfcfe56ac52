"""A root agent's changes to programs, links and libraries: no reader of an examination executes what it left."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest
from ors_containers import Limits, folder_image

from tests.support.root_folders import make_root_folder

from .conftest import Service
from .parts import grading

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: A script that knows whether it has a reader's rights.
_SCRIPT = """echo 'set -- /.examination/*; [ -e "$1" ] && echo FORG""ED' > /root/file"""
_LIBRARIES = 'cd "$(dirname "$(find / -xdev -name libc.so.6 -print -quit)")"'
CHANGES = {
    "a program that is replaced": "cp /bin/dash /usr/bin/cat",
    "a program that is a link to another": "ln -sf /bin/dash /usr/bin/cat",
    "a program earlier in the path": "mkdir -p /usr/local/bin; ln -s /bin/dash /usr/local/bin/cat",
    "a library before all others": "echo /nowhere/evil.so > /etc/ld.so.preload",
    "a library that is replaced": f"{_LIBRARIES}; cp libc.so.6 new; mv new libc.so.6",
    "a library that is changed": f"{_LIBRARIES}; printf x >> libtinfo.so.6",
    "a library that was missing": f"{_LIBRARIES}; cp libc.so.6 libnss_evil.so.2",
    "a library for one sort of machine": f"{_LIBRARIES}; cp libc.so.6 glibc-hwcaps/x86-64-v2",
    "a library behind a link": f"""{_LIBRARIES}; cp -r /lib /lib.new; LD_LIBRARY_PATH=/lib.new/${{PWD##*/}}
        export LD_LIBRARY_PATH; mv /lib /lib.old; ln -s /lib.new /lib""",
    "a library of a library": f"{_LIBRARIES}; cp libc.so.6 engines",
    "the loader": "cp /lib64/ld-linux-x86-64.so.2 /tmp/ld; ln -sf /tmp/ld /lib64/ld-linux-x86-64.so.2",
    "the table of libraries": "cp /etc/ld.so.cache /tmp/cache; mv /tmp/cache /etc/ld.so.cache",
    "the databases of names": "echo 'passwd: evil files' > /etc/nsswitch.conf",
    "an encoding": f"{_LIBRARIES}; touch gconv/gconv-modules",
}
_CAT = """
import subprocess


def test_a_program():
    for command in (["cat", "/root/file"], ["sh", "-c", "cat /root/file"]):
        done = subprocess.run(command, capture_output=True, text=True)
        assert "FORGED" not in done.stdout, done
"""
_LS = """
import subprocess


def test_libraries():
    for command in (["ls", "/.examination/"], ["sh", "-c", "ls /.examination/"]):
        assert subprocess.run(command, capture_output=True).returncode != 0
"""
_UNCHANGED = """
import subprocess


def test_reading():
    assert subprocess.run(["ls", "/.examination/"], capture_output=True).returncode == 0
"""


@pytest.fixture(scope="module")
def root_folder(images: Path) -> Path:
    root = make_root_folder(images / "roots")
    libraries = next(root.rglob("libc.so.6")).parent
    (libraries / "glibc-hwcaps" / "x86-64-v2").mkdir(parents=True)
    (libraries / "gconv").mkdir()
    (libraries / "engines").mkdir()
    (libraries / "gconv" / "gconv-modules").touch()
    shutil.copy("/etc/ld.so.cache", root / "etc")
    shutil.copy(shutil.which("dirname") or "", root / "usr" / "bin")
    return root


async def examined(service: Service, root: Path, before: str, tests: str, *, live: bool) -> grading.Verdict:
    tools = await service.toolset()
    image = folder_image(root, user=0, group=0, user_name="root", home="/root")
    image = dataclasses.replace(image, binds=(*image.binds, tools.bind))
    sandbox = await service.open(image, Limits(memory=256 * 2**20, disk=64 * 2**20, pids=64))
    try:
        done = await sandbox.run(f"set -e; {_SCRIPT}; {before}", timeout=20)
        assert done.exit_status == 0 or done.shell_restarted, done
        return await grading.run_tests(sandbox, tools, tests, live=live, timeout=30)
    finally:
        await sandbox.stop()


@pytest.mark.combinations
@pytest.mark.parametrize("live", [False, True], ids=["frozen", "live"])
@pytest.mark.parametrize("change", CHANGES)
async def test_what_root_changed_is_no_readers(service: Service, root_folder: Path, change: str, live: bool) -> None:
    verdict = await examined(service, root_folder, CHANGES[change], _CAT if "program" in change else _LS, live=live)
    assert verdict.passed, verdict


@pytest.mark.parametrize("live", [False, True], ids=["frozen", "live"])
async def test_roots_own_files_take_nothing_from_the_tests(service: Service, root_folder: Path, live: bool) -> None:
    verdict = await examined(
        service,
        root_folder,
        "mkdir /opt/new; echo x > /etc/new",
        _UNCHANGED,
        live=live,
    )
    assert verdict.passed, verdict
