"""Workers of one server that list different tasks for the same split."""

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from ors_server.cluster.supervisor.task_lists import TaskLists
from ors_server.hosting.task_agreement import TaskAgreement, digest_of
from tests.server.gateway.conftest import Several, start_several

#: ``mixed`` has a list that is another in each process; ``indexed`` has such tasks by index, and the list of
#: ``hashed`` depends on the seed of hashes.
ENVIRONMENTS = """
import os

from ors_server import Environment, TextBlock, ToolOutput, tool
from pydantic import BaseModel


class Input(BaseModel):
    pass


class Base(Environment):
    @classmethod
    def list_splits(cls):
        return ["train", "test"]

    def get_prompt(self):
        return [TextBlock(text=str(self.task_spec))]

    @tool
    def step(self, params: Input) -> ToolOutput:
        return ToolOutput(blocks=[TextBlock(text="x")], reward=0.0, finished=False)


class Mixed(Base):
    @classmethod
    def list_tasks(cls, split):
        return [{"by": os.getpid() if split == "train" else 0}]


class Hashed(Base):
    @classmethod
    def list_tasks(cls, split):
        return [{"drawn": hash("a task"), "order": list({"a", "b", "c", "d"})}]


class Indexed(Base):
    @classmethod
    def num_tasks(cls, split):
        return 1

    @classmethod
    def get_task(cls, split, index):
        return {"by": os.getpid()}
"""

#: Compares a list in a process of its own, and ends at the end of its input.
COMPARE = """
import asyncio, sys
from pathlib import Path
from ors_server.hosting.errors import TaskListsDiffer
from ors_server.hosting.task_agreement import TaskAgreement

agreement = TaskAgreement(Path(sys.argv[1]), "environment")
asyncio.run(agreement.add("train", [{"n": sys.argv[2]}]))
for _ in sys.stdin:
    try:
        agreement.check("train")
        print("agrees", flush=True)
    except TaskListsDiffer:
        print("differs", flush=True)
"""


class Comparing:
    """A process with a list of tasks."""

    def __init__(self, folder: Path, task: str) -> None:
        command = [sys.executable, "-c", COMPARE, str(folder), task]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def check(self) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


def test_the_first_list_counts_as_long_as_a_process_lives_that_has_it(tmp_path: Path) -> None:
    old = [Comparing(tmp_path, "old") for _ in range(2)]
    new = [Comparing(tmp_path, "new") for _ in range(2)]
    try:
        assert [process.check() for process in (*old, *new, *old)] == ["agrees"] * 2 + ["differs"] * 2 + ["agrees"] * 2
        old[0].kill()
        assert [process.check() for process in new] == ["differs"] * 2
        old[1].kill()
        assert [process.check() for process in new] == ["agrees"] * 2
        late = Comparing(tmp_path, "old")
        old.append(late)
        assert late.check() == "differs"
    finally:
        for process in (*old, *new):
            process.kill()


def test_of_processes_that_compare_at_once_those_with_one_list_agree(tmp_path: Path) -> None:
    processes = [Comparing(tmp_path, f"list {number % 3}") for number in range(6)]
    try:
        for process in processes:
            assert process.process.stdin is not None
            process.process.stdin.write("\n")
            process.process.stdin.flush()
        replies: list[str] = []
        for process in processes:
            assert process.process.stdout is not None
            replies.append(process.process.stdout.readline().strip())
        agreeing = {number % 3 for number, reply in enumerate(replies) if reply == "agrees"}
        assert len(agreeing) == 1
        assert [process.check() for process in processes] == [
            "agrees" if number % 3 in agreeing else "differs" for number in range(6)
        ]
    finally:
        for process in processes:
            process.kill()


async def test_digests_are_of_whole_tasks_in_their_order() -> None:
    tasks = [{"n": number} for number in range(5000)]
    assert await digest_of(tasks) == await digest_of(list(tasks))
    assert await digest_of(tasks) != await digest_of(tasks[::-1])
    assert await digest_of([{"a": [1, 2]}]) != await digest_of([{"a": [2, 1]}])
    assert await digest_of([]) is not None
    assert await digest_of([{"a": object()}]) is None


async def test_a_list_that_json_cannot_hold_and_a_folder_that_is_gone_refuse_nothing(tmp_path: Path) -> None:
    agreement = TaskAgreement(tmp_path / "gone", "environment")
    await agreement.add("train", [{"a": object()}])
    agreement.check("train")
    assert agreement.digests == {}
    await agreement.add("test", [{"a": 1}])
    agreement.check("test")


def test_the_supervisor_logs_a_difference_once(caplog: pytest.LogCaptureFixture) -> None:
    lists = TaskLists()
    with caplog.at_level(logging.ERROR):
        lists.report(0, {"e": {"train": "a", "test": "x"}})
        lists.report(1, {"e": {"train": "a"}})
        assert not caplog.records
        for _ in range(3):
            lists.report(2, {"e": {"train": "b", "test": "x"}})
    (record,) = caplog.records
    assert (record.__dict__["environment"], record.__dict__["split"], record.__dict__["slots"]) == (
        "e",
        "train",
        "0 1 | 2",
    )
    lists.forget(2)
    lists.report(0, {"e": {"train": "a"}})
    assert len(caplog.records) == 1


def _answers(several: Several, environment: str, split: str) -> list[tuple[int, str]]:
    """Return the answers to ``/create`` by index, in sessions of both workers."""
    found: list[tuple[int, str]] = []
    with several.client() as client:
        for _ in range(8):
            sid = client.post("/create_session").json()["sid"]
            body = {"env_name": environment, "split": split, "index": 0}
            created = client.post("/create", json=body, headers={"X-Session-ID": sid})
            found.append((created.status_code, created.text))
            client.post("/delete", headers={"X-Session-ID": sid})
    return found


@pytest.mark.long
def test_a_worker_with_another_list_refuses_it_and_the_log_says_so(tmp_path: Path) -> None:
    module = tmp_path / "environments.py"
    module.write_text(ENVIRONMENTS)
    targets = [f"{module}:{name}" for name in ("Mixed", "Hashed", "Indexed")]
    with start_several(tmp_path, *targets, gateways=1) as several:
        answers = _answers(several, "mixed", "train")
        refusals = [text for status, text in answers if status == 503]
        assert {status for status, _ in answers} == {200, 503}
        assert all("different lists of tasks for split 'train' of 'mixed'" in text for text in refusals)
        assert all("list_tasks must return the same tasks in the same order" in text for text in refusals)
        # A split on which they agree, tasks of hashes, and an environment that has tasks by index.
        assert {status for status, _ in _answers(several, "mixed", "test")} == {200}
        assert {status for status, _ in _answers(several, "hashed", "train")} == {200}
        assert {status for status, _ in _answers(several, "indexed", "train")} == {200}
        with several.client() as client:
            listed = [client.post("/mixed/tasks", json={"split": "train"}) for _ in range(4)]
            assert len({response.text for response in listed}) == 1
            assert listed[0].status_code in (200, 503)
        log = several.running.logged("workers have different lists of tasks")
        assert "split=train" in log
        assert "environment=mixed" in log
        assert "split=test" not in log.partition("different lists")[2].partition("\n")[0]
