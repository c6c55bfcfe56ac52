"""The benchmark of Harbor's runner: processor time by control group, the rewards that it checks, and a small run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from ors_benchmarks.harbor import candidates
from ors_benchmarks.harbor import command as harbor
from ors_benchmarks.harbor.candidates import HarborMissing, Opened, play, write_task
from ors_benchmarks.harness import control_groups
from ors_benchmarks.harness.control_groups import NoControlGroups, ProcessorTime, processor_time
from ors_benchmarks.harness.debian import NoDebian, debian_root
from ors_benchmarks.harness.http11 import Failure

from tests.benchmarks.bench import ended, only_report

#: Uses 0.3 s of processor time in a process that its parent does not wait for, and ends after it.
BUSY = (
    "import os, time\n"
    "reading, writing = os.pipe()\n"
    "if os.fork() == 0:\n"
    "    while time.process_time() < 0.3: pass\n"
    "    os._exit(0)\n"
    "os.close(writing); os.read(reading, 1)\n"
)


def test_it_counts_what_a_command_leaves_running() -> None:
    try:
        with processor_time() as counted:
            before = counted.seconds(beside=False)
            subprocess.run([sys.executable, "-c", BUSY], preexec_fn=counted.enter, check=True)
            assert counted.seconds(beside=False) - before >= 0.3
    except NoControlGroups as error:
        pytest.skip(str(error))


def test_it_counts_groups_beside_its_own(tmp_path: Path) -> None:
    def use(group: str, seconds: float) -> None:
        (tmp_path / group).mkdir(exist_ok=True)
        (tmp_path / group / "cpu.stat").write_text(f"usage_usec {round(seconds * 1e6)}\nuser_usec 1\n")

    use("libpod_parent", 5.0)
    use("system.slice", 5.0)
    counted = ProcessorTime(tmp_path)
    use(next(each.name for each in tmp_path.glob("ors-bench-*")), 1.0)
    use("libpod_parent", 7.0)
    use("machine.slice", 0.5)
    use("system.slice", 50.0)  # of the machine's own services
    use("another", 50.0)
    assert counted.seconds(beside=True) == pytest.approx(3.5)
    assert counted.seconds(beside=False) == pytest.approx(1.0)


def test_a_machine_without_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_groups, "_HIERARCHIES", (tmp_path,))
    with pytest.raises(NoControlGroups, match="No hierarchy"), processor_time():
        pass
    with pytest.raises(NoControlGroups, match="cannot be made"):
        ProcessorTime(tmp_path / "none")


@pytest.mark.parametrize(
    ("rewards", "message"),
    [
        ([{"reward": 1.0}, {"reward": 1.0}], None),
        ([{"reward": 1.0}, {"reward": 0.0}], "1 of 2 trials were rewarded: no space left"),
        ([{"reward": 1.0}, None], "1 of 2 trials were rewarded"),
        ([{"reward": 1.0}], "1 of 2 trials were rewarded: Harbor did not start"),
    ],
)
def test_a_job_counts_if_every_trial_was_rewarded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rewards: list[object], message: str | None
) -> None:
    results = [
        {
            "verifier_result": reward and {"rewards": reward},
            "exception_info": None
            if len(rewards) == 1 or reward == {"reward": 1.0}
            else {"exception_message": "no space left"},
        }
        for reward in rewards
    ]
    runner = tmp_path / "harbor"
    runner.write_text(
        f"#!{sys.executable}\nimport json, pathlib, sys\n"
        "job = pathlib.Path(sys.argv[sys.argv.index('-o') + 1], 'job')\n"
        f"for number, result in enumerate(json.loads({json.dumps(json.dumps(results))})):\n"
        "    (job / str(number)).mkdir(parents=True)\n"
        "    (job / str(number) / 'result.json').write_text(json.dumps(result))\n"
    )
    runner.chmod(0o755)
    monkeypatch.setattr(candidates, "harbor", lambda: tmp_path / "python")

    def stay(counted: ProcessorTime) -> None:
        """Do nothing: the folder below holds no control groups."""

    monkeypatch.setattr(ProcessorTime, "enter", stay)
    (tmp_path / "groups").mkdir()
    counted, task = ProcessorTime(tmp_path / "groups"), write_task(tmp_path)
    assert (task / "tests" / "test.sh").read_text().startswith("#!/bin/bash")
    if message is None:
        play(Opened(()), task, 2, 1, counted, tmp_path / "jobs")
    else:
        with pytest.raises(Failure, match=message):
            play(Opened(()), task, 2, 1, counted, tmp_path / "jobs")


@pytest.mark.parametrize("option", [["--candidates", "docker"], ["--rows", "all"], ["--rounds", "0"]])
def test_invalid_options(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(harbor.main, *option) == 2
    assert option[0] in capsys.readouterr().err


@pytest.mark.long
def test_a_small_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        debian_root(tmp_path / "root")
        candidates.harbor()
        with processor_time():
            pass
    except (NoDebian, HarborMissing, NoControlGroups) as error:
        pytest.skip(str(error))
    code = ended(harbor.main, "--quick", "--candidates", "ours,floor", "--output", tmp_path)
    shown = capsys.readouterr().out
    assert code == 0, shown
    report = only_report(tmp_path)
    assert report.failures == {}
    assert set(report.figures["trial_cpu"]) == {"ours", "floor"}
