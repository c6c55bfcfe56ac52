"""The tasks of ``ors-server train --model``: of any environment that has one split to train on and one to hold out."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ors_clients.client.async_client import AsyncClient
from ors_clients.client.environments import AsyncEnvironment
from ors_clients.errors import ConfigurationError, RequestRefused
from ors_clients.evaluation.tasks import choose_environment
from ors_clients.learning.plan import Plan, PlannedTask
from ors_clients.models import Task

from ors_server.protocol import Split

__all__ = ["TaskChoice", "choose_splits", "model_named", "plan_with_tasks"]

#: Held-out tasks below which the interval of a difference says nothing.
_FEWEST = 10
#: Episodes of a sampled evaluation that are worth their time, and of one task.
_EPISODES, _OF_ONE = 200, 8


@dataclass(frozen=True)
class TaskChoice:
    """The tasks that the command line names; None for what is left to the server and the sizes of the run."""

    environment: str | None = None
    train_split: str | None = None
    held_out_split: str | None = None
    train: int | None = None
    held_out: int | None = None


def model_named(model: str) -> str:
    """Return a model's folder as an absolute path, or its name on the hub. Raises ``ConfigurationError``."""
    folder = Path(model).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ConfigurationError(
                f"{folder} has no config.json", "Give a folder that save_pretrained of transformers wrote."
            )
        return str(folder.resolve())
    if not re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", model):
        raise ConfigurationError(
            f"{model} is neither a folder nor a name on the Hugging Face hub", "Name one as Qwen/Qwen3-0.6B."
        )
    return model


def choose_splits(splits: Sequence[Split], train: str | None, held_out: str | None) -> tuple[str, str]:
    """Return the split to train on and the one to measure on, by their types unless they are named.

    Raises ``ConfigurationError`` where there are no such two.
    """
    known = ", ".join(f"{split.name} ({split.type})" for split in splits) or "none"
    names = [split.name for split in splits]
    found: list[str] = []
    for wanted, types, option in ((train, ("train",), "--split"), (held_out, ("test", "validation"), "--held-out")):
        if wanted is not None and wanted not in names:
            raise ConfigurationError(f"There is no split {wanted!r}", f"{option} names one of {known}.")
        of_type = [split.name for kind in types for split in splits if split.type == kind]
        if wanted is None and not of_type:
            raise ConfigurationError(
                f"No split is of the type {' or '.join(types)}: there are {known}",
                f"A run trains on one split and is measured on another. {option} names it.",
            )
        found.append(of_type[0] if wanted is None else wanted)
    if found[0] == found[1]:
        raise ConfigurationError(f"{found[0]} is to be trained on and held out", "Name another --split or --held-out.")
    return found[0], found[1]


async def plan_with_tasks(client: AsyncClient, plan: Plan, choice: TaskChoice) -> Plan:
    """Return a plan with its environment, splits and tasks. Raises ``ConfigurationError``."""
    environment, _ = await choose_environment(client, choice.environment, None)
    train_split, held_out_split = choose_splits(await environment.splits(), choice.train_split, choice.held_out_split)
    found = (
        await _tasks(environment, train_split, choice.train or plan.recipe.steps * plan.recipe.groups),
        await _tasks(environment, held_out_split, choice.held_out or _EPISODES),
    )
    if len(found[1]) < _FEWEST:
        raise ConfigurationError(
            f"The split {held_out_split!r} has {len(found[1])} held-out tasks",
            f"Of fewer than {_FEWEST} no difference can be told from chance.",
        )
    if not found[0]:
        raise ConfigurationError(f"The split {train_split!r} has no tasks", "--split names another.")
    known = {_text(task) for task in found[0]}
    if both := sum(_text(task) in known for task in found[1]):
        raise ConfigurationError(
            f"{both} of {len(found[1])} held-out tasks are training tasks, too",
            "Such an evaluation would measure what was memorized.",
        )
    name = environment.name or ""
    planned = [[PlannedTask(index, name) for index in range(len(some))] for some in found]
    samples = max(1, min(_OF_ONE, _EPISODES // len(found[1])))
    return replace(
        plan,
        environment=name,
        train=planned[0],
        held_out=planned[1],
        train_split=train_split,
        held_out_split=held_out_split,
        recipe=replace(plan.recipe, held_out_samples=samples),
    )


async def _tasks(environment: AsyncEnvironment, split: str, most: int) -> list[Task]:
    try:
        return await environment.task_range(split, 0, min(most, await environment.num_tasks(split)))
    except RequestRefused as error:
        raise ConfigurationError(
            f"The split {split!r} does not give its tasks out: {error.cause}", error.remedy
        ) from error


def _text(task: Task) -> str:
    return json.dumps(task.spec, sort_keys=True, default=dict)
