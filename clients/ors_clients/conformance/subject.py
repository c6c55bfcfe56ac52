"""The server under test: what it hosts, and the sessions and calls that rules are tried with.

What a rule needs is found once, before the first rule, and tolerantly: whether the answers are right is the rules'
business. Where something is missing, the rules that need it are not tried, with the reason.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any
from urllib.parse import quote

from ors_clients.conformance.generator import Generator, NoInput
from ors_clients.conformance.rule import Broken, NotTried, Rule, plain
from ors_clients.conformance.target import Observer, State
from ors_clients.conformance.values import as_list, as_object
from ors_clients.conformance.wire import Answer, Wire
from ors_clients.errors import ConfigurationError

__all__ = ["PROBE", "Options", "Reply", "Subject"]

#: The environments of ``probe``, by which a server can be tried on promises that no ordinary tool shows.
PROBE, DERIVED = "orsprobe", "orsprobederived"


@dataclass(frozen=True)
class Options:
    """The user's choices."""

    #: The environment to try; empty for the probe where it is hosted, else the first.
    environment: str = ""
    seed: int = 0
    episodes: int = 3
    rewards: tuple[float, float] | None = None
    #: Whether rules that wait for more than half a minute are tried.
    slow: bool = False


class Reply:
    """The response to a call."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.stream = answer.stream
        self.events = self.stream.events

    def __str__(self) -> str:
        names = ", ".join(event.name for event in self.events) or "no events"
        return f"{self.answer.request}: {self.answer.status}, {plain(names, 80)}{self._tail()}"

    def _tail(self) -> str:
        if self.answer.problem:
            return f" ({self.answer.problem})"
        last = self.events[-1].data if self.events else self.answer.body.decode("utf-8", "replace")
        return f": {plain(last, 160)}" if last else ""

    @property
    def task_id(self) -> str:
        """The call's id. Raises ``Broken``."""
        for event in self.events:
            if event.name == "task_id" and event.data:
                return event.data
        raise Broken(f"{self}, without task_id")

    @property
    def error(self) -> str | None:
        """The text of the ``error`` event; None where there is none."""
        return next((event.data for event in self.events if event.name == "error"), None)

    @property
    def result(self) -> dict[str, Any]:
        """The result of a call that ended with ``end``. Raises ``Broken``."""
        self.answer.expect(200)
        if not self.events or self.events[-1].name != "end":
            raise Broken(str(self))
        text = "".join(event.data for event in self.events if event.name in ("chunk", "end"))
        try:
            value: Any = json.loads(text)
        except (ValueError, RecursionError):
            raise Broken(f"{self}, whose joined data is not JSON") from None
        if not isinstance(as_object(value).get("ok"), bool):
            raise Broken(f"{self}, which is not a result")
        return as_object(value)

    @property
    def output(self) -> dict[str, Any]:
        """The output of a tool that ran. Raises ``Broken``."""
        output = as_object(self.result.get("output"))
        if not output:
            raise Broken(str(self))
        return output

    @property
    def text(self) -> str:
        """The text of the output's blocks. Raises ``Broken``."""
        return "".join(str(as_object(block).get("text", "")) for block in as_list(self.output.get("blocks")))


class Subject:
    """One server, one of its environments, and what is known of both."""

    def __init__(self, wire: Wire, options: Options | None = None, observer: Observer | None = None) -> None:
        self.wire = wire
        #: The process behind the server; None where this check did not start it.
        self.observer = observer
        #: The random episodes (``rules_target``), and what the process held before them.
        self.episodes: list[Any] = []
        self.before: State | None = None
        self.options = options or Options()
        self.random = Random(self.options.seed)  # noqa: S311 - inputs of tools, not secrets
        self.generator = Generator(self.random)
        #: All hosted environments.
        self.names: list[str] = []
        self._environment = ""
        self._tools: list[dict[str, Any]] = []
        self._split = ""
        self._tasks = 0
        #: Whether the server promises to honour an Idempotency-Key.
        self.keyed = False
        self._idle: str | None = None

    # --- what it hosts -------------------------------------------------------------------------

    async def discover(self) -> str:
        """Find environments, tools and tasks. Return the reason why the server cannot be tried at all, or nothing.

        Raises ``ConfigurationError`` for an environment that the server does not list.
        """
        answer = await self.wire.get("/list_environments")
        if not answer.status:
            answer = await self.wire.get("/list_environments")
        if not answer.status:
            return f"no HTTP server answers: {answer.problem}"
        if answer.status in (401, 403):
            return f"the server wants {'another' if self.wire.keyed else 'a'} key ({answer.status}); set ORS_API_KEY"
        self.names = [name for name in _list(answer) if isinstance(name, str) and name]
        wanted = self.options.environment.lower()
        if wanted:
            self._environment = next((name for name in self.names if name.lower() == wanted), wanted)
            if self.names and self._environment not in self.names:
                hosted = plain(", ".join(self.names), 400)
                raise ConfigurationError(f"The server has no environment {plain(wanted, 60)}", f"It lists {hosted}.")
        elif self.names:
            self._environment = PROBE if PROBE in self.names else self.names[0]
        if not self._environment:
            return ""
        listed = as_list(_object(await self.wire.get(self.path("tools"))).get("tools"))
        self._tools += [as_object(tool) for tool in listed if isinstance(as_object(tool).get("name"), str)]
        for split in _list(await self.wire.get(self.path("splits")))[:20]:
            name = as_object(split).get("name")
            if not isinstance(name, str):
                continue
            self._split = self._split or name
            number = _object(await self.wire.post(self.path("num_tasks"), {"split": name})).get("num_tasks")
            if isinstance(number, int) and number > 0:
                self._split, self._tasks = name, number
                break
        return ""

    @property
    def environment(self) -> str:
        """The environment that is tried. Raises ``NotTried``."""
        if not self._environment:
            raise NotTried("/list_environments named no environment")
        return self._environment

    @property
    def tools(self) -> Sequence[Mapping[str, Any]]:
        """The tools that every session has. Raises ``NotTried``."""
        if not self._tools:
            raise NotTried("/tools listed no tool")
        return self._tools

    @property
    def split(self) -> str:
        """A split, with tasks if any has some. Raises ``NotTried``."""
        if not self._split:
            raise NotTried("/splits named no split")
        return self._split

    @property
    def task_count(self) -> int:
        """The tasks of ``split``. Raises ``NotTried``."""
        if self._tasks == 0:
            raise NotTried("no split has a task by index")
        return self._tasks

    @property
    def other_environment(self) -> str:
        """Another hosted environment. Raises ``NotTried``."""
        for name in self.names:
            if name.lower() != self.environment.lower():
                return name
        raise NotTried("one environment is hosted; the rule needs two")

    def check_needs(self, rule: Rule) -> None:
        """Raise ``NotTried`` where the rule needs the probe or time that this check does not have."""
        if rule.probe and self._environment != PROBE:
            raise NotTried(f"needs the environment {PROBE} (docs/checking.md)")
        if rule.slow and not self.options.slow:
            raise NotTried(f"takes {rule.slow} s: --slow tries it")

    def path(self, last: str, environment: str | None = None) -> str:
        """Return the path of an environment's route."""
        return f"/{quote(environment or self.environment, safe='')}/{last}"

    # --- sessions ------------------------------------------------------------------------------

    def task(self, environment: str | None = None, **spec: Any) -> dict[str, Any]:
        """Return the body of a /create: a task of the probe where ``spec`` is given, else the first task."""
        body: dict[str, Any] = {"env_name": environment or self.environment}
        if spec or self._environment == PROBE:
            return {**body, "task_spec": {"label": uuid.uuid4().hex, **spec}}
        assert self.task_count
        return {**body, "split": self.split, "index": 0}

    async def new_id(self) -> str:
        """Return an id from /create_session, or one of this client's where the server gives none."""
        answer = await self.wire.events("/create_session", {})
        named = [event.data for event in answer.events if event.name == "task_id"]
        return named[0] if named and named[0].isprintable() and named[0].isascii() else str(uuid.uuid4())

    async def create(self, body: Mapping[str, Any], sid: str | None = None, **more: Any) -> tuple[str, Answer]:
        """Send a /create; return the session's id and the answer."""
        sid = sid or await self.new_id()
        answer = await self.wire.post("/create", body, sid, **more)
        self.keyed = self.keyed or answer.headers.get("x-idempotent-calls", "").lower() == "true"
        return sid, answer

    @contextlib.asynccontextmanager
    async def session(self, body: Mapping[str, Any] | None = None, **spec: Any) -> AsyncGenerator[str]:
        """Open a session for a block. Raises ``NotTried`` where it cannot be opened: a rule of its own tries that."""
        sid, answer = await self.create(body or self.task(**spec))
        try:
            if answer.status != 200:
                raise NotTried(f"no session could be opened: {answer}")
            yield sid
        finally:
            await self.end(sid)

    async def end(self, sid: str) -> None:
        """End a session."""
        await self.wire.post("/delete", sid=sid)
        await self.wire.post("/delete_session", sid=sid)

    async def idle_session(self) -> str:
        """Return a session that several rules share: none of them ends it or runs a tool in it."""
        if self._idle is None:
            sid, answer = await self.create(self.task())
            if answer.status != 200:
                raise NotTried(f"no session could be opened: {answer}")
            self._idle = sid
        return self._idle

    async def close(self) -> None:
        """End the shared session."""
        if self._idle is not None:
            await self.end(self._idle)
            self._idle = None

    # --- calls ---------------------------------------------------------------------------------

    async def call(
        self, sid: str, name: str, input: Mapping[str, Any] | None = None, *, task_id: str | None = None, **more: Any
    ) -> Reply:
        """Call a tool and read the response."""
        body: dict[str, Any] = {"name": name, "input": dict(input or {})}
        if task_id is not None:
            body["task_id"] = task_id
        return Reply(await self.wire.events(more.pop("path", None) or self.path("call"), body, sid, **more))

    def valid_call(self) -> tuple[str, dict[str, Any]]:
        """Return the name of a tool with a valid input. Raises ``NotTried``."""
        reasons: list[str] = []
        for tool in sorted(self.tools, key=lambda tool: tool["name"] != "probe_echo"):
            try:
                return tool["name"], self.generator.input(tool.get("input_schema"), smallest=True)
            except NoInput as error:
                reasons.append(f"{plain(tool['name'], 40)}: {error}")
        raise NotTried("no valid input could be made for any tool: " + plain("; ".join(reasons), 200))


def _list(answer: Answer) -> list[Any]:
    with contextlib.suppress(Broken):
        return as_list(answer.json())
    return []


def _object(answer: Answer) -> dict[str, Any]:
    with contextlib.suppress(Broken):
        return answer.object()
    return {}
