"""The tasks of a run: chosen by index, range or id, and recognised again by a digest of what the server gave out.

The digest is in the journal and in the report. A run that goes on, and runs that are compared, have to have the same
tasks, whatever their names say.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ors_clients.client.async_client import AsyncClient
from ors_clients.client.environments import AsyncEnvironment
from ors_clients.errors import EvaluationError
from ors_clients.models import Task

__all__ = ["choose_environment", "choose_tasks", "describe", "differing_tasks"]

#: Keys under which environments name their tasks.
_IDS = ("id", "task_id", "name", "instance_id")
_AT_ONCE = 16
#: Tasks that a message lists.
_LISTED = 5


async def choose_environment(client: AsyncClient, name: str | None, split: str | None) -> tuple[AsyncEnvironment, str]:
    """Return an environment of the server and one of its splits; the first of each where none is named.

    Raises ``EvaluationError`` for one that the server does not have, and ``ServerUnavailable``.
    """
    names = await client.environments()
    if name is None:
        if not names:
            raise EvaluationError(f"{client.url} serves no environment", "Serve one: ors-server serve TARGET")
        name = names[0]
    environment = client.environment(name)
    splits = [found.name for found in await environment.splits()]
    if split is None:
        # A test split is what is evaluated, where there is one.
        split = next((known for known in ("test", "validation") if known in splits), next(iter(splits), None))
    if split is None or split not in splits:
        raise EvaluationError(f"{name} has no split {split!r}", f"It has {', '.join(splits) or 'none'}.")
    return environment, split


async def choose_tasks(environment: AsyncEnvironment, split: str, wanted: str | None, limit: int | None) -> list[Task]:
    """Return the tasks of a split: ``wanted`` is ``0-9,15`` or ids, ``limit`` the most of them.

    Raises ``EvaluationError`` for tasks that are not there, or named twice.
    """
    count = await environment.num_tasks(split)
    pieces = [piece.strip() for piece in (wanted or "").split(",") if piece.strip()]
    if any(not re.fullmatch(r"\d{1,18}(-\d{1,18})?", piece) for piece in pieces):
        tasks = _by_id(await environment.tasks(split), pieces, split)[:limit]
    else:
        indices = _indices(pieces, count, split) if pieces else list(range(count))
        indices = indices[:limit]
        if len(indices) == count:
            tasks = await environment.tasks(split)
        else:
            at_once = asyncio.Semaphore(_AT_ONCE)

            async def one(index: int) -> Task:
                async with at_once:
                    return await environment.task(split, index)

            tasks = await asyncio.gather(*map(one, indices))
    if not tasks:
        raise EvaluationError(f"The split {split!r} has no tasks", "Choose another with --split.")
    return list(tasks)


def _indices(pieces: Sequence[str], count: int, split: str) -> list[int]:
    found: list[int] = []
    for piece in pieces:
        first, _, last = piece.partition("-")
        if (end := int(last or first)) >= count:
            raise EvaluationError(f"{split!r} has no task {end}", f"It has {count} tasks, counted from 0.")
        found += range(int(first), end + 1)
    _refuse_twice([str(index) for index in found])
    return found


def _by_id(tasks: Sequence[Task], pieces: Sequence[str], split: str) -> list[Task]:
    known: dict[str, Task] = {}
    for task in tasks:
        known.setdefault(_id_of(task.spec) or "", task)
    known |= {str(task.index): task for task in tasks if task.index is not None}
    if unknown := [piece for piece in pieces if piece not in known]:
        some = ", ".join(name for name in list(known)[:_LISTED] if name)
        raise EvaluationError(f"{split!r} has no task {unknown[0]!r}", f"Its tasks are called {some}, …")
    _refuse_twice(pieces)
    return [known[piece] for piece in pieces]


def _refuse_twice(names: Sequence[str]) -> None:
    twice = {name for name in names if names.count(name) > 1} if len(set(names)) < len(names) else set[str]()
    if twice:
        raise EvaluationError(f"--tasks names {min(twice)} twice", "More plays of a task are --samples.")


def _id_of(spec: Mapping[str, Any]) -> str | None:
    return next((str(spec[name]) for name in _IDS if isinstance(spec.get(name), str | int)), None)


def describe(task: Task) -> dict[str, Any]:
    """Return what the journal keeps of a task: no part of it but its name."""
    text = json.dumps(task.spec, sort_keys=True, default=dict)
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    found: dict[str, Any] = {"split": task.split, "index": task.index, "hash": digest}
    name = _id_of(task.spec)
    return found if name is None else {**found, "id": name}


def differing_tasks(ours: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]]) -> str:
    """Return how two lists of tasks differ, in words; empty where they hold the same tasks."""
    own = {(task["split"], task["index"], task["hash"]): task for task in ours}
    their = {(task["split"], task["index"], task["hash"]): task for task in others}
    if own.keys() == their.keys():
        return ""
    words: list[str] = []
    for found, missing, text in ((own, their, "only here"), (their, own, "only there")):
        more = [task for key, task in found.items() if key not in missing]
        if more:
            names = ", ".join(f"{task['split']}:{task['index']} ({task['hash']})" for task in more[:_LISTED])
            words.append(f"{len(more)} {text}: {names}{', …' if len(more) > _LISTED else ''}")
    return "; ".join(words)
