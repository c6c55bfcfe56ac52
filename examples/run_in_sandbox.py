"""Run commands in a sandbox, without a server. Needs bubblewrap (`apt install bubblewrap`)."""

import asyncio

from ors_containers import BubblewrapRuntime, Limits


async def main() -> None:
    """Start one sandbox of this machine's own programs and look at what it keeps, kills and hides."""
    async with BubblewrapRuntime() as runtime:
        for enforcement in runtime.describe().enforcements:
            print(f"{enforcement.limit}: {'enforced' if enforcement.holds else 'not enforced'}")
        limits = Limits(memory=256 * 2**20, wall=60)
        async with runtime.sandbox(runtime.host_image(), limits) as sandbox:
            # One bash stays: directory and variables last from command to command.
            await sandbox.run("cd /tmp && export NAME=agent", timeout=5)
            result = await sandbox.run('echo "$NAME in $PWD as $(id -un)"', timeout=5)
            print(result.text.strip())

            # A command that exceeds its time is killed with everything it started; the shell stays.
            result = await sandbox.run("sleep 60", timeout=0.5)
            print("timed out:", result.timed_out, "status:", result.exit_status)

            # Files go in and out with the rights of the sandbox's user; relative paths start at its home.
            await sandbox.write_file("input.txt", b"3 2 1")
            await sandbox.run("cd; tr ' ' '\\n' < input.txt | sort > output.txt", timeout=5)
            print((await sandbox.read_file("output.txt")).split())

            # There is no network, and no process of the host is visible.
            result = await sandbox.run("ls /sys/class/net 2>/dev/null; ls -d /proc/[0-9]* | wc -l", timeout=5)
            print("processes:", result.text.split()[-1])


if __name__ == "__main__":
    asyncio.run(main())
