"""Programs of examinations that a copy of a warm Python runs: what they see is what an executed one sees."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
from typing import Any

import pytest
from ors_containers import Sandbox
from ors_containers.graders.portable_python import Toolset
from ors_containers.runtimes.namespace_runtime import NamespaceRuntime

from tests.containers.warm_programs import examine, image_of, warm_pythons
from tests.support.paths import ROOT

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(os.geteuid() != 0, reason="a server that is an ordinary user starts no warm Python"),
]

RUNTIMES = ("bubblewrap", pytest.param("apptainer", marks=pytest.mark.long))

#: Prints whatever a process can see of itself, and how often `main` ran in it.
PROBE = """
import ctypes, gc, json, locale, os, platform, resource, signal, sys, time, uuid
COUNT = 0

def depth():
    try:
        return 1 + depth()
    except RecursionError:
        return 1

def hunted(words):
    # The first character of each is given as a number: so no word is there only because it is asked for.
    found = []
    for line in open("/proc/self/maps"):
        place, modes = line.split()[:2]
        start, end = (int(number, 16) for number in place.split("-"))
        if modes.startswith("rw"):
            memory = ctypes.string_at(start, end - start)
            for first, rest in words:
                at = memory.find(rest.encode())
                while at > 0:
                    found += [rest] if memory[at - 1] == first else []
                    at = memory.find(rest.encode(), at + 1)
    return found

def main():
    global COUNT
    COUNT += 1
    deep = depth()
    words = json.loads(sys.stdin.read() or "[]")
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # not dumpable, as a grader makes itself first; a warm one is from the start
    status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
    kept = ("Name", "Umask", "Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs",
            "Seccomp", "Seccomp_filters", "SigBlk", "SigIgn", "SigCgt", "Threads", "CoreDumping")
    said = {name: status[name].split() for name in kept if name in status}
    descriptors = os.listdir("/proc/self/fd")
    said["descriptors"] = sorted(name for name in descriptors if os.path.exists(f"/proc/self/fd/{name}"))
    limits = [name for name in dir(resource) if name.startswith("RLIMIT")]
    said["limits"] = {name: resource.getrlimit(getattr(resource, name)) for name in limits}
    said["variables"] = dict(sorted(os.environ.items()))
    said["libc"] = ctypes.CDLL(None).getenv(b"LC_CTYPE") != 0
    said["arguments"] = sys.argv
    said["path"] = sys.path
    said["flags"] = str(sys.flags)
    said["python"] = [sys.executable, sys.prefix, sys.version]
    said["place"] = [os.getcwd(), os.path.realpath("/proc/self/root")]
    said["locale"] = [locale.setlocale(locale.LC_ALL), locale.getpreferredencoding(False), sys.getfilesystemencoding(),
                      sys.stdin.encoding, sys.stdout.encoding, sys.stdout.errors]
    said["session"] = os.getsid(0) == os.getpid()
    said["oom"] = open("/proc/self/oom_score_adj").read()
    said["groups"] = open("/proc/self/cgroup").read()
    said["mounts"] = sorted(line.split()[4] + " " + line.split()[5] for line in open("/proc/self/mountinfo"))
    said["namespaces"] = [os.path.exists(f"/proc/self/ns/{name}") for name in ("mnt", "pid", "user")]
    said["program"] = [os.readlink(f"/proc/self/{name}") for name in ("exe", "cwd", "root")]
    said["dumpable"] = ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)
    said["depth"] = deep
    said["hunted"] = hunted(words)
    said["streams"] = [[file.seekable(), file.line_buffering] for file in (sys.stdin, sys.stdout)]
    said["time"] = [time.tzname, time.timezone, time.strftime("%c %Z", time.localtime(0))]
    said["name"] = platform.node()
    said["ours"] = [name for name in sys.modules if name.startswith("ors_")]
    said["reaper"] = os.getppid() != 1
    said["collector"] = [gc.isenabled(), gc.get_threshold()]
    said["hooks"] = [len(sys.meta_path), len(sys.path_hooks)]
    said["count"] = COUNT
    said["warm"] = not open("/proc/self/cmdline").read().strip("\\0")
    sys.stdout.write(json.dumps(said))
    sys.stdout.flush()
    return 0

if __name__ == "__main__":
    os._exit(main())
"""


async def warm_probe(sandbox: Sandbox, toolset: Toolset, **options: Any) -> dict[str, Any]:
    """Return what the probe sees in a warm Python, which the first examination starts."""
    async with asyncio.timeout(20):
        while True:
            result = await examine(sandbox, toolset, PROBE, warm=True, **options)
            assert result.exit_status == 0, result.text
            said = json.loads(result.output)
            if said.pop("warm"):
                return said


@pytest.mark.parametrize(
    "variables",
    [
        *({"TZ": "America/New_York"}, {"LD_PRELOAD": "/none.so", "LOCPATH": "/usr/lib/locale"}),
        *({"LANG": "de_DE.ISO-8859-1"}, {"LC_ALL": "C"}, {"LANG": "C.UTF-8"}, {"LC_CTYPE": "POSIX"}),
    ],
)
@pytest.mark.parametrize("live", [False, True])
async def test_it_sees_what_an_executed_program_sees(
    runtime: NamespaceRuntime, toolset: Toolset, variables: dict[str, str], live: bool
) -> None:
    async with runtime.sandbox(image_of(runtime, toolset, variables)) as sandbox:
        warm = await warm_probe(sandbox, toolset, keep_processes=live)
        cold = json.loads((await examine(sandbox, toolset, PROBE, warm=False, keep_processes=live)).output)
    assert cold.pop("warm") is False  # only its arguments in /proc are blank
    assert warm == cold


async def test_it_holds_nothing_of_the_machine_or_of_other_examinations(
    runtime: NamespaceRuntime, toolset: Toolset
) -> None:
    async with runtime.sandbox(image_of(runtime, toolset, {"KEY": "another's secret"})) as other:
        await warm_probe(other, toolset)
        async with runtime.sandbox(image_of(runtime, toolset, {"KEY": "its own secret"})) as sandbox:
            words = ("another's secret", str(toolset.folder), str(ROOT), os.uname().nodename, sandbox.id, other.id)
            rests = [(ord(word[0]), word[1:]) for word in (*words, "its own secret")]
            given = json.dumps(rests).encode()
            warm = set((await warm_probe(sandbox, toolset, input=given))["hunted"])
            cold = set(json.loads((await examine(sandbox, toolset, PROBE, warm=False, input=given)).output)["hunted"])
    assert "ts own secret" in cold  # so it finds what is there
    assert warm == cold


async def test_one_that_was_started_with_other_words_is_not_taken(runtime: NamespaceRuntime, toolset: Toolset) -> None:
    async with runtime.sandbox(image_of(runtime, toolset, {})) as sandbox:
        await warm_probe(sandbox, toolset)
        said = json.loads((await examine(sandbox, toolset, PROBE, warm=True, flags=("-I", "-S", "-B", "-O"))).output)
    assert "optimize=1" in said["flags"]


async def test_its_end_is_no_end_of_examinations(runtime: NamespaceRuntime, toolset: Toolset) -> None:
    async with runtime.sandbox(image_of(runtime, toolset, {})) as sandbox:
        await warm_probe(sandbox, toolset)
        before = warm_pythons()
        for process in before:
            ended = os.pidfd_open(process)
            os.kill(process, signal.SIGKILL)
            select.select([ended], [], [])
            os.close(ended)
        await warm_probe(sandbox, toolset)
        assert not set(before) & set(warm_pythons())


async def test_other_files_are_not_taken_for_those_that_were_imported(
    runtime: NamespaceRuntime, toolset: Toolset
) -> None:
    async with runtime.sandbox(image_of(runtime, toolset, {})) as sandbox:
        await warm_probe(sandbox, toolset)
        for number in range(3):
            text = f"import os\ndef main():\n  os.write(1, b'{number}')\n  return 0\n"
            text += "if __name__ == '__main__': main()\n"
            assert (await examine(sandbox, toolset, text, warm=True)).output == str(number).encode()


async def test_a_sandbox_without_the_toolset_runs_none(runtime: NamespaceRuntime, toolset: Toolset) -> None:
    """Whatever lies in the place of the toolset would be imported later."""
    async with runtime.sandbox(image_of(runtime, toolset, {})) as sandbox:
        await warm_probe(sandbox, toolset)
    async with runtime.sandbox(runtime.host_image()) as sandbox:
        assert (await examine(sandbox, toolset, PROBE, warm=True)).exit_status == 127
