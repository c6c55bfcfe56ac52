"""Tasks as rows of a dataset: one line of JSON with ``prompt``, ``label`` and ``metadata``, as slime and Miles read it.

The prompt is only a name, as a user's message; the episode's own prompt comes from the environment when the rollout
opens its session. So a row holds what is needed to open that session: the environment, the split, the index and the
task as the server gave it.
``metadata`` is written as a mapping, which the trainers write into themselves, and read as one or as a string of JSON
(openreward-cookbook's rows). The same configuration and seed give the same rows.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ors_clients.client.async_client import AsyncClient
from ors_clients.client.environments import AsyncEnvironment
from ors_clients.errors import ConfigurationError, RequestRefused
from ors_clients.models import Task
from ors_clients.training.config import TrainingConfiguration

__all__ = ["TaskRow", "prepare_tasks", "read_metadata"]

_CONCURRENT_REQUESTS = 16


@dataclass(frozen=True)
class TaskRow:
    """A task of a run: the configuration's name of its environment, and the task."""

    environment: str
    task: Task

    @property
    def hash(self) -> str:
        """16 hexadecimal digits that tell tasks of one environment apart. Raises as ``line`` does."""
        text = json.dumps(self.task.spec, sort_keys=True, default=dict)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def metadata(self) -> dict[str, Any]:
        """The row's metadata: JSON values only."""
        namespace, _, name = self.task.environment.rpartition("/")
        return {
            "env_name": self.environment,
            "deployment_name": self.task.environment,
            "server_name": self.task.server_name,
            "environment_name": name,
            "namespace": namespace or None,
            "split": self.task.split,
            "index": self.task.index,
            "task_spec": self.task.spec,
            "task_hash": self.hash,
        }

    @property
    def line(self) -> str:
        """The row as one line of JSON, without the line break.

        Raises ``TypeError`` for a task that JSON cannot hold.
        """
        name = f"[{self.environment}:{self.task.split}:{self.hash}]"
        # A conversation: with a vision model's processor the trainers take nothing else for a prompt.
        prompt = [{"role": "user", "content": name}]
        return json.dumps({"prompt": prompt, "label": "", "metadata": self.metadata}, ensure_ascii=False, default=dict)

    @classmethod
    def of_metadata(cls, metadata: Mapping[str, Any]) -> TaskRow:
        """Return the row a trainer hands back. Raises ``ConfigurationError`` for an invalid row."""
        environment, spec = metadata.get("env_name"), metadata.get("task_spec")
        if not isinstance(environment, str) or not isinstance(spec, Mapping):
            raise ConfigurationError(
                "A sample's metadata names no task (keys env_name and task_spec)",
                "Prepare the data with `python -m ors_clients.prepare_tasks`, and pass --metadata-key metadata",
            )
        task = Task(
            environment=metadata.get("deployment_name") or environment,
            split=metadata.get("split"),
            index=metadata.get("index"),
            spec=dict(cast("Mapping[str, Any]", spec)),
            server_name=metadata.get("server_name"),
        )
        return cls(environment, task)


def read_metadata(metadata: Any) -> dict[str, Any]:
    """Return a copy of a sample's metadata, a mapping or its JSON. Raises ``ConfigurationError`` for anything else."""
    if isinstance(metadata, str):
        try:
            metadata = json.loads(metadata) if metadata.strip() else {}
        except ValueError:
            metadata = None
    elif metadata is None:
        metadata = {}
    if not isinstance(metadata, Mapping):
        raise ConfigurationError("A sample's metadata is neither a mapping nor JSON of one")
    return dict(cast("Mapping[str, Any]", metadata))


async def prepare_tasks(
    configuration: TrainingConfiguration, *, max_tasks: int | None = None, seed: int = 42
) -> list[TaskRow]:
    """Return the tasks of every environment and split, shuffled.

    A split gives at most ``num_samples`` of its environment, or ``max_tasks`` where that is not set; which ones depends
    on nothing but ``seed``, the environment and the split. Raises ``ClientError``.
    """
    rows: list[TaskRow] = []
    for name, settings in configuration.environments.items():
        async with AsyncClient(settings.base_url or configuration.base_url) as client:
            for split in settings.splits:
                generator = random.Random(f"{seed}:{name}:{split}")  # noqa: S311 - a choice of tasks, no secret
                limit = settings.num_samples or max_tasks
                tasks = await _choose(client.environment(name), split, limit, generator)
                rows.extend(TaskRow(name, task) for task in tasks)
    random.Random(seed).shuffle(rows)  # noqa: S311 - as above
    return rows


async def _choose(
    environment: AsyncEnvironment, split: str, limit: int | None, generator: random.Random
) -> Sequence[Task]:
    """At most ``limit`` tasks of a split. Those of a large split are asked for one by one, and no others."""
    if limit is None:
        return await environment.tasks(split)
    try:
        count = await environment.num_tasks(split)
    except RequestRefused:  # a server that only lists
        tasks = await environment.tasks(split)
        return [tasks[index] for index in _indices(len(tasks), limit, generator)]
    if limit >= count:
        return await environment.tasks(split)
    places = asyncio.Semaphore(_CONCURRENT_REQUESTS)

    async def fetch(index: int) -> Task:
        async with places:
            return await environment.task(split, index)

    return await asyncio.gather(*map(fetch, _indices(count, limit, generator)))


def _indices(count: int, limit: int, generator: random.Random) -> list[int]:
    return sorted(generator.sample(range(count), min(limit, count)))
