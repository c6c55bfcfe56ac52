"""Program of test_ordinary_user and test_hard_links, run with the system's Python: prints the results."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import stat
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, sys.argv[1])

from ors_containers import (
    ApptainerRuntime,
    BubblewrapRuntime,
    ContainerSettings,
    InvalidCommand,
    Limits,
    RuntimeUnavailable,
    Sidecar,
    keep_from_sandboxes,
    self_check,
)
from ors_containers.layers.leaving_out import LeftOut
from ors_containers.layers.ownership import LayerOwners
from ors_containers.runtimes.namespace_runtime import NamespaceRuntime
from ors_containers.self_check import links, run_check

#: As root inside, or as the only user there, an agent may signal processes that enter its PID namespace.
ATTACKS = {
    "stops all": "for n in 1 2 3 4; do (trap '' TERM INT; while :; do kill -STOP -1; done) & done",
    "kills all": "for n in 1 2 3 4; do (while :; do kill -KILL -1; done) & done",
    "multiplies and kills": "bomb() { kill -KILL -1; bomb & bomb & }; bomb & bomb & bomb",
    "kills all, fast": 'perl -e \'fork; $SIG{TERM} = "IGNORE"; while (1) { kill "KILL", -1 }\' & sleep 0.3',
    "stops all, fast": "perl -e 'fork; while (1) { kill \"STOP\", -1 }' & sleep 0.3",
    "moves on and kills": "perl -e 'while (1) { fork and exit; kill \"KILL\", -1 }' & sleep 0.3",
    "multiplies": "bomb() { bomb | bomb & }; bomb",
}


#: Folders so deep that no path names them.
_NEST = """/usr/bin/python3 -c "
import os
for _ in range(3000):
    os.mkdir('/' * (not _) + 'deep'); os.chdir('/' * (not _) + 'deep')
" """


async def attacked(runtime: NamespaceRuntime) -> dict[str, str]:
    """Attack the next command and an examination. Return the failures by attack."""
    wrong: dict[str, str] = {}
    image = dataclasses.replace(runtime.host_image(), user=0, group=0, user_name="root", home="/root")
    # Process 1 and bash.
    program = ["/bin/bash", "-c", "cat /.examination/x; set -- /proc/[0-9]*; echo $#"]
    for name, attack in ATTACKS.items():
        async with runtime.sandbox(image, Limits(pids=40)) as sandbox:
            await sandbox.run(attack, timeout=1)
            await sandbox.run(f"(sleep 0.2; {attack}) &", timeout=5)
            await asyncio.sleep(0.5)
            result = await sandbox.examine(program, files={"x": b"x"}, timeout=20)
            if (result.exit_status, result.text) != (0, "x2\n"):
                wrong[f"{name}: examined"] = str(result)
            await sandbox.run(f"(sleep 0.2; {attack}) &", timeout=5)
            await asyncio.sleep(0.5)
            result = await sandbox.run("echo alive", timeout=5)
            if not result.text.endswith("alive\n") and not (result.timed_out or result.shell_restarted):
                wrong[f"{name}: run"] = str(result)
            live = await sandbox.examine(program, files={"x": b"x"}, timeout=2, keep_processes=True)
            if live.exit_status == 0 and not live.text.startswith("x"):
                wrong[f"{name}: examined live"] = str(live)
            result = await sandbox.examine(program, files={"x": b"x"}, timeout=20)
            if result.exit_status != 0:
                wrong[f"{name}: examined again"] = str(result)
    return wrong


async def examined(runtime: NamespaceRuntime) -> dict[str, str]:
    """Examine a sandbox with programs that lead to the server's interpreter, and with such that cannot be executed."""
    change = "import os; os.fchmod(os.open('/proc/self/exe', 0), 0o4755)"
    said: dict[str, str] = {}
    async with runtime.sandbox(runtime.host_image()) as sandbox:
        await sandbox.run(
            "printf '#!/proc/self/exe\n' > /tmp/script; chmod 755 /tmp/script; echo x > /tmp/text", timeout=5
        )
        for program in ("/proc/self/exe", "/tmp/script", "/nothing", "/tmp/text", "/bin/echo"):
            result = await sandbox.examine([program, "-c", change], timeout=10)
            said[program] = f"{result.exit_status} {result.text.strip()}"
    return said


_USED = {"/bin/cat", "/kept/file", "/none"}


async def in_containers(runtime: NamespaceRuntime) -> dict[str, str]:
    """Return what commands in a docker-like container with a sidecar print."""
    sidecar = Sidecar("side", runtime.host_image(), ("/bin/sleep", "60"))
    settings = ContainerSettings(disk=32 * 2**20, sidecars=(sidecar,))
    said: dict[str, str] = {}
    async with await runtime.open_container(runtime.host_image(), settings) as container:
        for command in (
            "id -u; grep CapBnd /proc/self/status",
            "touch /x; chown 5:5 /x; stat -c %u /x",
            "head -c 100000000 /dev/zero > /full; rm /full",
            "mount -t tmpfs none /mnt; umount -l /proc; mknod /d b 8 0; unshare -Ur true; echo $?",
            "ls -d /etc/shadow /root/.ssh /tmp/*; cat /proc/net/dev | grep -c :",
        ):
            said[command] = (await container.run(command, timeout=20)).text
        # The server's interpreter may be this user's own file.
        change = "import os; os.fchmod(os.open('/proc/self/exe', 0), 0o4755)"
        said["the server's interpreter"] = str((await container.run(change, shell="/proc/self/exe")).exit_status)
        timed = await container.run("sleep 30", timeout=0.2)
        said["timed out"] = f"{timed.exit_status} {timed.timed_out}"
        for user in ("root", 5):
            try:
                found = await container.execute(["sh", "-c", "id -u; cat; echo apart >&2"], stdin=b"in", user=user)
                said[f"executed as {user}"] = f"{found.stdout.decode()} {found.stderr.decode()}"
            except InvalidCommand as error:
                said[f"executed as {user}"] = str(error)
        await container.run("mkdir -m 700 /kept; echo kept >/kept/file; rm /etc/services; chown 5 /kept")
        await container.run(f"mkdir /shut; echo 1 >/shut/file; chmod 000 /shut/file /shut; {_NEST}")
        paths = (await container.execute(["/bin/cat", "/kept/file", "/none"], record=True)).recorded
        assert paths is not None
        said["recorded"] = f"{[sorted(kind & _USED) for kind in paths]}"
        with tempfile.TemporaryDirectory() as folder:
            async with await container.freeze(Path(folder)) as frozen:
                rules = LeftOut(["/etc/services", "/kept/other"])
                await LayerOwners().leave_out(frozen.layer, rules, runtime.host_image().layers)
                said["frozen"] = await over(runtime, frozen.layer)
                pool = Path(folder, "pool")
                pool.mkdir()
                await LayerOwners().share(frozen.layer, pool, 0.0)
                await LayerOwners().remove(frozen.layer)
    return said


async def over(runtime: NamespaceRuntime, layer: Path) -> str:
    """Return what a container over a layer prints of it, and of a name that it looks up."""
    image = runtime.host_image()
    image = dataclasses.replace(image, layers=(layer, *image.layers))
    async with await runtime.open_container(image, ContainerSettings(disk=32 * 2**20, refuse_names=True)) as container:
        look_up = "import socket; socket.gethostbyname('a.example')"
        commands = (
            "cat /kept/file; stat -c '%u %a' /kept; test -e /etc/services; echo $?",
            "cat /shut/file; stat -c '%a' /shut /shut/file",
            f'echo hosts: files dns >/etc/nsswitch.conf; /usr/bin/python3 -c "{look_up}" 2>&1 | tail -n 1',
        )
        return "".join([(await container.run(command, timeout=20)).text for command in commands])


async def listed(runtime: NamespaceRuntime, made: Path, *, large: bool) -> str:
    """Return what a sandbox sees of three layers that replace, hide and add files; not copied if they are large."""
    layers = [made / f"{large}-{name}" for name in ("top", "middle", "bottom")]
    for number, layer in enumerate(layers):
        for name in ("same", f"{number}", "removed", "opaque/inner", "file-or-folder", "deep/er/x"):
            (layer / "srv" / name).parent.mkdir(parents=True, exist_ok=True)
            (layer / "srv" / name).write_text(f"{name} {number}")
        (layer / "srv/linked").hardlink_to(layer / "srv/same")
        (layer / "srv/deep").chmod(0o700 + number)
        if large:
            with (layer / "srv/large").open("wb") as file:
                file.truncate(9 * 2**20)
    top, middle, bottom = (layer / "srv" for layer in layers)
    for name in ("removed", "file-or-folder"):
        (top / name).unlink()
    os.mknod(top / "removed", 0o600 | stat.S_IFCHR, 0)
    (top / "file-or-folder").mkdir()
    (bottom / "opaque/below").write_text("hidden")
    os.setxattr(middle / "opaque", "user.overlay.opaque", b"y")
    os.setxattr(bottom / "2", "user.kept", b"value")
    for place in sorted(path for layer in layers for path in (layer, *layer.rglob("*"))):
        os.utime(place, (1, 7), follow_symlinks=False)
    image = dataclasses.replace(runtime.host_image(), layers=(*layers, *runtime.host_image().layers))
    image = dataclasses.replace(image, user=0, group=0)
    command = (
        "cd /srv; find . ! -name large -printf '%p %y %m %U %G %T@ %l\\n' | sort; "
        "head -v -n 1 $(find . -type f ! -name large | sort)"
    )
    async with runtime.sandbox(image) as sandbox:
        same = (await sandbox.run("cd /srv; stat -c %h linked", timeout=20)).text
        assert same == "2\n", same
        return (await sandbox.run(command, timeout=20)).text


async def linked(runtime: NamespaceRuntime) -> dict[str, str]:
    """Return the outcomes of the checks of hard links, and of a layer below whose folder another layer has a link."""
    said = {name: (await run_check(runtime, name)).outcome for name in links.promise}
    with tempfile.TemporaryDirectory() as made:
        lower, upper, outside = (Path(made, name) for name in ("lower", "upper", "outside"))
        for folder in (lower / "srv", upper, outside):
            folder.mkdir(parents=True)
        (upper / "srv").symlink_to(outside)
        for folder in (lower / "srv", outside):
            (folder / "file").write_text("x")
        (lower / "hidden").mkdir()
        for name in ("file", "kept/file"):
            (lower / "hidden" / name).parent.mkdir(exist_ok=True)
            (lower / "hidden" / name).write_text("secret")
        keep_from_sandboxes(lower / "hidden/file")
        keep_from_sandboxes(lower / "hidden/kept")
        os.utime(outside / "file", (1, 1))
        host = runtime.host_image()
        async with runtime.sandbox(dataclasses.replace(host, layers=(upper, lower, *host.layers))) as sandbox:
            said["hidden files"] = (await sandbox.run("find /hidden -mindepth 1", timeout=20)).text
            said["a file outside"] = str((outside / "file").stat().st_mtime)
        said["small"], said["large"] = [await listed(runtime, Path(made), large=large) for large in (False, True)]
    return said


async def main(what: str, kind: type[NamespaceRuntime]) -> dict[str, Any]:
    try:
        async with kind() as runtime:
            description = runtime.describe()
            notes = description.notes
            if what == "containers":
                return {"notes": notes, "containers": await in_containers(runtime)}
            if what == "links":
                return {"notes": notes, "hard links": description.hard_links, "links": await linked(runtime)}
            if what == "examinations":
                return {"notes": notes, "examinations": await examined(runtime)}
            if what == "attacks":
                return {"notes": notes, "attacks": await attacked(runtime)}
            holds = {enforcement.limit: enforcement.holds for enforcement in description.enforcements}
            checks = [[check.name, check.outcome, check.detail] async for check in self_check(runtime)]
            return {"notes": notes, "holds": holds, "checks": checks}
    except RuntimeUnavailable as error:
        return {"unavailable": str(error)}


if __name__ == "__main__":
    kinds = {"apptainer": ApptainerRuntime, "bubblewrap": BubblewrapRuntime}
    print(json.dumps(asyncio.run(main(sys.argv[2], kinds[sys.argv[3]]))))
