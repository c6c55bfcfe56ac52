"""The life of one session: one episode on one environment instance.

    UNBOUND ──► CREATING ──► SETTING_UP ──► READY ──► ENDING
                    │             └────────► FAILED ──► ENDING
                    └─ the constructor raised: the session never existed

An UNBOUND session was created without a name while several environments are hosted; the first request that names an
environment binds the session to it. Invariants: an instance is built once, set up once and torn down once; teardown
starts only when the constructor, the set-up and every call have ended; a waiting request learns of the end at once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ors_server.errors import InfrastructureFailure, MachineBusy, OrsError
from ors_server.hosting.author_exceptions import as_request_error, log_and_describe
from ors_server.hosting.call_overrides import OverridingRunner
from ors_server.hosting.catalogue import HostedEnvironment
from ors_server.hosting.errors import EnvironmentFailed
from ors_server.hosting.tool_runner import RefusedCall, ToolRunner
from ors_server.keys.key import ANYONE, Key
from ors_server.keys.usage import Usage
from ors_server.protocol import ScoreGroup
from ors_server.rollouts.aggregates.derived_columns import LOST, Outcome
from ors_server.rollouts.recorder import Recorder, Recording
from ors_server.sandboxes import give_way_while
from ors_server.sessions.calls.call import Call
from ors_server.sessions.calls.call_frames import outcome_frames, score_group
from ors_server.sessions.calls.call_ledger import CallLedger
from ors_server.sessions.calls.call_slots import CallSlots, LimitedSlots
from ors_server.sessions.calls.result_store import ResultStore
from ors_server.sessions.environment_instance import EnvironmentInstance
from ors_server.sessions.errors import ScoringUnsupported, SessionGone, SessionStarting
from ors_server.sessions.reading import checked, messages_json, prompt_json, task_tools_json
from ors_server.sessions.secrets import hidden_values
from ors_server.sessions.setup import Setup, TaskChoice, took_too_long
from ors_server.settings import Settings
from ors_server.telemetry import tracing
from ors_server.wire.encoding import encode
from ors_server.wire.request_ids import call_id
from ors_server.wire.sse import error_frame, result_frames

__all__ = ["Session", "SessionContext", "State"]

logger = logging.getLogger("ors_server.sessions.session")

#: Seconds that cancelled calls may take to end before their clients get the end of the session as their result.
_GRACE = 1.0


class State(Enum):
    """A session's place in its life."""

    UNBOUND = "unbound"
    CREATING = "creating"
    SETTING_UP = "setting up"
    READY = "ready"
    FAILED = "failed"
    ENDING = "ending"


class Ahead:
    """Says whether the episode of a session that was opened ahead has not begun: its sandboxes start after all others.

    Not the session itself, which tasks of its environment would then hold longer than it lives.
    """

    __slots__ = ("begun",)

    def __init__(self) -> None:
        self.begun = False

    def __call__(self) -> bool:
        return not self.begun


@dataclass(frozen=True, slots=True)
class SessionContext:
    """The part of a server that each of its sessions uses."""

    settings: Settings
    slots: CallSlots
    usage: Usage
    results: ResultStore
    #: End a session whose machine failed.
    on_lost: Callable[[Session, InfrastructureFailure], None]
    #: Forget a session whose instance could not be built.
    on_unbuilt: Callable[[Session], None]
    #: Gets each instance that its session holds no longer.
    on_left: Callable[[Any], None]
    #: Return the recorder of sessions, where they are recorded.
    recorder: Callable[[], Recorder | None]


class Session:
    """One session. Used on the event loop only."""

    __slots__ = (
        "_construction",
        "_context",
        "_environment",
        "_failure",
        "_ledger",
        "_runner",
        "_running",
        "_setup",
        "_setup_run",
        "_waiters",
        "ahead",
        "end_outcome",
        "end_reason",
        "ending",
        "fingerprint",
        "hosted",
        "key",
        "last_call",
        "last_seen",
        "opened",
        "owner",
        "recording",
        "sid",
        "state",
    )

    def __init__(
        self,
        context: SessionContext,
        sid: str,
        hosted: HostedEnvironment | None,
        choice: TaskChoice,
        secrets: dict[str, str],
        fingerprint: int,
        key: Key = ANYONE,
        *,
        ahead: bool = False,
    ) -> None:
        self._context = context
        #: Set where it was opened for an episode that begins later.
        self.ahead = Ahead() if ahead else None
        self.sid = sid
        #: Name of the key that made it; empty on a server without keys.
        self.owner = key.name
        self.key = key
        self.hosted = hosted
        #: Hash of the request that created the session: the same request again gets the same answer.
        self.fingerprint = fingerprint
        self.state = State.UNBOUND
        self.opened = self.last_seen = time.monotonic()
        #: The tool of the last call and the time when it began.
        self.last_call: tuple[str, float] | None = None
        #: The answer to later requests, once the session is ending.
        self.end_reason = ""
        self.end_outcome: Outcome = "deleted"
        #: Its record; None where sessions are not recorded.
        self.recording: Recording | None = None
        self.ending: asyncio.Task[None] | None = None
        #: None once the session is ready.
        self._setup: Setup | None = Setup(sid, choice, secrets, context.settings)
        self._construction: asyncio.Task[None] | None = None
        self._setup_run: asyncio.Task[None] | None = None
        self._failure: OrsError | None = None
        self._waiters: list[asyncio.Future[None]] | None = None
        self._environment: EnvironmentInstance | None = None
        self._runner: ToolRunner | OverridingRunner | None = None
        self._ledger: CallLedger | None = None
        #: Other tasks that run the instance's code: reading methods, and calls that were answered with a time-out.
        self._running: set[asyncio.Task[Any]] | None = None

    # --- creation ----------------------------------------------------------------------------

    async def construct(self, hosted: HostedEnvironment | None = None) -> None:
        """Build the instance and start its set-up; a second caller waits for the outcome of the first.

        Raises what ``Setup.construct`` raises; the session then never existed.
        """
        if self.state is State.UNBOUND:
            self.state = State.CREATING
            self.hosted = hosted or self.hosted
            self._construction = asyncio.create_task(self._construct())
            self._construction.add_done_callback(_retrieve)
        if self._construction is not None:
            await self._constructed(self._construction)
        if self.state is State.ENDING:
            raise SessionGone(self.end_reason)

    async def _constructed(self, construction: asyncio.Task[None]) -> None:
        # Only waited for: a client that disconnects must not cancel it for another client.
        limit = self._context.settings.setup_timeout
        done, _ = await asyncio.wait((construction,), timeout=limit)
        if done:
            if construction.cancelled():
                raise SessionGone(self.end_reason)
            construction.result()
        elif self.state is not State.ENDING:
            error = took_too_long("constructor", limit)
            self._context.on_lost(self, error)
            raise error

    async def _construct(self) -> None:
        hosted, setup = self._bound(), self._setup
        assert setup is not None
        setup.hosted = hosted
        if hosted.counts is not None:
            hosted.counts.created += 1
        setup.begin_span()
        try:
            self._environment = await setup.construct()
        except Exception as error:
            setup.end_span(type(error).__name__)
            if hosted.counts is not None and self.state is not State.ENDING:
                hosted.counts.ended["unbuilt"] += 1
            self._setup = None
            self._context.on_unbuilt(self)
            raise
        if (recorder := self._context.recorder()) is not None:
            self.recording = setup.begin_recording(recorder, self.owner)
        self._construction = None
        if self.state is State.ENDING:
            self._setup = None
        elif hosted.has_setup:
            self.state = State.SETTING_UP
            self._setup_run = asyncio.create_task(self._set_up(setup))
        else:
            self._note_setup(setup, None)
            self._setup = None
            self._become(State.READY)

    async def _set_up(self, setup: Setup) -> None:
        if self.ahead is not None:
            give_way_while(self.ahead)
        try:
            failure = await setup.run(self._fail, self.ahead or (lambda: False))
        except asyncio.CancelledError:
            setup.end_span("the session has ended")
            raise
        self._note_setup(setup, failure)
        self._setup = self._setup_run = None
        if failure is None:
            self._become(State.READY)
        else:
            self._fail(failure)

    def _note_setup(self, setup: Setup, failure: OrsError | None) -> None:
        setup.end_span("" if failure is None else type(failure).__name__)
        counts = self._bound().counts
        if counts is None:
            return
        counts.setup.observe(time.monotonic() - setup.begun)
        if failure is not None:
            reason = "infrastructure" if isinstance(failure, InfrastructureFailure) else "environment"
            counts.setup_failures[reason] += 1

    def _fail(self, failure: OrsError) -> None:
        if isinstance(failure, InfrastructureFailure) and self._failure is None:
            logger.error("set-up failed", extra={"sid": self.sid, "reason": failure.text})
        self._failure = failure
        self._become(State.FAILED)

    def _become(self, state: State) -> None:
        if self.state is not State.ENDING:
            self.state = state
        waiters, self._waiters = self._waiters, None
        for waiter in waiters or ():
            if not waiter.done():
                waiter.set_result(None)

    # --- waiting -----------------------------------------------------------------------------

    def touch(self, now: float | None = None) -> None:
        """Note a request or ping. Pings do not keep a failed session alive."""
        if self.state is not State.FAILED:
            self.last_seen = time.monotonic() if now is None else now

    @property
    def busy(self) -> bool:
        """True while any of its code runs. A busy session does not expire."""
        if self.state in (State.CREATING, State.SETTING_UP) or self._running:
            return True
        return self._ledger is not None and self._ledger.running_count > 0

    @property
    def at_rest(self) -> bool:
        """True where it can be ended without waiting: none of its code runs and there is no teardown."""
        return self.state is State.READY and not self.busy and not self._bound().has_teardown

    def check(self) -> None:
        """Raise ``SessionGone`` for a session that has ended, and the failure of its set-up."""
        if self.state is State.ENDING:
            raise SessionGone(self.end_reason)
        if self._failure is not None:
            raise self._failure.with_traceback(None)  # or the traceback would grow with every request

    async def ready(self, seconds: float | None = None) -> None:
        """Wait until it is set up. Raises ``SessionStarting`` after ``seconds``, and what ``check`` raises."""
        if self.state is State.CREATING:
            await self.construct()
        if self.state is State.SETTING_UP:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            if self._waiters is None:
                self._waiters = []
            self._waiters.append(waiter)
            await asyncio.wait((waiter,), timeout=seconds)
            if not waiter.done():
                waiter.cancel()
                raise SessionStarting()
        self.check()

    # --- reading -----------------------------------------------------------------------------

    async def prompt(self) -> bytes:
        """Return the prompt's blocks, as JSON.

        Raises ``EnvironmentFailed``, ``InfrastructureFailure`` (also past the time limit) and ``SessionGone``.
        """
        prompt = await prompt_json(self._bound(), self._read)
        if self.recording is not None:
            self.recording.prompt("blocks", prompt)
        return prompt

    async def messages(self) -> bytes:
        """Return the prompt as messages, as JSON. Raises what ``prompt`` raises."""
        messages = await messages_json(self._bound(), self._read)
        if self.recording is not None:
            self.recording.prompt("messages", messages)
        return messages

    async def task_tools(self) -> bytes:
        """Return all tools of this session, as JSON; does not wait for set-up. Raises what ``prompt`` raises."""
        environment = self._built()
        return await task_tools_json(self._bound(), self._read, environment.tools, environment.toolset_class)

    async def _read(self, method: str) -> Any:
        """Run a reading method of the instance, at most as long as a set-up."""
        limit = self._context.settings.setup_timeout
        # A task of its own: the end of the session can cancel it, and waits for it.
        run = asyncio.create_task(self._run_reading(method))
        self._keep(run)
        try:
            done, _ = await asyncio.wait((run,), timeout=limit)
            if not done:
                raise took_too_long(method, limit)
            if run.cancelled():
                raise SessionGone(self.end_reason)
            return run.result()
        except InfrastructureFailure as error:
            self._context.on_lost(self, error)
            raise
        except asyncio.CancelledError:
            run.cancel()
            raise
        finally:
            run.add_done_callback(self._discard)
            self.touch()

    async def _run_reading(self, method: str) -> Any:
        environment = self._built()
        try:
            return checked(method, await environment.execution.run(getattr(environment.instance, method)))
        except Exception as error:  # the author's method may raise anything
            mode = self._context.settings.return_errors
            name = environment.hosted.name
            secrets = hidden_values(environment.secrets)
            raise as_request_error(
                error, mode, environment=name, where=method, sid=self.sid, secrets=secrets
            ) from error

    def _keep(self, run: asyncio.Task[Any]) -> None:
        if self._running is None:
            self._running = set()
        self._running.add(run)

    def _discard(self, run: asyncio.Task[Any]) -> None:
        _retrieve(run)
        if self._running is not None:
            self._running.discard(run)
            self._running = self._running or None

    def _bound(self) -> HostedEnvironment:
        assert self.hosted is not None
        return self.hosted

    def _built(self) -> EnvironmentInstance:
        assert self._environment is not None
        return self._environment

    # --- calls -------------------------------------------------------------------------------

    @property
    def ledger(self) -> CallLedger:
        """The ledger of its calls."""
        if self._ledger is None:
            slots = self._context.slots
            if self.key.limits.calls is not None:
                slots = LimitedSlots(slots, self._context.usage, self.key)
            self._ledger = CallLedger(self._context.results, slots)
        return self._ledger

    def start_call(
        self, name: str, arguments: Mapping[str, Any], key: str | None, request: bytes | None = None
    ) -> Call:
        """Start the call that a request means, or return the earlier call that it repeats.

        ``request`` is the body of the request, for the record, if there is one. Raises what ``CallLedger.start``
        raises.
        """
        return self._start(name, arguments, key, request, self._tool_frames)

    def start_scoring(self, request: ScoreGroup) -> Call:
        """Start to score a group, as a call. Raises ``ScoringUnsupported`` and what ``CallLedger.start`` raises."""
        hosted = self._bound()
        if not hosted.tools.supports_score_group:
            raise ScoringUnsupported(hosted.name)

        async def frames(call: Call) -> bytes:
            await self.ready()
            return result_frames(encode(await score_group(self._built(), request, call)))

        arguments = request.model_dump(mode="json")
        return self._start("score_group", arguments, None, None, frames)

    def _start(
        self,
        name: str,
        arguments: Mapping[str, Any],
        key: str | None,
        request: bytes | None,
        frames: Callable[[Call], Awaitable[bytes]],
    ) -> Call:
        call, new = self.ledger.start(name, arguments, key)
        if new:
            if self.recording is not None:
                noted = encode({"name": name, "input": arguments}) if request is None else request
                self.recording.call(call.started, call.task_id, noted)
            self.last_call = (name, call.started)
            run = self._run if tracing.active is None else self._run_traced
            call.task = asyncio.create_task(run(call, frames))
        return call

    @property
    def running_calls(self) -> list[tuple[str, float]]:
        """The tools of the calls without a result, and the times when they began."""
        return [] if self._ledger is None else [(call.name, call.started) for call in self._ledger.running()]

    async def _run_traced(self, call: Call, frames: Callable[[Call], Awaitable[bytes]]) -> None:
        if tracing.active is None:
            await self._run(call, frames)
            return
        ids = {"ors.session.id": self.sid, "ors.call.id": call.task_id}
        with tracing.active.span("call", {**ids, "ors.environment": self._bound().name, "ors.tool": call.name}) as span:
            await self._run(call, frames)
            span.set_attribute("ors.call.outcome", call.outcome)
            span.set_attribute("ors.call.environment_seconds", call.inside)
            if call.outcome not in ("ok", "refused"):
                tracing.fail(span, call.outcome)

    async def _run(self, call: Call, frames: Callable[[Call], Awaitable[bytes]]) -> None:
        """Run a call's code to its end and record the events of its result, an error event included."""
        call_id.set((self.sid, call.task_id))
        try:
            result = await frames(call)
        except asyncio.CancelledError:
            call.outcome = "cancelled"
            result = error_frame(self._cancelled(call))
        except EnvironmentFailed as error:  # the set-up this call waited for; it was logged then
            call.outcome = "error"
            result = error_frame(str(error))
        except SessionGone as error:
            call.outcome = "cancelled"
            result = error_frame(f"SessionGone: {error}")
        except (InfrastructureFailure, MachineBusy) as error:
            # The result of a call is final, so the call cannot wait until the machine has room.
            failure = error.as_failure() if isinstance(error, MachineBusy) else error
            call.outcome = "infrastructure"
            result = error_frame(failure.detail)
            self._context.on_lost(self, failure)
        except Exception as error:  # noqa: BLE001 - an author's code may raise anything; the client gets an error event
            mode = self._context.settings.return_errors
            where = f"tool {call.name!r}"
            call.outcome = "error"
            name = self._bound().name
            secrets = hidden_values(None if self._environment is None else self._environment.secrets)
            result = error_frame(
                log_and_describe(error, mode, environment=name, where=where, sid=self.sid, secrets=secrets)
            )
        self._end_run(call, result)

    async def _tool_frames(self, call: Call) -> bytes:
        if self.state is not State.READY:
            await self.ready()
        runner = self._runner
        if runner is None:
            runner = self._runner = self._make_runner()
        outcome = await runner.run(call.name, call.input, call)
        if isinstance(outcome, RefusedCall):
            call.outcome = "refused"
        if self.state is State.ENDING:
            call.outcome = "cancelled"
            # The tool could not be cancelled. A session that was lost or deleted gives no reward.
            return error_frame(self._cancelled(call))
        frames, call.recorded = outcome_frames(runner, call.name, outcome, self._context.settings.max_output)
        if not isinstance(outcome, RefusedCall):
            call.reward, call.finished = outcome.reward, outcome.finished
        return frames

    def _make_runner(self) -> ToolRunner | OverridingRunner:
        environment = self._built()
        if environment.toolset_class is not None and environment.hosted.counts is not None:
            environment.hosted.counts.learn(environment.tools.tools)
        return environment.tool_runner()

    def _end_run(self, call: Call, frames: bytes) -> None:
        now = time.monotonic()
        self.touch(now)  # the time to live counts from the end of a long call
        if call.done:  # its client was answered before its code ended
            call.outcome = "cancelled" if self.state is State.ENDING else "timeout"
        elif self.recording is not None:
            self.recording.result(now, call, call.recorded or frames)
        if not call.recorded_for_page:
            call.recorded = None
        self.ledger.end_run(call, frames)
        counts = self._bound().counts
        if counts is not None:
            counts.end_call(call.name, call.outcome, now - call.started, call.inside)

    def _record_early(self, call: Call, frames: bytes) -> None:
        """Record what the clients of a call get before its code has ended, unless they have got something else."""
        if self.recording is not None and not call.done:
            self.recording.result(time.monotonic(), call, frames)

    def end_record(self) -> None:
        """Record how the session ended."""
        if self.recording is None:
            return
        if self._failure is None or self.end_outcome == LOST:
            self.recording.end(self.end_outcome, self.end_reason)
        else:
            failed = LOST if isinstance(self._failure, InfrastructureFailure) else "failed"
            self.recording.end(failed, self._failure.text)

    def _cancelled(self, call: Call) -> str:
        if self.state is State.ENDING:
            return f"SessionGone: {self.end_reason}"
        return f"ToolCancelled: {call.name!r} was cancelled by the environment's own code"

    def expire_calls(self, now: float) -> None:
        """Give calls that exceed their time limit an error, and cancel their code; the session goes on."""
        if self._ledger is None:
            return
        limit = self._context.settings.call_timeout
        for call in self._ledger.running():
            if now - call.started > limit:
                task = call.task
                message = (
                    f"ToolTimeout: {call.name!r} ran longer than {limit:g} s. Raise ORS_CALL_TIMEOUT if it should."
                )
                self._record_early(call, error_frame(message))
                self._ledger.finish(call, error_frame(message))
                if task is not None:
                    self._keep(task)
                    task.add_done_callback(self._discard)
                    task.cancel()

    # --- the end -----------------------------------------------------------------------------

    async def end(self, current: asyncio.Task[Any] | None) -> None:
        """Cancel all code of the session, wait for it, tear the instance down and drop all results.

        Called by ``Sessions`` only. ``current``, the session's own task that asked for the end, is not cancelled.
        """
        limit = self._context.settings.teardown_timeout
        running: set[asyncio.Task[Any]] = set(self._running or ())
        for task in running:
            task.cancel()
        if self._construction is not None:
            if self._setup is None or self._setup.environment is None:
                self._construction.cancel()  # it still fetches the task; a constructor is waited for instead
            running.add(self._construction)
        if self._setup_run is not None:
            self._setup_run.cancel()
            running.add(self._setup_run)
        calls = self._ledger.running() if self._ledger is not None else []
        for call in calls:
            if call.task is not None:
                if call.task is not current:
                    call.task.cancel()
                running.add(call.task)
        self._become(State.ENDING)
        if running:
            await self._wait_for(running, calls, limit)
        if self._environment is not None:
            await self._environment.tear_down()
        self.close()

    async def _wait_for(self, running: set[asyncio.Task[Any]], calls: list[Call], limit: float) -> None:
        """Wait until all code has ended. The clients of calls that cannot be cancelled do not wait that long."""
        _, unfinished = await asyncio.wait(running, timeout=min(_GRACE, limit))
        gone = error_frame(f"SessionGone: {self.end_reason}")
        for call in calls:
            if call.task is not None and call.task.done():
                call.outcome = "cancelled"
                self._end_run(call, gone)  # cancelled before its first step, it never recorded a result
            else:
                self._record_early(call, gone)
                call.finish(gone)
        if unfinished:
            _, unfinished = await asyncio.wait(unfinished, timeout=limit)
        if unfinished:
            logger.warning("session still busy after its end", extra={"sid": self.sid, "seconds": limit})
            await asyncio.wait(unfinished)

    def close(self) -> None:
        """Drop everything. No code of the session runs any more."""
        self.state = State.ENDING
        self._setup = None
        environment, self._environment, self._runner = self._environment, None, None
        if environment is not None:
            environment.close()
        if self._ledger is not None:
            self._ledger.close()
        if environment is not None:
            self._context.on_left(environment.instance)


def _retrieve(task: asyncio.Task[None]) -> None:
    """Retrieve a task's exception, so that asyncio does not report it as lost where no request awaits it any more."""
    if not task.cancelled():
        task.exception()
