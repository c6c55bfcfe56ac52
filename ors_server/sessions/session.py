"""One session: one episode on one environment instance, and its life.

    UNBOUND ──► CREATING ──► SETTING_UP ──► READY ──► ENDING
                    │             └────────► FAILED ──► ENDING
                    └─ the constructor raised: the session never existed

UNBOUND is a session created without a name while several environments are hosted; the first request that names one
binds it. Invariants: an instance is built once, set up once and torn down once; teardown starts only when the
constructor, the set-up and every call have really ended, whatever asked for the end; a request that waits learns of
the end at once. A set-up for which the machine has no room is done again later, with a new instance.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import time
import traceback
from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, cast

from pydantic import BaseModel, TypeAdapter, ValidationError

from ors_server.encoding import NonFiniteReward, encode, encode_tool_error, encode_tool_output
from ors_server.errors import (
    EnvironmentFailed,
    InfrastructureFailure,
    MachineBusy,
    OrsError,
    OutputTooLarge,
    ScoringUnsupported,
    ServerBusy,
    SessionGone,
    SessionStarting,
)
from ors_server.hosting.call_overrides import OverridingRunner, tool_runner
from ors_server.hosting.dialects import Dialect
from ors_server.hosting.executors import Execution
from ors_server.hosting.prompts import flatten_messages
from ors_server.hosting.session_toolsets import build_toolset, find_toolset, listing_with, tools_with
from ors_server.hosting.task_source import copy_json
from ors_server.hosting.tools import RefusedCall, ToolRunner, ToolTable
from ors_server.protocol import Blocks, GroupScore, ListToolsOutput, Message, ScoreGroup, ScoreGroupOutput
from ors_server.sessions.call_ledger import Call, CallLedger
from ors_server.settings import ReturnErrors
from ors_server.sse import error_frame, result_frames

if TYPE_CHECKING:
    from ors_server.hosting.catalogue import HostedEnvironment
    from ors_server.sessions.registry import Sessions

__all__ = ["Session", "State", "TaskChoice", "describe_error"]

logger = logging.getLogger("ors_server.sessions.session")

#: Seconds a cancelled call gets to end by itself before its client is told.
_GRACE = 1.0

_BLOCKS: TypeAdapter[Any] = TypeAdapter(Blocks)
_MESSAGES: TypeAdapter[Any] = TypeAdapter(list[Message])
_TOOLS: TypeAdapter[Any] = TypeAdapter(ListToolsOutput)
#: What each reading method returns, and a field by which its models are known.
_RETURNS = {
    "get_prompt": "a list of TextBlock and ImageBlock",
    "get_messages": "a list of Message",
    "list_task_tools": "ListToolsOutput",
}
_FIELDS = {"get_prompt": "type", "get_messages": "role", "list_task_tools": "input_schema"}


class State(Enum):
    """Where a session is in its life."""

    UNBOUND = "unbound"
    CREATING = "creating"
    SETTING_UP = "setting up"
    READY = "ready"
    FAILED = "failed"
    ENDING = "ending"


class TaskChoice:
    """What a session is for: a task, given whole or by split and index; and the toolset it is played with."""

    __slots__ = ("index", "spec", "split", "toolset")

    def __init__(
        self, spec: Mapping[str, Any] | None, split: str | None, index: int | None, toolset: str | None = None
    ) -> None:
        self.spec = spec
        self.split = split
        self.index = index
        #: The name of a toolset that the session has beside the environment's tools.
        self.toolset = toolset


class Session:
    """One session. Used on the event loop only."""

    __slots__ = (
        "_choice",
        "_construction",
        "_execution",
        "_failure",
        "_ledger",
        "_lingering",
        "_owner",
        "_runner",
        "_secrets",
        "_setup",
        "_tools_execution",
        "_toolset",
        "_toolset_class",
        "_waiters",
        "end_reason",
        "ending",
        "fingerprint",
        "hosted",
        "instance",
        "last_seen",
        "sid",
        "state",
    )

    def __init__(
        self,
        owner: Sessions,
        sid: str,
        hosted: HostedEnvironment | None,
        choice: TaskChoice,
        secrets: dict[str, str],
        fingerprint: int,
    ) -> None:
        self._owner = owner
        self.sid = sid
        self.hosted = hosted
        #: Hash of the request that created it: the same request again is answered the same.
        self.fingerprint = fingerprint
        self.state = State.UNBOUND
        self.instance: Any = None
        self.last_seen = time.monotonic()
        #: What later requests are told, once it is ending.
        self.end_reason = ""
        self.ending: asyncio.Task[None] | None = None
        self._choice: TaskChoice | None = choice
        self._secrets: dict[str, str] | None = secrets
        self._construction: asyncio.Task[None] | None = None
        self._setup: asyncio.Task[None] | None = None
        self._failure: OrsError | None = None
        self._waiters: list[asyncio.Future[None]] | None = None
        self._execution: Execution | None = None
        self._tools_execution: Execution | None = None
        self._runner: ToolRunner | OverridingRunner | None = None
        self._toolset_class: type | None = None
        self._toolset: Any = None
        self._ledger: CallLedger | None = None
        #: What else runs the instance's code: prompts being made, and calls answered with a time-out before their end.
        self._lingering: set[asyncio.Task[Any]] | None = None

    # --- creation ----------------------------------------------------------------------------

    async def construct(self, hosted: HostedEnvironment | None = None) -> None:
        """Build the instance and start its set-up; a second caller waits for the first one's outcome.

        Raises what the task source raises, ``EnvironmentFailed`` and ``InfrastructureFailure``; the session is then
        gone as if it had never been.
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
        # Only waited for: one client going away must not undo the session for another.
        limit = self._owner.settings.setup_timeout
        done, _ = await asyncio.wait((construction,), timeout=limit)
        if done:
            if construction.cancelled():
                raise SessionGone(self.end_reason)
            construction.result()
        elif self.state is not State.ENDING:
            error = InfrastructureFailure(
                f"The environment's constructor took longer than {limit:g} s",
                "Raise ORS_SETUP_TIMEOUT, or find out what it waits for.",
            )
            self._owner.lose(self, error)
            raise error

    async def _construct(self) -> None:
        hosted, choice = self.hosted, self._choice
        assert hosted is not None and choice is not None
        try:
            if choice.spec is not None:
                task = await hosted.tasks.resolve(choice.spec)
            else:
                assert choice.split is not None and choice.index is not None
                task = await hosted.tasks.get(choice.split, choice.index)
            if choice.toolset is not None:
                self._toolset_class = find_toolset(hosted.cls, choice.toolset)
            self._execution, self._tools_execution = hosted.executions()
            secrets = self._secrets
            self.instance = await self._build(task, secrets)
        except Exception as error:  # an author's constructor and task source may raise anything
            self._owner.discard(self)
            if self._execution is not None:
                self._execution.close()
            raise self._owner.failure(error, self, "constructor") from error
        finally:
            # The task and the secrets now live in the instance, where it wants them.
            self._choice = self._secrets = None
        self._construction = None
        if self.state is State.ENDING:
            return
        if not hosted.has_setup:
            self._become(State.READY)
            return
        self.state = State.SETTING_UP
        self._setup = asyncio.create_task(self._set_up(task, secrets))

    async def _build(self, task: Any, secrets: dict[str, str] | None) -> Any:
        hosted = self._bound()
        assert self._execution is not None
        keywords = {"task_spec": copy_json(task), "secrets": secrets}
        if hosted.has_constructor:
            instance = await self._execution.run(hosted.cls, **keywords)
        else:
            instance = hosted.cls(**keywords)
        if self._toolset_class is not None:
            await self._build_toolset(self._toolset_class, instance)
        return instance

    async def _build_toolset(self, toolset: type, instance: Any) -> None:
        settings = self._owner.settings
        assert self._execution is not None
        try:
            self._toolset = await self._execution.run(build_toolset, toolset, instance, settings.return_errors)
        except BaseException:  # whatever it is: nobody else has the instance
            await self._tear_down(instance, settings.teardown_timeout)
            raise

    async def _set_up(self, task: Any, secrets: dict[str, str] | None) -> None:
        """Set the instance up; where the machine has no room for that, later and with a new instance."""
        patience = time.monotonic() + self._owner.settings.setup_timeout
        hosted = self._bound()
        failure = await self._set_up_once()
        while isinstance(failure, MachineBusy) and time.monotonic() + failure.retry_after < patience:
            hosted.held_back += 1
            try:
                wait = failure.retry_after
                failure = await self._start_over(task, secrets)
                if failure is None:
                    await asyncio.sleep(wait)
            finally:
                hosted.held_back -= 1
            if failure is None:
                failure = await self._set_up_once()
        if isinstance(failure, MachineBusy):
            failure = failure.as_failure()
        if failure is not None:
            self._fail(failure)
        else:
            self._become(State.READY)
        self._setup = None

    async def _start_over(self, task: Any, secrets: dict[str, str] | None) -> OrsError | None:
        """Put a new instance in the place of this one; the error where it cannot be built."""

        async def exchange() -> None:
            old = self.instance
            self.instance = await self._build(task, secrets)
            await self._tear_down(old, self._owner.settings.teardown_timeout)

        # Not to be cancelled half-way: an instance would be torn down twice, or never.
        exchanging = asyncio.ensure_future(exchange())
        try:
            await asyncio.shield(exchanging)
        except asyncio.CancelledError:
            await asyncio.wait((exchanging,))
            exchanging.exception()
            raise
        except Exception as error:  # noqa: BLE001 - an author's constructor may raise anything
            return self._owner.failure(error, self, "constructor")
        return None

    async def _set_up_once(self) -> OrsError | None:
        """Run the instance's set-up; how it failed, if it did."""
        assert self._execution is not None
        timeout = self._owner.settings.setup_timeout
        run = asyncio.ensure_future(self._execution.run(self.instance.setup))
        failure: OrsError | None = None
        try:
            done, _ = await asyncio.wait((run,), timeout=timeout)
            if not done:
                run.cancel()
                failure = InfrastructureFailure(
                    f"The environment's set-up took longer than {timeout:g} s",
                    "Raise ORS_SETUP_TIMEOUT, or find out what it waits for.",
                )
                self._fail(failure)
                await asyncio.wait((run,))  # a set-up on a thread goes on; teardown has to wait for it
            elif run.cancelled():
                failure = EnvironmentFailed("The environment's set-up was cancelled")
            else:
                error = run.exception()
                if error is not None:
                    failure = self._owner.failure(error, self, "setup")
        except asyncio.CancelledError:
            run.cancel()
            await asyncio.wait((run,))
            raise
        finally:
            if run.done() and not run.cancelled():
                run.exception()
        return failure

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

    def touch(self) -> None:
        """A request or ping came: the session is alive. A failed one is not kept alive by pings."""
        if self.state is not State.FAILED:
            self.last_seen = time.monotonic()

    @property
    def busy(self) -> bool:
        """Whether something of it runs, so that it must not be taken for abandoned."""
        if self.state in (State.CREATING, State.SETTING_UP) or self._lingering:
            return True
        return self._ledger is not None and bool(self._ledger.running())

    @property
    def at_rest(self) -> bool:
        """Whether it can be ended on the spot: nothing of it runs and there is nothing to tear down."""
        return self.state is State.READY and not self.busy and not self._bound().has_teardown

    def check(self) -> None:
        """Raise what stands in the way of using it: ``SessionGone``, or the failure of its set-up."""
        if self.state is State.ENDING:
            raise SessionGone(self.end_reason)
        if self._failure is not None:
            raise self._failure.with_traceback(None)  # or it would grow with every request

    async def ready(self, seconds: float | None = None) -> None:
        """Wait until it is set up. Raises ``SessionStarting`` after ``seconds``, and what ``check`` raises."""
        if self.state is State.CREATING:
            await self.construct()
        if self.state is State.SETTING_UP:
            loop = asyncio.get_running_loop()
            waiter: asyncio.Future[None] = loop.create_future()
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
        """The prompt's blocks, as JSON."""
        if self._bound().has_prompt:
            return encode(await self._read("get_prompt", _BLOCKS))
        return encode(flatten_messages(await self._read("get_messages", _MESSAGES)))

    async def messages(self) -> bytes:
        """The prompt as messages, as JSON."""
        if self._bound().has_messages:
            return encode(await self._read("get_messages", _MESSAGES))
        blocks = encode(await self._read("get_prompt", _BLOCKS))
        return b'[{"role":"user","blocks":' + blocks + b',"detail":null}]'

    async def task_tools(self) -> bytes:
        """All tools of this session, as JSON; does not wait for set-up."""
        listing = await self._environment_tools()
        if self._toolset_class is None:
            return listing
        own = ListToolsOutput.model_validate_json(listing)
        return encode(listing_with(own, self._tools(), self._toolset_class))

    async def _environment_tools(self) -> bytes:
        """The environment's tools in this session, as JSON."""
        hosted = self._bound()
        if not hosted.has_task_tools:
            return hosted.session_tools_json
        # By name, so that a task's own words for a tool win over those of the method that is called.
        tools: dict[str, Any] = {tool.name: tool for tool in hosted.session_tools.tools}
        tools.update((tool.name, tool) for tool in (await self._read("list_task_tools", _TOOLS)).tools)
        if hosted.tools.terminal is not None:
            tools.pop(hosted.tools.terminal.name, None)
        return encode({**hosted.session_tools.model_dump(mode="json"), "tools": list(tools.values())})

    async def _read(self, method: str, answer: TypeAdapter[Any]) -> Any:
        """What one of the instance's reading methods returns, checked.

        Raises ``EnvironmentFailed``, ``InfrastructureFailure`` (also past the time limit of set-ups), ``SessionGone``.
        """
        owner = self._owner
        limit = owner.settings.setup_timeout
        # A task of its own: the end of the session can cancel it, and waits for it.
        run = asyncio.create_task(self._run_read(method, answer))
        if self._lingering is None:
            self._lingering = set()
        self._lingering.add(run)
        try:
            done, _ = await asyncio.wait((run,), timeout=limit)
            if not done:
                raise InfrastructureFailure(
                    f"The environment's {method} took longer than {limit:g} s",
                    "Raise ORS_SETUP_TIMEOUT, or find out what it waits for.",
                )
            if run.cancelled():
                raise SessionGone(self.end_reason)
            return run.result()
        except InfrastructureFailure as error:
            owner.lose(self, error)
            raise
        except asyncio.CancelledError:
            run.cancel()
            raise
        finally:
            run.add_done_callback(self._ended)
            self.touch()

    async def _run_read(self, method: str, answer: TypeAdapter[Any]) -> Any:
        assert self._execution is not None
        try:
            value = await self._execution.run(getattr(self.instance, method))
            return _checked(method, value, answer)
        except Exception as error:  # the author's method may raise anything
            raise self._owner.failure(error, self, method) from error

    def _ended(self, run: asyncio.Task[Any]) -> None:
        _retrieve(run)
        if self._lingering is not None:
            self._lingering.discard(run)
            self._lingering = self._lingering or None

    def _tools(self) -> ToolTable:
        hosted = self._bound()
        return hosted.tools if self._toolset_class is None else tools_with(hosted.cls, self._toolset_class)

    def _bound(self) -> HostedEnvironment:
        assert self.hosted is not None
        return self.hosted

    # --- calls -------------------------------------------------------------------------------

    @property
    def ledger(self) -> CallLedger:
        """Its calls."""
        if self._ledger is None:
            self._ledger = CallLedger(self._owner.results)
        return self._ledger

    def start_call(self, name: str, arguments: Mapping[str, Any], key: str | None) -> Call:
        """The call a request means: a new one, which starts to run, or an earlier one.

        Raises what ``CallLedger.start`` raises.
        """
        call, new = self.ledger.start(name, arguments, key, self._admit_call)
        if new:
            self._owner.calls_running += 1
            call.task = asyncio.create_task(self._run_call(call))
        return call

    def _admit_call(self) -> None:
        settings = self._owner.settings
        if self._ledger is not None and self._ledger.running_count >= settings.max_session_calls:
            raise ServerBusy(
                "calls running at once in one session", settings.max_session_calls, "ORS_MAX_SESSION_CALLS"
            )
        if self._owner.calls_running >= settings.max_calls:
            raise ServerBusy("calls running at once", settings.max_calls, "ORS_MAX_CALLS")

    def start_scoring(self, request: ScoreGroup) -> Call:
        """Start to score a group, as a call. Raises ``ScoringUnsupported``."""
        hosted = self._bound()
        if not hosted.tools.supports_score_group:
            raise ScoringUnsupported(hosted.name)
        call, new = self.ledger.start("score_group", request.model_dump(mode="json"), None, self._admit_call)
        if new:
            self._owner.calls_running += 1
            call.task = asyncio.create_task(self._run_scoring(call, request))
        return call

    async def _run_call(self, call: Call) -> None:
        owner = self._owner
        frames: bytes
        try:
            if self.state is not State.READY:
                await self.ready()
            if self._runner is None:
                self._runner = tool_runner(
                    self.instance,
                    self._tools(),
                    self._tools_execution,
                    enforce_finished=owner.settings.enforce_finished,
                    toolsets=None if self._toolset_class is None else {self._toolset_class: self._toolset},
                )
            outcome = await self._runner.run(call.name, call.input)
            if self.state is State.ENDING:
                # A tool that would not be cancelled: a session that is lost or deleted gives no reward any more.
                frames = error_frame(self._cancelled(call))
            elif isinstance(outcome, RefusedCall):
                frames = result_frames(encode_tool_error(outcome.error, outcome.reason))
            else:
                frames = self._encoded(call.name, outcome)
        except asyncio.CancelledError:
            frames = error_frame(self._cancelled(call))
        except EnvironmentFailed as error:  # the set-up this call waited for, reported and logged already
            frames = error_frame(str(error))
        except SessionGone as error:
            frames = error_frame(f"SessionGone: {error}")
        except (InfrastructureFailure, MachineBusy) as error:
            # The result of a call is final, so a machine without room cannot be waited out here.
            lost = (
                error if isinstance(error, InfrastructureFailure) else InfrastructureFailure(error.cause, error.remedy)
            )
            frames = error_frame(lost.detail)
            owner.lose(self, lost)
        except Exception as error:  # noqa: BLE001 - the author's tool may raise anything; the client gets it as an error event
            frames = error_frame(owner.describe(error, self, f"tool {call.name!r}"))
        self._finish(call, frames)

    def _encoded(self, name: str, output: Any) -> bytes:
        """The events of a tool's output. Raises ``NonFiniteReward`` and ``OutputTooLarge``."""
        assert self._runner is not None
        limit = self._owner.settings.max_output
        try:
            data = encode_tool_output(name, output)
            if len(data) > limit:
                raise OutputTooLarge(
                    f"{name!r} returned {len(data)} bytes, over the limit of {limit}",
                    "Cut the output in the tool, or raise ORS_MAX_OUTPUT.",
                )
        except Exception:
            if output.finished:
                # Or the retry would be told that the episode is over, and its reward would be lost.
                self._runner.reopen()
            raise
        return result_frames(data)

    async def _run_scoring(self, call: Call, request: ScoreGroup) -> None:
        owner = self._owner
        try:
            await self.ready()
            assert self._tools_execution is not None
            scores = list(await self._tools_execution.run(self.instance.score_group, self._candidates(request)))
            if len(scores) != len(request.candidates):
                raise ValueError(f"score_group returned {len(scores)} scores for {len(request.candidates)} candidates")
            result = ScoreGroupOutput(scores=[_score(score, index) for index, score in enumerate(scores)])
            frames = result_frames(encode(result))
        except asyncio.CancelledError:
            frames = error_frame(self._cancelled(call))
        except (InfrastructureFailure, MachineBusy) as error:
            # The result of a call is final, so a machine without room cannot be waited out here.
            lost = (
                error if isinstance(error, InfrastructureFailure) else InfrastructureFailure(error.cause, error.remedy)
            )
            frames = error_frame(lost.detail)
            owner.lose(self, lost)
        except Exception as error:  # noqa: BLE001 - a judge may raise anything; the client gets it as an error event
            frames = error_frame(owner.describe(error, self, "score_group"))
        self._finish(call, frames)

    def _finish(self, call: Call, frames: bytes) -> None:
        self.touch()  # its time to live counts from the end of a long call
        self._owner.calls_running -= 1
        self.ledger.finish(call, frames)

    def _candidates(self, request: ScoreGroup) -> list[Any]:
        """The candidates as the models of the SDK the environment was written for."""
        if self._bound().dialect is not Dialect.OPENREWARD:
            return list(request.candidates)
        model = importlib.import_module("openreward.environments.types").GroupCandidate
        return [model.model_validate(candidate.model_dump()) for candidate in request.candidates]

    def _cancelled(self, call: Call) -> str:
        if self.state is State.ENDING:
            return f"SessionGone: {self.end_reason}"
        return f"ToolCancelled: {call.name!r} was cancelled by the environment's own code"

    def expire_calls(self, now: float) -> None:
        """Give calls that run too long an error; their session goes on, their code is cancelled where it can be."""
        if self._ledger is None:
            return
        limit = self._owner.settings.call_timeout
        for call in self._ledger.running():
            if now - call.started > limit:
                task = call.task
                message = (
                    f"ToolTimeout: {call.name!r} ran longer than {limit:g} s. Raise ORS_CALL_TIMEOUT if it should."
                )
                self._ledger.finish(call, error_frame(message))
                if task is not None:
                    if self._lingering is None:
                        self._lingering = set()
                    self._lingering.add(task)
                    task.add_done_callback(self._ended)
                    task.cancel()

    # --- the end -----------------------------------------------------------------------------

    async def end(self, current: asyncio.Task[Any] | None) -> None:
        """Stop everything, tear the instance down once, and drop what is kept. Called by ``Sessions`` only.

        ``current`` is the session's own task that asked for the end: it is waited for but not cancelled.
        """
        limit = self._owner.settings.teardown_timeout
        running: set[asyncio.Task[Any]] = set(self._lingering or ())
        for task in running:
            task.cancel()
        if self._construction is not None:
            if self._execution is None:
                self._construction.cancel()  # it still fetches the task; a constructor is waited for instead
            running.add(self._construction)
        if self._setup is not None:
            self._setup.cancel()
            running.add(self._setup)
        calls = self._ledger.running() if self._ledger is not None else []
        for call in calls:
            if call.task is not None:
                if call.task is not current:
                    call.task.cancel()
                running.add(call.task)
        self._become(State.ENDING)
        if running:
            # What can be cancelled ends at once. Who waits for the rest is not kept waiting.
            _, unfinished = await asyncio.wait(running, timeout=min(_GRACE, limit))
            gone = error_frame(f"SessionGone: {self.end_reason}")
            for call in calls:
                if call.task is not None and call.task.done():
                    self._finish(call, gone)  # cancelled before its first step, it never wrote a result
                else:
                    call.finish(gone)
            if unfinished:
                _, unfinished = await asyncio.wait(unfinished, timeout=limit)
            if unfinished:
                logger.warning("session still busy after its end", extra={"sid": self.sid, "seconds": limit})
                await asyncio.wait(unfinished)
        if self.instance is not None:
            await self._tear_down(self.instance, limit)
        self.close()

    def close(self) -> None:
        """Let go of everything; nothing of it runs any more."""
        self.state = State.ENDING
        if self._execution is not None:
            self._execution.close()
        if self._ledger is not None:
            self._ledger.close()
        if self._owner.collector is not None and self.instance is not None:
            self._owner.collector.left(self.instance)
        self.instance = self._runner = self._toolset = None

    async def _tear_down(self, instance: Any, limit: float) -> None:
        hosted = self._bound()
        if not hosted.has_teardown:
            return
        assert self._execution is not None
        run = asyncio.ensure_future(self._execution.run(instance.teardown))
        done, _ = await asyncio.wait((run,), timeout=limit)
        if not done:
            run.cancel()
            logger.error("teardown timed out", extra={"sid": self.sid, "environment": hosted.name, "seconds": limit})
        elif not run.cancelled() and (error := run.exception()) is not None:
            logger.error("teardown failed", exc_info=error, extra={"sid": self.sid, "environment": hosted.name})


def _score(score: Any, index: int) -> GroupScore:
    value = score if hasattr(score, "reward") else GroupScore(reward=float(score))
    if not isinstance(value, GroupScore):
        value = GroupScore(reward=float(value.reward), metadata=value.metadata)
    if value.reward != value.reward or value.reward in (float("inf"), float("-inf")):
        raise ValueError(f"score_group returned the score {value.reward} for candidate {index}; it must be finite")
    return value


def _checked(method: str, value: Any, answer: TypeAdapter[Any]) -> Any:
    """What an author's method returned, if it is what the protocol needs; models of any SDK are taken as they are."""
    items: Any = value.tools if hasattr(value, "tools") else value
    if isinstance(items, (list, tuple)) and all(isinstance(item, BaseModel) for item in cast("list[Any]", items)):
        expected = _FIELDS[method]
        if all(hasattr(item, expected) for item in cast("list[Any]", items)):
            return value
    try:
        return answer.validate_python(value)
    except ValidationError:
        raise TypeError(f"{method} returned {value!r:.200}; it must return {_RETURNS[method]}") from None


def describe_error(error: BaseException, mode: ReturnErrors) -> str:
    """What a client may see of an exception in an environment."""
    if isinstance(error, NonFiniteReward):
        return f"NonFiniteReward: {error}"  # in every mode: clients go by it, and it tells nothing of the environment
    if mode == "none":
        return "Internal Server Error"  # openreward's own words, which its tests look for; the log has all of it
    if mode == "stacktrace":
        return "".join(traceback.format_exception(error))  # which guards against a broken __str__ itself
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - an author's __str__ may raise anything; the client must still get an answer
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _retrieve(task: asyncio.Task[None]) -> None:
    """Look at a task's exception, which its awaiters get, so that it is not reported as lost when they are gone."""
    if not task.cancelled():
        task.exception()
