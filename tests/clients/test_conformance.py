"""Conformance of the trainers' adapters to one set of promises; ``trainer_contracts`` has the table of adapters.

A case is a script of the model's turns with the outcome that every trainer has to see: the reward, the stop reason, and
the calls that the environment ran, recorded by the environment itself. In addition, every episode shows that

- the model receives the task first, and the answers to its turns;
- mask and log-probabilities belong to exactly the tokens that were sampled, and no token is encoded again;
- an episode that the infrastructure lost has no reward, no token in the loss and the reason in its record;
- no secret is in the trainer's record;
- the session is closed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from ors_clients.errors import ConfigurationError, RequestRefused
from ors_clients.rollouts.rewards import RewardRule
from ors_clients.samplers.scripted import scripted_logprob
from ors_clients.transport import connection

from tests.clients.trainer_contracts import (
    CONTRACTS,
    MAX_TOKENS,
    MAX_TURNS,
    TASK,
    Outcome,
    Scene,
    Stage,
    TokenRecord,
    miles,
    slime,
)
from tests.clients.trainer_setup import call, forget_variables, leaving, opened_folder, serving, until
from tests.server.robustness.swallowing import swallowing

EARN = call("earn", reward=0.25)
FINISH = call("finish", reward=1.0)
EARNED: list[Any] = ["earn", {"reward": 0.25}]
FINISHED: list[Any] = ["finish", {"reward": 1.0}]
NULL: list[Any] = ["earn", {"reward": None}]
LEAVING = call("write", count=1, letter="vanish")


@dataclass(frozen=True)
class Case:
    """A scene and its outcome."""

    scene: Scene
    outcome: Outcome
    #: Texts of the model's last prompt: the answers to its errors.
    told: Sequence[str] = ()
    #: Valid calls, those of them that failed, and malformed calls.
    counts: tuple[int, int, int] | None = None
    #: Why the episode was lost.
    failure: str = ""


def solved(reward: float, *trace: list[Any]) -> Outcome:
    return Outcome(reward, "finished", list(trace))


def ruled(rule: RewardRule, reward: float) -> Case:
    """Return a case for a rule on the rewards 1 and 2 of an episode with two turns."""
    turns = [call("earn", reward=1.0), call("earn", reward=2.0)]
    trace = [["earn", {"reward": 1.0}], ["earn", {"reward": 2.0}]]
    return Case(Scene(turns, rule=rule, max_turns=2), Outcome(reward, "max_turns", trace))


CASES = {
    "rewards add up": Case(Scene((EARN, call("earn"), FINISH)), solved(1.25, EARNED, NULL, FINISHED), counts=(3, 0, 0)),
    "nothing is right": Case(Scene((call("finish", reward=0.0),)), solved(0.0, ["finish", {"reward": 0.0}])),
    "no reward": Case(Scene((call("finish"),)), solved(0.0, ["finish", {"reward": None}])),
    "several calls in a turn": Case(
        Scene((EARN + EARN, EARN + FINISH + EARN)), solved(1.75, *[EARNED] * 3, FINISHED), counts=(4, 0, 0)
    ),
    "an empty output": Case(
        Scene((call("write", count=0), FINISH)), solved(1.0, ["write", {"count": 0, "letter": None}], FINISHED)
    ),
    "an optional argument that is null": Case(Scene((call("earn", reward=None), FINISH)), solved(1.0, NULL, FINISHED)),
    # --- errors of the model, which are answered
    "a tool that raises": Case(
        Scene((call("fail"), FINISH)), solved(1.0, ["fail", {}], FINISHED), ("it broke",), counts=(2, 1, 0)
    ),
    "an input that does not fit": Case(
        Scene((call("write", count="many"), FINISH)), solved(1.0, FINISHED), ("Error", "count"), counts=(2, 1, 0)
    ),
    "a tool that is not there": Case(
        Scene((call("nothing"), FINISH)), solved(1.0, FINISHED), ("Error", "nothing"), counts=(2, 1, 0)
    ),
    "no call": Case(Scene(("I think.", FINISH)), solved(1.0, FINISHED), ("No tool call was found",), counts=(1, 0, 0)),
    "an empty turn": Case(Scene(("", FINISH)), solved(1.0, FINISHED), ("No tool call was found",)),
    "a malformed call": Case(
        Scene(("<tool_call>\n{no json\n</tool_call>", FINISH)),
        solved(1.0, FINISHED),
        ("could not be read",),
        counts=(1, 0, 1),
    ),
    "a malformed call behind a good one": Case(
        Scene((EARN + "<tool_call>{", FINISH)), solved(1.25, EARNED, FINISHED), ("could not be read",), counts=(2, 0, 1)
    ),
    # --- limits
    "too many turns": Case(Scene((EARN,) * (MAX_TURNS + 1)), Outcome(0.5, "max_turns", [EARNED] * MAX_TURNS)),
    "nothing earned": Case(Scene(("I think.",) * (MAX_TURNS + 1)), Outcome(-0.5, "max_turns", [])),
    "too many tokens": Case(
        Scene((EARN, call("write", count=9000), FINISH)),
        Outcome(-0.25, "max_tokens", [EARNED, ["write", {"count": 9000, "letter": None}]]),
    ),
    "too much time": Case(
        Scene((call("wait", seconds=30.0), FINISH), max_seconds=0.8),
        Outcome(-0.5, "max_time", [["wait", {"seconds": 30.0}]]),
    ),
    "a long output": Case(
        Scene((call("write", count=500), FINISH), max_output=100),
        solved(1.0, ["write", {"count": 500, "letter": None}], FINISHED),
        ("characters left out",),
    ),
    # --- combination of several rewards
    "a mean": ruled(RewardRule("mean", nonterminal_reward=0.0), 1.0),
    "a maximum": ruled(RewardRule("max"), 2.0),
    "a lower bound": ruled(RewardRule(min_reward=10.0), 10.0),
    "an upper bound": ruled(RewardRule(max_reward=0.5), 0.5),
    "the last step only": Case(
        Scene((EARN, call("finish")), rule=RewardRule("terminal")), solved(0.0, EARNED, ["finish", {"reward": None}])
    ),
    "secrets": Case(
        Scene((call("guess", name="own_key", value="known"),), secrets={"own_key": "known", "other_key": "taken away"}),
        solved(1.0, ["guess", {"name": "own_key", "value": "known"}]),
    ),
    # --- failures of the infrastructure
    "a lost machine": Case(
        Scene((EARN, call("lose"), FINISH)),
        Outcome(None, "infrastructure", [EARNED, ["lose", {}]]),
        failure="the sandbox died",
    ),
    "a session that never opens": Case(
        Scene((FINISH,), "brokenenvironment"), Outcome(None, "infrastructure", []), failure="no machine"
    ),
    "an engine that fails": Case(Scene((FINISH,), engine_fails=True), Outcome(None, "infrastructure", [])),
    "a server that goes away": Case(
        Scene((EARN, LEAVING, FINISH)), Outcome(None, "infrastructure", [EARNED]), failure="127.0.0.1"
    ),
}
#: Promises besides the cases, from which a contract may deviate.
PROMISES = ("a cancellation", "swallowed answers", "a mistake")


def test_deviations_name_existing_cases() -> None:
    for contract in CONTRACTS.values():
        assert set(contract.deviations) <= {*CASES, *PROMISES}


def kept(promise: str) -> list[str]:
    """Return the contracts without a deviation that exempts them from a promise."""
    return [
        name
        for name, contract in CONTRACTS.items()
        if (deviation := contract.deviations.get(promise)) is None or deviation.outcome is not None
    ]


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trace") / "calls"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, trace: Path) -> Generator[str]:
    with serving(tmp_path_factory.mktemp("server"), TOOL_TRACE=str(trace)) as address:
        yield address


@pytest.fixture
async def stage(url: str, trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Stage]:
    forget_variables(monkeypatch)
    for name, value in CASES["secrets"].scene.secrets.items():
        monkeypatch.setenv(name.upper(), value)
    # For environments that run in this process.
    monkeypatch.setenv("TOOL_TRACE", str(trace))
    monkeypatch.setenv("OPEN_SESSIONS", str(opened_folder(url)))
    # Seconds before a retry.
    monkeypatch.setattr(connection, "_FIRST_PAUSE", 0.01)
    monkeypatch.setattr(connection, "_LAST_PAUSE", 0.01)
    trace.write_text("")
    yield Stage(url, tmp_path, monkeypatch)
    await slime.close()
    await miles.close()


def ran(trace: Path) -> list[Any]:
    return [json.loads(line) for line in trace.read_text().splitlines()]


def check_tokens(record: TokenRecord, *, lost: bool) -> None:
    """Check each token against the sent or sampled one, and the trainer's other values at its position."""
    ids, sampled = record.ids, record.sampled
    assert len(ids) == len(record.trained) == len(record.logprobs)
    places: set[int] = set()
    for prompt, tokens in sampled:
        if len(prompt) >= MAX_TOKENS:  # this turn exceeds the limit, where Miles' session leaves it out
            break
        assert ids[: len(prompt)] == prompt
        assert ids[len(prompt) : len(prompt) + len(tokens)] == tokens
        places |= set(range(len(prompt), len(prompt) + len(tokens)))
    assert {place for place, trained in enumerate(record.trained) if trained} == (set() if lost else places)
    assert record.logprobs == [
        scripted_logprob(place) if place in places else record.filler for place in range(len(ids))
    ]
    assert len(ids) <= MAX_TOKENS


@pytest.mark.parametrize(("name", "promise"), [(name, promise) for promise in CASES for name in kept(promise)])
async def test_the_trainers_record_matches_the_episode(name: str, promise: str, stage: Stage, trace: Path) -> None:
    contract, case = CONTRACTS[name], CASES[promise]
    deviation = contract.deviations.get(promise)
    expected = deviation.outcome if deviation is not None and deviation.outcome is not None else case.outcome
    opened = opened_folder(stage.url)
    open_before = set(opened.iterdir())

    if promise == "a server that goes away":
        async with leaving(stage.url) as address:
            played = await contract.play(case.scene, replace(stage, url=address))
    else:
        played = await contract.play(case.scene, stage)
        await until(lambda: set(opened.iterdir()) <= open_before)

    assert Outcome(played.reward, played.stop_reason, ran(trace)) == expected
    assert all(f"Task {TASK}." in prompt for prompt in played.prompts)
    if expected == case.outcome:
        assert all(told in played.prompts[-1] for told in case.told)
        assert None in (case.counts, played.counts) or played.counts == case.counts
    if played.rewards is not None and promise != "secrets":
        given = [value for _, input in ran(trace) for name, value in input.items() if name == "reward"]
        assert played.rewards == [reward for reward in given if reward is not None]
    await slime.close()
    await miles.close()
    file = stage.folder / "rollouts.jsonl"
    kept_texts = [played.record, *played.prompts, file.read_text() if file.exists() else ""]
    assert not any("taken away" in text or "<|im_end|><|im_end|>" in text for text in kept_texts)
    if expected.reward is None and played.failure is not None:
        assert played.failure and case.failure in played.failure
    assert bool(played.prompts) == (promise not in ("a session that never opens", "an engine that fails"))
    if played.tokens is not None:
        check_tokens(played.tokens, lost=expected.reward is None)


@pytest.mark.parametrize("name", kept("a cancellation"))
async def test_a_cancelled_episode_closes_its_session(name: str, stage: Stage, trace: Path) -> None:
    opened = opened_folder(stage.url)
    open_before = set(opened.iterdir())
    playing = asyncio.create_task(CONTRACTS[name].play(Scene((call("wait", seconds=30.0),)), stage))
    await until(lambda: ran(trace) or playing.done())
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    await until(lambda: set(opened.iterdir()) <= open_before)


@pytest.mark.parametrize("name", kept("a mistake"))
async def test_a_configuration_error_ends_the_run(name: str, stage: Stage) -> None:
    """Such an error would end every episode, so it is raised where the trainer catches no exceptions."""
    with pytest.raises((ConfigurationError, RequestRefused)):
        await CONTRACTS[name].play(Scene((FINISH,), "nosuchenvironment"), stage)


@pytest.mark.parametrize("name", kept("swallowed answers"))
async def test_calls_with_lost_responses_run_once(name: str, stage: Stage, trace: Path) -> None:
    """Every adapter sends a key with every call: the SDKs' clients send none and run each of these calls twice."""
    case = CASES["several calls in a turn"]
    async with swallowing(int(stage.url.rpartition(":")[2])) as proxy:
        played = await CONTRACTS[name].play(case.scene, replace(stage, url=proxy.url))
    assert Outcome(played.reward, played.stop_reason, ran(trace)) == case.outcome
    assert len(proxy.swallowed) == len(case.outcome.trace)
