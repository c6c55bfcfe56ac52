"""One sandbox of the service: its creation, its commands and its end.

Its creation and its commands are calls of one ledger (``sessions.call_ledger``): each runs once, its result can be
fetched again by its ``task_id``, and a lost connection ends neither. The id of the creation is the id of the session.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Generator
from typing import TYPE_CHECKING

from ors_server.errors import OrsError
from ors_server.hosting.author_exceptions import describe_error
from ors_server.sandbox_service.errors import InvalidSandbox
from ors_server.sandbox_service.plan import refused_policy
from ors_server.sandbox_service.requests import CreateSandbox, NetworkPolicy, RunCommand
from ors_server.sessions.calls.call import Call
from ors_server.sessions.calls.call_ledger import CallLedger
from ors_server.sessions.errors import OutputTooLarge, SessionGone
from ors_server.wire.encoding import encode
from ors_server.wire.request_ids import call_id
from ors_server.wire.sse import error_frame, result_frames

if TYPE_CHECKING:
    from ors_containers.container import Container

__all__ = ["SandboxSession"]

#: Opens the container of a request.
Open = Callable[[CreateSandbox], Awaitable["Container"]]

logger = logging.getLogger("ors_server.sandbox_service.session")

#: Seconds that the clients of commands wait, when the sandbox ends, for the commands to end.
_GRACE = 5.0


class SandboxSession:
    """One sandbox. Used on the event loop only."""

    def __init__(self, sid: str, request: CreateSandbox, ledger: CallLedger, most_output: int, owner: str = "") -> None:
        self.sid = sid
        #: Name of the key that made it; empty on a server without keys.
        self.owner = owner
        self.ledger = ledger
        #: Set once it is ending.
        self.end_reason = ""
        self.opened = self.last_seen = time.monotonic()
        #: The files that were written, by their paths: size and digest.
        self.committed: dict[str, tuple[int, str]] = {}
        #: Held by a commit: it is repeated while the first still runs.
        self.committing = asyncio.Lock()
        self._request = request
        self._most_output = most_output
        self._policy = request.network
        self._requests = 0
        self._container: Container | None = None
        self._opened = asyncio.Event()
        self._creation = Call("", None, None)

    @property
    def image(self) -> str:
        """The image that its client asked for."""
        return self._request.image

    @property
    def busy(self) -> int:
        """The number of requests that it works on."""
        return self._requests

    # --- creation ----------------------------------------------------------------------------

    def start(self, open_container: Open, failed: Callable[[], None]) -> Call:
        """Begin to create the sandbox; ``failed`` is called when it cannot be. Raises ``ServerBusy``."""
        call, _ = self.ledger.start("create_sandbox", {}, None, task_id=self.sid)
        self._creation = call
        call.task = asyncio.create_task(self._create(call, open_container, failed))
        return call

    async def _create(self, call: Call, open_container: Open, failed: Callable[[], None]) -> None:
        try:
            self._container = await open_container(self._request)
            frames = result_frames(encode({"sid": self.sid}))
        except asyncio.CancelledError:
            frames = error_frame(self.end_reason)
        except Exception as error:  # the client gets an error event whatever it is
            text = _explain(error)
            logger.error(
                "sandbox not created",
                exc_info=None if _is_expected(error) else error,
                extra={"sid": self.sid, "image": self._request.image, "reason": text},
            )
            self.end_reason = self.end_reason or text
            frames = error_frame(text)
            failed()
        self._opened.set()
        self.last_seen = time.monotonic()
        self.ledger.end_run(call, frames)

    async def container(self) -> Container:
        """Return its container, once it is created. Raises ``SessionGone``."""
        await self._opened.wait()
        if self.end_reason or self._container is None:
            raise SessionGone(self.end_reason)
        return self._container

    # --- commands ----------------------------------------------------------------------------

    def start_command(self, command: RunCommand, lost: Callable[[str], None]) -> Call:
        """Start a command, or return the earlier one that the request repeats. Raises ``ServerBusy``.

        ``lost`` is called with the reason when the sandbox is found to have ended.
        """
        call, new = self.ledger.start("run", command.arguments, None)
        if new:
            call.task = asyncio.create_task(self._run(call, command, lost))
        return call

    async def _run(self, call: Call, command: RunCommand, lost: Callable[[str], None]) -> None:
        call_id.set((self.sid, call.task_id))
        try:
            frames = await self._output_of(command)
        except asyncio.CancelledError:
            frames = error_frame(self.end_reason)
        except Exception as error:  # the client gets an error event whatever it is
            text = _explain(error)
            frames = error_frame(text)
            if _is_death(error):
                lost(text)
            elif not _is_expected(error):
                logger.error("a command failed", exc_info=error, extra={"sid": self.sid})
        self.last_seen = time.monotonic()
        self.ledger.end_run(call, frames)

    async def _output_of(self, command: RunCommand) -> bytes:
        container = await self.container()
        most = self._most_output if command.max_bytes is None else min(command.max_bytes, self._most_output)
        result = await container.run(
            command.cmd, shell=command.shell, timeout=command.timeout_s or None, max_bytes=most
        )
        if result.truncated and most != command.max_bytes:
            raise OutputTooLarge(
                f"The command ended with status {result.exit_status}, and its output has more than {most} bytes",
                "Ask for less of it (max_bytes), or raise ORS_MAX_OUTPUT on the server",
            )
        output = base64.b64encode(result.output).decode()
        return result_frames(
            encode({"return_code": result.exit_status, "output": output, "timed_out": result.timed_out})
        )

    # --- the network -------------------------------------------------------------------------

    async def set_network(self, policy: NetworkPolicy) -> None:
        """Replace its policy. Raises ``InvalidSandbox`` for a policy that cannot hold here, and ``SessionGone``."""
        container = await self.container()
        if self._policy is None:
            raise InvalidSandbox("The sandbox was created without a network policy", "Create it with `network`")
        if reason := refused_policy(policy, container.network):
            raise InvalidSandbox(f"The network policy cannot be applied. {reason}", "The policy is as it was")
        self._policy = policy

    # --- its life ----------------------------------------------------------------------------

    @contextlib.contextmanager
    def in_use(self) -> Generator[SandboxSession]:
        """Keep it from expiring while a request is answered."""
        self._requests += 1
        try:
            yield self
        finally:
            self._requests -= 1
            self.last_seen = time.monotonic()

    def expired(self, now: float, seconds: float) -> bool:
        """Return whether its client was not heard of for so long."""
        return self._opened.is_set() and not self._requests and now - self.last_seen > seconds

    async def end(self, seconds: float) -> None:
        """Cancel its creation and its commands and close the container; wait up to ``seconds`` for each."""
        calls = self.ledger.running()
        tasks = {call.task for call in calls if call.task is not None} - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=min(_GRACE, seconds))
        self._opened.set()
        gone = error_frame(self.end_reason)
        for call in calls:
            if call.task is not None and call.task.done() and not call.done:
                self.ledger.end_run(call, gone)  # cancelled before its first step, it recorded no result
            else:
                call.finish(gone)
        if unfinished := {task for task in tasks if not task.done()}:
            await asyncio.wait(unfinished, timeout=seconds)
        if self._container is not None:
            await self._container.close()
        self.ledger.close()


def _explain(error: BaseException) -> str:
    from ors_containers.errors import SandboxError

    if isinstance(error, SandboxError):
        kind = "InfrastructureError: " if not _is_callers(error) else ""
        return f"{kind}{error}"
    if isinstance(error, OrsError):
        return error.text
    return describe_error(error, "exception")


def _is_expected(error: BaseException) -> bool:
    from ors_containers.errors import SandboxError

    return isinstance(error, (SandboxError, OrsError))


def _is_callers(error: BaseException) -> bool:
    from ors_containers.errors import CallerError

    return isinstance(error, CallerError)


def _is_death(error: BaseException) -> bool:
    from ors_containers.errors import SandboxDied, SandboxStopped

    return isinstance(error, (SandboxDied, SandboxStopped))
