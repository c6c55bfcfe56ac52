"""The profile of an emulated engine: an accelerator with a model under a load, as recorded runs of it say.

A profile is a JSON object. Those in ``profiles`` are known by their names, others by their paths. Its step times are of
the machine that was recorded, with all of its cores. A machine with fewer cores is given as large a part of the
accelerator: each of its requests then counts as several of the recorded machine (``scale``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from ors_benchmarks.rollout.engines.base import EngineFailed

__all__ = ["FIRST", "FrontEnd", "Load", "Profile", "profile_names"]

_FOLDER = Path(__file__).resolve().with_name("profiles")
#: The profile that is used where none is named.
FIRST = "h100-qwen3-0.6b"
#: A longer file is not a profile.
_LARGEST = 1_000_000

_Seconds = Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=1, le=1_000_000)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FrontEnd(_Part):
    """The processor time of the engine's front-end."""

    request_seconds: _Seconds
    token_seconds: _Seconds


class Load(_Part):
    """The recorded load of one environment."""

    turns: _Count
    #: Tasks that the episodes were of.
    tasks: _Count
    #: Episodes of a run for each that is played at once.
    waves: _Count


class Profile(_Part):
    """See the module."""

    #: What was recorded, and where.
    title: str
    #: One of ``tiny_model.SHAPES``, or a folder: its tokenizer is the engine's.
    model: str
    #: The recorded machine's cores, and the episodes it played at once.
    cores: _Count
    concurrency: _Count
    #: By environment.
    loads: Mapping[str, Load]
    #: Seconds of a step by the number of requests in it, in rising order; linear between two, level beyond the ends.
    steps: Annotated[Sequence[tuple[Annotated[float, Field(ge=0, allow_inf_nan=False)], _Seconds]], Field(min_length=1)]
    #: Seconds by which each computed token of a prompt makes a step longer, and tokens of a step at most.
    prefill_token_seconds: _Seconds
    step_tokens: _Count
    #: Tokens of a block of the prefix cache.
    block_tokens: _Count
    front_end: FrontEnd
    #: How the figures follow from what was recorded.
    derivation: Sequence[str]

    @field_validator("steps")
    @classmethod
    def _rising(cls, steps: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
        if any(second[0] <= first[0] for first, second in pairwise(steps)):
            raise ValueError("the numbers of requests do not rise")
        if all(seconds <= 0 for _, seconds in steps):
            raise ValueError("no step takes any time")
        return steps

    @classmethod
    def load(cls, name: str) -> Self:
        """Read a profile by its name or path. Raises ``EngineFailed`` for anything that is not one."""
        shipped = _FOLDER / f"{name}.json"
        path = shipped if name in profile_names() else Path(name)
        try:
            with path.open("rb") as file:
                content = file.read(_LARGEST + 1)
            if len(content) > _LARGEST:
                raise ValueError(f"it is longer than {_LARGEST} bytes")
            return cls.model_validate(json.loads(content))
        except OSError as error:
            raise EngineFailed(
                f"There is no profile {name!r}: {error.strerror}",
                f"Profiles are {', '.join(profile_names())}, or the path of a JSON file like those.",
            ) from None
        except ValidationError as error:
            [first, *_] = error.errors()
            where = ".".join(map(str, first["loc"])) or "the file"
            raise EngineFailed(f"{path.name} is not a profile: {where}: {first['msg']}", _remedy()) from None
        except (ValueError, RecursionError) as error:  # not JSON, or not UTF-8
            raise EngineFailed(f"{path.name} is not a profile: {error}", _remedy()) from None

    def scale(self, cores: int) -> float:
        """Return how many requests of the recorded machine one of a machine with so many cores stands for."""
        return self.cores / cores

    def at_once(self, cores: int) -> int:
        """Return the episodes that a machine with so many cores plays at once, to be as loaded."""
        return max(1, round(self.concurrency / self.scale(cores)))

    def tasks(self, load: Load, cores: int) -> int:
        """Return the tasks that such a machine plays, so that as many episodes begin with the same prompt."""
        return max(1, round(load.tasks / self.scale(cores)))

    def step_seconds(self, requests: float, prefilled: float) -> float:
        """Return the time of a step: ``requests`` that are in it, and ``prefilled`` tokens of prompts it computes."""
        return _between(self.steps, requests) + prefilled * self.prefill_token_seconds


def profile_names() -> list[str]:
    """Return the names of the profiles that are shipped."""
    return sorted(path.stem for path in _FOLDER.glob("*.json"))


def _between(points: Sequence[tuple[float, float]], x: float) -> float:
    for (left, low), (right, high) in pairwise(points):
        if left <= x < right:
            return low + (high - low) * (x - left) / (right - left)
    return points[0][1] if x < points[0][0] else points[-1][1]


def _remedy() -> str:
    return f"Compare it with {FIRST}.json in {_FOLDER.parent.name}/{_FOLDER.name}: it has the same keys, and no others."
