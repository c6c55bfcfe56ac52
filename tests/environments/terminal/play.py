"""Episodes played by hand: a task of the test, its commands, and the reward."""

from __future__ import annotations

import dataclasses

from ors_server import JSONObject, Split
from ors_server.protocol import RunToolSuccess, ToolOutput

from .parts import environment, preparation, settings, task
from .parts import episode as episodes

__all__ = ["Episode", "environment_of", "episode", "own_task"]


def own_task(final_tests: str, **changes: object) -> task.TerminalTask:
    """Return a task in the plain image."""
    plain = task.TerminalTask(
        name="own",
        prompt="Do it.",
        image=task.PreparedImage({}, ""),
        final_tests=final_tests,
        initial_tests="def test_nothing(): pass",
        truth="SECRET-TRUTH",
    )
    return dataclasses.replace(plain, **changes)  # type: ignore[arg-type]


class Episode:
    """One episode, used as ``async with``."""

    def __init__(self, instance: environment.TerminalEnvironment) -> None:
        self.instance = instance

    async def __aenter__(self) -> Episode:
        await self.instance.setup()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.instance.teardown()

    async def call(self, tool: str, **arguments: str) -> ToolOutput:
        """Call a tool that must run."""
        outcome = await self.instance._call_tool(tool, dict(arguments))  # pyright: ignore[reportPrivateUsage]
        assert isinstance(outcome.root, RunToolSuccess), outcome
        return outcome.root.output

    async def bash(self, command: str) -> ToolOutput:
        return await self.call("bash", command=command)

    async def done(self) -> ToolOutput:
        return await self.call("done")

    async def text(self, command: str) -> str:
        """Run a command and return its text."""
        (block,) = (await self.bash(command)).blocks
        assert block.type == "text"
        return block.text


def environment_of(
    made_service: preparation.Service,
    played: episodes.PlayedTask,
    made_settings: settings.TerminalSettings | None = None,
) -> type[environment.TerminalEnvironment]:
    """Return the environment with one task and the sandboxes of a service."""

    class Own(environment.TerminalEnvironment):
        @classmethod
        def unavailable(cls) -> str:  # pyright: ignore[reportIncompatibleMethodOverride] - either is allowed
            return ""

        @classmethod
        def list_splits(cls) -> list[Split]:
            return [Split(name="train", type="train")]

        @classmethod
        def list_tasks(cls, split: str) -> list[JSONObject]:
            return [{"id": played.name}]

        @classmethod
        def find_task(cls, name: str) -> episodes.PlayedTask:
            return played

        @classmethod
        async def sandboxes(cls) -> preparation.Service:
            return made_service

    Own.settings = made_settings or settings.TerminalSettings()
    return Own


def episode(
    made_service: preparation.Service,
    played: episodes.PlayedTask,
    made_settings: settings.TerminalSettings | None = None,
) -> Episode:
    """Return an episode of a task in the sandboxes of a service."""
    return Episode(environment_of(made_service, played, made_settings)({"id": played.name}))
