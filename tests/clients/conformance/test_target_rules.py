"""Each rule of an environment passes on a sound one, and fails on an environment or a server that breaks it."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from ors_clients.conformance.check import check
from ors_clients.conformance.rule import Outcome, Result
from ors_clients.conformance.rules import target as rules_target
from ors_clients.conformance.subject import Options, Subject
from ors_clients.conformance.target import State, serving
from ors_clients.conformance.wire import Wire
from ors_clients.errors import ConfigurationError
from pydantic import BaseModel

from ors_server import Blocks, Environment, Server, Settings, TextBlock, ToolOutput, tool
from ors_server.leak_probe import Teardowns, state
from tests.clients.conformance.faults import Fault, answered_without_server, broken, changes
from tests.clients.conformance.in_process import App, AsgiStreams

RULES = {rule.id: rule for rule in rules_target.RULES}
OVER = threading.Event()


class Guess(BaseModel):
    """Input of the tool."""

    number: int


class Sound(Environment):
    """Tasks with an answer that clients do not get, a tool that ends the episode, and a teardown."""

    private_task_fields = ("answer",)
    reward: ClassVar[float] = 0.0

    @classmethod
    def list_splits(cls) -> list[str]:
        return ["train", "test"]

    @classmethod
    def list_tasks(cls, split: str) -> list[Any]:
        return [{"id": f"{split}-{number}", "answer": number} for number in range(3)]

    def get_prompt(self) -> Blocks:
        return [TextBlock(text=f"Guess the number of {self.task_spec['id']}.")]

    def teardown(self) -> None:
        """End nothing, and be counted."""

    @tool
    def guess(self, params: Guess) -> ToolOutput:
        """Guess."""
        return ToolOutput(blocks=[TextBlock(text="no")], reward=self.reward, finished=True)


class Raises(Sound):
    @tool
    def guess(self, params: Guess) -> ToolOutput:
        raise KeyError("a fault of the tool")


class Rich(Sound):
    reward = 5.0


class Solved(Sound):
    reward = 1.0


class Silent(Sound):
    def get_prompt(self) -> Blocks:
        return [TextBlock(text=" ")]


class Whimsical(Sound):
    numbers = itertools.count()

    def get_prompt(self) -> Blocks:
        return [TextBlock(text=f"This time {next(self.numbers)}.")]


class Shuffled(Sound):
    processes = itertools.count()

    @classmethod
    def list_tasks(cls, split: str) -> list[Any]:
        first = next(cls.processes)
        return [{"id": f"{first + number}", "answer": 0} for number in range(3)]


class Leaky(Sound):
    def setup(self) -> None:
        threading.Thread(target=OVER.wait, name="forgotten", daemon=True).start()


class Untidy(Sound):
    def teardown(self) -> None:
        raise OSError("the sandbox is still in use")


class MisspeltField(Sound):
    private_task_fields = ("answer", "anwser")


class MisspeltDeclaration(Sound):
    private_task_fields = ()
    private_task_feilds = ("answer",)


class Wires(Wire):
    """A wire whose other servers are in this process too."""

    apps: dict[str, App]

    def another(self, url: str) -> Wire:
        return Wire(url, transport=AsgiStreams(self.apps[url]))


class Process:
    """The process of the tests, as that of a server."""

    def __init__(self, cls: type[Sound], server: Server, wire: Wires, teardowns: Teardowns) -> None:
        self._cls, self._server, self._wire, self._teardowns = cls, server, wire, teardowns

    async def state(self) -> State:
        return State.of(state(self._teardowns, self._server.environments), [])

    @contextlib.asynccontextmanager
    async def second(self) -> AsyncGenerator[str]:
        other = Server([self._cls])
        self._wire.apps = {"http://second": other.app}
        yield "http://second"
        await other.sessions.close()


async def tried(
    cls: type[Sound], *ids: str, fault: Fault | None = None, options: Options | None = None, **settings: Any
) -> dict[str, Result]:
    # A class of its own for each test: its teardown is replaced by one that counts.
    cls = type(cls.__name__, (cls,), {"teardown": cls.teardown, "__module__": cls.__module__})
    teardowns = Teardowns([cls])
    server = Server([cls], settings=Settings(**settings))
    wire = Wires("http://server", transport=AsgiStreams(server.app if fault is None else broken(server.app, fault)))
    subject = Subject(wire, options or Options(episodes=3, rewards=(0.0, 1.0)), Process(cls, server, wire, teardowns))
    try:
        report = await check(subject, [RULES[id] for id in ids or RULES], target="target", time_limit=60)
    finally:
        await wire.close()
        await server.sessions.close()
    assert report.problem == ""
    return {result.rule.id: result for result in report.results}


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    monkeypatch.setattr(rules_target, "_PATIENCE", 0.3)


async def test_a_sound_environment_passes() -> None:
    results = await tried(Sound)
    assert {id: result.came for id, result in results.items() if result.outcome is not Outcome.PASSED} == {}


@pytest.mark.parametrize(
    ("id", "cls", "came"),
    [
        ("target.calls", Raises, "a fault of the tool"),
        ("target.rewards", Rich, "5, which is not within 0 to 1"),
        ("target.prompts", Silent, "is empty"),
        ("target.same-prompt", Whimsical, "This time"),
        ("target.same-tasks", Shuffled, "different from index 0 on"),
        ("target.leftovers", Leaky, "3 threads: forgotten"),
        ("target.teardown", Untidy, "OSError: the sandbox is still in use"),
        ("target.private-fields", MisspeltField, "no task has a field anwser"),
        ("target.private-fields", MisspeltDeclaration, "private_task_feilds"),
    ],
)
async def test_a_rule_fails_on_a_faulty_environment(id: str, cls: type[Sound], came: str) -> None:
    try:
        result = (await tried(cls, id))[id]
    finally:
        OVER.set()
        OVER.clear()
    assert result.outcome is Outcome.FAILED, result.came
    assert came in result.came


async def test_random_calls_that_earn_everything_get_a_warning() -> None:
    result = (await tried(Solved, "target.full-reward"))["target.full-reward"]
    assert result.outcome is Outcome.WARNED
    assert "earned 1 on task" in result.came


async def test_calls_after_the_end_that_run_are_found() -> None:
    result = (await tried(Sound, "target.finished", enforce_finished=False))["target.finished"]
    assert result.outcome is Outcome.FAILED


async def test_private_fields_that_are_listed_are_found() -> None:
    fault = changes("task", lambda given: given["task"].update(answer=1))
    result = (await tried(Sound, "target.private-fields", fault=fault))["target.private-fields"]
    assert result.outcome is Outcome.FAILED
    assert "answer" in result.came


async def test_a_missing_teardown_is_found() -> None:
    fault = Fault("delete", answered_without_server(), passed_on=False)
    result = (await tried(Sound, "target.teardown", fault=fault))["target.teardown"]
    assert result.outcome is Outcome.FAILED
    assert result.came == "0 for 3 episodes"


async def test_the_seed_decides_the_episodes() -> None:
    options = Options(episodes=3, rewards=(0.0, 1.0), seed=7)

    came = [(await tried(Raises, "target.calls", options=options))["target.calls"].came for _ in range(2)]
    assert came[0] == came[1]


@pytest.mark.long
async def test_a_target_that_does_not_load_names_the_place(tmp_path: Path) -> None:
    (tmp_path / "environment.py").write_text("def broken(:\n")
    with pytest.raises(ConfigurationError) as caught:
        async with serving(str(tmp_path)):
            pass
    assert "cannot be served" in str(caught.value)
    assert "environment.py, line 1" in str(caught.value)
    assert "Traceback" not in str(caught.value)


def test_teardowns_are_counted_once_for_each_instance() -> None:
    class Base(Sound):
        def teardown(self) -> None:
            return None

    class Below(Base):
        def teardown(self) -> None:
            super().teardown()

    counter = Teardowns([Base, Below])
    Base({"id": "a"}).teardown()
    Below({"id": "b"}).teardown()
    assert counter.count == 2
    assert counter.counted == ["base", "below"]
