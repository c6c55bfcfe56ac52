"""Construct and set up the environment of a session.

Invariants: an instance is built once and set up once. A set-up for which the machine has no room is repeated later with
a new instance, until ``ORS_SETUP_TIMEOUT`` seconds have passed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

from ors_server.errors import InfrastructureFailure, MachineBusy, OrsError
from ors_server.hosting.author_exceptions import as_request_error
from ors_server.hosting.catalogue import HostedEnvironment
from ors_server.hosting.errors import EnvironmentFailed
from ors_server.hosting.session_toolsets import find_toolset
from ors_server.rollouts.recorder import Recorder, Recording
from ors_server.sessions.environment_instance import EnvironmentInstance
from ors_server.sessions.secrets import hidden_values
from ors_server.settings import Settings
from ors_server.telemetry import tracing

__all__ = ["Setup", "TaskChoice", "took_too_long"]


class TaskChoice:
    """The task and the toolset of a session. The task is given whole, or by split and index."""

    __slots__ = ("index", "spec", "split", "toolset")

    def __init__(
        self, spec: Mapping[str, Any] | None, split: str | None, index: int | None, toolset: str | None = None
    ) -> None:
        self.spec = spec
        self.split = split
        self.index = index
        #: The name of a toolset that the session has beside the environment's tools.
        self.toolset = toolset


class Setup:
    """The way of one session from its task to a ready environment.

    It lives only until then: it holds the task and the secrets, which afterwards only the author's instance has.
    """

    __slots__ = ("_choice", "_secrets", "_settings", "_sid", "_span", "_task", "begun", "environment", "hosted")

    def __init__(self, sid: str, choice: TaskChoice, secrets: dict[str, str], settings: Settings) -> None:
        self._sid = sid
        self._choice = choice
        self._secrets = secrets
        self._settings = settings
        self._task: Any = None
        self._span: Any = None
        #: When the task began to be fetched, by ``time.monotonic``.
        self.begun = 0.0
        #: Set before ``construct``.
        self.hosted: HostedEnvironment | None = None
        #: None until the task was fetched; from then on the author's constructor may run.
        self.environment: EnvironmentInstance | None = None

    async def construct(self) -> EnvironmentInstance:
        """Fetch the task and build the instance.

        Raises what the task source raises, ``InvalidToolset``, ``EnvironmentFailed``, ``InfrastructureFailure`` and
        ``MachineBusy``.
        """
        hosted, choice = self.hosted, self._choice
        self.begun = time.monotonic()
        assert hosted is not None
        try:
            if choice.spec is not None:
                self._task = await hosted.tasks.resolve(choice.spec)
            else:
                assert choice.split is not None and choice.index is not None
                self._task = await hosted.tasks.get(choice.split, choice.index)
            toolset = None if choice.toolset is None else find_toolset(hosted.cls, choice.toolset)
            self.environment = EnvironmentInstance(self._sid, hosted, toolset, self._settings)
            await self.environment.build(self._task, self._secrets)
        except Exception as error:  # an author's constructor and task source may raise anything
            if self.environment is not None:
                self.environment.close()
            raise self._as_request_error(error, "constructor") from error
        return self.environment

    def begin_recording(self, recorder: Recorder, owner: str) -> Recording:
        """Begin to record the session, after ``construct``: its task as clients see it, and none of its secrets."""
        hosted, choice = self.hosted, self._choice
        assert hosted is not None
        split, index = choice.split, choice.index
        if choice.spec is not None:
            split, index = hosted.tasks.place_of(choice.spec) or (None, None)
        return recorder.begin(
            sid=self._sid,
            environment=hosted.name,
            split=split,
            index=index,
            task=hosted.tasks.public_part(self._task),
            secrets=hidden_values(self._secrets),
            owner=owner or None,
        )

    def begin_span(self) -> None:
        """Trace the set-up, where tracing is on."""
        if tracing.active is not None:
            name = "" if self.hosted is None else self.hosted.name
            attributes = {"ors.session.id": self._sid, "ors.environment": name}
            self._span = tracing.active.begin("session set-up", attributes)

    def end_span(self, failure: str) -> None:
        """End the trace of the set-up; an empty ``failure`` is a success."""
        span, self._span = self._span, None
        if span is not None:
            if failure:
                tracing.fail(span, failure)
            span.end()

    async def run(self, on_timeout: Callable[[OrsError], None], ahead: Callable[[], bool]) -> OrsError | None:
        """Run the author's set-up, again while the machine has no room for it; return how it failed, if it did.

        ``on_timeout`` gets a failure before this returns: a set-up on a thread cannot be interrupted. While ``ahead``
        says that its episode has not begun, its waiting keeps no other session out.
        """
        assert self.environment is not None and self.hosted is not None
        deadline = time.monotonic() + self._settings.setup_timeout
        failure = await self._run_once(on_timeout)
        while isinstance(failure, MachineBusy) and time.monotonic() + failure.retry_after < deadline:
            wait = failure.retry_after
            counted = not ahead()
            self.hosted.waiting_for_room += counted
            try:
                await self.environment.rebuild(self._task, self._secrets)
                await asyncio.sleep(wait)
            except Exception as error:  # noqa: BLE001 - an author's constructor may raise anything
                failure = self._as_request_error(error, "constructor")
                continue
            finally:
                self.hosted.waiting_for_room -= counted
            failure = await self._run_once(on_timeout)
        return failure.as_failure() if isinstance(failure, MachineBusy) else failure

    async def _run_once(self, on_timeout: Callable[[OrsError], None]) -> OrsError | None:
        assert self.environment is not None
        timeout = self._settings.setup_timeout
        run = asyncio.ensure_future(self.environment.execution.run(self.environment.instance.setup))
        failure: OrsError | None = None
        try:
            done, _ = await asyncio.wait((run,), timeout=timeout)
            if not done:
                run.cancel()
                failure = took_too_long("set-up", timeout)
                on_timeout(failure)
                await asyncio.wait((run,))  # teardown must wait for a set-up that goes on on a thread
            elif run.cancelled():
                failure = EnvironmentFailed("The environment's set-up was cancelled")
            else:
                error = run.exception()
                if error is not None:
                    failure = self._as_request_error(error, "setup")
        except asyncio.CancelledError:
            run.cancel()
            await asyncio.wait((run,))
            raise
        finally:
            if run.done() and not run.cancelled():
                run.exception()  # retrieved, or asyncio would report it as lost
        return failure

    def _as_request_error(self, error: BaseException, where: str) -> OrsError:
        assert self.hosted is not None
        mode, secrets = self._settings.return_errors, hidden_values(self._secrets)
        return as_request_error(error, mode, environment=self.hosted.name, where=where, sid=self._sid, secrets=secrets)


def took_too_long(what: str, seconds: float) -> InfrastructureFailure:
    """Make the failure of an author's method that did not end in time."""
    return InfrastructureFailure(
        f"The environment's {what} took longer than {seconds:g} s",
        "Raise ORS_SETUP_TIMEOUT, or find out what it waits for.",
    )
