"""Attacks of root in a docker-like container on the machine, the server and other containers; all are held.

Each test has the attack that Docker's default capabilities suggest, so that a right that one of them grants by mistake
is noticed. ``test_attacks`` has those on a strict sandbox.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from ors_containers import BubblewrapRuntime, Container, ContainerPolicy, ContainerSettings, RuntimeUnavailable
from ors_containers.linux.host_support import IDS
from ors_containers.runtimes.containers import container_start
from ors_containers.runtimes.containers.open_network import blocked_networks, why_not_open
from ors_containers.runtimes.namespace_runtime import NamespaceRuntime

pytestmark = pytest.mark.asyncio(loop_scope="module")

MIB = 2**20
SMALL = ContainerSettings(disk=64 * MIB, memory=256 * MIB)

#: Attacks that must fail: the command, whose exit status has to be other than 0.
REFUSED = {
    "mount": "mount -t tmpfs none /mnt",
    "bind": "mount --bind /tmp /mnt",
    "mount proc": "mkdir -p /tmp/p && mount -t proc none /tmp/p",
    "mount cgroups": "mkdir -p /tmp/c && mount -t cgroup -o memory none /tmp/c || mount -t cgroup2 none /tmp/c",
    "unmount": "umount -l /proc",
    "a namespace": "unshare -Urm true",
    "a mount namespace": "unshare -m true",
    "enter process 1": "nsenter -t 1 -m true",
    "a disk": "mknod /tmp/disk b 254 0 && head -c 1 /tmp/disk",
    "memory": "mknod /tmp/mem c 1 1 && head -c 1 /tmp/mem",
    "a loop device": "mknod /dev/loop0 b 7 0 && head -c 1 /dev/loop0",
    "core pattern": "echo '|/tmp/x' > /proc/sys/kernel/core_pattern",
    "modprobe": "echo /tmp/x > /proc/sys/kernel/modprobe",
    "remount sys": "mount -o remount,rw /proc/sys",
    "sysrq": "echo b > /proc/sysrq-trigger",
    "kcore": "head -c 4096 /proc/kcore",
    "kernel messages": "dmesg",
    "host name": "hostname elsewhere",
    "clock": "date -s '2001-01-01'",
    "a module": "insmod /tmp/x.ko",
    "an interface": "ip link add x type dummy",
    "a route": "ip route add 10.0.0.0/8 dev lo",
    "the machine's oom score": "echo -1000 > /proc/1/oom_score_adj",
    "priority": "nice -n -5 true 2>&1 | grep -q 'cannot set' && false",
    "keys": "/usr/bin/python3 -c 'import ctypes; exit(ctypes.CDLL(None).syscall(250, 0, 1) == -1)'",
    "bpf": "/usr/bin/python3 -c 'import ctypes; exit(ctypes.CDLL(None).syscall(321, 0, 0, 0) == -1)'",
    "packet sockets": "/usr/bin/python3 -c 'import socket; socket.socket(17, 3, 768)'",
    "virtual sockets": "/usr/bin/python3 -c 'import socket; socket.socket(40, 1)'",
    "a handle": "/usr/bin/python3 -c 'import ctypes; exit(ctypes.CDLL(None).syscall(304, -100, 0, 0) == -1)'",
}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def container(runtime: NamespaceRuntime) -> AsyncIterator[Container]:
    async with await runtime.open_container(runtime.host_image(), SMALL) as container:
        yield container


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def other(runtime: NamespaceRuntime) -> AsyncIterator[Container]:
    async with await runtime.open_container(runtime.host_image(), SMALL) as container:
        yield container


@pytest.mark.parametrize("attack", REFUSED)
async def test_refused(container: Container, attack: str) -> None:
    result = await container.run(REFUSED[attack], timeout=20)
    assert result.exit_status != 0, result.text


async def test_root_has_dockers_capabilities_and_no_more(container: Container) -> None:
    found = await container.run("grep Cap /proc/self/status; cat /proc/self/uid_map")
    for line in ("CapPrm:\t00000000a80425fb", "CapEff:\t00000000a80425fb", "CapBnd:\t00000000a80425fb"):
        assert line in found.text
    if os.geteuid() == 0:
        inside, outside, count = found.text.splitlines()[-1].split()
        assert (inside, count) == ("0", str(IDS))
        assert int(outside) >= 0x8000_0000


async def test_a_setuid_program_leads_no_further(container: Container) -> None:
    """It gives root inside, which the container's commands are anyway; the capabilities stay bounded."""
    assert (await container.run("cp /bin/cat /tmp/cat && chmod 4755 /tmp/cat")).exit_status == 0
    become = "import os; os.setgid(5); os.setuid(5); os.execv('/tmp/cat', ['cat', '/proc/self/status'])"
    found = await container.run(f'/usr/bin/python3 -c "{become}"')
    assert "CapBnd:\t00000000a80425fb" in found.text
    assert "Uid:\t5\t0\t0\t0" in found.text


async def test_ranges_of_ids_do_not_overlap(container: Container, other: Container) -> None:
    if os.geteuid() != 0:
        pytest.skip("an ordinary user has one range")
    first, second = [
        int((await each.run("cat /proc/self/uid_map")).text.split()[1]) for each in (container, other)
    ]  # fmt: skip
    assert abs(first - second) >= IDS


async def test_no_file_of_the_machine(container: Container, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret of the machine")
    tmp_path.chmod(0o755)
    escape = (
        "mkdir -p /tmp/a && /usr/bin/python3 -c \"import os; os.chroot('/tmp/a'); [os.chdir('..') for _ in range(99)];"
        f" os.chroot('.'); print(open('{secret}').read())\""
    )
    for attack in (
        f"cat {secret}",
        f"cat /proc/1/root{secret}",
        f"cat /proc/1/cwd{secret}",
        f"cat /../../..{secret}",
        f"for n in /proc/[0-9]*/fd/*; do cat $n{secret}; done",
        escape,
        "ls -d /work /root/.ssh /var/lib/docker /run/ors-containers",
        "cat /etc/shadow",
    ):
        result = await container.run(attack, timeout=20)
        assert "secret of the machine" not in result.text
        assert result.exit_status != 0, (attack, result.text)
    mounts = (await container.run("cat /proc/self/mountinfo")).text
    assert str(tmp_path) not in mounts
    assert "/run/ors-containers" not in mounts


async def test_no_process_of_the_machine(container: Container) -> None:
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])  # noqa: ASYNC220 - it is not awaited
    try:
        listed = await container.run("cat /proc/[0-9]*/comm; ls -d /proc/[0-9]* | wc -l")
        assert int(listed.text.split()[-1]) < 8
        attack = f"kill -KILL {sleeper.pid}; kill -KILL {os.getpid()} {os.getppid()}; kill -KILL -1"
        await container.run(attack, timeout=10)
        ptrace = f"import ctypes; exit(ctypes.CDLL(None).ptrace(16, {sleeper.pid}, 0, 0) == -1)"
        assert (await container.run(f'/usr/bin/python3 -c "{ptrace}"')).exit_status == 1
        assert sleeper.poll() is None
        assert (await container.run("echo alive")).text == "alive\n"
    finally:
        sleeper.kill()
        sleeper.wait()


async def test_no_process_of_another_container(container: Container, other: Container) -> None:
    await other.run("sleep 123 & echo", timeout=10)
    await container.run("kill -KILL -1; pkill -KILL sleep", timeout=10)
    assert (await other.run("pgrep sleep | wc -l")).text == "1\n"
    await container.write("/tmp/mine", b"mine")
    assert (await other.run("cat /tmp/mine")).exit_status == 1
    shared = "import socket; s = socket.socket(1, 1); s.bind('\\0ors'); s.listen(); import time; time.sleep(5)"
    await other.run(f'/usr/bin/python3 -c "{shared}" &', timeout=10)
    await asyncio.sleep(0.5)
    connect = "import socket; socket.socket(1, 1).connect('\\0ors')"
    assert (await other.run(f'/usr/bin/python3 -c "{connect}"')).exit_status == 0
    assert (await container.run(f'/usr/bin/python3 -c "{connect}"')).exit_status == 1


async def test_no_socket_of_the_machine(container: Container) -> None:
    with socket.socket(socket.AF_UNIX) as abstract, socket.create_server(("0.0.0.0", 0)) as listening:
        abstract.bind("\0ors-attacks")
        abstract.listen()
        port = listening.getsockname()[1]
        for address in (f"(2, ('127.0.0.1', {port}))", "(1, '\\0ors-attacks')"):
            attack = f"import socket; family, place = {address}; socket.socket(family, 1).connect(place)"
            assert (await container.run(f'/usr/bin/python3 -c "{attack}"')).exit_status == 1
    assert (await container.run("cat /proc/net/dev")).text.count(":") == 1


async def test_process_1_gives_nothing(container: Container) -> None:
    """Process 1 has fewer rights than root inside."""
    found = await container.run("grep -e Cap -e NoNewPrivs -e Seccomp: /proc/1/status; ls -l /proc/1/fd")
    assert "CapPrm:\t0000000000000000" in found.text
    assert "NoNewPrivs:\t1" in found.text
    assert "Seccomp:\t2" in found.text
    assert all("pipe:" in line or "null" in line for line in found.text.splitlines() if "->" in line)


async def test_process_1_cannot_be_made_to_end(runtime: NamespaceRuntime) -> None:
    """The end of process 1 is a failure of the machine, which no agent may cause when it expects a low reward."""
    trace = "import ctypes; exit(ctypes.CDLL(None).ptrace(16, 1, 0, 0) == -1)"
    write = "f = open('/proc/1/mem', 'r+b', 0); f.seek(0x400078); f.write(b'\\xcc' * 64)"
    async with await runtime.open_container(runtime.host_image(), SMALL) as container:
        for attack in (
            f'/usr/bin/python3 -c "{trace}"',
            f'/usr/bin/python3 -c "{write}"; kill -CONT 1',
            "cat /proc/1/maps",
        ):
            result = await container.run(f"{attack}", timeout=10)
            assert result.exit_status != 0 or "kill" in attack, result.text
        assert (await container.run("sleep 0.3; ls -l /proc/1/fd || echo alive")).text.endswith("alive\n")


async def test_a_command_has_no_descriptor_of_the_server(container: Container) -> None:
    for command in ("ls /proc/self/fd | wc -l", f": {'x' * 130_000}; ls /proc/self/fd | wc -l"):
        assert int((await container.run(command)).text) <= 5


@pytest.mark.parametrize("shell", ["/proc/self/exe", "/tmp/script", "/tmp/link"])
async def test_the_servers_interpreter_is_not_reached_as_a_shell(container: Container, shell: str) -> None:
    """The kernel follows ``/proc/self/exe`` to what the entering process executed before (CVE-2019-5736)."""
    script = "printf '#!/proc/self/exe\\n' > /tmp/script; chmod 755 /tmp/script; ln -sf /proc/self/exe /tmp/link"
    assert (await container.run(script)).exit_status == 0
    found = await container.run("import os; print(os.readlink('/proc/self/exe'))", shell=shell, timeout=10)
    assert (found.exit_status, found.text, found.timed_out) == (70, "", False)


async def test_a_fork_bomb_ends_with_the_container(runtime: NamespaceRuntime) -> None:
    settings = ContainerSettings(disk=64 * MIB, memory=256 * MIB, pids=100)
    if "pids" not in {each.limit for each in runtime.describe().enforcements if each.holds}:
        pytest.skip("no control group bounds processes here")
    async with await runtime.open_container(runtime.host_image(), settings) as container:
        result = await container.run("bomb() { bomb | bomb & }; bomb; sleep 60", timeout=2)
        assert result.timed_out
        async with await runtime.open_container(runtime.host_image(), SMALL) as unharmed:
            assert (await unharmed.run("echo fine", timeout=20)).text == "fine\n"


@pytest.mark.parametrize("signal", ["STOP", "KILL"])
async def test_signals_prevent_no_timeout(runtime: NamespaceRuntime, signal: str) -> None:
    """Root inside may signal whatever enters its container; then the time-out ends every process of it."""
    async with await runtime.open_container(runtime.host_image(), SMALL) as container:
        attack = f"trap '' TERM; for n in 1 2 3; do (while :; do kill -{signal} -1; done) & done; sleep 60"
        started = time.monotonic()
        result = await container.run(attack, timeout=1)
        assert result.timed_out or result.exit_status == 137
        await container.run("echo again", timeout=5)
        await container.run("sleep 60", timeout=0.5)
        assert time.monotonic() - started < 60
        async with await runtime.open_container(runtime.host_image(), SMALL) as unharmed:
            assert (await unharmed.run("echo fine", timeout=20)).text == "fine\n"


async def test_a_flood_of_files_stays_on_its_disk(container: Container, other: Container) -> None:
    fill = "mkdir -p /tmp/f; cd /tmp/f; head -c 1000000000 /dev/zero > big; for n in $(seq 30000); do : > $n; done"
    result = await container.run(f"{fill} 2>&1 | tail -1; df --output=avail -k / | tail -1", timeout=60)
    assert "No space left on device" in result.text
    assert (await other.run("head -c 10000000 /dev/zero > /tmp/room")).exit_status == 0
    assert (await container.run("rm -rf /tmp/f; echo back > /tmp/b; cat /tmp/b")).text == "back\n"


@pytest.mark.long
async def test_the_machine_is_not_reached_by_an_open_network(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if reason := why_not_open(True):
        pytest.skip(reason)
    own = [each.removesuffix("/32") for each in blocked_networks() if each.endswith("/32") and each[:4] != "168."]
    listening = socket.create_server(("0.0.0.0", 0))
    port = listening.getsockname()[1]
    settings = ContainerSettings(disk=64 * MIB, network="open")
    attack = (
        "import socket, sys; s = socket.socket(); s.settimeout(1); "
        "len(sys.argv) > 3 and s.setsockopt(1, 25, b'tap0'); s.connect((sys.argv[1], int(sys.argv[2])))"
    )
    runtime = BubblewrapRuntime(state)
    runtime.policy = ContainerPolicy(network="open")
    try:
        await runtime.start()
    except RuntimeUnavailable as error:
        pytest.skip(str(error))
    with listening:
        async with await runtime.open_container(runtime.host_image(), settings) as container:
            assert (container.network, container.notes) == ("open", ())
            for address in [*own, "127.0.0.1", "198.18.0.2", "169.254.169.254", "192.168.1.1", "10.0.2.2"]:
                for device in ("", " tap0"):
                    command = f'/usr/bin/python3 -c "{attack}" {address} {port}{device}'
                    tried = await container.run(command, timeout=20)
                    assert tried.exit_status == 1, (address, device, tried.text)
            raw = await container.run("/usr/bin/python3 -c 'import socket; socket.socket(2, 3, 255)'")
            assert "Operation not permitted" in raw.text
            assert (await container.run("ip route del unreachable 10.0.0.0/8")).exit_status != 0
        if own:  # the network is one: what is not blocked is reached
            monkeypatch.setattr(container_start, "blocked_networks", list[str])
            async with await runtime.open_container(runtime.host_image(), settings) as container:
                tried = await container.run(f'/usr/bin/python3 -c "{attack}" {own[0]} {port}', timeout=20)
                assert tried.exit_status == 0, tried.text
    await runtime.close()


async def test_an_open_network_is_the_operators_to_allow(runtime: NamespaceRuntime) -> None:
    async with await runtime.open_container(
        runtime.host_image(), ContainerSettings(disk=64 * MIB, network="open")
    ) as container:
        assert container.network == "none"
        assert "ORS_SANDBOX_NETWORK=open" in container.notes[0]
        assert (await container.run("cat /proc/net/dev")).text.count(":") == 1
