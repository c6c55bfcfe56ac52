"""Promises about examinations, frozen and live."""

from __future__ import annotations

import asyncio

from ors_containers.errors import InvalidCommand, SandboxBusy
from ors_containers.runtime import Runtime
from ors_containers.sandbox import Sandbox
from ors_containers.self_check.promises import PromiseBroken, Promises, examine, expect

promise = Promises()


@promise("an examination sees the agent's files, with files and input of its own")
async def an_examination_has_its_own_files_and_input(runtime: Runtime, sandbox: Sandbox) -> None:
    await sandbox.run("echo left > left; cd /var; export HOME=/var PS4=agents; PATH=/var", timeout=20)
    files = {"one": b"1\n", "in/a/folder": bytes(range(256)) * 1000}
    script = (
        "cat; cat left /.examination/one; wc -c < /.examination/in/a/folder; pwd; id -u; echo $HOME $PS4; "
        "echo w > /.examination/w; echo err >&2; exit 3"
    )
    result = await examine(sandbox, script, files=files, input=b"the input\n" * 20_000, output_limit=10**6)
    expected = "the input\n" * 20_000 + "left\n1\n256000\n/home/user\n1000\n/home/user +\nerr\n"
    expect((result.exit_status, result.text) == (3, expected), f"{result.exit_status}, {result.text[-200:]!r}")
    result = await sandbox.run("ls -A /.examination; pwd; echo $PATH", timeout=20)
    expect(result.shell_restarted and result.text.endswith("/var\n/var\n"), f"afterwards: {result.text!r}")
    for program, status in (("/none", 127), ("/etc/passwd", 126)):
        result = await sandbox.examine([program], timeout=20)
        expect(result.exit_status == status, f"{program} gave {result.exit_status}, not {status}")


@promise("a frozen examination is alone, a live one among the background processes")
async def frozen_is_alone_and_live_is_not(runtime: Runtime, sandbox: Sandbox) -> None:
    await sandbox.run("sleep 1001 & setsid sleep 1002 & (setsid sleep 1003 &); trap '' TERM INT", timeout=20)
    counting = 'for s in /proc/[0-9]*/cmdline; do tr "\\0" " " <$s; echo; done'
    result = await examine(sandbox, counting, keep_processes=True)
    alive = [number for number in range(1001, 1004) if f"sleep {number}" in result.text]
    expect(alive == [1001, 1002, 1003], f"live: of sleep 1001 … 1003 these are alive: {alive}")
    await sandbox.run("sleep 1004 &", timeout=20)
    result = await examine(sandbox, counting)
    expect("sleep" not in result.text, f"frozen: {result.text}")


@promise("an examination past its time is killed with its descendants")
async def a_timed_out_examination_is_ended(runtime: Runtime, sandbox: Sandbox) -> None:
    for keep in (True, False):
        script = "echo begun; setsid sleep 1001 & (sleep 1002 &); sleep 1003"
        result = await examine(sandbox, script, timeout=0.5, keep_processes=keep)
        found = (result.timed_out, result.exit_status, result.text)
        expect(found == (True, 124, "begun\n"), found)
        result = await examine(sandbox, "(setsid sleep 1004 &); echo ended", keep_processes=keep)
        expect(result.text == "ended\n" and result.exit_status == 0, result)
        result = await sandbox.run("grep -l sleep /proc/[0-9]*/comm", timeout=20)
        expect("/proc/" not in result.text, f"{result.text} went on")


@promise("a frozen examination cannot be prevented")
async def a_frozen_examination_cannot_be_prevented(runtime: Runtime, sandbox: Sandbox) -> None:
    attacks = (
        "bomb() { bomb | bomb & }; bomb",
        "for n in 1 2 3 4; do (trap '' TERM INT; while :; do kill -STOP -1; done) & done",
        "for n in 1 2 3 4; do (while :; do (kill -KILL -1; :) & done) & done",
        "head -c 100000000 /dev/zero > /tmp/filler; head -c 100000000 /dev/zero > ~/filler",
        "chmod 0 ~ ; rm -rf ~; ln -s /nowhere ~; kill -STOP $$",
    )
    for attack in attacks:
        await sandbox.run(attack, timeout=1)
        result = await examine(sandbox, "cat /.examination/x; (echo forks); echo > /.examination/y", files={"x": b"x"})
        expect((result.exit_status, result.text) == (0, "xforks\n"), f"after {attack!r}: {result}")


@promise("background processes cannot look into a live examination")
async def a_live_examination_cannot_be_spied_on(runtime: Runtime, sandbox: Sandbox) -> None:
    spy = (
        "while :; do for p in /proc/[0-9]*; do [ ${p#/proc/} -gt $BASHPID ] || continue; "
        "cat $p/environ $p/root/.examination/* $p/cwd/secret; "
        "for f in $p/fd/[0-5]; do timeout 0.02 head -c 99 $f; echo forged | timeout 0.02 tee $f; done; done; "
        "cat /.examination/*; done > seen 2>/dev/null"
    )
    await sandbox.run(f"(trap '' INT TERM; {spy}) </dev/null &", timeout=20)
    # The spy finds the secret of this process, which is not protected: so it would find an unprotected examination's.
    await sandbox.run("X=of-this-one-the-secret sleep 1000 </dev/null >/dev/null 2>&1 &", timeout=20)
    script = "exec 5< /.examination/secret; cd /.examination; sleep 1; read -r x; echo $x"
    result = await examine(sandbox, script, files={"secret": b"the-secret"}, input=b"the-secret\n", keep_processes=True)
    expect(result.text == "the-secret\n", result)
    seen = await sandbox.read_file("seen")
    expect(seen.count(b"of-this-one-the-secret") > 1, "the spying process saw nothing at all")
    expect(seen.count(b"the-secret") == seen.count(b"of-this-one-the-secret"), "the secret was seen")


@promise("background processes cannot read the arguments of what a live examination starts")
async def arguments_of_a_live_examination_are_hidden(runtime: Runtime, sandbox: Sandbox) -> None:
    ids = await sandbox.run("cat /proc/self/uid_map", timeout=20)
    if ids.text.split()[2:] == ["1"]:
        return  # with a single id there is no group to keep them out by
    spy = "while :; do cat /proc/[0-9]*/cmdline; echo; done > seen 2>/dev/null"
    await sandbox.run(f"({spy}) </dev/null & sleep 1001 </dev/null >/dev/null 2>&1 &", timeout=20)
    result = await examine(sandbox, "cd /proc; sleep 1.002; cat [0-9]*/cmdline | tr '\\0' ' '", keep_processes=True)
    expect("sleep 1001" in result.text, f"the examination saw {result.text!r}")
    seen = await sandbox.read_file("seen")
    expect(b"1001" in seen, "the spying process saw nothing at all")
    expect(b"1.002" not in seen and b"cd /proc" not in seen, "arguments of the examination were seen")
    result = await sandbox.run("cd /proc/1 && pwd", timeout=20)
    expect(result.text.splitlines()[-1] == "/proc/1", "the sandbox's processes stay hidden afterwards")


@promise("the arguments of an examination are checked")
async def an_examination_checks_its_arguments(runtime: Runtime, sandbox: Sandbox) -> None:
    wrong: tuple[tuple[list[str], str, float], ...] = (
        ([], "x", 20),
        (["relative"], "x", 20),
        (["/bin/a\0b"], "x", 20),
        (["/bin/true"], "../x", 20),
        (["/bin/true"], "/x", 20),
        (["/bin/true"], "x", 0),
    )
    for program, name, timeout in wrong:
        try:
            await sandbox.examine(program, files={name: b""}, timeout=timeout)
        except InvalidCommand:
            continue
        raise PromiseBroken(f"{program} with {name} in {timeout} s was accepted")
    running = asyncio.create_task(sandbox.run("sleep 0.5; echo over", timeout=20))
    await asyncio.sleep(0.2)
    try:
        await examine(sandbox, "true")
    except SandboxBusy:
        expect((await running).text == "over\n", "the command was disturbed")
        return
    raise PromiseBroken("an examination began while a command ran")
