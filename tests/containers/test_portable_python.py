"""A Python from outside of the sandbox: it runs in any image, whatever files root inside has planted."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from ors_containers import CommandResult, Image, Runtime, RuntimeUnavailable, Sandbox, folder_image
from ors_containers.graders import elf
from ors_containers.graders.portable_python import AT, Toolset, python_toolset

pytestmark = pytest.mark.asyncio(loop_scope="module")

RUNTIMES = ("bubblewrap", pytest.param("apptainer", marks=pytest.mark.long))

#: A minimal grader.
RUNNER = b"""
import os, sys
sys.path[:0] = ["/.grader/packages"]
import process_isolation, pytest
source = open("/.examination/test_it.py").read()
process_isolation.up()
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "--rootdir=/.examination", "-c", "/dev/null",
                      "--confcutdir=/.examination", "/.examination/test_it.py"]))
"""


@pytest.fixture
def bare(state: Path) -> Iterator[Path]:
    """Create a root file system with only bash: no Python, and no C library at the usual paths."""
    root = state / "bare"
    (root / "bin").mkdir(parents=True)
    (root / "odd").mkdir()
    said = subprocess.run(["ldd", "/bin/bash"], capture_output=True, text=True, check=True).stdout
    libraries = [Path(word) for word in said.split() if word.startswith("/")]
    for library in libraries:
        shutil.copy(library, root / "odd" / library.name)
    loader = next(library for library in libraries if library.name.startswith("ld-linux"))
    content = bytearray(Path("/bin/bash").read_bytes())
    elf.replace_interpreter(content, f"/odd/{loader.name}")
    (root / "bin/bash").write_bytes(content)
    (root / "bin/bash").chmod(0o755)
    yield root
    shutil.rmtree(root)


def _add_programs(bare: Path, names: Sequence[str]) -> None:
    loader = next((bare / "odd").glob("ld-linux*")).name
    for name in names:
        program = shutil.which(name)
        assert program is not None
        said = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
        for library in (Path(word) for word in said.split() if word.startswith("/")):
            if not (bare / "odd" / library.name).exists():
                shutil.copy(library, bare / "odd" / library.name)
        content = bytearray(Path(program).read_bytes())
        elf.replace_interpreter(content, f"/odd/{loader}")
        (bare / "bin" / name).write_bytes(content)
        (bare / "bin" / name).chmod(0o755)


def _with(image: Image, toolset: Toolset, *, root: bool = False) -> Image:
    image = dataclasses.replace(image, binds=(*image.binds, toolset.bind))
    return dataclasses.replace(image, user=0, group=0, user_name="root", home="/root") if root else image


async def _run_python(sandbox: Sandbox, toolset: Toolset, script: str | bytes, **files: bytes) -> CommandResult:
    content = script.encode() if isinstance(script, str) else script
    return await sandbox.examine(
        [*toolset.command, "-I", "-S", "-B", "/.examination/run.py"],
        files={"run.py": content, **{f"{name}.py": text for name, text in files.items()}},
        timeout=60,
        output_limit=10**6,
    )


@pytest.mark.long
async def test_it_is_made_once(tmp_path: Path) -> None:
    try:
        first, second = await asyncio.gather(python_toolset(tmp_path), python_toolset(tmp_path))
    except RuntimeUnavailable as error:
        pytest.skip(str(error))
    assert first == second
    made = (first.folder / "bin/python3").stat()
    assert (await python_toolset(tmp_path)).folder.joinpath("bin/python3").stat().st_mtime_ns == made.st_mtime_ns
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".toolset")] == [first.folder.name]
    writable = [path for path in first.folder.rglob("*") if not path.is_symlink() and path.stat().st_mode & 0o022]
    assert writable == []


@pytest.mark.long
async def test_it_is_made_only_when_it_is_not_there(toolset: Toolset) -> None:
    made = (toolset.folder / "bin/python3").stat()
    assert await python_toolset(toolset.folder.parent) == toolset
    assert (toolset.folder / "bin/python3").stat() == made


async def test_it_runs_in_the_hosts_image(runtime: Runtime, toolset: Toolset) -> None:
    script = (
        "import sys, hashlib, sqlite3, ctypes, json, lzma, bz2, zlib, uuid, decimal, pwd, socket, threading, zoneinfo\n"
        "import asyncio, csv, subprocess, tarfile, zipfile, xml.etree.ElementTree, locale, unicodedata\n"
        "print(sys.executable, sys.prefix, sys.flags.isolated, all(p.startswith('/.grader/') for p in sys.path))\n"
        "print(hashlib.sha256(b'').hexdigest()[:8], 'é', sys.getfilesystemencoding(), pwd.getpwuid(1000).pw_name)\n"
        "print(subprocess.check_output([sys.executable, '-I', '-c', 'import sys; print(sys.prefix)']))\n"
        "outside = [l.split()[-1] for l in open('/proc/self/maps') if '/' in l and '/.grader/' not in l]\n"
        "print(outside)\n"
    )
    async with runtime.sandbox(_with(runtime.host_image(), toolset)) as sandbox:
        result = await _run_python(sandbox, toolset, script)
    expected = f"{AT}/bin/python3 {AT} 1 True\ne3b0c442 é utf-8 user\nb'{AT}\\n'\n[]\n"
    assert (result.exit_status, result.text) == (0, expected)


async def test_pytest_runs_in_the_hosts_image(runtime: Runtime, toolset: Toolset) -> None:
    tests = (
        b"import pytest\n"
        b"def test_right(): pass\n"
        b"@pytest.mark.parametrize('n', [1, 2])\n"
        b"def test_n(n, tmp_path): assert n == 1\n"
    )
    async with runtime.sandbox(_with(runtime.host_image(), toolset)) as sandbox:
        result = await _run_python(sandbox, toolset, RUNNER, test_it=tests)
        assert result.exit_status == 1
        assert "1 failed, 2 passed" in result.text
        result = await _run_python(sandbox, toolset, RUNNER, test_it=b"def test_right(): pass\n")
        assert (result.exit_status, "1 passed" in result.text) == (0, True)


async def test_it_runs_where_there_is_no_python(runtime: Runtime, toolset: Toolset, bare: Path) -> None:
    image = dataclasses.replace(_with(folder_image(bare), toolset), environment={"LD_LIBRARY_PATH": "/odd"})
    tests = (
        b"import subprocess, sys\n"
        b"def test_there_is_nothing_else():\n"
        b"    import os\n"
        b"    assert not os.path.exists('/usr/bin') and not os.path.exists('/lib64')\n"
        b"    said = subprocess.run([sys.executable, '-c', 'import json; print(json.dumps(1))'], capture_output=True,\n"
        b"                          env={})\n"
        b"    assert said.stdout == b'1\\n', said\n"
        b"    assert subprocess.run(['/bin/bash', '-c', 'echo $0'], capture_output=True).stdout == b'/bin/bash\\n'\n"
    )
    async with runtime.sandbox(image) as sandbox:
        result = await _run_python(sandbox, toolset, RUNNER, test_it=tests)
        assert (result.exit_status, "1 passed" in result.text) == (0, True), result.text


#: Files that root inside may plant so that its code runs in the interpreter; each of them names this library.
_EVIL = "/evil/libevil.so"
PLANTED = {
    "preloaded library": f"echo {_EVIL} > /etc/ld.so.preload",
    "list of libraries": "rm -f /etc/ld.so.cache; cp /evil/libevil.so /etc/ld.so.cache; echo /evil > /etc/ld.so.conf",
    "libraries of the same names": "for n in libc.so.6 libm.so.6 libz.so.1 libgcc_s.so.1; do for d in /lib /lib64 "
    "/usr/lib /lib/x86_64-linux-gnu /lib/aarch64-linux-gnu; do mkdir -p $d && cp /evil/libevil.so $d/$n; done; done",
    "name service": "echo 'passwd: evil files' > /etc/nsswitch.conf; for d in /lib /usr/lib /lib/x86_64-linux-gnu; do "
    "mkdir -p $d && cp /evil/libevil.so $d/libnss_evil.so.2; done",
    "character sets": "for d in /usr/lib/gconv /usr/lib/x86_64-linux-gnu/gconv /usr/lib64/gconv; do mkdir -p $d; "
    "rm -f $d/*cache; printf 'module INTERNAL UTF-8// libevil 1\\nmodule UTF-8// INTERNAL libevil 1\\n' "
    "> $d/gconv-modules; cp /evil/libevil.so $d/libevil.so; done",
    "locale": "for d in /usr/lib/locale/C.utf8 /usr/lib/locale/C.UTF-8; do mkdir -p $d; head -c 4000 /dev/urandom > "
    "$d/LC_CTYPE; done; head -c 4000 /dev/urandom > /usr/lib/locale/locale-archive",
    "configuration of OpenSSL": "for d in /etc/ssl /usr/lib/ssl /usr/local/ssl; do mkdir -p $d; rm -f $d/openssl.cnf; "
    "printf 'openssl_conf = a\\n[a]\\nproviders = b\\n[b]\\ne = c\\n[c]\\nmodule = /evil/libevil.so\\nactivate = 1\\n' "
    "> $d/openssl.cnf; done",
    "modules": "for d in /usr/lib/python3 /usr/lib/python3.11 /root ~/.local/lib/python3.11/site-packages; do "
    "mkdir -p $d; echo 'import ctypes; ctypes.CDLL(\"/evil/libevil.so\")' | tee $d/sitecustomize.py $d/pytest.py "
    "$d/usercustomize.py $d/process_isolation.py $d/x.pth $d/conftest.py; done",
    "home of the interpreter": "for d in / /root; do echo home = /evil > $d/pyvenv.cfg; done",
}


@pytest.fixture(scope="module")
def evil(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a library that is visible in the memory maps of every process that loads it."""
    directory = tmp_path_factory.mktemp("evil")
    for parent in (directory, *list(directory.parents)[:2]):
        parent.chmod(0o755)
    library = next(Path("/usr/lib").glob("*/libz.so.1"), None) or next(Path("/usr/lib64").glob("libz.so.1"), None)
    if library is None:
        pytest.skip("there is no library to plant")
    shutil.copy(library.resolve(), directory / "libevil.so")
    return directory


@pytest.mark.parametrize("plant", PLANTED)
async def test_nothing_that_root_plants_is_loaded(
    runtime: Runtime, toolset: Toolset, evil: Path, bare: Path, plant: str
) -> None:
    _add_programs(bare, ("cp", "rm", "mkdir", "printf", "head", "tee", "cat"))
    image = _with(folder_image(bare), toolset, root=True)
    image = dataclasses.replace(image, environment={"LD_LIBRARY_PATH": "/odd"}, binds=(*image.binds, (evil, "/evil")))
    script = (
        "import sys; sys.path[:0] = ['/.grader/packages']\n"
        "import pytest, process_isolation, pwd, hashlib, locale, sqlite3, threading, ctypes, socket, zoneinfo\n"
        "t = threading.Thread(target=int); t.start(); t.join(); locale.setlocale(locale.LC_ALL, ''); hashlib.md5(b'')\n"
        "try: pwd.getpwnam('nobody-at-all')\n"
        "except KeyError: pass\n"
        "try: socket.gethostbyname('nowhere.invalid')\n"
        "except OSError: pass\n"
        "print(sorted({l.split()[-1] for l in open('/proc/self/maps') if '/' in l and '/.grader/' not in l}))\n"
    )
    async with runtime.sandbox(image) as sandbox:
        planted = await sandbox.run(f"mkdir -p /etc; set -e; {PLANTED[plant]}; echo planted", timeout=20)
        assert planted.output.endswith(b"planted\n"), planted.text
        if plant == "preloaded library":  # its effect on every other program
            assert b"/evil/libevil.so" in (await sandbox.run("cat /proc/self/maps", timeout=10)).output
        result = await _run_python(sandbox, toolset, script)
    assert (result.exit_status, result.text) == (0, "[]\n"), result.text


#: A program of the agent that a test starts: it has the tests' user without their rights.
GRANDCHILD = """
p=$PPID
for what in mem environ maps fd/0 fd/1 cwd/. root/.; do
    head -c 1 /proc/$p/$what 2>/dev/null | grep -q . && echo SEEN $what
    ls -d /proc/$p/$what/../.. >/dev/null 2>&1 && echo SEEN $what
done
for fd in /proc/$p/fd/*; do (echo forged > $fd) 2>/dev/null && echo SEEN $fd; done
(echo x > /proc/$p/mem) 2>/dev/null && echo SEEN mem
echo 0 > /proc/$p/oom_score_adj
echo done
"""


async def test_a_program_that_a_test_starts_cannot_reach_the_tests(runtime: Runtime, toolset: Toolset) -> None:
    tests = (
        b"import subprocess\n"
        b"def test_agents():\n"
        b"    said = subprocess.run(['bash', 'solution'], capture_output=True, text=True, stdin=subprocess.DEVNULL)\n"
        b"    assert said.stdout == 'done\\n', said\n"
    )
    async with runtime.sandbox(_with(runtime.host_image(), toolset)) as sandbox:
        await sandbox.write_file("solution", GRANDCHILD.encode())
        result = await _run_python(sandbox, toolset, RUNNER, test_it=tests)
        assert (result.exit_status, "1 passed" in result.text) == (0, True), result.text
        # Without isolation it could.
        result = await _run_python(sandbox, toolset, RUNNER.replace(b"process_isolation.up()", b""), test_it=tests)
        assert "SEEN environ" in result.text


async def test_texts_are_replaced_without_moving_others() -> None:
    content = bytearray(b"\x7fELF\0/etc/one\0/etc/one/two\0x/etc/one\0/etc/one\0")
    elf.replace_text(content, "/etc/one", "/new")
    assert content == b"\x7fELF\0/new\0\0\0\0\0/etc/one/two\0x/etc/one\0/new\0\0\0\0\0"
    with pytest.raises(ValueError, match="not in it"):
        elf.replace_text(content, "/etc/none", "/new")
    with pytest.raises(ValueError, match="longer"):
        elf.replace_text(content, "/new", "/much/longer")
