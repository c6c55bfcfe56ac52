"""Promises about the shell: output, exit status, lasting state, time-outs and replacement."""

from __future__ import annotations

import asyncio

from ors_containers.runtime import Runtime
from ors_containers.sandbox import Sandbox
from ors_containers.self_check.promises import Promises, examine, expect, expect_output

promise = Promises()


@promise("a command's output and exit status come back")
async def output_and_status_come_back(runtime: Runtime, sandbox: Sandbox) -> None:
    await expect_output(sandbox, "echo out; echo err >&2; (exit 3)", "out\nerr\n", 3)
    await expect_output(sandbox, "for (", "bash: syntax error near unexpected token `('\n", 2)


@promise("directory, variables and functions last from command to command")
async def shell_state_lasts(runtime: Runtime, sandbox: Sandbox) -> None:
    await sandbox.run("cd /var; export KEPT='a b'; local_too=c; say() { echo \"said $1\"; }; alias e=echo", timeout=20)
    await expect_output(sandbox, 'pwd; echo "$KEPT $local_too"; say it; e "hi!"', "/var\na b c\nsaid it\nhi!\n")


@promise("a command has its own descriptors only, and may open its output again")
async def a_command_has_its_own_descriptors_only(runtime: Runtime, sandbox: Sandbox) -> None:
    listing = "for n in /proc/self/fd/*; do [ -e $n ] && echo ${n##*/}; done"
    result = await sandbox.run(f"bash -c '{listing}'", timeout=20)
    expect(result.text.split() in (["0", "1", "2"], ["0", "1", "2", "3"]), f"a program has {result.text.split()}")
    await expect_output(
        sandbox, "echo out > /dev/stdout; echo err > /dev/stderr; echo fd > /dev/fd/1", "out\nerr\nfd\n"
    )
    result = await examine(sandbox, f"{listing}; echo out > /dev/stdout; echo err > /dev/stderr")
    descriptors, said = result.text.split()[:-2], result.text.split()[-2:]
    expect(descriptors in (["0", "1", "2"], ["0", "1", "2", "3"]), f"an examination has {descriptors}")
    expect(said == ["out", "err"], result.text)


@promise("standard input is empty")
async def standard_input_is_empty(runtime: Runtime, sandbox: Sandbox) -> None:
    await expect_output(sandbox, "cat; read line; echo $?", "1\n")


@promise("binary output is unchanged")
async def binary_output_is_unchanged(runtime: Runtime, sandbox: Sandbox) -> None:
    result = await sandbox.run(r"printf '\0\1\377\036end\n\r\200'", timeout=20)
    expect(result.output == b"\0\1\xff\x1eend\n\r\x80", result.output)


@promise("a command that closes or redirects its output leaves that of the next command alone")
async def redirections_end_with_their_command(runtime: Runtime, sandbox: Sandbox) -> None:
    for command in ("exec >&- 2>&-", "exec >/tmp/elsewhere 2>&1", "exec </dev/zero", "exec 0<&- 1>&- 2>&-; set -x"):
        await sandbox.run(command, timeout=20)
        result = await sandbox.run("{ set +x; } 2>/dev/null; echo here", timeout=20)
        expect(result.output.endswith(b"here\n"), f"after {command!r}: {result.output!r}")


@promise("a flood of output keeps its head and its tail")
async def a_flood_keeps_head_and_tail(runtime: Runtime, sandbox: Sandbox) -> None:
    result = await sandbox.run("echo first; head -c 20000000 /dev/zero; echo last", timeout=60)
    expect(result.truncated and len(result.output) < 2100, f"{len(result.output)} bytes were kept")
    expect(result.output.startswith(b"first\n") and result.output.endswith(b"last\n"), "head or tail is missing")


@promise("background processes outlive their command and do not delay it")
async def background_processes_last(runtime: Runtime, sandbox: Sandbox) -> None:
    result = await sandbox.run("(sleep 0.3; echo late) & echo now", timeout=20)
    expect(result.text.endswith("now\n") and result.seconds < 0.3, f"{result.seconds:.2f} s, {result.text!r}")
    await asyncio.sleep(0.6)
    await expect_output(sandbox, "echo next", "late\nnext\n")


@promise("a command past its time is killed with its children, and the shell survives")
async def a_timed_out_command_is_killed(runtime: Runtime, sandbox: Sandbox) -> None:
    await sandbox.run("kept=yes; sleep 1001 & (setsid sleep 1002 &) ; true", timeout=20)
    result = await sandbox.run(
        "setsid sleep 1003 & (sleep 1004 & sleep 1005); echo not reached; sleep 1006", timeout=0.5
    )
    expect(result.timed_out and result.exit_status == 124, result)
    expect(b"not reached" not in result.output, result.output)
    expect(not result.shell_restarted, "the shell was lost")
    result = await sandbox.run('for s in /proc/[0-9]*/cmdline; do tr "\\0" " " <$s; done; echo $kept', timeout=20)
    alive = [number for number in range(1001, 1007) if f"sleep {number}" in result.text]
    expect(alive == [1001, 1002], f"of sleep 1001 … 1006 these are alive: {alive}")
    expect(result.text.endswith("yes\n"), "a variable was lost")


@promise("a shell that is busy itself is interrupted, or replaced when it refuses")
async def a_busy_shell_is_interrupted_or_replaced(runtime: Runtime, sandbox: Sandbox) -> None:
    result = await sandbox.run("kept=yes; while :; do :; done", timeout=0.3)
    expect(result.timed_out and not result.shell_restarted, result)
    await expect_output(sandbox, "echo $kept", "yes\n")
    result = await sandbox.run("cd /var; export A=1", timeout=20)
    result = await sandbox.run("trap '' INT; while :; do :; done", timeout=0.3)
    expect(result.timed_out and result.shell_restarted, result)
    await expect_output(sandbox, "echo $PWD $A", "/var 1\n")


@promise("a shell that ends is replaced with its directory and its exported variables")
async def an_ended_shell_is_replaced(runtime: Runtime, sandbox: Sandbox) -> None:
    await sandbox.run("cd /var; export A=$'x \\' \\n$(false)'; unset LANG; f() { :; }", timeout=20)
    for command, status in (("exit 7", 7), ("kill -KILL $$", 137), ("exec true", 0), ("set -e; false", 1)):
        result = await sandbox.run(command, timeout=20)
        expect(result.shell_restarted and result.exit_status == status, f"{command!r}: {result}")
        expect("new one was started in /var" in result.text, f"the output does not say so: {result.text!r}")
        await expect_output(
            sandbox, 'echo "$PWD $A ${LANG-unset}"; type f 2>/dev/null', "/var x ' \n$(false) unset\n", 1
        )


@promise("a cancelled command is ended, and the sandbox can be used")
async def a_cancelled_command_is_ended(runtime: Runtime, sandbox: Sandbox) -> None:
    running = asyncio.create_task(sandbox.run("sleep 1000", timeout=100))
    await asyncio.sleep(0.2)
    running.cancel()
    await asyncio.wait([running])
    result = await sandbox.run("pgrep sleep || grep -l sleep /proc/[0-9]*/comm; echo done", timeout=20)
    expect(result.text == "done\n", result.text)
