"""The formats of the reports that ``ors-server eval`` and ``train`` upload with their runs, each with a version.

A stored report may be of another version, or of another program: ``read_report`` says so, and the page of the run shows
it as what it is. A version is increased by every change after which the rows of a page could not be made of a report.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import (
    Annotated,
    Any,
    NotRequired,  # pydantic takes no other before Python 3.12
    TypeAlias,
)

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

__all__ = ["EVALUATION", "KINDS", "LARGEST", "TRAINING", "VERSION", "StoredReport", "misfit", "read_report"]

#: The version of both formats.
VERSION = 1
#: The kinds of reports.
EVALUATION, TRAINING = "evaluation", "training"
KINDS = (EVALUATION, TRAINING)
#: Bytes of a report, as JSON.
LARGEST = 2**20

Count: TypeAlias = Annotated[int, Field(ge=0, le=2**53)]
Real: TypeAlias = Annotated[float, Field(allow_inf_nan=False)]
Pair: TypeAlias = Annotated[list[Real], Field(min_length=2, max_length=2)] | None


class _PassAt(TypedDict):
    k: Count
    value: Real | None
    interval: Pair
    tasks: Count
    left_out: Count


class _Reward(TypedDict):
    mean: Real | None
    interval: Pair
    lowest: Real | None
    highest: Real | None


class _Tokens(TypedDict):
    prompt: Count
    completion: Count
    cached: Count
    answers_without_count: Count
    cost: Real | None


class _AllTokens(_Tokens):
    lost_attempts: _Tokens


class _Spread(TypedDict):
    mean: Real
    median: Real
    p95: Real
    highest: Real


class _Loss(TypedDict):
    side: str
    kind: str
    attempts: Count
    after_a_turn: Count
    last: str


class _Infrastructure(TypedDict):
    attempts: Count
    lost: Count
    lost_after_a_turn: Count
    kinds: list[_Loss]
    requests_sent_again: dict[str, Count]
    interrupted: Count


class _FewerSamples(TypedDict):
    split: str
    index: int | None
    samples: Count


class _Tasks(TypedDict):
    planned: Count
    scored: Count
    with_all_samples: Count
    with_fewer_samples: list[_FewerSamples]


class _Samples(TypedDict):
    planned: Count
    scored: Count
    missing: Count


class _Marked(TypedDict):
    mark: str
    samples: Count
    passes: Count
    of_passes: Count


class _Bounds(TypedDict):
    pass_at_1_if_lost_are_failures: Real | None
    pass_at_1_if_missing_are_successes: Real | None


class _Mistake(TypedDict):
    episodes: Count
    times: Count


class _Model(TypedDict):
    ends: dict[str, Count]
    mistakes: dict[str, _Mistake]
    without_room_for_prompt: Count


class _Seconds(TypedDict):
    episode: _Spread | None
    model: _Spread | None
    tools: _Spread | None
    whole: NotRequired[Real | None]


class _Settings(TypedDict):
    __pydantic_config__ = ConfigDict(extra="allow")  # pyright: ignore[reportGeneralTypeIssues] - pydantic's own

    target: str
    environment: str | None
    split: str | None
    model: str
    samples: Count
    api: str


class _Evaluation(TypedDict):
    run: str
    id: str
    begun: str
    settings: _Settings
    complete: bool
    failed: list[str]
    max_failures: Real
    tasks: _Tasks
    samples: _Samples
    marked: list[_Marked]
    pass_at_k: list[_PassAt]
    reward: _Reward
    bounds: _Bounds
    model: _Model
    infrastructure: _Infrastructure
    tokens: _AllTokens
    turns: _Spread | None
    seconds: _Seconds


class _Difference(TypedDict):
    run: Real
    other: Real
    difference: Real
    interval: Pair
    better: Count
    worse: Count
    p: Real
    significant: bool


class _Rates(TypedDict):
    all: Real | None
    interval: Pair
    kinds: dict[str, Real | None]
    id: str


class _Parts(TypedDict):
    training: Count
    held_out: Count


class _Episodes(TypedDict):
    training: Count
    lost: dict[str, Count]


class _Learner(TypedDict):
    name: NotRequired[str]
    weights: Count
    tokens: Count


class _Training(TypedDict):
    run: str
    target: str
    environment: str
    seed: int
    verdict: str
    failed: list[str]
    difference: _Difference
    over_greedy_before: _Difference
    #: Of a tiny model, as the other parts that need not be there.
    over_supervised: NotRequired[_Difference]
    pass_rates: dict[str, _Rates]
    constant: NotRequired[Real]
    oracle: NotRequired[Real]
    tasks: _Parts
    episodes: _Episodes
    lost_in_evaluations: dict[str, Count]
    further_supervised_steps: NotRequired[Count]
    model: _Learner
    recipe: dict[str, Real]
    seconds: dict[str, Real | None]
    versions: dict[str, str]


_FORMATS: dict[str, Any] = {EVALUATION: _Evaluation, TRAINING: _Training}


@cache
def _format(kind: str) -> TypeAdapter[Any]:
    """Return the format of a kind; made at the first use, because every server imports this module."""
    return TypeAdapter(_FORMATS[kind])


@dataclass(frozen=True, slots=True)
class StoredReport:
    """A report as it was uploaded."""

    kind: str
    version: int
    #: All of it as JSON text.
    text: str
    #: It as JSON values in the format of its kind; None where it cannot be read.
    content: dict[str, Any] | None
    #: Why it cannot be read; empty where it can.
    problem: str = ""


def misfit(kind: str, version: int, report: object) -> str:
    """Return what of a report does not fit the format of its kind; empty where all does, or the format is not known."""
    if kind not in _FORMATS or version != VERSION:
        return ""
    try:
        _format(kind).validate_python(report)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return ""


def read_report(kind: str, version: int, text: str) -> StoredReport:
    """Read a report as it was stored."""
    if kind not in _FORMATS:
        return StoredReport(kind, version, text, None, f"it is of a kind that this server does not know: {kind}")
    if version != VERSION:
        return StoredReport(kind, version, text, None, f"it is of version {version}, and this server reads {VERSION}")
    try:
        content = _format(kind).validate_python(json.loads(text))
    except (ValueError, RecursionError):  # ValidationError is a ValueError
        return StoredReport(kind, version, text, None, "it is damaged")
    return StoredReport(kind, version, text, content)
