"""Environments for thousands of sessions; prints the server's address."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Sequence

from pydantic import BaseModel

from ors_server import Blocks, JSONObject, Server, TextBlock, ToolOutput, tool
from tests.support.environments import Bare

#: Counts of all instances' events, and the subjects that were torn down, where a task names one.
TOTALS: Counter[str] = Counter()
TORN_DOWN: list[str] = []
#: Number of runs of each call whose text names it.
RUNS: Counter[str] = Counter()


class Work(BaseModel):
    """Input of a call: the text, the duration, and the size of the output."""

    text: str
    seconds: float = 0.0
    size: int = 0


def said(text: str) -> ToolOutput:
    return ToolOutput(blocks=[TextBlock(text=text)], reward=0.25)


class Crowd(Bare):
    """One of thousands of environments."""

    def __init__(self, task_spec: JSONObject = {}, secrets: dict[str, str] = {}) -> None:  # noqa: B006
        super().__init__(task_spec, secrets)
        self.was_set_up = False
        self.calls = 0
        TOTALS["constructed"] += 1

    async def setup(self) -> None:
        await asyncio.sleep(float(str(self.task_spec.get("set up", 0))))
        self.was_set_up = True
        TOTALS["set up"] += 1

    async def teardown(self) -> None:
        await asyncio.sleep(0)
        TOTALS["torn down"] += 1
        if subject := str(self.task_spec.get("subject", "")):
            TORN_DOWN.append(subject)

    def get_prompt(self) -> Blocks:
        return [TextBlock(text=f"set up: {self.was_set_up}")]

    @tool(concurrent=True)
    async def work(self, params: Work) -> ToolOutput:
        """Say a text, after a while."""
        RUNS[params.text] += 1
        if params.seconds:
            await asyncio.sleep(params.seconds)
        return said(params.text + " \t\n" * (params.size // 3))

    @tool(concurrent=True)
    def block(self, params: Work) -> ToolOutput:
        """Say a text, after a while, on a thread."""
        RUNS[params.text] += 1
        time.sleep(params.seconds)
        return said(params.text)

    @tool(concurrent=True)
    async def fail(self, params: Work) -> ToolOutput:
        """Raise, after a while."""
        RUNS[params.text] += 1
        await asyncio.sleep(params.seconds)
        raise ValueError(params.text)

    @tool
    async def count(self) -> ToolOutput:
        """Return the number of calls so far of one tool that runs in order."""
        self.calls += 1
        return said(str(self.calls))


class ManyTasks(Crowd):
    """A hundred thousand tasks."""

    @classmethod
    def list_tasks(cls, split: str) -> Sequence[JSONObject]:
        return [{"id": number, "question": f"What is {number} + {number}?"} for number in range(100_000)]


class Totals(Crowd):
    """Returns the counts of all environments."""

    @tool
    async def totals(self) -> ToolOutput:
        """Return all counts, and the subjects torn down since the last time."""
        told = json.dumps({"totals": TOTALS, "torn down": TORN_DOWN})
        TORN_DOWN.clear()
        return said(told)

    @tool
    async def runs(self) -> ToolOutput:
        """Return the number of texts that ran, and those that ran more than once; forget them."""
        twice = {text: count for text, count in RUNS.items() if count > 1}
        texts = len(RUNS)
        RUNS.clear()
        return said(json.dumps({"texts": texts, "twice": twice}))


if __name__ == "__main__":
    Server([Crowd, ManyTasks, Totals]).serve(on_ready=lambda url: print(url, flush=True))
