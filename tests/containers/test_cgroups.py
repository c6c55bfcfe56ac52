"""Controllers on v1, hybrid and v2 machines, each simulated by a folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from ors_containers.limits import MIB, Limits
from ors_containers.linux.limits.cgroups import ControlGroups, charged_memory, make_room

_LIMITS = Limits(memory=100 * MIB, disk=8 * MIB, pids=10, cpu=0.5)


def _machine(root: Path, memberships: str, mounts: str, files: Mapping[str, str]) -> Path:
    for name, content in {"proc/self/cgroup": memberships, "proc/self/mountinfo": mounts, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def _v1(root: Path, *, own: str = "/server") -> Path:
    controllers = ("memory", "pids", "cpu,cpuacct")
    memberships = "".join(f"{n}:{name}:{own}\n" for n, name in enumerate(controllers, 1)) + "0::/\n"
    mounts = "".join(
        f"3{n} 30 0:3{n} / /sys/fs/cgroup/{name} rw,nosuid - cgroup cgroup rw,{name}\n"
        for n, name in enumerate(controllers)
    )
    # A hybrid machine also has the unified hierarchy, without a free controller.
    mounts += "40 30 0:40 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
    files = {f"sys/fs/cgroup/{name}{own}/cgroup.procs": "" for name in controllers}
    return _machine(root, memberships, mounts, {**files, "sys/fs/cgroup/unified/cgroup.controllers": "\n"})


def _v2(root: Path, controllers: str, *, own: str = "/user/server", processes: str = "") -> Path:
    mounts = "40 30 0:40 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
    at = f"sys/fs/cgroup{own}"
    files = {
        f"{at}/cgroup.controllers": controllers,
        f"{at}/cgroup.subtree_control": "",
        f"{at}/cgroup.procs": processes,
    }
    return _machine(root, f"0::{own}\n", mounts, files)


@pytest.fixture(autouse=True)
def _removable(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction] - pytest uses it
    """Let a group's directory be removed with its files, as the kernel does."""

    def rmdir(path: Path) -> None:
        for file in path.iterdir():
            if file.is_file():
                file.unlink()
        os.rmdir(path)  # noqa: PTH106 - a control group is removed by rmdir alone

    monkeypatch.setattr(Path, "rmdir", rmdir)


def _read(root: Path, name: str) -> str:
    return (root / "sys/fs/cgroup" / name).read_text()


def test_v1_and_hybrid(tmp_path: Path) -> None:
    groups = ControlGroups("abc", _v1(tmp_path))
    assert groups.enforced == dict.fromkeys(("memory", "pids", "cpu"), "cgroup v1")
    assert groups.missing == {}
    files = groups.create("box", _LIMITS)
    assert len(files) == 3
    # Files in memory count, and so do the kernel's structures for each: a full disk must not cause a kill.
    charged = charged_memory(_LIMITS)
    assert charged > _LIMITS.memory + _LIMITS.disk
    assert _read(tmp_path, "memory/server/ors-abc/box/memory.limit_in_bytes") == str(charged)
    # including bubblewrap and process 1, which are not the agent's
    assert _read(tmp_path, "pids/server/ors-abc/box/pids.max") == "12"
    assert _read(tmp_path, "cpu,cpuacct/server/ors-abc/box/cpu.cfs_quota_us") == "50000"
    assert groups.directories("box") == [str(Path(file).parent) for file in files]


def test_v2(tmp_path: Path) -> None:
    groups = ControlGroups("abc", _v2(tmp_path, "cpu io memory pids"))
    assert groups.enforced == dict.fromkeys(("memory", "pids", "cpu"), "cgroup v2")
    (file,) = groups.create("box", _LIMITS)
    assert file.endswith("/sys/fs/cgroup/user/server/ors-abc/box/cgroup.procs")
    assert _read(tmp_path, "user/server/ors-abc/box/memory.max") == str(charged_memory(_LIMITS))
    assert _read(tmp_path, "user/server/ors-abc/box/pids.max") == "12"
    assert _read(tmp_path, "user/server/ors-abc/box/cpu.max") == "50000 100000"
    groups.close()


def test_v2_without_a_controller_is_reported(tmp_path: Path) -> None:
    groups = ControlGroups("abc", _v2(tmp_path, "memory"))
    assert list(groups.enforced) == ["memory"]
    assert "not given the pids controller" in groups.missing["pids"]
    assert "not given the cpu controller" in groups.missing["cpu"]


def test_v2_moves_its_own_processes_out_of_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = _v2(tmp_path, "memory", processes=f"{os.getpid()}\n")
    leaf = _refuse_until_moved(root / "sys/fs/cgroup/user/server", monkeypatch)
    groups = ControlGroups("abc", root)
    assert "memory" in groups.enforced
    assert (leaf / "cgroup.procs").read_text() == str(os.getpid())


def test_v2_leaves_the_processes_of_others_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = _v2(tmp_path, "memory", processes=f"{os.getpid()}\n{os.getppid()}\n")
    leaf = _refuse_until_moved(root / "sys/fs/cgroup/user/server", monkeypatch)
    groups = ControlGroups("abc", root)
    assert groups.enforced == {}
    assert "other processes are in this group" in groups.missing["memory"]
    assert not leaf.exists()


def test_v2_gives_servers_of_one_group_limits_once_their_parent_has_made_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = _v2(tmp_path, "memory", processes=f"{os.getpid()}\n")
    own = root / "sys/fs/cgroup/user/server"
    leaf = _refuse_until_moved(own, monkeypatch)
    make_room(root)
    assert (leaf / "cgroup.procs").read_text() == str(os.getpid())
    # As the kernel shows it to a server that was started then, beside others.
    (root / "proc/self/cgroup").write_text("0::/user/server/ors-server\n")
    (leaf / "cgroup.procs").write_text(f"{os.getpid()}\n{os.getppid()}\n")
    (own / "cgroup.subtree_control").write_text("memory\n")
    groups = ControlGroups("abc", root)
    assert groups.enforced == {"memory": "cgroup v2"}
    assert groups.directories("box") == [str(own / "ors-abc" / "box")]


def test_v2_makes_no_room_among_the_processes_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = _v2(tmp_path, "memory", processes=f"{os.getpid()}\n{os.getppid()}\n")
    leaf = _refuse_until_moved(root / "sys/fs/cgroup/user/server", monkeypatch)
    make_room(root)
    assert not leaf.exists()


def _refuse_until_moved(own: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Refuse controllers as the kernel does: a group that has processes of its own gives its children none."""
    leaf = own / "ors-server"
    write = Path.write_text

    def write_text(path: Path, text: str, *arguments: object) -> int:
        if path == own / "cgroup.subtree_control" and not leaf.exists():
            raise OSError(16, "Device or resource busy")
        return write(path, text)

    monkeypatch.setattr(Path, "write_text", write_text)
    return leaf


def test_a_mount_that_shows_part_of_the_hierarchy(tmp_path: Path) -> None:
    """In a container without a cgroup namespace: /proc names the host's path, and the mount begins below it."""
    mounts = "40 30 0:40 /docker/x /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    files = {"sys/fs/cgroup/memory/cgroup.procs": "", "sys/fs/cgroup/memory/inner/cgroup.procs": ""}
    for own, expected in (("/docker/x/inner", "memory/inner"), ("/docker/x", "memory"), ("/elsewhere", "memory")):
        groups = ControlGroups("abc", _machine(tmp_path, f"1:memory:{own}\n", mounts, files))
        assert groups.parents == [str(tmp_path / "sys/fs/cgroup" / expected / "ors-abc")]


@pytest.mark.parametrize("memberships", ["", "1:name=systemd:/\n", "0::/\n"])
def test_no_controllers(tmp_path: Path, memberships: str) -> None:
    groups = ControlGroups("abc", _machine(tmp_path, memberships, "", {}))
    assert (groups.enforced, groups.parents, groups.create("box", _LIMITS)) == ({}, [], [])
    assert list(groups.missing) == ["memory", "pids", "cpu"]


def test_no_proc(tmp_path: Path) -> None:
    assert list(ControlGroups("abc", tmp_path).missing) == ["memory", "pids", "cpu"]


def test_limits_that_cannot_be_written_are_not_claimed(tmp_path: Path) -> None:
    root = _v1(tmp_path)
    (root / "sys/fs/cgroup/pids/server/ors-abc").write_text("in the way")
    groups = ControlGroups("abc", root)
    assert "pids" not in groups.enforced
    assert "cannot be used" in groups.missing["pids"]
