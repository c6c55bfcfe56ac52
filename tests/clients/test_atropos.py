"""``OrsAtroposEnv``: groups of an ORS environment's rollouts, as Atropos sends them to its trainers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Generator
from pathlib import Path
from typing import Any, Protocol

import pytest
import pytest_asyncio
from ors_clients.errors import ConfigurationError

from tests.clients import atropos_stand_in
from tests.clients.lost_rollout_table import expected
from tests.support.servers import served

atropos_stand_in.install()

from ors_clients.trainers.atropos import OrsAtroposConfig, OrsAtroposEnv  # noqa: E402 - needs the stand-in

ENVIRONMENTS = Path(__file__).with_name("trainer_environments.py")


Policy = Callable[[str, int], str]


class ScriptedServer:
    """The ``self.server`` of an environment: the policy's text, as Atropos's servers return it."""

    def __init__(self, tokenizer: Any, policy: Policy) -> None:
        self.tokenizer = tokenizer
        self.policy = policy
        self.requests: list[dict[str, Any]] = []
        self.servers: list[Any] = []

    async def tokens_and_logprobs_completion(self, **request: Any) -> Any:
        await asyncio.sleep(0)
        number = len(self.requests)
        self.requests.append(request)
        ids: list[int] = request["input_ids"]
        text = self.policy(self.tokenizer.decode(ids), number)
        output: list[int] = self.tokenizer.encode(f"{text}<|im_end|>", add_special_tokens=False)
        output = output[: request["max_tokens"]]
        return ids, [output], [[logprob_at(len(ids) + place) for place in range(len(output))]], [{"type": "stop"}]


def logprob_at(position: int) -> float:
    """Return a log-probability that belongs to one position only."""
    return -(position + 1) / 1000


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    opened = tmp_path_factory.mktemp("open")
    with served(tmp_path_factory.mktemp("server"), ENVIRONMENTS, OPEN_SESSIONS=str(opened)) as address:
        yield address
    assert list(opened.iterdir()) == []  # every session was closed


@pytest.fixture(scope="module")
def tokenizer_name(tmp_path_factory: pytest.TempPathFactory) -> str:
    return atropos_stand_in.tokenizer_name(tmp_path_factory.mktemp("tokenizer"))


class MakeEnv(Protocol):
    """Maker of environments with a scripted model."""

    def __call__(self, policy: Policy, **options: Any) -> Any: ...


@pytest_asyncio.fixture
async def make(url: str, tokenizer_name: str) -> AsyncGenerator[MakeEnv]:
    made: list[OrsAtroposEnv] = []

    def make_env(policy: Policy, **options: Any) -> Any:
        defaults: dict[str, Any] = {
            "ors_url": url,
            "ors_environment": "stepenvironment",
            "tokenizer_name": tokenizer_name,
            "group_size": 2,
            "max_token_length": 20_000,
            "use_wandb": False,
            "include_messages": True,
        }
        _, servers = OrsAtroposEnv.config_init()
        env = OrsAtroposEnv(OrsAtroposConfig(**{**defaults, **options}), servers, testing=True)
        env.server = ScriptedServer(env.tokenizer, policy)
        made.append(env)
        return env

    yield make_env
    for env in made:
        await env.client.close()


async def test_the_ends_of_a_turn_reach_the_engine(make: MakeEnv) -> None:
    """A template's end of a turn need not be the model's own: without it the engine would generate up to its limit."""
    env = make(lambda prompt, number: call("finish", reward=number))
    env.renderer.stop_token_ids, env.renderer.stop = (7, 8), ("END",)
    await env.setup()
    await env.collect_trajectories(await env.get_next_item())
    assert [request["stop_token_ids"] for request in env.server.requests] == [[7, 8]] * 2
    assert [request["stop"] for request in env.server.requests] == [["END"]] * 2


async def test_a_group_names_its_temperature(make: MakeEnv) -> None:
    """Without a group's temperature, Atropos's trainer computes log-probabilities at 1."""
    env = make(lambda prompt, number: call("finish", reward=number), temperature=0.7)
    await env.setup()
    group, _ = await env.collect_trajectories(await env.get_next_item())
    assert group is not None
    assert group["generation_params"] == {"temperature": 0.7}
    assert {request["temperature"] for request in env.server.requests} == {0.7}


async def test_messages_are_sent_where_they_are_requested(make: MakeEnv) -> None:
    env = make(lambda prompt, number: call("finish", reward=number), include_messages=False)
    await env.setup()
    group, _ = await env.collect_trajectories(await env.get_next_item())
    assert group is not None
    assert "messages" not in group


async def test_a_lost_machine_drops_the_group_and_puts_its_task_back(make: MakeEnv) -> None:
    env = make(lambda prompt, number: call("lose"), attempts=2)
    await env.setup()
    item = await env.get_next_item()
    assert expected("Atropos", "the adapter's own") == "retried"
    for returned in (1, 2, 3):
        group, backlog = await env.collect_trajectories(item)
        assert group is None
        assert [again["returned"] for again in backlog] == [returned]
        assert backlog[0]["index"] == item["index"]
        item = backlog[0]
    assert await env.collect_trajectories(item) == (None, [])
    assert len(env.server.requests) == 4 * 2 * 2  # four times a group of two, each member twice


async def test_a_run_that_only_loses_groups_ends(make: MakeEnv) -> None:
    # Atropos logs every Exception of an item, and goes on with the next one.
    env = make(lambda prompt, number: call("lose"), attempts=1, max_lost_groups_in_row=2)
    await env.setup()
    for _ in range(2):
        assert (await env.collect_trajectories(await env.get_next_item()))[0] is None
    for step in (env.env_step_checks, env.get_next_item):
        with pytest.raises(SystemExit, match="lost 2 times in a row, the last one by this: "):
            await step()


async def test_groups_that_were_in_flight_together_are_one_loss(make: MakeEnv) -> None:
    env = make(lambda prompt, number: call("lose"), attempts=1, max_lost_groups_in_row=2)
    await env.setup()
    items = [await env.get_next_item() for _ in range(4)]
    groups = await asyncio.gather(*(env.collect_trajectories(item) for item in items))
    assert [group for group, _ in groups] == [None] * 4
    await env.get_next_item()


async def test_a_mistake_that_every_item_would_meet_ends_the_run(make: MakeEnv) -> None:
    env = make(lambda prompt, number: call("finish", reward=1.0))
    await env.setup()
    assert await env.collect_trajectories({"split": "no such split", "index": 0, "returned": 0}) == (None, [])
    with pytest.raises(SystemExit, match="The run ends: "):
        await env.get_next_item()


async def test_lost_rollouts_are_logged_by_environment_and_cause(make: MakeEnv) -> None:
    env = make(lambda prompt, number: call("lose") if number == 0 else call("finish", reward=1.0))
    await env.setup()
    await env.collect_trajectories(await env.get_next_item())
    metrics = env._losses.take("train/episodes")  # pyright: ignore[reportPrivateUsage]
    assert metrics["train/episodes/all/played"] == 3
    assert metrics["train/episodes/stepenvironment/lost/session_lost"] == 1


async def test_a_failed_member_is_played_again(make: MakeEnv) -> None:
    env = make(lambda prompt, number: call("lose") if number == 0 else call("finish", reward=1.0))
    await env.setup()
    group, backlog = await env.collect_trajectories(await env.get_next_item())
    assert group is not None
    assert group["scores"] == [1.0, 1.0]
    assert backlog == []


async def test_a_prompt_that_atropos_changes_is_not_a_sample(make: MakeEnv) -> None:
    """Its servers drop a second beginning-of-text token, which would shift every later position by one."""
    env = make(lambda prompt, number: call("finish", reward=1.0), attempts=1)
    original = env.server.tokens_and_logprobs_completion

    async def shortened(**request: Any) -> Any:
        ids, *rest = await original(**request)
        return [ids[1:], *rest]

    env.server.tokens_and_logprobs_completion = shortened
    await env.setup()
    assert (await env.collect_trajectories(await env.get_next_item()))[0] is None


async def test_rollouts_end_before_the_trainers_limit(make: MakeEnv) -> None:
    env = make(lambda prompt, number: call("earn", reward=1.0, padding="x" * 300), max_token_length=10_000)
    env.max_token_len = 3000
    await env.setup()
    group, _ = await env.collect_trajectories(await env.get_next_item())
    assert group is not None
    assert all(len(tokens) < 3000 for tokens in group["tokens"])


async def test_tasks_come_in_rounds_and_go_on_after_a_checkpoint(make: MakeEnv) -> None:
    env = make(lambda prompt, number: "")
    await env.setup()
    first = [(await env.get_next_item())["index"] for _ in range(5)]
    second = [(await env.get_next_item())["index"] for _ in range(5)]
    assert sorted(first) == sorted(second) == list(range(5))
    assert first != second
    resumed = make(lambda prompt, number: "")
    await resumed.setup()
    resumed.position = 5
    assert [(await resumed.get_next_item())["index"] for _ in range(5)] == second
    other = make(lambda prompt, number: "", seed=1)
    await other.setup()
    assert [(await other.get_next_item())["index"] for _ in range(5)] != first


async def test_mistakes_of_configuration_are_raised(make: MakeEnv) -> None:
    with pytest.raises(ConfigurationError, match="no tasks"):
        await make(lambda prompt, number: "", split="empty").setup()
    with pytest.raises(ConfigurationError):
        make(lambda prompt, number: "", tool_call_format="none")
    with pytest.raises(ConfigurationError):
        make(lambda prompt, number: "", min_reward=1.0, max_reward=0.0)
    with pytest.raises(ConfigurationError, match="other_key"):
        make(lambda prompt, number: "", secrets="other_key")
