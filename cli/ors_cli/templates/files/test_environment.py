"""Tests of the environment: the files of an episode, the grading, and whole episodes. Run `pytest` here."""

import asyncio

import pytest
from environment import MOST_FILES, ReadInput, TemplateEnvironment, WriteInput
from ors_clients import local_sync

from ors_server import TextBlock, ToolOutput

TASK = TemplateEnvironment.list_tasks("train")[0]


def started() -> TemplateEnvironment:
    """Return an environment as the first call finds it."""
    environment = TemplateEnvironment(TASK)
    environment.setup()
    return environment


def write(environment: TemplateEnvironment, name: str, content: str) -> ToolOutput:
    """Call `write_file`."""
    return asyncio.run(environment.write_file(WriteInput(name=name, content=content)))


def text_of(output: ToolOutput) -> str:
    """Return the text of an output of one block."""
    (block,) = output.blocks
    assert isinstance(block, TextBlock)
    return block.text


def test_the_right_totals_are_rewarded_and_no_other() -> None:
    right = started().totals()
    header, *rows = right.splitlines()
    rewards = {
        right: 1.0,
        right.replace(",", " , ").replace("\n", "\r\n") + "\n\n": 1.0,
        "\n".join([header, *reversed(rows)]): 1.0,
        f"{right}0": 0.0,
        "\n".join(rows): 0.0,
        "\n".join([header, *rows[1:]]): 0.0,
        "\n".join([header, *rows, rows[0]]): 0.0,
        "": 0.0,
    }
    for content, reward in rewards.items():
        environment = started()
        write(environment, "totals.csv", content)
        output = asyncio.run(environment.submit())
        assert (output.reward, output.finished) == (reward, True), content


def test_the_agent_cannot_change_what_is_right() -> None:
    environment = started()
    write(environment, "sales.csv", "day,town,cents\n")
    write(environment, "totals.csv", "town,cents\n")
    assert asyncio.run(environment.submit()).reward == 0.0


def test_a_task_names_a_file_of_the_data_and_no_other() -> None:
    for file in ("test_environment.py", "../environment.py", "train/../../environment.py", "/etc/passwd", ""):
        with pytest.raises(ValueError, match="no file"):
            TemplateEnvironment({"file": file})


def test_a_name_of_the_agent_leads_to_no_file_of_the_machine() -> None:
    environment = started()
    for name in ("../environment.py", "/etc/passwd"):
        assert "no file" in text_of(asyncio.run(environment.read_file(ReadInput(name=name))))


def test_an_agent_cannot_fill_the_memory() -> None:
    environment = started()
    for number in range(MOST_FILES):
        write(environment, f"file-{number}", "")
    assert len(environment.files) == MOST_FILES
    assert "the limit" in text_of(write(environment, "one-more", ""))
    write(environment, "file-0", "a file that is there can be replaced")
    assert environment.files["file-0"].startswith("a file")


def test_episodes() -> None:
    """Every task of the test split is played under the server's rules, by an agent that reads in parts and adds up."""
    for index in range(len(TemplateEnvironment.list_tasks("test"))):
        with local_sync(TemplateEnvironment, split="test", index=index) as session:
            assert session.call("list_files").text.startswith("sales.csv: ")
            rows: list[str] = []
            rest = 1
            while rest:
                read = session.call("read_file", {"name": "sales.csv", "first_line": len(rows) + 1, "lines": 5})
                *lines, more = read.text.splitlines()
                rows += lines
                rest = int(more.strip("()").split()[0])
            sums: dict[str, int] = {}
            for row in rows[1:]:
                _, town, cents = row.split(",")
                sums[town] = sums.get(town, 0) + int(cents)
            totals = "\n".join(["town,cents", *(f"{town},{cents}" for town, cents in sorted(sums.items()))])
            session.call("write_file", {"name": "totals.csv", "content": totals})
            result = session.call("submit")
            assert (result.reward, result.finished) == (1.0, True)
