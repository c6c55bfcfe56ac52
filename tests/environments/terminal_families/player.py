"""Program for the inside of a sandbox: plays scripts and mutators on a task and prints the failed tests of each.

It needs the standard library only. Its own files lie in ``/tmp/play``. The state that the oracle leaves is recorded
first, unless the request has it.
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


def failures(module: str, seconds: int, reference: object) -> tuple[int, dict[str, str]]:
    """Run a module's tests in a child as clean as this process. Return their number and the failures."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(seconds)
        os.close(reading)
        os.chdir("/")
        with os.fdopen(writing, "w") as pipe:
            json.dump(verdicts(module, reference), pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    count, failed = json.loads(text or '[0, {"all": "the tests ended without a word"}]')
    return count, failed


def loaded(module: str) -> dict[str, Any]:
    path = OWN / f"{module}.py"
    names: dict[str, Any] = {"__name__": "task", "__file__": str(path)}
    exec(compile(path.read_text(), path, "exec"), names)
    return names


def state() -> dict[str, list[str]]:
    return loaded("final")["state"]()


def verdicts(module: str, reference: object) -> tuple[int, dict[str, str]]:
    names = loaded(module)
    names["REFERENCE"] = reference
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


def recorded(request: dict[str, Any], before: set[int]) -> dict[str, Any]:
    """Run the oracle. Return the state of before, the one it leaves, and what the tests compare with."""
    first = state()
    status, output = bash(request["oracle"], HOME, request["root"], request["seconds"])
    assert status == 0, f"the oracle ends with {status}: {output}"
    assert not output, f"the oracle prints {output}"
    if not request["live"]:
        end(before)
    after = state()
    return {"before": first, "after": after, "entries": loaded("final")["made_by"](first, after, request["modes"])}


def sessions() -> set[int]:
    """Return the processes that lead a session, except for those that this process comes from."""
    above = [os.getpid()]
    while above[-1] > 0:
        above.append(parent(above[-1]))
    found: set[int] = set()
    for number in processes() - {*above}:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            Path(f"/proc/{number}/environ").read_bytes()  # those of the sandbox itself cannot be read
            found |= {number} if os.getsid(number) == number and not is_zombie(number) else set()
    return found


def parent(number: int) -> int:
    return int(Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[1])


def mutated(name: str, request: dict[str, Any], reference: dict[str, Any], begun: set[int]) -> bool:
    """Change the folder by a mutator. Return whether it could; a change that leaves the state as it was fails."""
    sys.path.insert(0, str(OWN))
    import mutators

    seed = f"{request['seed']} {name}"
    paths = [*reference["before"]], [*reference["after"]]
    folder = mutators.Folder(request["root"], *paths, request["written"], request["loose"], seed)
    folder.begun = sorted(begun & sessions()) if request["live"] else []
    return mutators.MUTATORS[name][1](folder)


def main() -> None:
    request = json.loads((OWN / "request.json").read_text())
    oracle, root, seconds, live = (request[name] for name in ("oracle", "root", "seconds", "live"))
    again = not live and copied("start")
    assert again or len(request["plays"]) <= 1, "the home cannot be put back"
    before, begun = processes(), sessions()
    reference = request["reference"] or recorded(request, before)
    solved = again and copied("solved")
    report: list[dict[str, Any]] = []
    for one in request["plays"]:
        ready = one["solved"] and solved
        if again:
            copy = OWN / ("solved" if ready else "start")
            subprocess.run(["bash", "-c", RESTORE.format(home=HOME, copy=copy)], check=True)
        status, output = bash(oracle, HOME, root, seconds) if one["solved"] and not ready else (0, "")
        applied = True
        if status == 0 and one["script"]:
            status, output = bash(one["script"], root if one["solved"] else HOME, root, seconds)
        if status == 0 and one["mutator"]:
            applied = mutated(one["mutator"], request, reference, begun)
        if not live:
            end(before)
        count, failed = failures(one["tests"], seconds, reference["entries"]) if applied else (0, {})
        report.append({"status": status, "output": output, "count": count, "failed": failed, "applied": applied})
    print(json.dumps({"plays": report, "reference": reference}))


if __name__ == "__main__":
    sys.exit(main())
