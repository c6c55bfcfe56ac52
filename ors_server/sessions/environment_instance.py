"""One instance of an author's class, with the toolset of its session and the threads on which its code runs.

Invariants: an instance is torn down at most once; synchronous code never runs on the event loop, except where the
environment's executions do so (``Settings.sync_on_loop``).
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from ors_server.hosting.author_exceptions import without_secrets
from ors_server.hosting.call_overrides import OverridingRunner, tool_runner
from ors_server.hosting.catalogue import HostedEnvironment
from ors_server.hosting.session_toolsets import build_toolset, tools_with
from ors_server.hosting.task_source import copy_json
from ors_server.hosting.tool_runner import ToolRunner
from ors_server.hosting.tools import ToolTable
from ors_server.sessions.secrets import hidden_values
from ors_server.settings import Settings

__all__ = ["EnvironmentInstance"]

logger = logging.getLogger("ors_server.sessions.environment_instance")


class EnvironmentInstance:
    """An instance of one session. ``build`` comes first, ``tear_down`` and ``close`` last."""

    __slots__ = (
        "_settings",
        "_sid",
        "execution",
        "hosted",
        "instance",
        "secrets",
        "tools_execution",
        "toolset",
        "toolset_class",
    )

    def __init__(self, sid: str, hosted: HostedEnvironment, toolset_class: type | None, settings: Settings) -> None:
        self._sid = sid
        self._settings = settings
        self.hosted = hosted
        self.toolset_class = toolset_class
        #: For the constructor, set-up, prompts and teardown; and for tools.
        self.execution, self.tools_execution = hosted.executions()
        #: The author's object; None until it is built.
        self.instance: Any = None
        #: Those that the instance has; the log of its failures does not tell them.
        self.secrets: dict[str, str] | None = None
        #: The session's toolset, an instance of ``toolset_class``.
        self.toolset: Any = None

    @property
    def tools(self) -> ToolTable:
        """The tools of the session, those of its toolset included."""
        return self.hosted.tools if self.toolset_class is None else tools_with(self.hosted.cls, self.toolset_class)

    async def build(self, task: Any, secrets: dict[str, str] | None) -> None:
        """Call the constructors of the environment and of the toolset. Raises what they raise."""
        self.secrets = secrets
        keywords = {"task_spec": copy_json(task), "secrets": secrets}
        if self.hosted.has_constructor:
            built = await self.execution.run(self.hosted.cls, **keywords)
        else:
            built = self.hosted.cls(**keywords)
        if self.toolset_class is not None:
            try:
                self.toolset = await self.execution.run(
                    build_toolset, self.toolset_class, built, self._settings.return_errors
                )
            except BaseException:  # cancellations included: no other code holds the instance
                await self._tear_down(built)
                raise
        self.instance = built

    async def rebuild(self, task: Any, secrets: dict[str, str] | None) -> None:
        """Build a new instance and tear the old one down. Raises what the constructors raise; the old one then stays.

        A cancellation takes effect when this is done: halfway, an instance would be torn down twice or never.
        """

        async def replace() -> None:
            old = self.instance
            await self.build(task, secrets)
            await self._tear_down(old)

        replacing = asyncio.ensure_future(replace())
        try:
            await asyncio.shield(replacing)
        except asyncio.CancelledError:
            await asyncio.wait((replacing,))
            replacing.exception()
            raise

    def tool_runner(self) -> ToolRunner | OverridingRunner:
        """Make the runner of the instance's tool calls."""
        return tool_runner(
            self.instance,
            self.tools,
            self.tools_execution,
            enforce_finished=self._settings.enforce_finished,
            toolsets=None if self.toolset_class is None else {self.toolset_class: self.toolset},
        )

    async def tear_down(self) -> None:
        """Run the author's teardown, at most ``ORS_TEARDOWN_TIMEOUT`` seconds. Its failure is only logged."""
        if self.instance is not None:
            await self._tear_down(self.instance)

    async def _tear_down(self, built: Any) -> None:
        if not self.hosted.has_teardown:
            return
        limit = self._settings.teardown_timeout
        fields = {"sid": self._sid, "environment": self.hosted.name}
        run = asyncio.ensure_future(self.execution.run(built.teardown))
        done, _ = await asyncio.wait((run,), timeout=limit)
        if not done:
            run.cancel()
            logger.error("teardown timed out", extra={**fields, "seconds": limit})
        elif not run.cancelled() and (error := run.exception()) is not None:
            shown = without_secrets(error, hidden_values(self.secrets))
            logger.error("teardown failed", exc_info=shown, extra=fields)

    def close(self) -> None:
        """Release the execution. No code of the instance runs any more."""
        self.execution.close()
