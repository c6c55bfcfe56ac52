"""One or several environments as the arguments of a trainer: a dataset, a factory for each, one reward function.

A row of the dataset is a task. Its ``environment`` column says which factory its rollouts use, and so which tools the
model is shown; ``split`` and ``task_index`` say which task ``reset`` opens. Invariant: a row opens the task whose
fields it shows, whichever dataset of the mixture it is in, so one set of factories serves training and evaluation.
"""

from __future__ import annotations

import importlib
import logging
import weakref
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from typing import Any

from ors_clients.client.sync_client import Client, Environment
from ors_clients.errors import ConfigurationError
from ors_clients.trainers.trl.columns import task_columns, unite_columns
from ors_clients.trainers.trl.factories import AsyncSlotFactory, slot_class
from ors_clients.trainers.trl.slots import EnvironmentSlot, EnvironmentSpec, end_sessions, environment_reward
from ors_clients.training.config import TrainingConfiguration, resolve_secrets
from ors_server.protocol import TerminalToolSpec, ToolSpec

__all__ = ["EnvironmentMixture"]

logger = logging.getLogger("ors_clients.trl")


class EnvironmentMixture:
    """The arguments of ``GRPOTrainer`` for one or several environments of any ORS server.

    ::

        environments = ["echoenvironment", EnvironmentSpec("owner/Name", num_tasks=64)]
        with EnvironmentMixture(environments, url="http://host:8080") as mixture:
            trainer = GRPOTrainer(
                model,
                args=GRPOConfig(...),
                train_dataset=mixture.train_dataset,
                environment_factory=mixture.environment_factory,
                reward_funcs=mixture.reward_funcs,
            )
            trainer.train()

    ``url`` and ``api_key`` are those of ``ors_clients.Client``. ``system_prompt`` stands before every task's prompt.
    ``images`` is for models that take them: prompts and answers then hold ``PIL`` images (Pillow is needed), else a
    placeholder stands for each. TRL wants the tools before the first task, so those that only some tasks have are found
    by opening ``probed_tasks`` of each environment's tasks. A rollout whose session cannot be opened is left out; after
    ``failed_resets`` of them in a row the run ends with the error. Control tokens in what environments say are broken
    up (``rollouts.control_texts``): those of ``tokenizer`` if it is given, else the spellings of the field's models.

    Raises ``ConfigurationError`` for no environment or two of one name. The properties raise what the client's requests
    raise.
    """

    def __init__(
        self,
        environments: Iterable[EnvironmentSpec | str],
        *,
        url: str | None = None,
        api_key: str | None = None,
        system_prompt: str | None = None,
        images: bool = False,
        probed_tasks: int = 3,
        failed_resets: int = 16,
        tokenizer: Any = None,
    ) -> None:
        #: By their names in the ``environment`` column.
        self.environments: dict[str, EnvironmentSpec] = {}
        for given in environments:
            spec = EnvironmentSpec(given) if isinstance(given, str) else given
            if spec.name in self.environments:
                raise ConfigurationError(f"Two environments named {spec.name!r}", "Give one of them another name=")
            self.environments[spec.name] = spec
        if not self.environments:
            raise ConfigurationError("A mixture of no environments", "Name at least one")
        self._url = url
        self._api_key = api_key
        self._system_prompt = system_prompt
        self._images = images
        self._probed_tasks = probed_tasks
        self._failed_resets = failed_resets
        self._tokenizer = tokenizer
        self._clients = ExitStack()
        self._slots: weakref.WeakSet[EnvironmentSlot] = weakref.WeakSet()

    @classmethod
    def from_configuration(cls, configuration: TrainingConfiguration, **options: Any) -> EnvironmentMixture:
        """Return the mixture of a training configuration's environments; ``options`` are the constructor's.

        An environment with several splits becomes one environment a split, named ``<name>:<split>``. Limits on turns
        and tokens are the trainer's own settings. Raises ``ConfigurationError`` for a system prompt with ``{tools}``:
        here the model's chat template writes the tools.
        """
        if "{tools}" in (configuration.system_prompt or ""):
            raise ConfigurationError(
                "TRL writes the tools with the model's chat template", "Take {tools} out of system_prompt_template"
            )
        specs = [
            EnvironmentSpec(
                environment=name,
                name=name if len(settings.splits) == 1 else f"{name}:{split}",
                split=split,
                num_tasks=settings.num_samples,
                url=settings.base_url,
                secrets=resolve_secrets(settings, configuration.secrets) or None,
                reward=settings.reward_rule,
            )
            for name, settings in configuration.environments.items()
            for split in settings.splits
        ]
        given: dict[str, Any] = {"url": configuration.base_url, "system_prompt": configuration.system_prompt}
        return cls(specs, **given | options)

    @cached_property
    def train_dataset(self) -> Any:
        """A ``datasets.Dataset`` with a row a task: the columns ``prompt``, ``environment``, ``split`` and
        ``task_index``, and the tasks' public fields."""
        return self.dataset()

    @cached_property
    def environment_factory(self) -> dict[str, Callable[[], EnvironmentSlot]]:
        """For each environment's name what makes one slot for its rollouts."""
        return {name: self._factory(spec) for name, spec in self.environments.items()}

    @cached_property
    def async_environment_factory(self) -> dict[str, AsyncSlotFactory]:
        """The same for ``trl.experimental.async_grpo.AsyncGRPOTrainer``, which pickles the factories and asks the slots
        for their reward: pass it no ``reward_funcs``.

        Raises ``ConfigurationError`` for an environment with a terminal tool and for ``images``: that trainer keeps a
        rollout's last message to itself, and writes what tools return as text.
        """
        if self._images:
            raise ConfigurationError("AsyncGRPOTrainer writes what tools return as text", "Leave images=True out")
        return {
            name: AsyncSlotFactory(
                spec,
                *self._tools(spec),
                url=spec.url or self._url,
                api_key=self._api_key,
                failed_resets=self._failed_resets,
            )
            for name, spec in self.environments.items()
        }

    @property
    def reward_funcs(self) -> Callable[..., list[float | None]]:
        """``environment_reward``."""
        return environment_reward

    def dataset(self, split: str | None = None, num_tasks: int | None = None) -> Any:
        """Return the tasks of another split, for ``eval_dataset``, at most ``num_tasks`` of each environment; without
        arguments the run's own."""
        specs = list(self.environments.values())
        if split is not None:
            specs = [replace(spec, split=split, num_tasks=num_tasks, indices=None) for spec in specs]
        rows = [row for spec in specs for row in self._rows(spec)]
        return importlib.import_module("datasets").Dataset.from_dict(unite_columns(rows))

    def close(self) -> None:
        """End every session that is still open, then the connections. Idempotent."""
        end_sessions(list(self._slots))
        self._clients.close()

    def __enter__(self) -> EnvironmentMixture:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @cached_property
    def _remotes(self) -> dict[str, Environment]:
        """Every environment on its server; one client a server."""
        urls = {spec.url or self._url for spec in self.environments.values()}
        clients = {url: self._clients.enter_context(Client(url, api_key=self._api_key)) for url in urls}
        return {
            name: clients[spec.url or self._url].environment(spec.environment)
            for name, spec in self.environments.items()
        }

    def _rows(self, spec: EnvironmentSpec) -> list[dict[str, Any]]:
        remote = self._remotes[spec.name]
        indices = self._indices(spec)
        if isinstance(indices, range):
            tasks = remote.task_range(spec.split, indices.start, indices.stop)
        else:
            tasks = [remote.task(spec.split, index) for index in indices]
        prompt = [{"role": "system", "content": self._system_prompt}] if self._system_prompt else []
        prompt.append({"role": "user", "content": ""})  # TRL appends what `reset` returns
        return [
            {"prompt": prompt, "environment": spec.name, "split": spec.split, "task_index": index}
            | task_columns(task.spec, spec.columns)
            for index, task in zip(indices, tasks, strict=True)
        ]

    def _indices(self, spec: EnvironmentSpec) -> range | list[int]:
        if spec.indices is not None:
            return list(spec.indices)
        total = self._remotes[spec.name].num_tasks(spec.split)
        return range(total if spec.num_tasks is None else min(spec.num_tasks, total))

    def _factory(self, spec: EnvironmentSpec) -> Callable[[], EnvironmentSlot]:
        tools, terminal_tool = self._tools(spec)
        made_class = slot_class(
            EnvironmentSlot,
            spec,
            self._remotes[spec.name],
            tools,
            terminal_tool,
            images=self._images,
            failed_resets=self._failed_resets,
            tokenizer=self._tokenizer,
        )

        def slot() -> EnvironmentSlot:
            made = made_class()
            self._slots.add(made)
            return made

        return slot

    def _tools(self, spec: EnvironmentSpec) -> tuple[list[ToolSpec], TerminalToolSpec | None]:
        """Return the tools of the environment, and of tasks from the beginning, the middle and the end of its list."""
        remote, indices = self._remotes[spec.name], self._indices(spec)
        found, terminal_tool = list(remote.tools()), None
        probes = min(self._probed_tasks, len(indices))
        for place in sorted({round((len(indices) - 1) * probe / max(probes - 1, 1)) for probe in range(probes)}):
            with remote.session(split=spec.split, index=indices[place], secrets=spec.secrets) as session:
                found += session.tools()
                terminal_tool = session.terminal_tool
        tools: dict[str, ToolSpec] = {}
        for tool in found:
            if tools.setdefault(tool.name, tool).input_schema != tool.input_schema:
                logger.warning("%s: the input of tool %r differs between tasks", spec.name, tool.name)
        return list(tools.values()), terminal_tool
