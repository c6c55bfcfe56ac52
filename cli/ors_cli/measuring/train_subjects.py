"""The environments that ``ors-server train --tiny`` knows: how they are served, and the call that solves each task.

A tiny model is made for one environment, and needs demonstrations. These come from solutions that the environments
have; the server does not give them out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ors_clients.client.async_client import AsyncClient
from ors_clients.errors import ConfigurationError, RequestRefused
from ors_clients.learning.plan import TINY_RECIPE, Plan, PlannedTask, Recipe, TinySizes

from ors_server.hosting.loading.folder_imports import folder_package
from ors_server.hosting.loading.targets import bundled_environments

__all__ = ["SUBJECTS", "Subject", "make_plan", "subject_of"]

_FAMILY = "first_steps"


@dataclass(frozen=True)
class Subject:
    """One environment of ours, by the target that serves it."""

    target: str
    environment: str
    #: Variables of its server.
    variables: Mapping[str, str]
    #: Tasks of each split.
    train_tasks: int
    held_out_tasks: int
    recipe: Recipe
    #: From the index and the specification of a task to its solution. Raises ``ConfigurationError``.
    solution: Callable[[int, Mapping[str, Any]], PlannedTask]

    @property
    def served_with(self) -> str:
        """The command that serves it for a run."""
        variables = " ".join(f"{name}={value}" for name, value in self.variables.items())
        return f"{variables} ors-server serve {self.target}"


def _echo(index: int, spec: Mapping[str, Any]) -> PlannedTask:
    word = str(spec.get("target"))
    return PlannedTask(index, "echo", "echo", {"text": word}, word)


def _terminal(index: int, spec: Mapping[str, Any]) -> PlannedTask:
    name = str(spec.get("id"))
    family, _, number = name.rpartition("-")
    if family != _FAMILY:
        raise ConfigurationError(
            f"The task {name!r} is not of the family {_FAMILY}, which is made for tiny models",
            f"Serve that family alone: {SUBJECTS['terminal'].served_with}",
        )
    generation: Any = folder_package(bundled_environments()["terminal"]).load("tasks.generation")
    task, made = generation.generate(family, int(number)), generation.FAMILIES[family]
    kind = made.shapes[int(number) % len(made.shapes)].__name__.strip("_")
    return PlannedTask(index, kind, "bash", {"command": task.oracle}, f"{task.prompt}\n{task.oracle}")


SUBJECTS: Mapping[str, Subject] = {
    "echo": Subject(
        "echo",
        "echoenvironment",
        {"ORS_ECHO_WORDS": "600"},
        600,
        240,
        replace(TINY_RECIPE, steps=40),
        _echo,
    ),
    "terminal": Subject(
        "terminal",
        "terminalenvironment",
        {
            "ORS_TERMINAL_FAMILIES": _FAMILY,
            "ORS_TERMINAL_STEPS": "1",
            "ORS_TERMINAL_TRAIN_TASKS": "600",
            "ORS_TERMINAL_TEST_TASKS": "200",
        },
        600,
        200,
        TINY_RECIPE,
        _terminal,
    ),
}


def subject_of(names: list[str]) -> Subject:
    """Return the first of these environments that is known. Raises ``ConfigurationError``."""
    for subject in SUBJECTS.values():
        if subject.environment in names or subject.target in names:
            return subject
    raise ConfigurationError(
        f"--tiny knows no solutions of {', '.join(names) or 'a server without environments'}",
        f"A tiny model learns {' or '.join(SUBJECTS)}. For others, train a real model: docs/trainers.md.",
    )


async def make_plan(client: AsyncClient, target: str, name: str, seed: int) -> Plan:
    """Return the plan of a run on a server. Raises ``ConfigurationError`` for one that nothing can be learnt on."""
    subject = subject_of(await client.environments())
    environment = client.environment(subject.environment)
    splits = {split.name for split in await environment.splits()}
    if missing := {"train", "test"} - splits:
        raise ConfigurationError(
            f"{target} has no split {min(missing)!r}", "A run trains on one split and is measured on another."
        )
    found: dict[str, list[PlannedTask]] = {}
    for split, most in (("train", subject.train_tasks), ("test", subject.held_out_tasks)):
        try:
            tasks = await environment.task_range(split, 0, min(most, await environment.num_tasks(split)))
        except RequestRefused as error:
            raise ConfigurationError(f"{target} does not give its tasks out: {error.cause}", error.remedy) from error
        found[split] = [subject.solution(index, task.spec) for index, task in enumerate(tasks)]
    plan = Plan(
        name,
        target,
        subject.environment,
        found["train"],
        found["test"],
        seed,
        recipe=subject.recipe,
        tiny=TinySizes(),
        device="cpu",
    )
    try:
        plan.check_tiny()
    except ConfigurationError as error:
        raise ConfigurationError(error.cause, f"{error.remedy} Serve more: {subject.served_with}") from error
    return plan
