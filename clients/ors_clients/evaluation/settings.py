"""The settings of an evaluation that decide what its numbers mean.

They stand in the journal's first line and in the report. A run that goes on has to have the same ones. Concurrency,
retries, prices, and where results are sent decide nothing and are not here; keys and secrets never are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from pydantic import TypeAdapter

from ors_clients.errors import ConfigurationError
from ors_clients.rollouts.rewards import RewardRule
from ors_clients.tool_calls import TOOL_CALL_FORMATS
from ors_server.rollouts.reports.comparison import differing_settings

__all__ = ["API", "EvaluationSettings"]

API = Literal["chat", "completions", "sglang"]
#: Rewards that are computed differ from the number that is meant by no more than this.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class EvaluationSettings:
    """The subject of an evaluation, and its rules. Raises ``ConfigurationError``."""

    #: Address of the server, or the target that is served for the run.
    target: str
    model: str
    base_url: str
    environment: str | None = None
    split: str | None = None
    #: Indices and ranges of tasks, or their ids; all of them if None.
    tasks: str | None = None
    limit: int | None = None
    samples: int = 1
    seed: int | None = None
    api: API = "chat"
    #: ``api``: the endpoint reads the model's calls. Else the format in which the model's text holds them.
    tool_calls: str = "api"
    temperature: float | None = None
    top_p: float | None = None
    #: Tokens of one turn.
    max_tokens: int | None = None
    max_turns: int = 20
    #: Tokens of prompt and response together, for token engines.
    context: int = 32768
    #: Seconds.
    episode_timeout: float | None = None
    max_tool_output: int | None = None
    system_prompt: str | None = None
    reward: str = "sum"
    #: Reward from which on an episode is a success.
    success_at: float = 1.0
    tokenizer: str | None = None
    thinking: bool = False
    stream: bool = False
    drop_reasoning: bool = False
    #: Sent with each request as it is.
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])
    #: Names of the environment's secrets.
    secrets: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("samples", "max_turns", "context", "limit", "max_tokens", "max_tool_output", "episode_timeout"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigurationError(f"{name} is {value}", "Give a number over 0.")
        if self.api not in get_args(API):
            raise ConfigurationError(f"No API {self.api!r}", f"Use one of {', '.join(get_args(API))}.")
        if self.tool_calls != "api" and self.tool_calls not in TOOL_CALL_FORMATS:
            known = ", ".join(("api", *TOOL_CALL_FORMATS))
            raise ConfigurationError(f"No form of tool calls {self.tool_calls!r}", f"Use one of {known}.")
        if self.api != "chat" and self.tokenizer is None:
            raise ConfigurationError(f"--api {self.api} sends token ids", "Name the model's --tokenizer.")
        RewardRule(self.reward)  # pyright: ignore[reportArgumentType] - it refuses any other word

    def succeeded(self, reward: float) -> bool:
        """Return whether an episode of this reward is a success."""
        return reward >= self.success_at - _ROUNDING

    def as_json(self) -> dict[str, Any]:
        """Return the settings as JSON values."""
        return asdict(self) | {"extra": dict(self.extra), "secrets": list(self.secrets)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> EvaluationSettings:
        """Return settings as ``as_json`` wrote them. Raises ``ValueError`` for others."""
        return _SETTINGS.validate_python(value)

    def differences(self, other: EvaluationSettings) -> list[str]:
        """Return a line for each setting in which ``other`` differs, as ``name: this → that``."""
        return differing_settings(self.as_json(), other.as_json())


_SETTINGS = TypeAdapter(EvaluationSettings)
