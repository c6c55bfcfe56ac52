"""Open files: the sum of what sandboxes may open fits the machine, or their memory bounds it."""

from __future__ import annotations

import itertools
import os
import resource
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest
from ors_containers import ContainerSettings, Limits, Overloaded, RuntimeUnavailable
from ors_containers.linux.limits.open_files import files_for_sandboxes, limit_files, raise_file_max
from ors_containers.runtimes.bubblewrap import BubblewrapRuntime
from ors_containers.scheduling import admission as admission_module
from ors_containers.scheduling.admission import Admission
from ors_containers.scheduling.capacity import CapacityReader
from ors_containers.scheduling.reservations import Reservations

PLENTY = 2**63 - 1


@pytest.mark.parametrize("container", [False, True])
def test_a_sandbox_fits_whatever_its_limits_are(container: bool) -> None:
    for available, pids in itertools.product((100_000, 800_000, 2_466_186, 50_000_000, 2**45), (4, 64, 256, 4096)):
        limit = limit_files(pids, container=container, available=available)
        assert limit.total == limit.each * pids * (1 if container else 2)
        assert limit.total <= available or limit.each == 16, (available, pids)
        assert 16 <= limit.each <= (65536 if container else 4096)
    few = limit_files(256, available=2_157_904)
    assert (few.each, 2_157_904 // few.total) == (263, 16)
    assert limit_files(256, available=PLENTY).each == 4096


def test_the_bound_is_raised_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file-max"
    file.write_text("2466186\n")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert not raise_file_max(file)
    assert (file.read_text(), files_for_sandboxes(file)) == ("2466186\n", 2466186 // 8 * 7)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert raise_file_max(file)
    assert file.read_text() == "9223372036854775807"
    assert not raise_file_max(tmp_path / "none" / "file-max") or not (tmp_path / "none").exists()


async def test_admission_keeps_the_sum_within_the_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bound = tmp_path / "proc/sys/fs/file-max"
    bound.parent.mkdir(parents=True)
    bound.write_text("2466186\n")
    available = files_for_sandboxes(bound)
    monkeypatch.setattr(admission_module, "limit_files", partial(limit_files, available=available))
    total = limit_files(256, available=available).total
    reservations = Reservations()
    admission = Admission(CapacityReader(tmp_path), queue=0, reservations=reservations)

    async def start() -> None:
        async with admission.starts(Limits(pids=256)):
            reservations.hold_files(total)  # as its runtime does

    for number in range(1, 16):
        await start()
        assert reservations.totals().files == number * total
    await start()
    with pytest.raises(Overloaded, match=r"seven eighths of fs\.file-max"):
        await start()
    assert 16 * total <= available < 17 * total
    reservations.hold_files(-total)
    await start()
    assert reservations.totals().files == 16 * total


async def test_a_sandbox_counts_from_its_start_to_its_end(tmp_path: Path) -> None:
    reservations = Reservations()
    runtime = BubblewrapRuntime()
    runtime.hold_files = reservations.hold_files
    try:
        await runtime.start()
    except RuntimeUnavailable as error:
        pytest.skip(str(error))
    async with AsyncExitStack() as stack:
        stack.push_async_callback(runtime.close)
        assert reservations.totals().files == 0
        limit = limit_files(64)
        sandbox = runtime.sandbox(runtime.host_image(), Limits(pids=64))
        assert reservations.totals().files == 0
        async with sandbox:
            assert reservations.totals().files == limit.total
            assert (await sandbox.run("ulimit -n; ulimit -Hn", timeout=20)).text.split() == [str(limit.each)] * 2
        assert reservations.totals().files == 0
        of_container = limit_files(128, container=True)
        settings = ContainerSettings(pids=128, disk=64 * 2**20, memory=256 * 2**20)
        async with await runtime.open_container(runtime.host_image(), settings) as container:
            assert reservations.totals().files == of_container.total
            hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            assert (await container.run("ulimit -n")).text.strip() == str(min(of_container.each, hard))
        assert reservations.totals().files == 0
        described = runtime.describe()
        if os.geteuid() == 0 and described.enforcements[0].holds and os.access("/proc/sys/fs/file-max", os.W_OK):
            assert files_for_sandboxes() > 2**59
            assert any("larger than sandboxes can reach" in note for note in described.notes)
