"""Every error of ors-server, in one tree.

    OrsError
    ├── DefinitionError (ValueError)       an environment class the server refuses to host
    │   └── NoEnvironments                 a server without environments
    ├── TargetError                        a command-line target that does not load
    │   └── NoEnvironmentInModule          a file that has no environment class
    ├── PortInUse (OSError)                the address to listen on is taken
    ├── WorkerFailed                       `serve --workers`: a worker cannot be started
    ├── EnvironmentNotServed               `host`: the worker of an environment ended before it served
    ├── NoWorkerLeft                       `serve --workers`: all workers ended too often
    ├── ClusterError                       `gateway`, `node`: no part of the cluster
    ├── TracesUnavailable                  `--traces` without the packages that it needs
    ├── RayFailed                          `serve --engine ray`: no node can be started
    ├── NotJoined                    409   a node that a gateway refuses
    │   └── SlotsTaken               409   its slots are another node's
    ├── PoolsError                         `--pools`: a file that does not describe pools
    ├── KeysError                          `keys`: the keys of a server cannot be used, or there are none
    ├── ControlError                       `workers`, `drain`: the server's processes cannot be reached
    ├── FolderError                        `init`, `deploy`: a folder cannot be read or written
    ├── WheelError                         `init`, `deploy`: the wheel cannot be made
    ├── ImageError                         `image`: an image could not be made, found or removed
    ├── SandboxCommandError                `sandbox` failed
    ├── HostError                          `host`: an environment cannot be prepared or started
    ├── RolloutError                       `rollouts` failed
    ├── RequestError                       the client has to change its request: 4xx
    │   ├── MissingSession           400   no X-Session-ID header
    │   ├── AmbiguousSession         400   several X-Session-ID headers
    │   ├── InvalidSplit             400
    │   ├── InvalidIndex             400
    │   ├── InvalidIndexRange        400
    │   ├── InvalidTask              400   a signed task that does not verify, or an unsigned one where none is accepted
    │   ├── TasksNotListable         400   an environment that has tasks by index only
    │   ├── InvalidSecrets           400
    │   ├── InvalidToolset           400
    │   ├── InvalidPath              400   a file's path that leads out of its data folder
    │   ├── InvalidIdempotencyKey    400
    │   ├── InvalidCursor            400   the cursor of a page of rollouts
    │   ├── InvalidSandbox           400   a sandbox, command or network policy that this server does not offer
    │   ├── SandboxFileError         400   a file of a sandbox: a symlink, a directory, a full disk, …
    │   │   ├── SandboxFileMissing   404
    │   │   ├── SandboxFileChanged   409   what was written is not what is committed
    │   │   └── SandboxFileShorter   416   a part past the end of a file
    │   ├── SessionExists            400
    │   ├── NotAuthorized            401   no key, or one that this server does not know
    │   ├── NoOrganisation
    │   ├── ForeignRequest           403   a form of a page that another site sent
    │   ├── ForeignHost              403   a page under a host name that is not this machine's own
    │   ├── UnknownEnvironment       404
    │   ├── UnknownSession           404
    │   ├── UnknownRun               404   no rollout of this run was uploaded
    │   ├── UnknownFile              404   a data folder has no such file
    │   ├── ScoringUnsupported       404
    │   ├── EnvironmentConflict      409   the session belongs to another environment
    │   ├── IdempotencyConflict      409   an Idempotency-Key used for another call
    │   ├── SessionGone              410   deleted, expired or lost
    │   ├── BodyTooLarge             413
    │   ├── TooManyGuesses           429   too many wrong keys from one address
    │   ├── InvalidBody              422   the body is not JSON or does not fit its model
    │   └── InvalidEvents            422   uploaded events that do not fit; the others of their upload are stored
    ├── EnvironmentFailed            500   the author's code raised
    ├── OutputTooLarge               500   a tool's output is over the limit
    ├── NoSandboxService             501   a request for OpenReward's sandbox service
    ├── SessionStarting              503   set-up is still running; retry
    │   ├── ServerBusy               503   a limit on sessions or calls is reached; retry
    │   │   ├── KeyBusy              503   a limit of the client's key is reached; retry
    │   │   ├── MachineBusy          503   the machine has no room for another sandbox now; retry
    │   │   └── ResultsFull          503   results that are not fetched fill the memory, and the disk fails; retry
    │   └── NoWorker                 503   no worker of a server with several takes the request now; retry
    ├── StoreUnavailable             503   the database of rollouts cannot be used now: full disk, damaged, locked, away
    │   └── StoreBusy                503   more rollouts are uploaded than can be written; retry
    ├── DiskRefused                  507   the disk of a data folder takes no more
    └── InfrastructureFailure        503   the machine failed, not the agent: never a reward
        ├── ShuttingDown             503   the server is being stopped
        └── TaskListsDiffer          503   workers of the server list other tasks for the same split

Errors of commands are in ``ors_server.cli``, of rollouts in ``ors_server.rollouts.errors``, of pages in
``ors_server.pages.access``, of nodes in
``ors_server.cluster.gateway.members.nodes``, and
``NoEnvironmentInModule`` is in ``ors_server.hosting.module_environments``.

A client gets ``{"detail": …}`` with the status; ``detail`` is the cause and, where there is one, the remedy.
In an event stream the same text is the data of an ``error`` event. The detail texts that real clients compare
(protocol: "Invalid split", "Active environment not found", …) begin with exactly those words.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

__all__ = [
    "LOST_WITH_WORKER",
    "AmbiguousSession",
    "BodyTooLarge",
    "ClusterError",
    "ControlError",
    "DefinitionError",
    "EnvironmentConflict",
    "EnvironmentFailed",
    "EnvironmentNotServed",
    "IdempotencyConflict",
    "InfrastructureError",
    "InfrastructureFailure",
    "InvalidBody",
    "InvalidIdempotencyKey",
    "InvalidIndex",
    "InvalidIndexRange",
    "InvalidSandbox",
    "InvalidSecrets",
    "InvalidSplit",
    "InvalidTask",
    "InvalidToolset",
    "KeyBusy",
    "KeysError",
    "MachineBusy",
    "MissingSession",
    "NoEnvironments",
    "NoOrganisation",
    "NoSandboxService",
    "NoWorker",
    "NotAuthorized",
    "OrsError",
    "OutputTooLarge",
    "PoolsError",
    "PortInUse",
    "RequestError",
    "ResultsFull",
    "SandboxFileChanged",
    "SandboxFileError",
    "SandboxFileMissing",
    "SandboxFileShorter",
    "ScoringUnsupported",
    "ServerBusy",
    "SessionExists",
    "SessionGone",
    "SessionStarting",
    "ShuttingDown",
    "TargetError",
    "TaskListsDiffer",
    "TasksNotListable",
    "TooManyGuesses",
    "TracesUnavailable",
    "UnknownEnvironment",
    "UnknownSession",
    "WorkerFailed",
]


class OrsError(Exception):
    """Root of the tree: ``cause`` is the fault, ``remedy`` the way to correct it (may be empty)."""

    status: ClassVar[int] = 500

    def __init__(self, cause: str, remedy: str = "") -> None:
        self.cause = cause
        self.remedy = remedy
        super().__init__(self.text)

    @property
    def text(self) -> str:
        """Cause and remedy in one line; unlike ``str()``, it never runs an author's code."""
        return self.cause if not self.remedy else f"{self.cause.rstrip('.')}. {self.remedy}"

    @property
    def detail(self) -> Any:
        """The ``detail`` of the JSON error body."""
        return self.text

    @property
    def headers(self) -> Sequence[tuple[str, str]]:
        """Response headers that this error needs."""
        return ()


class DefinitionError(OrsError, ValueError):
    """An environment class cannot be hosted; raised when the server is built, never later."""


class NoEnvironments(DefinitionError):
    """A server has no environment."""


class TargetError(OrsError):
    """A target on the command line does not load."""


class PortInUse(OrsError, OSError):
    """Another process already listens on the address."""


class ControlError(OrsError):
    """The supervisor of a server with several workers cannot be reached, or refuses a command."""


class WorkerFailed(OrsError):
    """A worker of a server with several ended before it served; its own log has the reason."""

    def __init__(self, slot: int, status: int) -> None:
        super().__init__(
            f"Worker {slot} ended with status {status} before it served",
            "Its messages are above; without --workers the server fails in the same way.",
        )


class EnvironmentNotServed(OrsError):
    """The worker of a hosted environment ended before it served; ``cause`` is the error that it told."""

    def __init__(self, name: str, status: int, cause: str, remedy: str) -> None:
        told = f": {cause}" if cause else ""
        if remedy:
            super().__init__(f"{name} cannot be served{told}", remedy)
        else:
            super().__init__(f"{name} ended with status {status} before it served{told}", "Its messages are above.")


class ClusterError(OrsError):
    """A gateway or a node of a cluster cannot take part in it."""


class PoolsError(OrsError):
    """A file of pools cannot be used."""


class KeysError(OrsError):
    """The keys of a server cannot be read or changed, or it has none and would be open to others."""


class RayFailed(OrsError):
    """Nodes cannot be started on Ray."""


class TracesUnavailable(OrsError):
    """OpenTelemetry is not installed."""


class NoWorkerLeft(OrsError):
    """All workers of a server with several ended too often; started again they would end again."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"No worker is left: {reason}", "Their messages are above.")


class RequestError(OrsError):
    """The request cannot be served; a retry of the same request fails again."""

    status = 400


class MissingSession(RequestError):
    """A session request came without its ``X-Session-ID`` header."""

    def __init__(self) -> None:
        super().__init__("X-Session-ID header is required")


class AmbiguousSession(RequestError):
    """A session request came with several ``X-Session-ID`` headers."""

    def __init__(self) -> None:
        super().__init__("Several X-Session-ID headers", "Send one")


class InvalidSplit(RequestError):
    """The environment has no split of this name."""

    def __init__(self, split: str, known: Sequence[str]) -> None:
        super().__init__("Invalid split", f"{split!r} is none of {', '.join(known)}")


class InvalidIndex(RequestError):
    """A task index outside the split."""

    def __init__(self, index: int, split: str, count: int | None = None) -> None:
        size = "" if count is None else f", which has {count} tasks"
        super().__init__("Invalid index", f"{index} is outside split {split!r}{size}; indices count from 0")


class InvalidIndexRange(RequestError):
    """A range of task indices that the environment cannot serve."""

    def __init__(self, split: str) -> None:
        super().__init__("Invalid index range", f"the environment has no such tasks in split {split!r}")


class InvalidTask(RequestError):
    """A client sent a task that this server did not give out."""


class TasksNotListable(RequestError):
    """``list_tasks`` of the environment raised ``NotImplementedError``: it has tasks by index only."""

    def __init__(self) -> None:
        super().__init__(
            "list_tasks is not supported for this environment. Use the index-based API (num_tasks + get_task) instead."
        )


class InvalidSecrets(RequestError):
    """The ``X-Secrets`` header or the body's ``secrets`` cannot be read. The text never quotes them."""


class InvalidToolset(RequestError):
    """``/create`` names a session toolset that the session cannot have."""


class SessionExists(RequestError):
    """``/create`` came with an id in use and another task than the first time."""

    def __init__(self) -> None:
        super().__init__(
            "Session already exists",
            "It was created with another task or other secrets; open a new session with a new id",
        )


class NotAuthorized(RequestError):
    """A request without a key, or with one that this server does not know."""

    status = 401

    def __init__(self, cause: str) -> None:
        super().__init__(
            cause,
            "Send one as X-API-Key or as Authorization: Bearer; clients read it from ORS_API_KEY or OPENREWARD_API_KEY."
            " `ors-server keys add NAME` on the server makes one",
        )

    @property
    def headers(self) -> Sequence[tuple[str, str]]:
        return (("WWW-Authenticate", "Bearer"),)


class TooManyGuesses(RequestError):
    """Too many wrong keys came from an address. No key from there is looked at now."""

    status = 429

    def __init__(self, seconds: float) -> None:
        super().__init__("Too many wrong keys came from this address", "Retry later, with a key of this server")
        self._seconds = seconds

    @property
    def headers(self) -> Sequence[tuple[str, str]]:
        return (("Retry-After", str(math.ceil(self._seconds))),)


class NoOrganisation(RequestError):
    """A client asked for the organisation of its key; ``orwd whoami`` then asks for the user."""

    status = 404

    def __init__(self, namespace: str) -> None:
        super().__init__("This server has no organisations", f"Its one namespace is {namespace!r}, of the type user")


class UnknownEnvironment(RequestError):
    """No environment of this name is hosted here."""

    status = 404

    def __init__(self, name: str, known: Sequence[str], reason: str = "") -> None:
        remedy = reason or f"This server hosts: {', '.join(known)}"
        super().__init__(f"unknown environment {name!r}", remedy)


class UnknownSession(RequestError):
    """No session of this id was created on this server."""

    status = 404

    def __init__(self) -> None:
        super().__init__("Active environment not found")


class ScoringUnsupported(RequestError):
    """``/score_group`` on an environment that does not implement it."""

    status = 404

    def __init__(self, name: str) -> None:
        super().__init__(f"Environment {name!r} does not implement score_group")


class EnvironmentConflict(RequestError):
    """The path names another environment than the one the session was created with."""

    status = 409

    def __init__(self, named: str, own: str) -> None:
        super().__init__(
            f"This session belongs to environment {own!r}, not {named!r}",
            f"Use /{own}/… or the bare path, or create the session with env_name {named!r}",
        )


class IdempotencyConflict(RequestError):
    """The same ``Idempotency-Key`` came with another tool or other input."""

    status = 409

    def __init__(self, key: str) -> None:
        super().__init__(
            f"Idempotency-Key {key!r} was used for another call of this session", "Use a new key for each call"
        )


#: The reason for a session whose worker has ended, in a server with several.
LOST_WITH_WORKER = "Session lost: InfrastructureError: the worker that held it ended. Start a new session"


class SessionGone(RequestError):
    """The session existed and has ended; its id is remembered for this answer."""

    status = 410


class NoSandboxService(OrsError):
    """A client asked for a sandbox of OpenReward's sandbox service."""

    status = 501

    def __init__(self) -> None:
        super().__init__(
            "This server has no sandbox service, so environments that open sandboxes through the openreward client"
            " cannot run on it",
            "Start it with --sandbox-service yes, or with `ors-server host`",
        )

    @property
    def headers(self) -> Sequence[tuple[str, str]]:
        # openreward's client retries every status above 499; without the header it would wait between attempts.
        return (("Retry-After", "0"),)


class InvalidSandbox(RequestError):
    """A sandbox, a command or a network policy that this server does not offer; the text names the field."""


class SandboxFileError(RequestError):
    """An operation on a file of a sandbox that fails however often it is repeated."""


class SandboxFileMissing(SandboxFileError):
    """A sandbox has no file of this path."""

    status = 404


class SandboxFileChanged(SandboxFileError):
    """The pieces of a file that were written have not the size that the client commits."""

    status = 409


class SandboxFileShorter(SandboxFileError):
    """A part of a file past its end."""

    status = 416

    def __init__(self, path: str, size: int) -> None:
        super().__init__(f"{path} has {size} bytes")
        self.size = size

    @property
    def headers(self) -> Sequence[tuple[str, str]]:
        return (("X-File-Size", str(self.size)),)


class InvalidIdempotencyKey(RequestError):
    """An ``Idempotency-Key`` is too long (characters)."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"The Idempotency-Key is longer than {limit} characters", "Use a UUID")


class BodyTooLarge(RequestError):
    """The request body is over the limit (bytes)."""

    status = 413

    def __init__(self, limit: int) -> None:
        super().__init__(f"The request body is larger than {limit} bytes", "Raise ORS_MAX_BODY on the server")


class InvalidBody(RequestError):
    """The body is not JSON or does not fit its model; ``detail`` is the list of errors in FastAPI's form."""

    status = 422

    def __init__(self, errors: list[dict[str, Any]]) -> None:
        super().__init__("The request body is not valid")
        self.errors = errors

    @property
    def detail(self) -> Any:
        return self.errors


class EnvironmentFailed(OrsError):
    """The author's code raised outside a tool call; ``cause`` is the part that the client may see."""


class OutputTooLarge(OrsError):
    """A tool's output exceeds ``ORS_MAX_OUTPUT``: an ``error`` event, and the episode goes on."""


class SessionStarting(OrsError):
    """The set-up has not ended yet. Real clients retry (``X-Backend-State: starting``)."""

    status = 503

    def __init__(self, cause: str = "Environment still starting.") -> None:
        super().__init__(cause)

    @property
    def headers(self) -> Sequence[tuple[str, str]]:
        return (("X-Backend-State", "starting"), ("Retry-After", "2"))


class ServerBusy(SessionStarting):
    """A limit on sessions or running calls is reached. Nothing was started, and real clients retry."""

    def __init__(self, what: str, limit: int, variable: str) -> None:
        OrsError.__init__(self, f"The limit of {limit} {what} is reached", f"Retry, or raise {variable} on the server.")


class KeyBusy(ServerBusy):
    """A limit of the client's key is reached. Nothing was started, and real clients retry: a 429 some do not."""

    def __init__(self, name: str, limit: str, seconds: float = 2.0) -> None:
        OrsError.__init__(
            self, f"The limit of key {name!r} is reached: {limit}", "Retry; the operator of the server sets its limits."
        )
        self._seconds = seconds

    @property
    def headers(self) -> Sequence[tuple[str, str]]:
        return (("X-Backend-State", "starting"), ("Retry-After", str(max(1, math.ceil(self._seconds)))))


class ResultsFull(ServerBusy):
    """Results that were not fetched fill the memory and cannot go to disk. Nothing was started."""

    def __init__(self, size: int, folder: str, reason: str) -> None:
        OrsError.__init__(
            self,
            f"{size // 2**20} MiB of results wait for their clients in memory, and cannot go to disk: {reason}",
            f"Retry, or make room in {folder} on the server.",
        )


class MachineBusy(ServerBusy):
    """The machine has no room for another sandbox, and the queue for one is full. Nothing was started."""

    def __init__(self, cause: str, remedy: str, retry_after: float) -> None:
        OrsError.__init__(self, cause, remedy)
        #: Seconds after which a retry makes sense.
        self.retry_after = retry_after

    @property
    def headers(self) -> Sequence[tuple[str, str]]:
        return (("X-Backend-State", "starting"), ("Retry-After", str(max(1, round(self.retry_after)))))

    def as_failure(self) -> InfrastructureFailure:
        """Return the failure that this becomes where waiting has ended or the request cannot be repeated."""
        return InfrastructureFailure(self.cause, self.remedy)


class NoWorker(SessionStarting):
    """No worker of a server with several can take the request now. Nothing was started, and real clients retry."""

    def __init__(self) -> None:
        OrsError.__init__(
            self, "No worker can take this request now", "Retry; on the server `ors-server workers` shows why."
        )


class InfrastructureFailure(OrsError):
    """The machine failed, not the agent: a sandbox that did not start, a full disk, a grader that could not run.

    Environment authors raise it, and the server never turns it into a reward. On the wire it is an ``error`` event
    ``InfrastructureError: <cause>. <remedy>``, and every later request of the session gets 410 (protocol 0.1).
    """

    status = 503

    @property
    def detail(self) -> Any:
        return f"InfrastructureError: {self.text}"


class ShuttingDown(InfrastructureFailure):
    """The server is being stopped, and takes no new sessions and sandboxes."""

    def __init__(self) -> None:
        super().__init__("The server is shutting down", "Retry on another one, or when it is back.")


class TaskListsDiffer(InfrastructureFailure):
    """A worker lists other tasks for a split than the workers of its server that listed it first."""

    def __init__(self, environment: str, split: str) -> None:
        super().__init__(
            f"The workers of this server have different lists of tasks for split {split!r} of {environment!r}",
            "list_tasks must return the same tasks in the same order in every process: sort them, and use no chance "
            "and no time. After an update of the environment: `ors-server drain --all`.",
        )


#: The former name of the class, which is still the word on the wire.
InfrastructureError = InfrastructureFailure
