"""Prepare environment classes for serving.

Everything that the server needs to know of a class is computed once, before the first request: its name, tools and
splits, the methods that the author overrode, and the answers that never change, already encoded. Classes of all three
SDKs become the same ``HostedEnvironment``.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import sys
import threading
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from ors_server.errors import DefinitionError, InfrastructureFailure
from ors_server.hosting.dialects import Dialect, dialect_of, is_environment_class, overrides
from ors_server.hosting.errors import NoEnvironments, UnknownEnvironment
from ors_server.hosting.executors import Execution, LoopExecution, PoolExecution, SessionThreadExecution, ThreadPool
from ors_server.hosting.task_agreement import TaskAgreement
from ors_server.hosting.task_source import TaskSource, names_in, normalise_splits
from ors_server.hosting.tools import ToolTable, compile_tools
from ors_server.protocol import Split
from ors_server.sandboxes import hide_code_from_sandboxes, sandbox_error
from ors_server.settings import Settings
from ors_server.telemetry.counts import EnvironmentCounts
from ors_server.wire.encoding import encode
from ors_server.worker import identity

__all__ = ["Catalogue", "HostedEnvironment", "why_unavailable"]


class HostedEnvironment:
    """One environment class, with everything about it that does not change while it is served."""

    def __init__(
        self,
        cls: type,
        settings: Settings,
        tools_pool: ThreadPool,
        lifecycle_pool: ThreadPool,
        reserved_names: Collection[str],
    ) -> None:
        self.cls = cls
        for base in filter(is_environment_class, cls.__mro__):  # a base may be of another package, which has the tasks
            if file := getattr(sys.modules.get(base.__module__), "__file__", None):
                hide_code_from_sandboxes(Path(file))
        _check_class_methods(cls)
        self.dialect = dialect_of(cls)
        self.name = _name_of(cls, reserved_names)
        self.aliases: list[str] = names_in(cls, "aliases")
        self.required_secrets = _required_secrets(cls)
        self.tools: ToolTable = compile_tools(cls)
        if not self.tools.tools and self.tools.own_listing is None:
            raise DefinitionError(
                f"Environment {cls.__name__} has no tools",
                "Add a method `@tool def name(self, params: YourModel) -> ToolOutput`.",
            )
        self._settings = settings
        self._lifecycle_pool = lifecycle_pool
        self._shared_tools: Execution = PoolExecution(tools_pool)
        self._shared_lifecycle: Execution = PoolExecution(lifecycle_pool)
        self.has_prompt = overrides(cls, "get_prompt")
        self.has_messages = overrides(cls, "get_messages")
        if not (self.has_prompt or self.has_messages):
            raise DefinitionError(
                f"Environment {cls.__name__} implements neither get_prompt() nor get_messages()",
                "Implement get_prompt: it returns a list of TextBlock.",
            )
        if not (overrides(cls, "list_tasks") or (overrides(cls, "num_tasks") and overrides(cls, "get_task"))):
            raise DefinitionError(
                f"Environment {cls.__name__} has no tasks", "Implement list_tasks, or both num_tasks and get_task."
            )
        self.has_constructor = overrides(cls, "__init__")
        self.has_setup = overrides(cls, "setup")
        self.has_teardown = overrides(cls, "teardown")
        self.has_task_tools = overrides(cls, "list_task_tools")
        self.splits: list[Split] = normalise_splits(cls, _splits_of(cls))
        worker = identity()
        self.tasks = TaskSource(
            cls,
            self.splits,
            self._shared_lifecycle,
            trust_client_tasks=settings.trust_client_tasks,
            agreement=None if worker is None else TaskAgreement(worker.folder, self.name),
        )
        self.tools_json = encode(self.tools.listing())
        self.session_tools = self.tools.listing(session=True)
        self.session_tools_json = encode(self.session_tools)
        self.splits_json = encode(self.splits)
        #: Its sessions that wait for room on this machine. While there are any, new sessions get ``MachineBusy``.
        self.waiting_for_room = 0
        #: What ``/metrics`` has of it; None where there are no metrics.
        self.counts = EnvironmentCounts(self.name, _names_of_calls(self.tools)) if settings.metrics else None

    def executions(self) -> tuple[Execution, Execution]:
        """Return the executions of a new session: for constructor, set-up, prompt and teardown; and for tools."""
        if self.dialect is not Dialect.ORS:
            return self._shared_lifecycle, self._shared_tools
        own: Execution = (
            LoopExecution() if self._settings.sync_on_loop else SessionThreadExecution(self._lifecycle_pool)
        )
        return own, own


def _names_of_calls(table: ToolTable) -> list[str]:
    listed = () if table.own_listing is None else table.own_listing.tools
    scoring = ("score_group",) if table.supports_score_group else ()
    return [*table.tools, *(spec.name for spec in listed), *scoring]


class Catalogue:
    """The hosted environments by their names; the first is the default.

    Names are compared in lower case. Order for a request: the path's segment, the body's ``env_name``,
    ``X-Deployment`` whole and then its last segment, the default (protocol 0.1).
    """

    def __init__(
        self,
        environments: Sequence[HostedEnvironment],
        aliases: Mapping[str, str] | None = None,
        unavailable: Mapping[str, str] | None = None,
        reserved_names: Collection[str] = (),
    ) -> None:
        self._reserved_names = reserved_names
        self.unavailable = {name.lower(): reason for name, reason in (unavailable or {}).items()}
        if not environments:
            if self.unavailable:
                reasons = " ".join(f"{name}: {reason.rstrip('.')}." for name, reason in self.reasons.items())
                raise NoEnvironments("No environment can be served on this machine", reasons)
            raise NoEnvironments(
                "A server needs at least one environment", "Name one, for example: Server([MyEnvironment])."
            )
        self.environments = list(environments)
        self.default = self.environments[0]
        self._by_name: dict[str, HostedEnvironment] = {}
        for hosted in self.environments:
            if hosted.name in self._by_name:
                raise DefinitionError(
                    f"Two environments are named {hosted.name!r}",
                    "Give one of them another name: override the classmethod name().",
                )
            self._by_name[hosted.name] = hosted
        for hosted in self.environments:
            for alias in hosted.aliases:
                self._add_alias(alias, hosted)
        for alias, name in (aliases or {}).items():
            target = self.default if name == "*" else self._by_name.get(name.lower())
            if target is None:
                remedy = f"Hosted: {', '.join(self.names)}."
                raise DefinitionError(f"Alias {alias!r} names the unknown environment {name!r}", remedy)
            self._add_alias(alias, target)
            target.aliases.append(alias)

    @property
    def reasons(self) -> dict[str, str]:
        """The reasons why environments cannot be served, each under one name of its environment."""
        once: dict[str, str] = {}
        for name, reason in self.unavailable.items():
            if reason not in once.values():
                once[name] = reason
        return once

    @property
    def names(self) -> list[str]:
        """The names of the environments, the default first."""
        return [hosted.name for hosted in self.environments]

    def all_names(self, hosted: HostedEnvironment) -> list[str]:
        """Return the names under which an environment is found, its own first."""
        return [
            hosted.name,
            *(name for name, found in self._by_name.items() if found is hosted and name != hosted.name),
        ]

    def find(self, name: str) -> HostedEnvironment | None:
        """Return the environment of this name or alias."""
        return self._by_name.get(name) or self._by_name.get(name.lower())

    def by_path(self, segment: str) -> HostedEnvironment:
        """Return the environment of a path segment or a body's ``env_name``. Raises ``UnknownEnvironment``."""
        hosted = self.find(segment)
        if hosted is None:
            raise UnknownEnvironment(segment, self.names, self.unavailable.get(segment.lower(), ""))
        return hosted

    def by_deployment(self, deployment: str | None) -> HostedEnvironment | None:
        """Return the environment that ``X-Deployment`` names; None where the default is meant.

        Raises ``UnknownEnvironment`` where several environments are hosted and the header names none of them.
        """
        if not deployment:
            return None
        name = deployment.strip().lower()
        hosted = self._by_name.get(name) or self._by_name.get(name.rpartition("/")[2])
        if hosted is not None:
            return hosted
        reason = self.unavailable.get(name) or self.unavailable.get(name.rpartition("/")[2], "")
        if len(self.environments) == 1 and not reason:
            return self.default
        if name == "env":  # TRL's name where none was configured
            return None
        raise UnknownEnvironment(deployment, self.names, reason)

    def _add_alias(self, alias: str, hosted: HostedEnvironment) -> None:
        key = alias.lower()
        _check_name(alias, self._reserved_names, alias_of=hosted.name)
        if self._by_name.setdefault(key, hosted) is not hosted:
            raise DefinitionError(
                f"The alias {alias!r} of {hosted.name!r} is taken by {self._by_name[key].name!r}", "Choose another."
            )


def why_unavailable(cls: type, reserved_names: Collection[str]) -> tuple[list[str], str]:
    """Return the names of a class that cannot be served on this machine, and the reason; an empty one where it can.

    Called first: the splits of a class may need what the machine lacks. Only a class method counts: in a class of
    another SDK ``unavailable`` may be anything.
    """
    if not overrides(cls, "unavailable") or inspect.isfunction(inspect.getattr_static(cls, "unavailable")):
        return [], ""
    if not callable(ask := cast(Any, cls).unavailable):
        return [], ""
    try:
        reason = _at_start(cls, "unavailable", ask)
    except Exception as error:  # an author's code may raise anything; only failures of the machine make it unavailable
        failure = error if isinstance(error, InfrastructureFailure) else sandbox_error(error)
        if failure is None:
            raise
        reason = failure.text
    if not reason:
        return [], ""
    return [_name_of(cls, reserved_names), *(alias.lower() for alias in names_in(cls, "aliases"))], str(reason)


def _name_of(cls: type, reserved_names: Collection[str]) -> str:
    name_method = getattr(cls, "name", None)
    name = _at_start(cls, "name", name_method) if callable(name_method) else cls.__name__
    if not isinstance(name, str):
        raise DefinitionError(f"{cls.__name__}.name returned {name!r}, which is not a text", "Return the name.")
    _check_name(name, reserved_names)
    return name.lower()


def _required_secrets(cls: type) -> list[str]:
    """Return the names in ``required_secrets``. Other SDKs do not define it: there, other values are ignored."""
    try:
        return names_in(cls, "required_secrets")
    except DefinitionError:
        if dialect_of(cls) is Dialect.OWN:
            raise
        return []


def _check_name(name: str, reserved_names: Collection[str], alias_of: str | None = None) -> None:
    what = "An environment cannot be named" if alias_of is None else f"{alias_of!r} cannot have the alias"
    if name.lower() in reserved_names:
        raise DefinitionError(
            f"{what} {name!r}: that path is the server's own",
            "Rename the class, or override the classmethod name()." if alias_of is None else "Choose another.",
        )
    forbidden = "?#%" if alias_of is not None else "?#%/"
    if not name.strip() or not name.isprintable() or any(character in forbidden for character in name):
        raise DefinitionError(
            f"{what} {name!r}: it could not be written in a path",
            f"Leave out {' '.join(forbidden)} and control characters"
            + (": override the classmethod name()." if alias_of is None else "."),
        )


def _check_class_methods(cls: type) -> None:
    """Refuse a forgotten ``@classmethod``, which otherwise shows as an unclear ``TypeError`` later."""
    own = ("unavailable",) if dialect_of(cls) is Dialect.OWN else ()
    for name in ("name", *own, "list_splits", "list_tasks", "num_tasks", "get_task", "get_task_range"):
        if overrides(cls, name) and inspect.isfunction(inspect.getattr_static(cls, name)):
            raise DefinitionError(
                f"{cls.__name__}.{name} is not a class method", f"Put @classmethod above `def {name}`."
            )


def _splits_of(cls: type) -> Any:
    try:
        return _at_start(cls, "list_splits", cast(Any, cls).list_splits)
    except NotImplementedError as error:
        raise DefinitionError(
            f"Environment {cls.__name__} does not implement list_splits", 'For example: return ["train"].'
        ) from error


def _at_start(cls: type, name: str, function: Any) -> Any:
    try:
        return _call_at_start(function)
    except SystemExit as error:  # it would silently end the process before the server starts
        raise DefinitionError(
            f"{cls.__name__}.{name} ended the process (SystemExit)", "Raise an error instead."
        ) from error


def _call_at_start(function: Any) -> Any:
    """Call a class method that may be asynchronous, whether or not the caller runs in an event loop."""
    result = function()
    if not inspect.isawaitable(result):
        return result
    outcome: list[Any] = []

    async def wait() -> Any:
        return await result

    def run() -> None:
        try:
            outcome.append(asyncio.run(wait()))
        except BaseException as error:  # noqa: BLE001 - the caller's thread raises it
            outcome.append(error)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(run,))
    thread.start()
    thread.join()
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]
