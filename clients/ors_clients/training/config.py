"""The training configuration: the YAML file of the trainers that generate tokens themselves (slime, Miles).

The file is that of the openreward-cookbook (``training/slime``, ``training/miles``), read unchanged: environments with
their splits, limits and reward rule, secrets, the system prompt and whether the model thinks. Keys of our own follow
after those; each has a default under which the file means what it means there. An unknown key is refused: a misspelt
``nonterminal_reward`` would otherwise train on something else for days.

Secrets are resolved here and nowhere else. Their values never appear in a ``repr`` or an error.
"""

from __future__ import annotations

import os
import string
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator

from ors_clients.errors import ConfigurationError
from ors_clients.rollouts.rewards import Reduction, RewardRule
from ors_clients.tool_calls import ToolCallFormat, find_format
from ors_clients.training.optional_imports import INSTALL_TRAIN

__all__ = ["EnvironmentConfiguration", "TrainingConfiguration", "resolve_secrets"]

_Positive = Annotated[int, Field(ge=1)]


def _mapping(value: Any) -> Any:
    """Return a key with nothing after it, whose entries are commented out or have a default each."""
    return {} if value is None else value


_Secrets = Annotated[dict[str, str | None], BeforeValidator(_mapping), Field(default_factory=dict, repr=False)]


class EnvironmentConfiguration(BaseModel):
    """The choice of one environment's tasks, and the reward of its episodes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    #: Splits that tasks are taken from.
    splits: Annotated[list[str], Field(min_length=1)] = ["train"]
    #: Most tasks a split; None for all.
    num_samples: _Positive | None = None
    #: What an episode earns besides its steps if it does not reach its end.
    nonterminal_reward: float | None = None
    reward_reduction: Reduction = "sum"
    min_reward: float | None = None
    max_reward: float | None = None
    max_turns: _Positive = 20
    #: As in ``TrainingConfiguration``, for this environment alone; see ``resolve_secrets``.
    secrets: _Secrets
    #: Its server, where that is not the run's.
    base_url: str | None = None

    @property
    def reward_rule(self) -> RewardRule:
        """Raises ``ConfigurationError`` for bounds that exclude each other."""
        return RewardRule(
            reduction=self.reward_reduction,
            nonterminal_reward=self.nonterminal_reward,
            min_reward=self.min_reward,
            max_reward=self.max_reward,
        )


class TrainingConfiguration(BaseModel):
    """A run's environments, and how the model is spoken to. Made with ``load`` or ``parse``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    #: By the name the server knows them by (``Owner/Environment`` or ``environment``).
    environments: Annotated[dict[str, EnvironmentConfiguration], Field(min_length=1)]
    #: For every environment: a value, or None for the environment variable of that name.
    secrets: _Secrets
    #: The system message, in which ``{tools}`` stands for the tools; ``{{`` and ``}}`` are braces. Without ``{tools}``,
    #: or without a template, the model's own chat template writes the tools.
    system_prompt_template: str | None = None
    #: Whether the model thinks before it answers. Its thinking is then part of the sample, but not of the loss.
    thinking: bool = False
    #: Under which the rollouts are uploaded; ``OPENREWARD_RUN_NAME`` goes before it.
    openreward_run_name: str = "ors-training"

    # From here on: not in the cookbook's file.

    #: The environments' server; None for ``ORS_URL``, see ``ors_clients.AsyncClient``.
    base_url: str | None = None
    #: How the model writes tool calls: a name of ``ors_clients.tool_calls.TOOL_CALL_FORMATS``.
    tool_call_format: str = "auto"
    #: Whether thinking goes into the loss as well.
    train_on_thinking: bool = False
    #: Tokens of prompt and response together; None for the trainer's own limit, else 8192.
    max_total_tokens: _Positive | None = None
    #: Wall-clock time of a rollout.
    max_seconds: Annotated[float, Field(gt=0)] | None = None
    #: Characters that the model is shown of one tool's output.
    max_tool_output_characters: _Positive | None = None
    #: Whether rollouts are sent to the rollout API (``POST /v1/rollouts``).
    upload_rollouts: bool = True
    #: A file that every rollout is appended to, as one line of JSON.
    rollouts_file: Path | None = None
    #: Times in a row that the infrastructure may lose rollouts before the run is ended. Those that were in flight
    #: together count once (``EpisodeRunner.count_failure``).
    max_failures_in_row: _Positive = 32
    #: A filter of groups of the user's own (``package.module.function``), in the trainer's form of a dynamic sampling
    #: filter. It is called for groups without a lost rollout.
    group_filter: Annotated[str, Field(pattern=r"^[\w.]+\.\w+$")] | None = None

    @field_validator("environments", mode="before")
    @classmethod
    def _allow_empty_entries(cls, value: Any) -> Any:
        """``MATH/GSM8K:`` with nothing after it is an environment with every default."""
        if not isinstance(value, Mapping):
            return value
        return {name: _mapping(entry) for name, entry in cast("Mapping[Any, Any]", value).items()}

    @classmethod
    def load(cls, path: str | os.PathLike[str] | None = None) -> TrainingConfiguration:
        """Read a YAML file; without ``path`` that of ``TRAIN_CONFIG``, else ``train_config.yaml`` of the working
        folder.

        Raises ``ConfigurationError`` for a file that is missing, no YAML or has keys or values that mean nothing.
        """
        file = Path(path if path is not None else os.environ.get("TRAIN_CONFIG", "train_config.yaml"))
        try:
            import yaml
        except ImportError:
            raise ConfigurationError("Reading a training configuration takes PyYAML", INSTALL_TRAIN) from None
        try:
            data: Any = yaml.safe_load(file.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigurationError(
                f"No training configuration at {file}: {error.strerror}", "Name one with --config or TRAIN_CONFIG"
            ) from error
        except (yaml.YAMLError, ValueError) as error:  # ValueError: no text, or a date or number that is none
            raise ConfigurationError(f"{file} is not YAML: {_where(error)}") from None
        return cls.parse(data, source=str(file))

    @classmethod
    def parse(cls, data: Any, *, source: str = "the training configuration") -> TrainingConfiguration:
        """Return the configuration of what a YAML file holds. Raises ``ConfigurationError``, which names ``source``."""
        if not isinstance(data, Mapping):
            raise ConfigurationError(f"{source} is not a mapping", "Its first key is `environments:`")
        try:
            configuration = cls.model_validate(data)
        except ValidationError as error:
            # Never the input: it may be a secret.
            found = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
            raise ConfigurationError(f"{source}: {found}", f"Known keys: {', '.join(cls.model_fields)}") from None
        for name, environment in configuration.environments.items():
            try:
                _ = environment.reward_rule
            except ConfigurationError as error:
                raise ConfigurationError(f"{source}: environment {name}: {error.cause}", error.remedy) from None
        find_format(configuration.tool_call_format)
        return configuration

    @property
    def run_name(self) -> str:
        """The name rollouts are uploaded under."""
        return os.environ.get("OPENREWARD_RUN_NAME") or self.openreward_run_name

    @property
    def format(self) -> ToolCallFormat:
        """The format in which the model writes tool calls."""
        return find_format(self.tool_call_format)

    @property
    def system_prompt(self) -> str | None:
        """The template as ``rollout`` takes it: ``{tools}`` is the only brace that still means something.

        One with other single braces, like a bare JSON example, is taken literally.
        """
        template = self.system_prompt_template
        if template is None:
            return None
        try:
            fields = {field for _, field, _, _ in string.Formatter().parse(template) if field is not None}
        except ValueError:  # a single brace
            return template
        return template.format(tools="{tools}") if fields <= {"tools"} else template

    def environment(self, name: str) -> EnvironmentConfiguration:
        """Return the entry of this name. Raises ``ConfigurationError``: rows may be prepared with another file."""
        try:
            return self.environments[name]
        except KeyError:
            known = ", ".join(self.environments)
            raise ConfigurationError(
                f"No environment {name!r} in the training configuration, which has {known}",
                "Prepare the tasks with the configuration that the run uses",
            ) from None


def resolve_secrets(
    environment: EnvironmentConfiguration,
    secrets: Mapping[str, str | None],
    variables: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the secrets of a session: the run's (``secrets``), overridden by those of its environment.

    A null is the environment variable of the secret's name, or of its name in capitals (``openai_api_key`` finds
    ``OPENAI_API_KEY``). The empty string stands for no secret, and no variable replaces it: in an environment's own
    entry it takes a secret of the run away, and so does a null whose variable is not set. ``variables``: the process's,
    unless given.
    """
    found = os.environ if variables is None else variables

    def variable(key: str) -> str:
        return found.get(key) or found.get(key.upper(), "")

    given = {**secrets, **environment.secrets}
    resolved = {key: variable(key) if value is None else value for key, value in given.items()}
    return {key: value for key, value in resolved.items() if value}


def _where(error: Exception) -> str:
    """Return kind and position of a YAML error without its message, which quotes names and characters of a secret."""
    kind = {"ScannerError": "a character", "ParserError": "its structure", "ComposerError": "an alias or anchor"}
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return "it holds what cannot be decoded"
    what = kind.get(type(error).__name__, "a tag or value")
    return f"{what} cannot be read in line {mark.line + 1}, column {mark.column + 1}"
