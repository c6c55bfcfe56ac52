"""The contract's own checks, on each runtime, as root and as an ordinary user."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import ors_containers
import pytest
from ors_containers import Runtime
from ors_containers.self_check import CHECKS, run_check

RUNTIMES = ("bubblewrap", "apptainer")
#: Nobody else's, another run's of these tests neither: limits without control groups count by user.
_ORDINARY_USER = 200_000 + os.getpid() % 100_000
_SCRIPT = """
import asyncio, faulthandler, json, sys
faulthandler.dump_traceback_later(100)  # a hang is told before this process is ended for it
sys.path.insert(0, sys.argv[1])
import ors_containers
from ors_containers import RuntimeUnavailable, self_check

async def main():
    try:
        async with getattr(ors_containers, sys.argv[2])() as runtime:
            checks = []
            async for check in self_check(runtime):
                checks.append([check.name, check.outcome, check.detail])
                print(check.name, check.outcome, file=sys.stderr, flush=True)
            holds = {enforcement.limit: enforcement.holds for enforcement in runtime.describe().enforcements}
    except RuntimeUnavailable as error:
        print(json.dumps({"unavailable": str(error)}))
    else:
        print(json.dumps({"checks": checks, "holds": holds}))

asyncio.run(main())
"""


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", CHECKS)
async def test_promise_is_kept(runtime: Runtime, name: str) -> None:
    check = await run_check(runtime, name)
    if check.outcome == "skipped":
        pytest.skip(check.detail)
    assert check.outcome == "passed", check.detail


@pytest.mark.asyncio(loop_scope="module")
async def test_a_broken_promise_is_told(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    async def wrong(*_: object, **__: object) -> None:
        raise TimeoutError("it hung")

    name = "standard input is empty"
    definition = CHECKS[name]
    monkeypatch.setitem(CHECKS, name, type(definition)(wrong, None))
    check = await run_check(runtime, name)
    assert (check.outcome, check.detail) == ("failed", "it hung")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user; the others are ordinary anyway")
@pytest.mark.parametrize("name", ["BubblewrapRuntime", "ApptainerRuntime"])
def test_promises_are_kept_for_an_ordinary_user(name: str) -> None:
    package = Path(ors_containers.__file__).resolve().parent.parent
    python = shutil.which("python3", path="/usr/bin")
    probe = [python or "", "-c", "import sys; print(sys.version_info >= (3, 11))"]
    if python is None or subprocess.run(probe, capture_output=True, text=True, check=True).stdout != "True\n":
        pytest.skip("there is no Python 3.11 in /usr/bin, and an ordinary user may not reach this one")
    state = Path(f"/tmp/ors-containers-{_ORDINARY_USER}")
    environment = {"PATH": os.environ["PATH"], "PYTHONWARNINGS": "error", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            [python, "-c", _SCRIPT, str(package), name],
            user=_ORDINARY_USER,
            group=_ORDINARY_USER,
            extra_groups=[],
            cwd="/",
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        if "Permission denied" in done.stderr or "No module named 'ors_containers'" in done.stderr:
            pytest.skip(f"an ordinary user may not read {package}")
        assert done.returncode == 0, done.stderr
        said = json.loads(done.stdout)
        if "unavailable" in said:
            pytest.skip(said["unavailable"])
        assert [check for check in said["checks"] if check[1] == "failed"] == []
        # Without control groups of its own the runtime has to say so.
        skipped = [check for check in said["checks"] if check[1] == "skipped"]
        assert len(skipped) == sum(not said["holds"][limit] for limit in ("memory", "pids"))
        assert not list((state / "owners").iterdir())
    except subprocess.TimeoutExpired as error:
        pytest.fail(f"it hung after this: {(error.stderr or b'').decode()}")
    finally:
        shutil.rmtree(state, ignore_errors=True)
