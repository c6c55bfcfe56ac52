"""ROLL's own modules with our environments: the tensors that would be trained on match the episodes.

Run by ``tests/long/test_trainers.py`` with ``ORS_ROLL_CHECKOUT``, the folder of a checkout of alibaba/ROLL. The
configuration classes, the environment manager with its rollout loop, the proxy to the policy, the group queue, the
scheduler's batches, ``DataProto``, and the functions that compute returns and advantages come from the checkout. The
engine is scripted, and Ray is a stand-in of actors without processes (``roll_checkout``). Weights, losses and engines
on GPUs are not run.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias, cast

import pytest

from tests.clients.lost_rollout_table import expected
from tests.clients.tiny_tokenizer import tiny_tokenizer
from tests.long.trainers import roll_checkout
from tests.support.paths import ROOT
from tests.support.servers import served

if roll_checkout.CHECKOUT is None:
    pytest.skip("ORS_ROLL_CHECKOUT names no checkout of ROLL", allow_module_level=True)
roll_checkout.add_checkout(roll_checkout.CHECKOUT)

from ors_clients.errors import ConfigurationError  # noqa: E402 (ROLL has to be importable)
from ors_clients.trainers.roll.env_manager import OrsStepEnvManager  # noqa: E402
from ors_clients.trainers.roll.start import compose  # noqa: E402

agentic_config: Any = import_module("roll.pipeline.agentic.agentic_config")
agentic_pipeline: Any = import_module("roll.pipeline.agentic.agentic_pipeline")
functions: Any = import_module("roll.pipeline.agentic.utils")
functionals: Any = import_module("roll.utils.functionals")
kl_controller: Any = import_module("roll.utils.kl_controller")
native: Any = import_module("roll.pipeline.agentic.env_manager.agent_native_env_manager")
policy_proxy: Any = import_module("roll.pipeline.agentic.llm_proxy.policy_proxy")
protocol: Any = import_module("roll.distributed.scheduler.protocol")
scheduler: Any = import_module("roll.distributed.scheduler.rollout_scheduler")
torch: Any = import_module("torch")
dacite: Any = import_module("dacite")
omegaconf: Any = import_module("omegaconf")

RECIPES = ROOT / "clients" / "recipes"
TERMINALS = ("roll", "openreward_endless_terminals_reinforce_qwen35_2b")
GSM8K = ("roll-atropos", "atropos_gsm8k_grpo_qwen25_0.5b")
ENVIRONMENTS = ROOT / "tests" / "clients" / "trainer_environments.py"
#: Plain advantages, without the recipes' whitening and clipping.
PLAIN = ("whiten_advantages=false", "advantage_clip=1000")


def always(value: Any) -> Callable[..., Any]:
    """Return a function that accepts any arguments and returns this value."""

    def function(*_: Any, **__: Any) -> Any:
        return value

    return function


def first(value: Any, *_: Any) -> Any:
    """Return the argument."""
    return value


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change to an empty folder, where ROLL writes logs, and shorten its wait of ten seconds after a failed reset."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(native, "time", SimpleNamespace(time=time.time, sleep=always(None)))


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    opened = tmp_path_factory.mktemp("open")
    with served(tmp_path_factory.mktemp("server"), ENVIRONMENTS, OPEN_SESSIONS=str(opened)) as address:
        yield address


def configuration(recipe: tuple[str, str], *overrides: str) -> Any:
    """Return the recipe's configuration from ROLL's start script: Hydra, OmegaConf, dacite, and ROLL's checks."""
    composed = compose(str(RECIPES / recipe[0]), recipe[1], ["track_with=stdout", *overrides])
    plain = omegaconf.OmegaConf.to_container(composed, resolve=True)
    return dacite.from_dict(data_class=agentic_config.AgenticConfig, data=plain)


def terminals(url: str, groups: int, size: int, *overrides: str, **env_config: Any) -> Any:
    """Return the OpenReward recipe on the tests' environment; ``groups`` of ``size`` are one batch."""
    options = {"base_url": url, "retry_max_attempts": 0, "nonterminal_reward": -0.5, **env_config}
    tag = "custom_envs.OpenRewardEndlessTerminalsTrain"
    return configuration(
        TERMINALS,
        *(f"++{tag}.env_config.{name}={value}" for name, value in options.items()),
        "endless_terminals.environment_name=stepenvironment",
        f"train_env_manager.num_env_groups={groups}",
        f"train_env_manager.num_groups_partition=[{groups}]",
        f"train_env_manager.group_size={size}",
        f"rollout_batch_size={groups * size}",
        "sequence_length=4096",
        "async_generation_ratio=0",
        *PLAIN,
        *overrides,
    )


# --- a run ---------------------------------------------------------------------------------------

Play: TypeAlias = "Callable[[Any, Policy], Run]"

#: The model's text, by number of the environment, number of its episode and number of the turn.
Policy = Callable[[int, int, int], str]


class Engine:
    """The client of ROLL's router, as its proxy uses it: returns ids and log-probabilities.

    ``written`` holds for each environment the ids of each turn: prompt, response and log-probabilities.
    """

    def __init__(self, policy: Policy, tokenizer: Any) -> None:
        self._policy = policy
        self._tokenizer = tokenizer
        self.written: dict[int, list[list[tuple[list[int], list[int], list[float]]]]] = {}

    def generate_request_sync(self, req: Any, request_id: Any, uid: int) -> Any:
        prompt: list[int] = req.batch["input_ids"][0].tolist()
        episodes = self.written.setdefault(uid, [])
        beginning = self._tokenizer.decode(prompt).count("<|im_start|>assistant") == 1
        if beginning or not episodes:
            episodes.append([])
        turns = episodes[-1]
        text = self._policy(uid, len(episodes) - 1, len(turns))
        ids: list[int] = self._tokenizer.encode(f"{text}<|im_end|>", add_special_tokens=False)
        logprobs = [-0.001 * (position + 1) for position in range(len(ids))]
        turns.append((prompt, ids, logprobs))
        return protocol.DataProto(
            meta_info={
                "eos_token_id": self._tokenizer.eos_token_id,
                "pad_token_id": self._tokenizer.pad_token_id,
                "output_token_ids": [ids],
                "output_logprobs": [logprobs],
                "finish_reasons": ["stop"],
            }
        )


class Environments:
    """ROLL's cluster of environment workers: the managers, each with a thread for its rollout loop."""

    def __init__(self, managers: Sequence[Any]) -> None:
        self._managers = managers
        self._threads = ThreadPoolExecutor(len(managers))
        self.loops: list[Future[Any]] = []

    def run_rollout_loop(self, seed: int, blocking: bool) -> list[Any]:
        data = protocol.DataProto(meta_info={"seed": seed})
        self.loops = [self._threads.submit(manager.run_rollout_loop, data) for manager in self._managers]
        return [asyncio.wrap_future(loop) for loop in self.loops]

    def update_step(self, step: int, trace: Any, blocking: bool) -> list[Any]:
        for manager in self._managers:
            manager.update_step(step, trace)
        return []

    def stop(self) -> None:
        for manager in self._managers:
            manager.stop()


class Run:
    """One of ROLL's training runs up to the weights; ``batch`` is the data of a step."""

    def __init__(self, config: Any, policy: Policy) -> None:
        tokenizer = tiny_tokenizer("qwen3")
        self.config = config
        self.engine = Engine(policy, tokenizer)
        settings = config.train_env_manager
        self._queue = scheduler.GroupQueueManager.options().remote(config, settings, "train")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(policy_proxy.RouterManager, "create_client_sync", always(self.engine))
            self.managers = [
                OrsStepEnvManager(
                    worker_config=settings,
                    pipeline_config=config,
                    env_config=env_config,
                    tokenizer=tokenizer,
                    processor=None,
                    generate_scheduler=None,
                    output_queue=self._queue,
                    thread_lock=threading.Lock(),
                    mode="train",
                    extra_data_provider=None,
                )
                for worker in settings.env_configs.values()
                for env_config in worker.values()
            ]
        self._environments = Environments(self.managers)
        resumed = SimpleNamespace(resume=SimpleNamespace(remote=_nothing))
        self._scheduler: Any = scheduler.RolloutScheduler.__new__(scheduler.RolloutScheduler)
        self._scheduler.config = config
        self._scheduler.mode = "train"
        self._scheduler.rollout_task = None
        self._scheduler.es_manager = self._environments
        self._scheduler.env_output_queue = _Awaitable(self._queue)
        self._scheduler.router_manager = resumed
        self._scheduler._maybe_dump_batch = _nothing

    def collect(self) -> Any:
        """Return the samples of a step, as the scheduler passes them to the pipeline."""

        async def collect() -> Any:
            request = protocol.DataProto(meta_info={"global_step": 0})
            return await self._scheduler._get_batch_impl(request, self.config.rollout_batch_size)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(protocol.DataProto, "to_remote", first)
            return asyncio.run_coroutine_threadsafe(collect(), roll_checkout.loop).result(60)

    def batch(self) -> Any:
        """Return the batch of a step with its advantages, by the calls of ``AgenticPipeline.run``."""
        return advantages(self.collect(), self.config)

    def close(self) -> None:
        self._environments.stop()
        self._queue.shutdown.remote().result(60)
        for loop in self._environments.loops:
            with contextlib.suppress(Exception):  # `collect` raises the error that ended a loop
                loop.result(60)
        for manager in self.managers:
            manager.env.close()


async def _nothing(*_: Any) -> None:
    """Do nothing, in a call that is awaited."""


class _Awaitable:
    """An actor whose calls are awaited, as inside another actor."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def __getattr__(self, name: str) -> Any:
        def remote(*args: Any) -> Any:
            return asyncio.wrap_future(getattr(self._actor, name).remote(*args))

        return SimpleNamespace(remote=remote)


def advantages(batch: Any, config: Any) -> Any:
    """Process a batch as ``AgenticPipeline.run`` does between the rollout and the loss."""
    batch.meta_info["global_step"] = 0
    batch = functions.compute_discounted_returns(batch, config.adv_estimator, config.step_reward_gamma)
    nothing = torch.zeros_like(batch.batch["attention_mask"][:, 1:], dtype=torch.float32)
    batch.batch["old_log_probs"] = nothing
    batch.batch["ref_log_probs"] = nothing.clone()
    batch, _ = functions.get_agentic_response_level_mask(batch, config)
    batch, _ = functions.compute_response_level_rewards(batch=batch, pipeline_config=config)
    controller = kl_controller.get_kl_controller(config.init_kl_coef, config.target_kl, config.kl_horizon)
    batch, _ = functionals.compute_token_reward(batch, config, controller)
    return functions.agentic_compute_advantage(
        data=batch,
        gamma=config.gamma,
        lambd=config.lambd,
        adv_estimator=config.adv_estimator,
        advantage_clip=config.advantage_clip,
        whiten_advantages=config.whiten_advantages,
        whiten_rewards=config.whiten_rewards,
        pipeline_config=config,
    )


def by_turn(batch: Any, *, twice: bool = False) -> dict[tuple[int, int], float]:
    """Return the common advantage of each turn's tokens by environment and turn; ``twice``: turns may repeat."""
    found: dict[tuple[int, int], float] = {}
    for place, (env, step) in enumerate(
        zip(batch.non_tensor_batch["env_ids"], batch.non_tensor_batch["step"], strict=True)
    ):
        mask = batch.batch["response_mask"][place, 1:].bool()
        values = batch.batch["advantages"][place][mask].tolist()
        assert values
        assert max(values) == pytest.approx(min(values))
        assert twice or (env, step) not in found, "a turn is in the batch twice"
        found[(env, step)] = values[0]
    return found


def check_advantages(batch: Any, rewards: dict[str, float]) -> None:
    """Check that a turn's advantage is its episode's reward less the group's mean; episodes have equally many turns.

    ``rewards`` are the rewards of episodes that end with these texts of the model.
    """
    tokenizer = tiny_tokenizer("qwen3")
    places: dict[str, list[int]] = {}
    for place, name in enumerate(batch.non_tensor_batch["traj_id"]):
        places.setdefault(name, []).append(place)
    worth: dict[str, float] = {}
    groups: dict[str, list[float]] = {}
    for name, own in places.items():
        own.sort(key=lambda place: batch.non_tensor_batch["step"][place])
        assert [batch.non_tensor_batch["step"][place] for place in own] == list(range(len(own)))
        last = batch.batch["input_ids"][own[-1]][batch.batch["response_mask"][own[-1]].bool()]
        worth[name] = rewards[tokenizer.decode(last).removesuffix("<|im_end|>")]
        groups.setdefault(batch.non_tensor_batch["traj_group_id"][own[0]], []).append(worth[name])
    for name, own in places.items():
        group = groups[batch.non_tensor_batch["traj_group_id"][own[0]]]
        for place in own:
            found = batch.batch["advantages"][place][batch.batch["response_mask"][place, 1:].bool()].tolist()
            assert found == pytest.approx([worth[name] - sum(group) / len(group)] * len(found), abs=1e-6)


@pytest.fixture
def play() -> Generator[Play]:
    runs: list[Run] = []

    def make(config: Any, policy: Policy) -> Run:
        runs.append(Run(config, policy))
        return runs[-1]

    yield make
    for run in runs:
        run.close()


def call(name: str, **arguments: Any) -> str:
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


def scripted(*turns: str) -> list[str]:
    return list(turns)


WINNER = scripted(call("earn"), call("earn"), call("finish", reward=1))
LOSER = scripted(call("earn"), call("earn"), call("finish", reward=0))


def by_environment(*plans: Sequence[str]) -> Policy:
    """Each environment plays its own plan, the same in every episode."""
    return lambda env, episode, turn: plans[env % len(plans)][turn]


# --- configurations ------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", [TERMINALS, GSM8K], ids=["terminals", "gsm8k"])
def test_recipes_are_configurations_that_roll_starts_with(recipe: tuple[str, str]) -> None:
    config = configuration(recipe)
    for manager in (config.train_env_manager, config.val_env_manager):
        loaded = scheduler.safe_import_class(manager.group_filter_cls)
        assert loaded(config, manager, "train").limit == 16
    pipeline: Any = agentic_pipeline.AgenticPipeline
    workers = SimpleNamespace(
        pipeline_config=config,
        reward=None,
        actor_train=SimpleNamespace(worker_config=config.actor_train),
        actor_infer=SimpleNamespace(worker_config=config.actor_infer),
        reference=SimpleNamespace(worker_config=config.reference),
        _validate_minimum_active_ranks=functools.partial(pipeline._validate_minimum_active_ranks, None),
    )
    pipeline._validate_partial_gpu_config(workers)


def test_zero2_is_there_for_versions_that_have_it() -> None:
    name = "actor_train.strategy_args.strategy_name=deepspeed_train"
    override = "actor_train.strategy_args.strategy_config=${deepspeed_zero2_cpuoffload}"
    if "deepspeed_train" in str(agentic_config.WorkerConfig.__annotations__) + Path(
        cast(str, import_module("roll.configs.worker_config").__file__)
    ).read_text(encoding="utf-8"):
        config = configuration(GSM8K, name, override)
        assert config.actor_train.strategy_args.strategy_config["zero_optimization"]["stage"] == 2
        assert "fsdp_size" not in config.actor_train.strategy_args.strategy_config
    else:
        with pytest.raises(dacite.WrongTypeError):
            configuration(GSM8K, name, override)


# --- what is trained on --------------------------------------------------------------------------


def test_samples_are_the_ids_of_prompt_and_response(url: str, play: Play) -> None:
    run = play(terminals(url, 1, 2), by_environment(WINNER, LOSER))
    batch: Any = run.batch()
    pad = tiny_tokenizer("qwen3").pad_token_id
    assert len(batch) == 6
    for place in range(len(batch)):
        env: int = batch.non_tensor_batch["env_ids"][place]
        step: int = batch.non_tensor_batch["step"][place]
        prompt, response, logprobs = run.engine.written[env][0][step]
        length = len(prompt) + len(response)
        ids = batch.batch["input_ids"][place].tolist()
        assert ids[:length] == prompt + response
        assert set(ids[length:]) == {pad}
        mask = batch.batch["response_mask"][place].int().tolist()
        assert mask[:length] == [0] * len(prompt) + [1] * len(response)
        assert sum(mask) == len(response)
        # The values of the trained tokens; entry i belongs to token i + 1.
        kept = batch.batch["infer_logprobs"][place][batch.batch["response_mask"][place, 1:].bool()].tolist()
        assert kept == pytest.approx(logprobs)
        scores = batch.batch["scores"][place].tolist()
        assert scores[length - 1] == batch.non_tensor_batch["step_scores"][place]
        assert sum(map(abs, scores)) == abs(scores[length - 1])


@pytest.mark.parametrize("estimator", ["step_reinforce", "gigpo"])
def test_every_turn_has_the_advantage_of_its_episode(url: str, play: Play, estimator: str) -> None:
    run = play(terminals(url, 1, 4, f"adv_estimator={estimator}"), by_environment(WINNER, WINNER, WINNER, LOSER))
    found = by_turn(run.batch())
    assert len(found) == 12
    if estimator == "step_reinforce":
        assert [found[(env, step)] for env in range(3) for step in range(3)] == pytest.approx([0.25] * 9)
        assert [found[(3, step)] for step in range(3)] == pytest.approx([-0.75] * 3)
    else:  # it also compares turns that begin in the same state, as the first turns do
        for step in range(3):
            assert min(found[(env, step)] for env in range(3)) > 0 > found[(3, step)]


def test_an_environment_that_is_faster_than_its_sibling_plays_episodes_of_its_own(url: str, play: Play) -> None:
    """ROLL fills a free place of a group from any environment, and identifies a trajectory by group and environment.

    So it would add up the returns of two episodes of one environment.
    """
    done = threading.Event()

    def policy(env: int, episode: int, turn: int) -> str:
        if env == 1:
            assert done.wait(30)
        elif (episode, turn) == (2, 2):
            done.set()
        return (LOSER if (env, episode) == (0, 1) else WINNER)[turn]

    run = play(terminals(url, 1, 2, "rollout_batch_size=4"), policy)
    batch = run.batch()
    assert sorted(batch.non_tensor_batch["env_ids"]) == [0] * 9 + [1] * 3
    check_advantages(batch, {WINNER[-1]: 1.0, LOSER[-1]: 0.0})


@pytest.mark.parametrize("estimator", ["grpo", "reinforce", "gae", "agentic_reinforce"])
def test_estimators_that_blame_winners_early_turns_are_refused(
    url: str, play: Play, estimator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = by_environment(WINNER, WINNER, WINNER, LOSER)
    config = terminals(url, 1, 4, f"adv_estimator={estimator}", "reward_normalization.method=mean")
    with pytest.raises(ConfigurationError, match="step_reinforce"):
        play(config, plans)

    monkeypatch.setattr("ors_clients.roll.env_manager._check_estimator", always(None))
    if estimator != "gae":  # it needs a critic's values
        found = by_turn(play(config, plans).batch())
        assert found[(0, 0)] == pytest.approx(found[(3, 0)])  # a winner's first turn is worth a loser's
        assert found[(0, 0)] < 0


def test_the_recipe_trains_on_whole_groups(url: str, play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """ROLL adjusts the number of samples to its number of ranks before it compares the members of a group."""
    run = play(terminals(url, 3, 4), by_environment(WINNER, WINNER, LOSER, WINNER))
    workers = SimpleNamespace(
        pipeline_config=run.config,
        actor_train=SimpleNamespace(dp_size=1),
        references={"default": SimpleNamespace(dp_size=1)},
    )
    whole = run.collect()
    batch = functions.compute_discounted_returns(whole, run.config.adv_estimator, run.config.step_reward_gamma)
    adjusted = agentic_pipeline.AgenticPipeline.adjust_batch(workers, batch, mode=run.config.batch_adjust_mode)
    assert len(whole) == 36
    assert len(adjusted) == 48
    monkeypatch.setattr(functions, "compute_discounted_returns", first)
    for (env, _), advantage in by_turn(advantages(adjusted, run.config), twice=True).items():
        assert advantage == pytest.approx(-0.75 if env % 4 == 2 else 0.25, abs=0.2)


def test_an_episode_that_outgrows_the_context_keeps_its_reward_and_penalty(url: str, play: Play) -> None:
    long = scripted(call("earn", reward=0.7), call("earn", reward=0, padding="x " * 3000))
    run = play(terminals(url, 1, 2), by_environment(long, LOSER))
    batch = run.batch()
    returns = by_turn_of(batch, "step_rewards")
    assert [returns[(0, step)] for step in range(2)] == pytest.approx([0.2, 0.2])  # 0.7 - 0.5
    assert [returns[(1, step)] for step in range(3)] == [0.0] * 3
    assert sorted(batch.non_tensor_batch["episode_scores"].tolist()) == pytest.approx([0.0] * 3 + [0.2] * 2)
    found = by_turn(batch)
    assert min(found[(0, 0)], found[(0, 1)]) > 0 > max(found[(1, step)] for step in range(3))


def by_turn_of(batch: Any, key: str) -> dict[tuple[int, int], float]:
    names = zip(batch.non_tensor_batch["env_ids"], batch.non_tensor_batch["step"], strict=True)
    return dict(zip(names, batch.batch[key].tolist(), strict=True))


def test_an_episode_cut_at_its_last_turn_has_the_penalty(url: str, play: Play) -> None:
    endless = scripted(*[call("earn", reward=0.25)] * 2)
    run = play(terminals(url, 1, 2, "max_actions_per_traj=2"), by_environment(endless, ["I give up.", "I do."]))
    batch = run.batch()
    returns = by_turn_of(batch, "step_rewards")
    assert [returns[(0, step)] for step in range(2)] == [0.0, 0.0]  # twice 0.25, less 0.5
    assert [returns[(1, step)] for step in range(2)] == [-0.5, -0.5]


# --- episodes that are not trained on ---------------------------------------------------------------


def test_no_group_with_a_lost_episode_reaches_the_batch(url: str, play: Play) -> None:
    """An outage in the first three episodes of every group: one member of each has an infrastructure failure."""

    def policy(env: int, episode: int, turn: int) -> str:
        if env % 2 == 0 and episode < 3:
            return scripted(call("earn", reward=0.5), call("lose"))[turn]
        return (WINNER if env % 2 == 0 else LOSER)[turn]

    run = play(terminals(url, 3, 2), policy)
    collected = run.collect()
    metrics = functionals.reduce_metrics(collected.meta_info["metrics"])
    batch = advantages(collected, run.config)
    assert len(batch) == 18
    assert expected("ROLL", "`LostGroupFilter`") == "redrawn"
    # A lost episode of each group at least; an environment that is faster than its sibling loses more of them.
    assert 3 <= metrics["env/OpenRewardEndlessTerminalsTrain/lost/session_lost@sum"] <= 9
    assert all(batch.batch["response_mask"].sum(dim=-1) > 0)
    check_advantages(batch, {WINNER[-1]: 1.0, LOSER[-1]: 0.0})


def test_rolls_own_filter_keeps_lost_groups_and_is_refused(
    url: str, play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recipes' former filter: the placeholder's 0 counts in its siblings' mean."""
    theirs = "roll.pipeline.agentic.env_manager.agent_native_env_manager.GroupFilter"
    lost = by_environment(scripted(call("lose")), WINNER)
    assert expected("ROLL", "ROLL's own `GroupFilter`") == "refused"
    with pytest.raises(ConfigurationError, match="LostGroupFilter"):
        play(terminals(url, 1, 2, f"group_filter_cls={theirs}"), lost)
    monkeypatch.setattr("ors_clients.roll.env_manager._check_filter", always(None))
    batch = play(terminals(url, 1, 2, f"group_filter_cls={theirs}"), lost).collect()
    assert sorted(batch.batch["response_mask"].sum(dim=-1).tolist())[0] == 0  # a lost first group is kept


@pytest.mark.parametrize("plan", [scripted(call("lose")), []], ids=["machine", "prompt"])
def test_a_run_in_which_every_episode_is_lost_ends(url: str, play: Play, plan: list[str]) -> None:
    """In one case, the prompt alone exceeds the context."""
    overrides = ["++custom_envs.OpenRewardEndlessTerminalsTrain.max_lost_groups_in_row=3"]
    overrides += [] if plan else ["sequence_length=64"]
    run = play(terminals(url, 2, 2, *overrides), by_environment(plan))
    with pytest.raises(Exception, match=r"was lost 3 times in a row"):
        run.collect()


def test_an_environment_that_cannot_be_reset_is_drawn_again(url: str, play: Play) -> None:
    config = terminals(url, 1, 2, "endless_terminals.environment_name=brokenenvironment")
    with pytest.raises(Exception, match=r"was lost 16 times in a row"):
        play(config, by_environment(WINNER)).collect()


# --- images --------------------------------------------------------------------------------------


def test_the_model_is_told_of_an_image(url: str, play: Play) -> None:
    run = play(terminals(url, 1, 2), by_environment(scripted(call("picture"), call("finish", reward=1))))
    run.collect()
    text = tiny_tokenizer("qwen3").decode(run.engine.written[0][0][1][0])
    assert "look" in text
    assert "an image that this model cannot see" in text


# --- Atropos -------------------------------------------------------------------------------------


def test_the_atropos_recipe_compares_answers_to_one_question(play: Play, tmp_path: Path) -> None:
    from tests.clients.byte_tokenizer import save_byte_tokenizer

    name = save_byte_tokenizer(tmp_path / "tokenizer")
    tag = "custom_envs.AtroposGSM8KTrain.env_config"
    config = configuration(
        GSM8K,
        f"{tag}.atropos_env_path=tests.clients.atropos_environments:ArithmeticEnv",
        f"{tag}.env_config.tokenizer_name={name}",
        f"{tag}.reward_config.length_bounty_max=0",
        "train_env_manager.num_env_groups=1",
        "train_env_manager.num_groups_partition=[1]",
        "train_env_manager.group_size=4",
        "rollout_batch_size=4",
        *PLAIN,
    )
    right = scripted(*(f"\\boxed{{{2 * number}}}" for number in range(7)))

    def policy(env: int, episode: int, turn: int) -> str:
        return " or ".join(right) if env < 1 else "I do not know."

    found = by_turn(play(config, policy).batch())
    assert sorted(found) == [(env, 0) for env in range(4)]
    assert found[(0, 0)] == pytest.approx(1.5, abs=1e-3)
    assert [found[(env, 0)] for env in range(1, 4)] == pytest.approx([-0.5] * 3, abs=1e-3)
