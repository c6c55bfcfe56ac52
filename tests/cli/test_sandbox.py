"""``ors-server sandbox``: the doctor's report on runtimes that work, cannot work, or break their contract."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, ClassVar

import ors_containers
import pytest
from ors_containers import (
    LIMIT_NAMES,
    Check,
    Description,
    Enforcement,
    Image,
    Limits,
    Runtime,
    RuntimeUnavailable,
    Sandbox,
)
from ors_containers.linux.leases import Owner, make_state

Command = Callable[..., Any]


class Working(Runtime):
    """Starts, and reports that the memory limit is not enforced."""

    name: ClassVar[str] = "working"

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    def describe(self) -> Description:
        kept = [
            Enforcement(name, "the [kernel]", True)
            if name != "memory"
            else Enforcement(name, "hope", False, "Buy more")
            for name in LIMIT_NAMES
        ]
        return Description(self.name, "1.2.3", tuple(kept), ("It is [made up].",))

    def host_image(self) -> Image:
        raise NotImplementedError

    def sandbox(self, image: Image, limits: Limits | None = None) -> Sandbox:
        raise NotImplementedError


class Missing(Working):
    async def start(self) -> None:
        raise RuntimeUnavailable("its program is not installed", "Install it: apt install missing")


class Broken(Working):
    async def start(self) -> None:
        raise ZeroDivisionError("a mistake")


@pytest.fixture
def runtimes(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Install these runtimes and no others."""

    def install(**classes: type[Runtime]) -> None:
        def load(name: str) -> type[Runtime]:
            found = classes[name]
            if found is Working.__base__:
                raise ImportError("no such module")
            return found

        monkeypatch.setattr(ors_containers, "runtime_names", lambda: list(classes))
        monkeypatch.setattr(ors_containers, "find_runtime", load)

    return install


def test_the_doctor_reports_each_runtime(command: Command, runtimes: Callable[..., None]) -> None:
    runtimes(working=Working, missing=Missing, broken=Broken, gone=Runtime)
    outcome = command("sandbox", "doctor")
    assert outcome.code == 0
    for text in ("working 1.2.3  works", "memory", "not kept", "hope", "Buy more", "the [kernel]", "It is [made up]."):
        assert text in outcome.out
    for text in (
        "missing  does not work here",
        "its program is not installed",
        "Remedy: Install it: apt install missing",
    ):
        assert text in outcome.out
    assert "it failed: ZeroDivisionError: a mistake" in outcome.out
    assert "it cannot be loaded: ImportError: no such module" in outcome.out


def test_an_installation_over_this_one_is_reported(
    command: Command, runtimes: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    runtimes(working=Working)
    assert command("sandbox", "doctor", "--json").err == ""
    monkeypatch.setattr(
        "ors_cli.managing.sandbox.conflicting_distribution", lambda: ("two are installed", "remove one")
    )
    outcome = command("sandbox", "doctor", "--json")
    assert "two are installed" in outcome.err
    assert "remove one" in outcome.err
    assert json.loads(outcome.out)[0]["works"] is True


def test_for_programs(command: Command, runtimes: Callable[..., None]) -> None:
    runtimes(working=Working, missing=Missing)
    outcome = command("sandbox", "doctor", "--json")
    working, missing = json.loads(outcome.out)
    assert (working["runtime"], working["works"], working["version"]) == ("working", True, "1.2.3")
    assert working["limits"][0] == {"limit": "memory", "holds": False, "by": "hope", "remedy": "Buy more"}
    assert [limit["limit"] for limit in working["limits"]] == list(LIMIT_NAMES)
    assert missing == {
        "runtime": "missing",
        "works": False,
        "cause": "its program is not installed",
        "remedy": "Install it: apt install missing",
    }


def test_no_runtime_works(command: Command, runtimes: Callable[..., None]) -> None:
    runtimes(missing=Missing)
    assert command("sandbox", "doctor").code == 1
    assert json.loads(command("sandbox", "doctor", "--json").out)[0]["works"] is False


def test_a_broken_contract_is_reported(
    command: Command, runtimes: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def checks(runtime: Runtime) -> AsyncIterator[Check]:
        yield Check("it isolates", "passed", "", 0.1)
        yield Check("it limits", "skipped", "memory is not enforced here", 0.0)
        yield Check("it stops", "failed", "it went on", 0.2)

    runtimes(working=Working)
    monkeypatch.setattr(ors_containers, "self_check", checks)
    outcome = command("sandbox", "doctor", "--check")
    assert outcome.code == 1
    assert "BROKEN  it stops (it went on)" in outcome.out
    assert "breaks promises" in outcome.out
    found = json.loads(command("sandbox", "doctor", "--check", "--json").out)[0]
    assert [check["outcome"] for check in found["checks"]] == ["passed", "skipped", "failed"]
    assert found["works"] is False


def test_a_runtime_that_is_not_installed(command: Command) -> None:
    outcome = command("sandbox", "doctor", "nothing")
    assert outcome.code == 2
    assert "No runtime 'nothing' is installed" in outcome.err
    assert "Installed: bubblewrap" in outcome.err


def test_ours_are_registered(command: Command) -> None:
    """The entry points of this package, as installed."""
    names = {entry.name for entry in importlib.metadata.entry_points(group="ors_containers.runtimes")}
    assert "bubblewrap" in names
    said = json.loads(command("sandbox", "doctor", "bubblewrap", "--json").out)
    assert said[0]["works"] or said[0]["remedy"]


def test_leftovers_of_dead_servers_are_freed(command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("ors_containers.linux.leases.state_directory", lambda: tmp_path)
    make_state(tmp_path)
    living, dead = Owner(tmp_path), Owner(tmp_path)
    living.lease("lives", [os.getpid()], [])
    stray = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    try:
        dead.lease("died", [stray.pid], [])
        dead.close()
        outcome = command("sandbox", "clean")
        assert stray.wait(10) == -9
    finally:
        stray.kill()
        stray.wait()
    assert outcome.code == 0
    assert "Freed sandbox died" in outcome.out
    assert "1 sandboxes of dead servers freed; 1 of servers that run" in outcome.out
    living.release("lives")
    living.close()
    assert "none is left" in command("sandbox", "clean").out
