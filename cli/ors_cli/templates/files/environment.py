"""A bookkeeper: the agent reads a file of sales and hands in a file with the sum of each town.

Files go both ways by tools. What the agent gets lies in `data/` beside this file. What it writes is kept in a dict of
the episode: no name leads out of a dict, and nothing is left when the episode ends.
"""

from collections import Counter
from pathlib import Path

from pydantic import BaseModel, Field

from ors_server import Environment, JSONObject, TextBlock, ToolOutput, tool

# The files that tasks may name. A client may send any task, also one with the path of another file.
DATA = Path(__file__).with_name("data")
SALES = {path.relative_to(DATA).as_posix(): path for path in sorted(DATA.glob("*/*.csv"))}
MOST_FILES = 20


class SalesTask(BaseModel):
    """A task, checked."""

    file: str


class ReadInput(BaseModel):
    """Input of the tool `read_file`. A part at a time: a model cannot take a file of any length."""

    name: str = Field(description="The name of the file.")
    first_line: int = Field(default=1, ge=1, description="The first line to read; lines count from 1.")
    lines: int = Field(default=20, ge=1, le=100, description="How many lines to read.")


class WriteInput(BaseModel):
    """Input of the tool `write_file`."""

    name: str = Field(min_length=1, max_length=100, description="The name of the file.")
    content: str = Field(max_length=20_000, description="All of its content.")


class TemplateEnvironment(Environment):
    """One instance is one episode."""

    def __init__(self, task_spec: JSONObject = {}, secrets: dict[str, str] = {}) -> None:  # noqa: B006 - never changed
        super().__init__(task_spec, secrets)
        self.task = SalesTask.model_validate(task_spec)
        if self.task.file not in SALES:
            raise ValueError(f"There is no file {self.task.file!r}")
        self.sales = ""
        self.files: dict[str, str] = {}

    @classmethod
    def name(cls) -> str:
        """Return the name by which clients find this environment."""
        return "template-environment"

    @classmethod
    def list_splits(cls) -> list[str]:
        """List the splits: the folders in `data/`."""
        return sorted({file.partition("/")[0] for file in SALES}, reverse=True)

    @classmethod
    def list_tasks(cls, split: str) -> list[JSONObject]:
        """List the tasks of a split, one for each file."""
        return [{"id": file, "file": file} for file in SALES if file.startswith(f"{split}/")]

    def setup(self) -> None:
        """Read the task's file. Not async, as it may block: it runs on a thread of its own."""
        self.sales = SALES[self.task.file].read_text("utf-8")
        self.files = {"sales.csv": self.sales}

    def get_prompt(self) -> list[TextBlock]:
        """Return the question to the model, which learns about the tools separately."""
        text = (
            "The file sales.csv has a line for each sale: day, town, cents. Write a file totals.csv with the header "
            "`town,cents` and one line for each town with the sum of its sales, then call `submit`."
        )
        return [TextBlock(text=text)]

    @tool(concurrent=True)
    async def list_files(self) -> ToolOutput:
        """List the files with their numbers of lines."""
        lines = [f"{name}: {len(content.splitlines())} lines" for name, content in sorted(self.files.items())]
        return ToolOutput(blocks=[TextBlock(text="\n".join(lines))])

    @tool(concurrent=True)
    async def read_file(self, params: ReadInput) -> ToolOutput:
        """Read lines of a file."""
        content = self.files.get(params.name)
        if content is None:  # a mistake of the agent is an answer; an exception would end the episode
            return ToolOutput(blocks=[TextBlock(text=f"There is no file {params.name!r}.")])
        lines = content.splitlines()
        start = params.first_line - 1
        shown = lines[start : start + params.lines]
        rest = max(0, len(lines) - start - len(shown))
        return ToolOutput(blocks=[TextBlock(text="\n".join([*shown, f"({rest} more lines)"]))])

    @tool
    async def write_file(self, params: WriteInput) -> ToolOutput:
        """Write a file, or replace its content."""
        if params.name not in self.files and len(self.files) >= MOST_FILES:
            return ToolOutput(blocks=[TextBlock(text=f"There are {MOST_FILES} files already, which is the limit.")])
        self.files[params.name] = params.content
        return ToolOutput(blocks=[TextBlock(text=f"{params.name}: {len(params.content)} characters")])

    @tool(exclusive=True)
    async def submit(self) -> ToolOutput:
        """Hand in totals.csv. There is one try."""
        right = lines_of(self.files.get("totals.csv", "")) == lines_of(self.totals())
        text = "Right." if right else "Wrong."
        return ToolOutput(blocks=[TextBlock(text=text)], reward=1.0 if right else 0.0, finished=True)

    def totals(self) -> str:
        """Return the right file. It is made of the sales that were given, not of the file that the agent may change."""
        sums: Counter[str] = Counter()
        for line in self.sales.splitlines()[1:]:
            _, town, cents = line.split(",")
            sums[town] += int(cents)
        return "\n".join(["town,cents", *(f"{town},{cents}" for town, cents in sums.items())])


def lines_of(content: str) -> list[str]:
    """Return the lines of a table in a form to compare: the header, then the rows in order, without spaces."""
    header, *rows = ["".join(line.split()) for line in content.strip().splitlines()] or [""]
    return [header, *sorted(rows)]
