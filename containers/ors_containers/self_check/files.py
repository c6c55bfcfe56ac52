"""Promises about files read and written from outside."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile

from ors_containers.errors import FileTooLarge, NoSuchFile, NotAFile, SandboxError
from ors_containers.runtime import Runtime
from ors_containers.sandbox import Sandbox
from ors_containers.self_check.promises import PromiseBroken, Promises, expect, expect_output

promise = Promises()


@promise("files are written, read and described")
async def files_are_written_read_and_described(runtime: Runtime, sandbox: Sandbox) -> None:
    content = bytes(range(256)) * 1000
    await sandbox.write_file("new/deep/file", content, mode=0o750)
    expect(await sandbox.read_file("new/deep/file") == content, "the content differs")
    found = await sandbox.stat_file("new/deep/file")
    expect((found.kind, found.size, found.mode) == ("file", 256_000, 0o750), found)
    await expect_output(sandbox, "wc -c < new/deep/file; test -O new/deep/file && echo mine", "256000\nmine\n")
    await sandbox.write_file("new/deep/file", b"short")
    expect(await sandbox.read_file("new/deep/file") == b"short", "an old end was left")


@promise("a path that is not a regular file is refused at once")
async def irregular_files_are_refused(runtime: Runtime, sandbox: Sandbox) -> None:
    await sandbox.run("mkfifo pipe; mkdir directory; head -c 3000 /dev/zero > big", timeout=20)
    cases: list[tuple[str, type[SandboxError]]] = [
        ("pipe", NotAFile),
        ("directory", NotAFile),
        ("/dev/zero", NotAFile),
        ("absent", NoSuchFile),
        ("big", FileTooLarge),
    ]
    for path, expected in cases:
        try:
            await asyncio.wait_for(sandbox.read_file(path, limit=2000), 10)
        except expected:
            continue
        raise PromiseBroken(f"{path} was read")


@promise("no link and no .. leads out of the sandbox")
async def no_path_leads_out(runtime: Runtime, sandbox: Sandbox) -> None:
    with tempfile.NamedTemporaryFile(prefix="canary") as file:
        file.write(b"the host's")
        file.flush()
        canary = file.name
        up = "../" * 40
        await sandbox.run(
            f"ln -s {canary} one; ln -s {up}{canary} two; ln -s / three; ln -s /proc/1/root four", timeout=20
        )
        for path in (
            canary,
            f"{up}{canary}",
            "one",
            "two",
            f"three{canary}",
            f"four{canary}",
            f"/proc/1/cwd{canary}",
        ):
            # A name may lead somewhere inside the sandbox; only the host's file matters.
            with contextlib.suppress(SandboxError):
                content = await sandbox.read_file(path)
                expect(content != b"the host's", f"{path} was read from the host")
            with contextlib.suppress(SandboxError):
                await sandbox.write_file(path, b"the agent's", parents=True)
            file.seek(0)
            expect(file.read() == b"the host's", f"{path} was written on the host")
