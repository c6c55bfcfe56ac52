"""The tasks of one environment: counts, tasks by index and range, and the part of a task that clients get.

A split's list is fetched once and kept, so that index *i* is the same task in every answer and takes no time to look
up. Environments with more tasks than a list should hold override ``num_tasks`` and ``get_task``. Only methods that the
author overrode are called.

Clients do not get private fields (``private_task_fields``). Such a task has ``_ors_task``, a token with its split, its
index and a digest of its public part. When the task comes back with ``/create``, the whole task is taken from the
environment, never from the client (protocol 0.1). The token hides and grants nothing: a client may open any split and
index anyway. It detects that a task has changed since it was listed.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

from ors_server.errors import DefinitionError
from ors_server.hosting.dialects import overrides
from ors_server.hosting.errors import InvalidIndex, InvalidIndexRange, InvalidSplit, InvalidTask, TasksNotListable
from ors_server.hosting.executors import Execution
from ors_server.hosting.task_agreement import TaskAgreement
from ors_server.protocol import Split, SplitType
from ors_server.wire.encoding import encode

__all__ = ["TASK_TOKEN", "TaskSource", "copy_json", "names_in", "normalise_splits"]

#: Key of the token in a public task.
TASK_TOKEN = "_ors_task"  # noqa: S105 - the key, not a token

#: Tasks that are encoded, and tasks that are made public, before other requests get a turn: a few milliseconds.
_PIECE = 2000
_TURN = 200

Result = TypeVar("Result")


class TaskSource:
    """Tasks of one hosted environment class."""

    def __init__(
        self,
        cls: type,
        splits: Sequence[Split],
        execution: Execution,
        *,
        trust_client_tasks: bool,
        agreement: TaskAgreement | None = None,
    ) -> None:
        self._cls = cast(Any, cls)
        self._execution = execution
        self.splits = list(splits)
        self._split_names = [split.name for split in splits]
        self._lists: dict[str, Sequence[Any]] = {}
        #: Numbers of tasks as they were last counted.
        self._counts: dict[str, int] = {}
        self._encoded: dict[str, bytes] = {}
        self._listing: dict[str, asyncio.Future[Sequence[Any]]] = {}
        self._has_list = overrides(cls, "list_tasks")
        self._has_count = overrides(cls, "num_tasks")
        self._has_get = overrides(cls, "get_task")
        self._has_range = overrides(cls, "get_task_range")
        # Where tasks come by index, the order of a list means nothing.
        self._agreement = None if self._has_count or self._has_get else agreement
        self._private = frozenset(names_in(cls, "private_task_fields"))
        #: The private fields that a task had.
        self.withheld: set[str] = set()
        self._trust_client_tasks = trust_client_tasks
        self._signed = bool(self._private) or not trust_client_tasks
        # The key is public: it binds a token to this environment's name, and tokens in a dataset outlive a restart.
        self._key = hashlib.sha256(f"ors-server task of {self._cls.name().lower()}".encode()).digest()

    # --- for the server ----------------------------------------------------------------------

    @property
    def digests(self) -> Mapping[str, str]:
        """Digests of the listed splits that other workers of this server have to agree with."""
        return {} if self._agreement is None else self._agreement.digests

    async def count(self, split: str) -> int:
        """Count the tasks. Raises ``InvalidSplit``, ``TasksNotListable`` and what the author's code raises."""
        self._check(split)
        if self._has_count:
            count = await self._run(self._cls.num_tasks, split)
            if not isinstance(count, int) or count < 0:
                raise TypeError(
                    f"{self._cls.__name__}.num_tasks returned {count!r}; it must return the number of tasks"
                )
            self._counts[split] = count
            return count
        self._counts[split] = len(await self._list(split))
        return self._counts[split]

    async def get(self, split: str, index: int) -> Any:
        """Return the whole task. Raises ``InvalidSplit``, and ``InvalidIndex`` for an index that ``count`` excludes."""
        self._check(split)
        await self._check_index(split, index)
        if self._has_get:
            try:
                return self._checked(await self._run(self._cls.get_task, split, index), "get_task")
            except IndexError as error:
                raise InvalidIndex(index, split) from error
        tasks = await self._list(split)
        if index >= len(tasks):  # num_tasks says more than list_tasks has
            raise InvalidIndex(index, split, len(tasks))
        return tasks[index]

    async def list_json(self, split: str) -> bytes:
        """Encode all tasks of a split as clients see them; done once and kept."""
        self._check(split)
        encoded = self._encoded.get(split)  # made from a list on which the workers agree
        if encoded is None:
            encoded = self._encoded[split] = await _encode_list(
                await self._public_all(await self._list(split), split, 0)
            )
        return encoded

    async def get_public(self, split: str, index: int) -> Any:
        """Return one task, as clients see it."""
        return self._public(await self.get(split, index), split, index)

    async def range_json(self, split: str, start: int | None, stop: int | None) -> bytes:
        """Encode the tasks of a slice as clients see them. Raises ``InvalidIndexRange``."""
        self._check(split)
        first = 0
        try:
            count = await self._known_count(split)
            if self._has_range and not self._signed:
                if count is not None:  # the author's code gets no bound outside the split
                    start, stop, _ = slice(start, stop).indices(count)
                tasks: Sequence[Any] = list(await self._run(self._cls.get_task_range, split, start, stop))
            else:
                first, last, _ = slice(start, stop).indices(await self.count(split) if count is None else count)
                if self._has_get or not self._has_list:
                    tasks = []
                    for index in range(first, last):
                        if index % _TURN == 0:
                            await asyncio.sleep(0)
                        tasks.append(await self.get(split, index))
                else:
                    tasks = (await self._list(split))[first:last]
        except (IndexError, InvalidIndex) as error:
            raise InvalidIndexRange(split) from error
        return await _encode_list(await self._public_all(tasks, split, first))

    async def resolve(self, task: Mapping[str, Any]) -> Any:
        """Return the whole task for a task that a client sent. Raises ``InvalidTask``."""
        token = task.get(TASK_TOKEN)
        if token is None or not self._signed:
            if not self._trust_client_tasks:
                raise InvalidTask(
                    "This server accepts only tasks it gave out itself",
                    "Send a task from /tasks or /task unchanged, or split and index.",
                )
            return task
        split, index, digest = self._read_token(token)
        whole = await self.get(split, index)
        if digest != _digest(self._without_private(whole)):
            raise InvalidTask(
                f"Task {index} of split {split!r} has changed since it was listed", "Fetch the tasks again."
            )
        return whole

    def public_part(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a task that clients may see, without the token."""
        return {name: value for name, value in self._without_private(task).items() if name != TASK_TOKEN}

    def place_of(self, task: Mapping[str, Any]) -> tuple[str, int] | None:
        """Return the split and index of a task that was given out with a token; None for any other."""
        token = task.get(TASK_TOKEN)
        if token is None or not self._signed:
            return None
        split, index, _ = self._read_token(token)
        return split, index

    # --- details -----------------------------------------------------------------------------

    def _check(self, split: str) -> None:
        if split not in self._split_names:
            raise InvalidSplit(split, self._split_names)

    async def _check_index(self, split: str, index: int) -> None:
        """Raise ``InvalidIndex`` outside the split: one task has one index, and no index leads into another split."""
        if index < 0:
            raise InvalidIndex(index, split, await self._known_count(split))
        if index < self._counts.get(split, 0):
            return  # a count that was correct once; above it the tasks are counted again, because splits may grow
        count = await self._known_count(split)
        if count is not None and index >= count:
            raise InvalidIndex(index, split, count)

    async def _known_count(self, split: str) -> int | None:
        """Count the tasks; None where the environment has them by index only and does not count them."""
        try:
            return await self.count(split)
        except (TasksNotListable, NotImplementedError):
            return None

    async def _list(self, split: str) -> Sequence[Any]:
        tasks = self._lists.get(split)
        if tasks is not None:
            if self._agreement is not None:
                self._agreement.check(split)
            return tasks
        if not self._has_list:
            raise TasksNotListable()
        pending = self._listing.get(split)
        if pending is None or pending.get_loop() is not asyncio.get_running_loop():
            # One listing for all concurrent requests; it survives the request that started it.
            pending = asyncio.ensure_future(self._list_now(split))
            self._listing[split] = pending
        return await asyncio.shield(pending)

    async def _list_now(self, split: str) -> Sequence[Any]:
        try:
            tasks = await self._run(self._cls.list_tasks, split)
            if isinstance(tasks, (str, Mapping)) or not isinstance(tasks, Iterable):
                raise TypeError(
                    f"{self._cls.__name__}.list_tasks returned {tasks!r:.100}; it must return a list of tasks"
                )
            checked = [self._checked(task, "list_tasks") for task in cast("Iterable[Any]", tasks)]
            if self._agreement is not None:
                await self._agreement.add(split, checked)
            self._lists[split] = checked
            if self._agreement is not None:
                self._agreement.check(split)
            return checked
        except NotImplementedError as error:
            raise TasksNotListable() from error
        finally:
            self._listing.pop(split, None)

    def _checked(self, task: Any, method: str) -> Any:
        if not isinstance(task, Mapping):
            raise TypeError(f"{self._cls.__name__}.{method} returned the task {task!r:.100}; a task is a dict")
        return cast("Mapping[str, Any]", task)

    async def _run(self, function: Callable[..., Awaitable[Result] | Result], *arguments: Any) -> Any:
        return await self._execution.run(function, *arguments)

    async def _public_all(self, tasks: Sequence[Any], split: str, first: int) -> Sequence[Any]:
        if not self._signed:
            return tasks
        public: list[Any] = []
        for offset, task in enumerate(tasks):
            if offset % _TURN == 0:
                await asyncio.sleep(0)
            public.append(self._public(task, split, first + offset))
        return public

    def _public(self, task: Any, split: str, index: int) -> Any:
        if not self._signed:
            return task
        public = self._without_private(task)
        public[TASK_TOKEN] = self._token(split, index, _digest(public))
        return public

    def _without_private(self, task: Mapping[str, Any]) -> dict[str, Any]:
        self.withheld.update(self._private & task.keys())
        return {name: value for name, value in task.items() if name not in self._private}

    def _token(self, split: str, index: int, digest: str) -> str:
        payload = json.dumps([split, index, digest], separators=(",", ":")).encode()
        signature = hmac.new(self._key, payload, hashlib.sha256).digest()[:16]
        return base64.urlsafe_b64encode(signature + payload).decode()

    def _read_token(self, token: Any) -> tuple[str, int, str]:
        try:
            raw = base64.urlsafe_b64decode(token)
            signature, payload = raw[:16], raw[16:]
            if not hmac.compare_digest(signature, hmac.new(self._key, payload, hashlib.sha256).digest()[:16]):
                raise ValueError("signature")
            split, index, digest = json.loads(payload)
            return str(split), int(index), str(digest)
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            raise InvalidTask(
                f"The task's {TASK_TOKEN} is damaged or from another environment", "Fetch the tasks again."
            ) from error


async def _encode_list(tasks: Sequence[Any]) -> bytes:
    """Encode a long list in pieces, between which other requests get their turn."""
    if len(tasks) <= _PIECE:
        return encode(list(tasks))
    pieces: list[bytes] = []
    for start in range(0, len(tasks), _PIECE):
        pieces.append(encode(list(tasks[start : start + _PIECE]))[1:-1])
        await asyncio.sleep(0)
    return b"[" + b",".join(pieces) + b"]"


def _digest(task: Any) -> str:
    return hashlib.sha256(encode(task)).hexdigest()[:24]


def names_in(cls: type, attribute: str) -> list[str]:
    """Read a class attribute that lists names. Raises ``DefinitionError``, above all for a single string."""
    value: Any = getattr(cls, attribute, None) or ()
    is_list = isinstance(value, (list, tuple, set, frozenset))
    if not is_list or not all(isinstance(name, str) and name for name in cast("list[Any]", value)):
        example = value if isinstance(value, str) else "name"
        raise DefinitionError(
            f"{cls.__name__}.{attribute} is {value!r}, which is not a list of names",
            f'Write {attribute} = ("{example}",), with the comma.',
        )
    return list(cast("list[str]", value))


def normalise_splits(cls: type, splits: Any) -> list[Split]:
    """Convert an author's splits: names or ``Split`` objects of any SDK. Raises ``DefinitionError``."""
    normalised: list[Split] = []
    if splits is not None and (isinstance(splits, str) or not isinstance(splits, Iterable)):
        example = splits if isinstance(splits, str) else "train"
        raise DefinitionError(
            f"{cls.__name__}.list_splits returned {splits!r}, which is not a list", f'Return a list: ["{example}"].'
        )
    for split in cast("Iterable[Any]", splits or ()):
        if isinstance(split, str):
            kind: SplitType = "validation"
            if split in ("train", "validation", "test"):
                kind = split
            normalised.append(Split(name=split, type=kind))
        elif hasattr(split, "name") and hasattr(split, "type"):
            normalised.append(Split(name=split.name, type=split.type))
        else:
            raise DefinitionError(
                f"{cls.__name__}.list_splits returned {split!r}, which is not a split",
                'Return names, for example ["train", "test"], or Split objects.',
            )
    names = [split.name for split in normalised]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DefinitionError(
            f"{cls.__name__}.list_splits returned a split twice: {', '.join(map(repr, twice))}", "Name each split once."
        )
    if not normalised:
        raise DefinitionError(
            f"Environment {cls.__name__} has no splits", 'Implement list_splits, for example: return ["train"].'
        )
    return normalised


def copy_json(value: Any) -> Any:
    """Copy a task, so that an instance may change it without changing that of another."""
    if isinstance(value, dict):
        return {key: copy_json(item) for key, item in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list):
        return [copy_json(item) for item in cast("list[Any]", value)]
    return value
