"""Program for the inside of a sandbox: plays scripts on a task one after another and prints the failed tests of each.

It needs the standard library only. Its own files lie in ``/tmp/play``.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

OWN = Path("/tmp/play")
HOME = "/home/user"
#: Empties the home, whatever its permissions, and fills it again.
RESTORE = """
chmod -R u+rwx {home} 2> /dev/null; find {home} -mindepth 1 -delete; find /tmp -mindepth 1 -maxdepth 1 ! -name play \
-exec chmod -R u+rwx {{}} ';' -exec rm -rf {{}} +; cp -a {copy}/. {home}
"""


def processes() -> set[int]:
    return {int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()}


def end(before: set[int]) -> None:
    """End the processes that a script left running, as an examination of a frozen task does."""
    deadline = time.monotonic() + 10
    while (left := [number for number in processes() - before if not is_zombie(number)]) and (
        time.monotonic() < deadline
    ):
        for number in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        time.sleep(0.005)


def is_zombie(number: int) -> bool:
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def bash(script: str, folder: str, root: str, seconds: int) -> tuple[int, str]:
    """Run a script like ``bash -c``. Return its exit status and its output."""
    with tempfile.TemporaryFile(dir=OWN) as printed:  # a pipe would wait for processes that the script leaves running
        finished = subprocess.run(
            ["bash", "-c", script],
            cwd=folder if Path(folder).is_dir() else HOME,
            env={**os.environ, "root": root},
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            timeout=seconds,
        )
        printed.seek(0)
        return finished.returncode, printed.read(2000).decode("utf-8", "replace")


def failures(module: str, seconds: int) -> tuple[int, dict[str, str]]:
    """Run a module's tests in a child as clean as this process. Return their number and the failures."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(seconds)
        os.close(reading)
        os.chdir("/")
        with os.fdopen(writing, "w") as pipe:
            json.dump(verdicts(module), pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    count, failed = json.loads(text or '[0, {"all": "the tests ended without a word"}]')
    return count, failed


def verdicts(module: str) -> tuple[int, dict[str, str]]:
    path = OWN / f"{module}.py"
    names: dict[str, Any] = {"__name__": "task", "__file__": str(path)}
    exec(compile(path.read_text(), path, "exec"), names)
    tests = {name: test for name, test in names.items() if name.startswith("test_")}
    failed: dict[str, str] = {}
    for name, test in tests.items():
        try:
            test()
        except Exception as error:  # noqa: BLE001 - whatever a test raises is its failure, and goes into the report
            failed[name.removeprefix("test_")] = f"{type(error).__name__}: {error}"[:500]
    return len(tests), failed


def copied(name: str) -> bool:
    """Copy the home. Return whether that was possible; a home with unreadable files or directories cannot be copied."""
    return subprocess.run(["cp", "-a", HOME, OWN / name], stderr=subprocess.DEVNULL).returncode == 0


def main() -> None:
    request = json.loads((OWN / "request.json").read_text())
    oracle, root, seconds, live = (request[name] for name in ("oracle", "root", "seconds", "live"))
    again = not live and copied("start")
    assert again or len(request["plays"]) == 1, "the home cannot be put back"
    solved = again and any(one["solved"] for one in request["plays"])
    before = processes()
    if solved:
        status, _ = bash(oracle, HOME, root, seconds)
        end(before)
        solved = status == 0 and copied("solved")
    report: list[dict[str, Any]] = []
    for one in request["plays"]:
        ready = one["solved"] and solved
        if again:
            copy = OWN / ("solved" if ready else "start")
            subprocess.run(["bash", "-c", RESTORE.format(home=HOME, copy=copy)], check=True)
        status, output = bash(oracle, HOME, root, seconds) if one["solved"] and not ready else (0, "")
        if status == 0 and one["script"]:
            status, output = bash(one["script"], root if one["solved"] else HOME, root, seconds)
        if not live:
            end(before)
        count, failed = failures(one["tests"], seconds)
        report.append({"status": status, "output": output, "count": count, "failed": failed})
    print(json.dumps(report))


if __name__ == "__main__":
    sys.exit(main())
