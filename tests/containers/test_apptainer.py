"""The Apptainer runtime beyond the contract: SIF files, many starts at once, and leftovers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
import pytest_asyncio
from ors_containers import (
    LIMIT_NAMES,
    ApptainerRuntime,
    Image,
    Limits,
    RuntimeUnavailable,
    SandboxDied,
    ShellFailed,
    StartFailed,
    runtime_names,
)
from ors_containers.graders.portable_python import python_toolset
from ors_containers.images import ImageStore
from ors_containers.runtimes.apptainer import find_apptainer

from tests.support.processes import processes
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

RUNTIMES = ("apptainer",)

_FAKE = """#!/bin/sh
# An apptainer that leaves something out.
for word; do
    shift
    case " $LEFT_OUT " in *" $word "*) ;; *) set -- "$@" "$word" ;; esac
done
exec PROGRAM "$@"
"""


@pytest.fixture(scope="module")
def folder(state: Path) -> Path:
    """Create a small root file system: bash and a few programs with their libraries."""
    root = state / "small"
    for name in ("bin", "data/inner", "etc", "home/user"):
        (root / name).mkdir(parents=True)
    for program in ("bash", "cat", "env", "ls", "rm", "mkdir", "stat", "sleep"):
        found = shutil.which(program)
        assert found is not None
        shutil.copy(found, root / "bin" / program)
        said = subprocess.run(["ldd", found], capture_output=True, text=True, check=True).stdout
        for library in (word for word in said.split() if word.startswith("/")):
            target = root / library.removeprefix("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, target)
    (root / "bin/sh").symlink_to("bash")
    (root / "etc/passwd").write_text("root:x:0:0::/root:/bin/bash\nuser:x:1000:1000::/home/user:/bin/bash\n")
    (root / "data/file").write_text("the image's\n")
    (root / "data/inner/deep").write_text("deep\n")
    if os.geteuid() == 0:
        for path in (root / "data", *(root / "data").rglob("*"), root / "home/user"):
            os.chown(path, 1000, 1000)
    return root


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sif_image(runtime: ApptainerRuntime, state: Path, folder: Path) -> Image:
    """Build the same root file system from a definition file to a SIF, and add it to the image store."""
    if shutil.which("mksquashfs") is None:
        pytest.skip("mksquashfs is missing: apt install squashfs-tools")
    definition = state / "small.def"
    definition.write_text(f"Bootstrap: localimage\nFrom: {folder}\n\n%environment\n    export TASK=small\n")
    target = state / "small.sif"
    command = [find_apptainer(), "--quiet", "build", str(target), str(definition)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)  # noqa: ASYNC221 - nothing else runs
    if done.returncode != 0 and os.geteuid() != 0:
        pytest.skip(f"an ordinary user cannot build here: {done.stderr}")
    assert done.returncode == 0, done.stderr
    return await ImageStore(state / "store").import_image(target)


async def test_it_is_installed() -> None:
    assert "apptainer" in runtime_names()


async def test_every_limit_is_described(runtime: ApptainerRuntime) -> None:
    description = runtime.describe()
    assert tuple(enforcement.limit for enforcement in description.enforcements) == LIMIT_NAMES
    assert all(enforcement.holds or enforcement.remedy for enforcement in description.enforcements)
    assert description.version[0].isdigit()


# ── images ──


async def test_a_sif_is_unpacked_once_and_shared(runtime: ApptainerRuntime, sif_image: Image) -> None:
    async with runtime.sandbox(sif_image) as one, runtime.sandbox(sif_image) as other:
        result = await one.run(
            "cat /data/file; echo mine > /data/file; rm -r /data/inner; mkdir /data/inner", timeout=5
        )
        assert (result.exit_status, result.output) == (0, b"the image's\n")
        assert (await one.run("cat /data/file; ls -A /data/inner; echo $TASK", timeout=5)).output == b"mine\nsmall\n"
        assert (await other.run("cat /data/file /data/inner/deep", timeout=5)).output == b"the image's\ndeep\n"
        if os.geteuid() == 0:
            assert (await other.run("stat -c %u:%g /etc/passwd /data/file", timeout=5)).output == b"0:0\n1000:1000\n"
    async with runtime.sandbox(sif_image) as again:
        assert (await again.run("cat /data/file", timeout=5)).output == b"the image's\n"


async def test_layers_lie_over_each_other(runtime: ApptainerRuntime, folder: Path, state: Path) -> None:
    upper = state / "upper"
    (upper / "data").mkdir(parents=True)
    (upper / "data/file").write_text("the upper one's\n")
    async with runtime.sandbox(Image(name="two", layers=(upper, folder))) as sandbox:
        result = await sandbox.run("cat /data/file /data/inner/deep; ls -A /", timeout=5)
        assert result.text.startswith("the upper one's\ndeep\n")
        listed = set(result.text.split()[4:])
        assert listed <= {
            *(".examination", "bin", "data", "dev", "etc", "home", "lib", "lib64", "proc", "run", "tmp", "usr", "var")
        }
        mounts = (await sandbox.run("cat /proc/self/mountinfo", timeout=5)).text
        assert str(folder) not in mounts
        assert "/opt" not in mounts


async def test_an_images_scripts_are_not_run(runtime: ApptainerRuntime, folder: Path, state: Path) -> None:
    """Apptainer would run them, unlimited and unfiltered, in the container it creates."""
    scripts = state / "scripted/.singularity.d/env"
    scripts.mkdir(parents=True)
    (scripts / "90-environment.sh").write_text("echo noise\nexport NOISE=1\nsleep 1000 &\n")
    async with runtime.sandbox(Image(name="scripted", layers=(state / "scripted", folder))) as sandbox:
        found = await sandbox.run("cat /proc/[0-9]*/comm; echo $NOISE; cat /.singularity.d/env/90*", timeout=5)
        assert found.text.endswith("\n\necho noise\nexport NOISE=1\nsleep 1000 &\n")
        assert found.text.count("sleep") == 1


async def test_apptainers_own_threads_are_not_counted(runtime: ApptainerRuntime) -> None:
    if not runtime.describe().enforcements[LIMIT_NAMES.index("pids")].holds:
        pytest.skip("pids is not enforced here")
    async with runtime.sandbox(runtime.host_image(), Limits(pids=4)) as sandbox:
        result = await sandbox.run("sleep 0.5 & sleep 0.5 & wait; echo done", timeout=5)
        assert (result.exit_status, result.output[-5:], result.shell_restarted) == (0, b"done\n", False)


async def test_a_bind_appears_where_the_image_has_nothing(runtime: ApptainerRuntime, folder: Path, state: Path) -> None:
    shared = state / 'odd, "name"'
    shared.mkdir(exist_ok=True)
    (shared / "file").write_text("bound\n")
    image = Image(name="bound", layers=(folder,), binds=((shared, '/new/odd, "place"'),))
    async with runtime.sandbox(image) as sandbox:
        result = await sandbox.run("cd /new/odd*; cat file; echo x > file", timeout=5)
        assert result.text.startswith("bound\n")
        assert "Read-only file system" in result.text


@pytest.mark.long
async def test_a_grader_brings_its_own_python(runtime: ApptainerRuntime, folder: Path, state: Path) -> None:
    toolset = await python_toolset(state / "toolset")
    importing = f"import sys; sys.path.insert(0, {toolset.packages!r}); import pytest"
    script = f"{importing}; print(pytest.__name__, open('own').read())"
    async with runtime.sandbox(Image(name="graded", layers=(folder,), binds=(toolset.bind,))) as sandbox:
        await sandbox.run("echo -n left > own; sleep 1000 &", timeout=5)
        for live in (True, False):
            result = await sandbox.examine(
                [*toolset.command, *("-I", "-S", "-B", "-c", script)], timeout=30, keep_processes=live
            )
            assert (result.exit_status, result.output) == (0, b"pytest left\n")


async def test_failed_starts_are_reported(runtime: ApptainerRuntime, folder: Path, tmp_path: Path) -> None:
    layer = tmp_path / "layer"
    layer.mkdir()
    image = Image(name="gone", layers=(layer, folder))
    layer.rmdir()
    with pytest.raises(StartFailed, match="layer"):
        async with runtime.sandbox(image):
            pass
    with pytest.raises(ShellFailed, match="/bin/none"):
        async with runtime.sandbox(Image(name="no shell", layers=(folder,), shell="/bin/none")):
            pass


# ── isolation ──


async def test_the_host_is_not_reachable(runtime: ApptainerRuntime) -> None:
    async with runtime.sandbox(runtime.host_image()) as sandbox:
        for name in ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup"):
            inside = (await sandbox.run(f"readlink /proc/self/ns/{name}", timeout=5)).text.strip()
            assert inside.startswith(name)
            assert inside != os.readlink(f"/proc/self/ns/{name}"), name  # noqa: PTH115 - leads to no path
        # Loopback exists and is up: tasks have services of their own.
        said = (await sandbox.run("cat /proc/net/dev /proc/net/if_inet6 /proc/net/fib_trie", timeout=5)).text
        assert "127.0.0.1" in said
        assert "eth" not in said
        assert (await sandbox.run("env | grep -c -e APPTAINER -e SINGULARITY", timeout=5)).output == b"0\n"


@pytest.mark.parametrize(
    ("left_out", "cause"),
    [
        ("--net --network none", "host's net namespace"),
        ("--containall", "no container with process ids of its own"),
    ],
)
async def test_an_apptainer_that_does_not_isolate_is_refused(
    runtime: ApptainerRuntime, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left_out: str, cause: str
) -> None:
    programs = state / f"programs{len(left_out)}"  # every user may pass through it, unlike pytest's own directories
    programs.mkdir()
    fake = programs / "apptainer"
    script = _FAKE.replace("PROGRAM", find_apptainer()).replace("$LEFT_OUT", left_out)
    fake.write_text(script)
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    with pytest.raises(RuntimeUnavailable, match=cause):
        await ApptainerRuntime(state).start()


async def test_missing_requirements_are_named(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = state / "none"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    with pytest.raises(RuntimeUnavailable, match="install-apptainer"):
        await ApptainerRuntime(state).start()
    fake = programs / "apptainer"
    fake.write_text("#!/bin/sh\necho 1.0.3\n")
    fake.chmod(0o755)
    with pytest.raises(RuntimeUnavailable, match=r"1\.0\.3 is too old"):
        await ApptainerRuntime(state).start()
    fake.write_text("#!/bin/sh\necho broken >&2; exit 3\n")
    with pytest.raises(RuntimeUnavailable, match="does not run: broken"):
        await ApptainerRuntime(state).start()
    fake.write_text("#!/bin/sh\n[ $1 = version ] && echo 1.4.0 || { echo 'it may not' >&2; exit 1; }\n")
    with pytest.raises(RuntimeUnavailable, match="it may not"):
        await ApptainerRuntime(state).start()


# ── many sandboxes, and their ends ──


@pytest.mark.long
async def test_64_start_at_once_without_one_failure(state: Path) -> None:
    async with ApptainerRuntime(state, starts_at_once=64) as runtime:
        sandboxes = [runtime.sandbox(runtime.host_image(), Limits(disk=8 * 2**20)) for _ in range(64)]
        await asyncio.gather(*(sandbox.start() for sandbox in sandboxes))
        results = await asyncio.gather(*(sandbox.run(f"echo {n}", timeout=60) for n, sandbox in enumerate(sandboxes)))
        assert [result.text for result in results] == [f"{n}\n" for n in range(64)]
        await asyncio.gather(*(sandbox.stop() for sandbox in sandboxes))


async def test_a_container_that_dies_is_reported(runtime: ApptainerRuntime, state: Path) -> None:
    async with runtime.sandbox(runtime.host_image()) as sandbox:
        running = asyncio.create_task(sandbox.run("sleep 100", timeout=50))
        await asyncio.sleep(0.2)
        (lease,) = state.glob(f"owners/*/{sandbox.id}.lease")
        os.kill(json.loads(lease.read_text().splitlines()[-1])["processes"][-1][0], signal.SIGKILL)
        with pytest.raises(SandboxDied):
            await running


async def test_a_cancelled_start_leaves_nothing(runtime: ApptainerRuntime, state: Path) -> None:
    for delay in (0.0, 0.02, 0.05, 0.1, 0.15, 0.2):
        sandbox = runtime.sandbox(runtime.host_image())
        starting = asyncio.create_task(sandbox.start())
        await asyncio.sleep(delay)
        starting.cancel()
        await asyncio.wait([starting])
        if not starting.cancelled():
            await sandbox.stop()
    assert list(state.glob("owners/*/*.lease")) == []


@pytest.mark.parametrize(
    ("ends", "count"),
    [("server", 12), ("server and launcher", 12), pytest.param("server", 200, marks=pytest.mark.long)],
)
async def test_a_killed_server_leaves_nothing(runtime: ApptainerRuntime, state: Path, ends: str, count: int) -> None:
    seconds = f"1000.{secrets.randbelow(10**9)}"  # unique, so that these processes can be recognised
    server = subprocess.Popen(  # noqa: ASYNC220 - a process to be killed; nothing else runs on this loop
        [sys.executable, str(Path(__file__).with_name("crowd.py")), str(state), str(count), seconds, "apptainer"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    assert server.stdout is not None
    launcher = 0
    try:
        up = json.loads(await asyncio.to_thread(server.stdout.readline))
        assert [text.endswith("up\n") for text in up] == [True] * count
        paths = list(state.glob("owners/*/*.lease"))
        leases = [json.loads(path.read_text().splitlines()[-1]) for path in paths]
        assert len(leases) == count
        namespaces = _network_namespaces({process for lease in leases for process, _ in lease["processes"]})
        assert len(namespaces) == count + 1  # theirs, and the host's, to which the processes beside each belong
        ((launcher, _),) = json.loads((paths[0].parent / "owner.json").read_text())["processes"]
        # The kernel may give the same numbers again to namespaces of later processes, so only these are compared.
        everybody = processes(lambda _: True)
    finally:
        if launcher and ends != "server":
            os.kill(launcher, signal.SIGKILL)
        server.kill()
        server.wait()
        server.stdout.close()
    # No server has started again: the kernel alone ends them.
    theirs = [process for lease in leases for process, _ in lease["processes"]]
    await until(lambda: not any(Path(f"/proc/{process}").exists() for process in (launcher, *theirs)), within=20)
    await until(lambda: _sleepers(seconds) == 0, within=20)
    assert len(_network_namespaces(everybody) & namespaces) == 1
    async with ApptainerRuntime(state):
        groups = [Path(group) for lease in leases for group in lease["groups"]]
        assert [group for group in groups if group.exists()] == []
        assert not any(path.exists() for path in paths)
    assert str(state) not in Path("/proc/self/mountinfo").read_text()


def _network_namespaces(of: Iterable[int | str]) -> set[int]:
    """Return the network namespaces of these processes, as far as they exist."""
    found: set[int] = set()
    for name in of:
        with contextlib.suppress(OSError):
            found.add(Path(f"/proc/{name}/ns/net").stat().st_ino)
    return found


def _sleepers(seconds: str) -> int:
    return len(processes(lambda arguments: arguments.endswith(f"sleep\0{seconds}\0".encode())))
