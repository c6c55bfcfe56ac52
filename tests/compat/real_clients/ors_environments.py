"""Environments in the style of `ors-sdk`'s authors; our server hosts them unchanged."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from pydantic import BaseModel

from .journal import note
from .ors_authoring import (
    Environment,
    JSONObject,
    ListToolsOutput,
    Split,
    TextBlock,
    ToolOutput,
    Toolset,
    ToolSpec,
    tool,
)


class Amount(BaseModel):
    amount: int
    seconds: float = 0.0


class Interest(Toolset):
    @tool
    def add_interest(self) -> ToolOutput:
        """Add ten per cent."""
        self.env.balance = self.env.balance * 110 // 100
        return self.env.report()


class Together:
    """The banks whose `deposit` runs right now, and the most that did at a time."""

    lock = threading.Lock()
    inside: ClassVar[int] = 0
    most: ClassVar[int] = 0

    @classmethod
    @contextmanager
    def counted(cls) -> Generator[None]:
        with cls.lock:
            cls.inside += 1
            cls.most = max(cls.most, cls.inside)
        try:
            yield
        finally:
            with cls.lock:
                cls.inside -= 1


class Bank(Environment):
    """Reach the target balance. The code relies on a single thread, as ors-sdk's authors may."""

    toolsets = (Interest,)

    def __init__(self, task_spec: JSONObject = {}, secrets: dict[str, str] = {}) -> None:  # noqa: B006 - the SDK's signature
        super().__init__(task_spec, secrets)
        self.password = secrets.get("password", "none")
        self.balance = 100
        self.local = threading.local()
        self.local.constructed = True
        self.threads = [threading.get_native_id()]
        self.inside = 0
        self.most_inside = 0

    @classmethod
    def list_splits(cls) -> Sequence[Split | str]:
        return ["train", Split(name="audit", type="test")]

    @classmethod
    def list_tasks(cls, split: str) -> list[JSONObject]:
        targets = [110, 150, 121] if split == "train" else [100]
        return [{"id": f"{split}-{index}", "target": target} for index, target in enumerate(targets)]

    def setup(self) -> None:
        self.threads.append(threading.get_native_id())

    def teardown(self) -> None:
        # Thread-local data exists only on the thread that set it.
        if "token" in self.task_spec:
            note("torn down" if self.local.constructed else "lost", self.task_spec["token"])

    def get_prompt(self) -> list[TextBlock]:
        self.threads.append(threading.get_native_id())
        return [TextBlock(text=f"Bring {self.balance} to {self.task_spec['target']}.")]

    def list_task_tools(self) -> ListToolsOutput:
        return ListToolsOutput(tools=[ToolSpec(name="ask", description="Ask the bank.", input_schema=None)])

    def report(self) -> ToolOutput:
        done = self.balance == self.task_spec["target"]
        return ToolOutput(blocks=[TextBlock(text=str(self.balance))], reward=1.0 if done else None, finished=done)

    @tool
    def deposit(self, params: Amount) -> ToolOutput:
        """Put money in; not safe to run twice at a time."""
        assert self.local.constructed
        self.threads.append(threading.get_native_id())
        self.inside += 1
        self.most_inside = max(self.most_inside, self.inside)
        before = self.balance
        with Together.counted():
            time.sleep(params.seconds)
        self.balance = before + params.amount
        self.inside -= 1
        return self.report()

    @tool
    def withdraw(self, params: Amount) -> ToolOutput:
        """Take money out."""
        return self.deposit(Amount(amount=-params.amount, seconds=params.seconds))

    @tool
    async def wait(self, params: Amount) -> ToolOutput:
        """Asynchronous tools overlap freely."""
        self.inside += 1
        self.most_inside = max(self.most_inside, self.inside)
        await asyncio.sleep(params.seconds)
        self.inside -= 1
        return ToolOutput(blocks=[TextBlock(text=str(self.most_inside))])

    @tool(shared=False)
    def ask(self) -> ToolOutput:
        """Return the bank's records."""
        known = {"threads": sorted(set(self.threads)), "most_inside": self.most_inside, "password": self.password}
        known["most_banks"] = Together.most
        return ToolOutput(blocks=[TextBlock(text=json.dumps(known))])


class SmallBank(Bank):
    """A subclass beside its base; the SDK would serve it the base's counts."""

    @classmethod
    def list_tasks(cls, split: str) -> list[JSONObject]:
        return [{"id": "small-0", "target": 101}]


ENVIRONMENTS: list[type[Any]] = [Bank, SmallBank]
