"""A server of its own process whose tool counts its runs for each text; prints its address."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

from pydantic import BaseModel

from ors_server import JSONObject, Server, TextBlock, ToolOutput, tool
from tests.support.environments import Bare, said


class Count(BaseModel):
    """Input: the text to count, the duration, and the size of the output."""

    text: str
    milliseconds: int = 0
    size: int = 1


class Counting(Bare):
    """Counts the tool's runs in the session, by text."""

    def __init__(self, task_spec: JSONObject = {}, secrets: dict[str, str] = {}) -> None:  # noqa: B006
        super().__init__(task_spec, secrets)
        self.runs: Counter[str] = Counter()

    @tool(concurrent=True)
    async def count(self, params: Count) -> ToolOutput:
        self.runs[params.text] += 1
        run = self.runs[params.text]
        if params.milliseconds:
            await asyncio.sleep(params.milliseconds / 1000)
        text = f"{params.text} \N{IDEOGRAPHIC SPACE}\n" * params.size
        return ToolOutput(blocks=[TextBlock(text=text)], metadata={"run": run}, reward=0.1 * run)

    @tool(concurrent=True)
    async def runs_so_far(self) -> ToolOutput:
        return said(json.dumps(self.runs))


if __name__ == "__main__":
    Server([Counting]).serve(on_ready=lambda url: print(url, flush=True))
