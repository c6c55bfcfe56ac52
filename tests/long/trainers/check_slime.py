"""slime's own modules with our functions, up to the tensors that would be trained on.

``ORS_SLIME_CHECKOUT`` names a checkout of THUDM/slime. Its ``Dataset``, data source, rollout functions (synchronous,
fully asynchronous, evaluation), conversion, normalisation and logging run unmodified. SGLang is scripted behind its
wire format, and a process of ours serves the environments.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Generator, Sequence
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ors_clients import slime as ours
from ors_clients.errors import ConfigurationError, InfrastructureFailure

from tests.clients.lost_rollout_table import OURS, expected
from tests.clients.scripted_engine import ScriptedEngine
from tests.clients.tiny_tokenizer import tiny_tokenizer
from tests.clients.trainer_setup import call, serving, write_configuration
from tests.long.trainers.lost_rollouts import (
    ESTIMATORS,
    GROUPS,
    ByTask,
    advantage_arguments,
    check_survivors,
    outcome_of,
)
from tests.long.trainers.upstream import (
    LOST,
    STEPS,
    Outcomes,
    check_baselines,
    check_tokens,
    checkout,
    earn,
    end_work,
    ended,
    import_checkout,
    log_nothing,
    parse_recipe,
    write_rows,
)

CHECKOUT = checkout("ORS_SLIME_CHECKOUT", "slime")
if CHECKOUT is None:
    pytest.skip("ORS_SLIME_CHECKOUT names no checkout of slime", allow_module_level=True)
import_checkout(CHECKOUT)

rollout_metrics: Any = import_module("slime.observability.rollout_metrics")
rollout_manager: Any = import_module("slime.ray.rollout")
base_types: Any = import_module("slime.rollout.base_types")
data_source: Any = import_module("slime.rollout.data_source")
fully_async_rollout: Any = import_module("slime.rollout.fully_async_rollout")
sglang_rollout: Any = import_module("slime.rollout.sglang_rollout")
slime_arguments: Any = import_module("slime.utils.arguments")
async_utils: Any = import_module("slime.utils.async_utils")
eval_config: Any = import_module("slime.utils.eval_config")
http_utils: Any = import_module("slime.utils.http_utils")
loss: Any = import_module("slime.backends.megatron_utils.loss")
misc: Any = import_module("slime.utils.misc")
distributed: Any = import_module("torch.distributed")
torch: Any = import_module("torch")

FULLY_ASYNC = "slime.rollout.fully_async_rollout.generate_rollout_fully_async"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    with serving(tmp_path_factory.mktemp("server")) as address:
        yield address


class Run:
    """One run of slime: its arguments, data source and the manager that makes batches."""

    def __init__(self, args: Any, engine: ScriptedEngine) -> None:
        self.args, self.engine = args, engine
        self.source = data_source.RolloutDataSourceWithBuffer(args)
        self.manager: Any = object.__new__(rollout_manager.RolloutManager)
        self.manager.args = args
        self.manager.data_source = self.source
        self.manager.generate_rollout = misc.load_function(args.rollout_function_path)
        path = args.custom_reward_post_process_path
        self.manager.custom_reward_post_process_func = misc.load_function(path) if path else None
        self.manager.custom_convert_samples_to_train_data_func = None

    def batch(self, rollout_id: int = 0) -> tuple[list[Any], dict[str, Any]]:
        """Return samples and training data like ``RolloutManager.generate``, without what it sends to GPUs."""
        samples, metrics = self.manager._get_rollout_data(rollout_id)
        rollout_metrics.log_rollout_data(rollout_id, self.args, samples, metrics, 1.0)
        return samples, self.manager._convert_samples_to_train_data(samples)

    def evaluate(self) -> dict[str, Any]:
        """Return the logged values like ``RolloutManager.eval``."""
        result = base_types.call_rollout_fn(sglang_rollout.generate_rollout, self.args, 0, self.source, evaluation=True)
        return rollout_metrics.log_eval_rollout_data(0, self.args, result.data, result.metrics)


Start = Callable[..., Run]


@pytest.fixture
def start(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Start]:
    """Start a run whose model says what ``outcomes`` has for each episode."""
    engines: list[Any] = []
    tokenizer = tiny_tokenizer("qwen3")
    checkpoint = tmp_path / "checkpoint"
    tokenizer.save_pretrained(checkpoint)
    monkeypatch.setattr(rollout_metrics.logging_utils, "log", log_nothing)

    def make(
        outcomes: Sequence[Any] | ByTask,
        *,
        configuration: dict[str, Any] | None = None,
        rule: dict[str, Any] | None = None,
        tasks: int = 8,
        server: str | None = None,
        rows: dict[str, Any] | None = None,
        **arguments: Any,
    ) -> Run:
        policy = outcomes if isinstance(outcomes, ByTask) else Outcomes(outcomes)
        engine = ScriptedEngine(policy, tokenizer)
        serving_engine = engine.serve()
        serving_engine.__enter__()
        engines.append(serving_engine)
        file = write_configuration(tmp_path, server or url, {STEPS: rule or {}}, **(configuration or {}))
        data = write_rows(tmp_path / "tasks.jsonl", STEPS, ({"number": n} for n in range(tasks)), **(rows or {}))
        parser = argparse.ArgumentParser()
        slime_arguments.get_slime_extra_args_provider()(parser)
        args: Any = parser.parse_args(["--rollout-batch-size", "1"])
        monkeypatch.setattr(sys, "argv", ["train_async.py"])
        args.__dict__.update(slime_arguments._pre_parse_mode().__dict__)
        host, _, port = engine.url.removeprefix("http://").partition(":")
        args.__dict__.update(
            hf_checkpoint=str(checkpoint),
            prompt_data=str(data),
            input_key="prompt",
            label_key="label",
            metadata_key="metadata",
            rollout_shuffle=False,
            rollout_batch_size=1,
            n_samples_per_prompt=4,
            over_sampling_batch_size=1,
            rollout_max_response_len=256,
            rollout_num_gpus=1,
            rollout_num_gpus_per_engine=1,
            rollout_num_engines=1,
            # Fully asynchronous, it is also the number of concurrent groups.
            sglang_server_concurrency=1 if arguments.get("rollout_function_path") == FULLY_ASYNC else 64,
            sglang_dp_size=1,
            sglang_router_ip=host,
            sglang_router_port=int(port),
            sglang_speculative_algorithm=None,
            use_distributed_post=False,
            custom_generate_function_path="ors_clients.slime.generate",
            custom_rm_path="ors_clients.slime.reward_func",
            dynamic_sampling_filter_path="ors_clients.slime.keep_group",
            custom_reward_post_process_path="ors_clients.slime.post_process_rewards",
            custom_rollout_log_function_path="ors_clients.slime.log_rollout_data",
            custom_eval_rollout_log_function_path="ors_clients.slime.log_eval_rollout_data",
            advantage_estimator="grpo",
            rewards_normalization=True,
            grpo_std_normalization=True,
            num_layers=2,
            train_config=str(file),
        )
        args.__dict__.update(arguments)
        http_utils.init_http_client(args)
        return Run(args, engine)

    yield make
    fully_async_rollout._stop_global_worker()
    async_utils.run(end_work(ours.close))
    misc.SingletonMeta._instances.clear()
    for engine in engines:
        engine.__exit__(None, None, None)


def check_batch(run: Run, samples: Sequence[Any], data: dict[str, Any]) -> None:
    """Check that every sample is of an episode that ended, with its reward and its group's baseline."""
    for place, sample in enumerate(samples):
        assert not sample.remove_sample
        assert sample.metadata["failure"] is None
        assert data["raw_reward"][place] == sample.metadata["episode_reward"]
        check_tokens(data["tokens"][place], data["loss_masks"][place], data["rollout_log_probs"][place], run.engine)
    assert len(data["raw_reward"]) == len(samples)
    check_baselines(data, run.args.n_samples_per_prompt)


MODES = {"synchronous": "slime.rollout.sglang_rollout.generate_rollout", "fully asynchronous": FULLY_ASYNC}


@pytest.mark.parametrize("path", MODES.values(), ids=MODES)
def test_a_batch_is_what_happened(start: Start, path: str) -> None:
    turns = [[call("earn", reward=0.25), earn(0.5)], earn(0.9), [call("write", count=3), earn(1.0)], earn(0.0)]
    run = start(turns, rollout_function_path=path)
    samples, data = run.batch()
    assert sorted(data["raw_reward"]) == [0.0, 0.75, 0.9, 1.0]
    check_batch(run, samples, data)


@pytest.mark.parametrize("path", MODES.values(), ids=MODES)
def test_a_lost_rollout_is_in_no_baseline(start: Start, path: str) -> None:
    assert expected("slime, fully asynchronous", "none (it calls none)") == "again"
    run = start([LOST, earn(0.9), earn(1.0), LOST, earn(0.5)], rollout_function_path=path)
    samples, data = run.batch()
    check_batch(run, samples, data)


@pytest.mark.parametrize("path", MODES.values(), ids=MODES)
def test_a_run_that_loses_everything_ends(start: Start, path: str) -> None:
    run = start([LOST], rollout_function_path=path, configuration={"max_failures_in_row": 2})
    with pytest.raises(InfrastructureFailure, match="2 times in a row"):
        ended(run.batch)


@pytest.mark.parametrize("path", MODES.values(), ids=MODES)
def test_a_mistake_of_configuration_ends_the_run(start: Start, path: str) -> None:
    run = start([earn(1.0)], rollout_function_path=path, rows={"metadata": {"env_name": "nobody", "task_spec": {}}})
    with pytest.raises(ConfigurationError, match="nobody"):
        ended(run.batch)


# --- lost rollouts, filters and estimators ---

HUB = "slime.rollout.filter_hub.dynamic_sampling_filters"
OWN = "tests.long.trainers.lost_rollouts.keep_everything"
#: What filters the groups: the option's value, the training file's `group_filter`, and the row of the table.
FILTERS: dict[str, tuple[str | None, str | None, str]] = {
    "ours": ("ors_clients.slime.keep_group", None, OURS),
    "ours and slime's": ("ors_clients.slime.keep_group", f"{HUB}.check_reward_nonzero_std", OURS),
    "ours and the user's": ("ors_clients.slime.keep_group", OWN, OURS),
    **{
        name: (f"{HUB}.{name}", None, f"`{name}` in its place, with `post_process_rewards`")
        for name in ("check_reward_nonzero_std", "check_reward_nonzero_std_with_fallback")
    },
    "the user's": (OWN, None, "a filter of the user's own in its place, with `post_process_rewards`"),
    "none": (None, None, "none, with `post_process_rewards`"),
}


def advantages(samples: Sequence[Any], rewards: Sequence[float], **estimator: Any) -> list[Any]:
    """Return slime's advantages of these samples with these rewards, a tensor for each."""
    masks = [torch.tensor(sample.loss_mask, dtype=torch.int) for sample in samples]
    data: dict[str, Any] = {
        "rewards": list(rewards),
        "log_probs": [torch.zeros(len(mask)) for mask in masks],
        "loss_masks": masks,
        "response_lengths": [sample.response_length for sample in samples],
        "total_lengths": [len(sample.tokens) for sample in samples],
    }
    loss.compute_advantages_and_returns(advantage_arguments(**estimator), data)
    return data["advantages"]


@pytest.fixture(scope="module")
def one_rank() -> Generator[None]:
    """Make this process the only rank of every group."""

    def no_group(**_: Any) -> None:
        return None

    with pytest.MonkeyPatch.context() as patch:
        mpu = SimpleNamespace(
            is_pipeline_last_stage=lambda: True,
            get_context_parallel_rank=lambda: 0,
            get_context_parallel_world_size=lambda: 1,
            get_data_parallel_group=no_group,
        )
        patch.setattr(loss, "mpu", mpu)
        patch.setattr(import_module("megatron.core"), "mpu", mpu, raising=False)
        distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
        yield
        distributed.destroy_process_group()


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("group", GROUPS.values(), ids=GROUPS)
@pytest.mark.parametrize(("path", "chained", "row"), FILTERS.values(), ids=FILTERS)
def test_survivors_have_the_advantages_that_they_have_alone(
    start: Start, path: str | None, chained: str | None, row: str, group: list[str]
) -> None:
    run = start(
        ByTask({0: group}),
        dynamic_sampling_filter_path=path,
        configuration={"group_filter": chained},
        rollout_batch_size=2,
    )
    samples = ended(lambda: run.manager._get_rollout_data(0))[0]
    if group is not GROUPS["all lost"]:  # a filter by deviation drops that one itself
        assert outcome_of(samples) == expected("slime", row)
    else:
        assert len(samples) == 8
    plain = rollout_manager.RolloutManager._post_process_rewards
    for estimator in ESTIMATORS.values():
        if estimator["advantage_estimator"] == "reinforce_plus_plus" and outcome_of(samples) == "masked":
            continue  # refused: see below
        run.args.__dict__.update(estimator)
        data = run.manager._convert_samples_to_train_data(samples)

        def alone(own: Sequence[Any], manager: Any = run.manager) -> list[float]:
            sizes = {"n_samples_per_prompt": len(own), "rollout_batch_size": 1}
            args = SimpleNamespace(**{**vars(manager.args), **sizes})
            return plain(SimpleNamespace(args=args, custom_reward_post_process_func=None), own)[1]

        check_survivors(
            samples, data["rewards"], alone, lambda own, rewards, how=estimator: advantages(own, rewards, **how)
        )


@pytest.mark.parametrize("path", [None, f"{HUB}.check_reward_nonzero_std"])
def test_a_run_whose_lost_rollouts_would_count_is_refused(start: Start, path: str | None) -> None:
    run = start([earn(1.0)], dynamic_sampling_filter_path=path, custom_reward_post_process_path=None)
    assert expected("slime", "neither of the two functions") == "refused"
    with pytest.raises(ConfigurationError, match="--custom-reward-post-process-path"):
        ended(run.batch)


@pytest.mark.parametrize("path", [None, f"{HUB}.check_reward_nonzero_std"])
def test_an_estimator_that_takes_no_masked_sample_is_refused_without_our_filter(start: Start, path: str | None) -> None:
    run = start([earn(1.0)], dynamic_sampling_filter_path=path, advantage_estimator="reinforce_plus_plus")
    assert expected("slime", "none or another, with `reinforce_plus_plus`") == "refused"
    with pytest.raises(ConfigurationError, match="reinforce_plus_plus takes no batch with a lost rollout"):
        ended(run.batch)


ENDINGS = {
    **{f"synchronous, {name}": (MODES["synchronous"], *given[:2]) for name, given in FILTERS.items()},
    "fully asynchronous": (FULLY_ASYNC, "ors_clients.slime.keep_group", None),
    "fully asynchronous, none": (FULLY_ASYNC, None, None),
}


@pytest.mark.parametrize(("mode", "path", "chained"), ENDINGS.values(), ids=ENDINGS)
def test_a_run_ends_with_its_reason_whatever_filters_its_groups(
    start: Start, mode: str, path: str | None, chained: str | None
) -> None:
    run = start(
        [LOST],
        rollout_function_path=mode,
        dynamic_sampling_filter_path=path,
        configuration={"max_failures_in_row": 2, "group_filter": chained},
    )
    with pytest.raises(InfrastructureFailure, match=r"2 times in a row|Every rollout of a batch was lost"):
        ended(run.batch, seconds=30)


def test_a_filter_that_a_mode_would_not_call_is_refused(start: Start) -> None:
    run = start([earn(1.0)], rollout_function_path=FULLY_ASYNC, configuration={"group_filter": OWN})
    with pytest.raises(ConfigurationError, match="calls no filter of groups"):
        ended(run.batch, seconds=30)


def test_a_batch_of_which_everything_is_lost_ends_the_run(start: Start) -> None:
    run = start([LOST], dynamic_sampling_filter_path=None)
    with pytest.raises(InfrastructureFailure, match="Every rollout of a batch was lost"):
        ended(run.batch)


def test_a_requeued_group_is_no_hot_loop(start: Start) -> None:
    run = start([LOST] * 12 + [earn(0.5), earn(1.0)], rollout_function_path=FULLY_ASYNC, sglang_server_concurrency=1)
    begun = time.monotonic()
    samples, data = run.batch()
    check_batch(run, samples, data)
    assert run.engine.policy.begun <= 12 + 4 * (2 + time.monotonic() - begun)  # type: ignore[attr-defined]


def test_an_evaluation_leaves_lost_rollouts_out(start: Start) -> None:
    outcomes = [LOST, LOST, LOST, *[earn(1.0)] * 6, earn(0.5)]
    run = start(outcomes, tasks=10)
    evaluate_on(run)
    logged = run.evaluate()
    assert logged["eval/e"] == pytest.approx(6.5 / 7)
    assert logged["eval/e/infrastructure_failures"] == 3


def test_pass_rates_leave_out_prompts_that_lost_a_rollout(start: Start) -> None:
    run = start([LOST, *[earn(1.0)] * 7], tasks=4, log_passrate=True, n_samples_per_eval_prompt=2)
    evaluate_on(run)
    logged = run.evaluate()
    assert logged["eval/e"] == 1.0
    assert logged["eval/e-pass@1"] == 1.0


def test_an_evaluation_of_which_everything_is_lost_has_no_score(start: Start) -> None:
    run = start([LOST], tasks=3)
    evaluate_on(run)
    logged = run.evaluate()
    assert "eval/e" not in logged
    assert logged["eval/e/infrastructure_failures"] == 3


def evaluate_on(run: Run) -> None:
    run.args.eval_datasets = [
        eval_config.EvalDatasetConfig(
            name="e",
            path=run.args.prompt_data,
            input_key="prompt",
            label_key="label",
            metadata_key="metadata",
            n_samples_per_eval_prompt=run.args.n_samples_per_eval_prompt,
            temperature=1.0,
            top_p=1.0,
            top_k=-1,
            max_response_len=256,
        )
    ]


def test_a_complete_batch_waits_for_no_tool(start: Start) -> None:
    # The group without the slow episode completes the batch.
    slow = [call("wait", seconds=60), earn(1.0)]
    run = start([slow, earn(0.5)], n_samples_per_prompt=2, over_sampling_batch_size=2)
    begun = time.monotonic()
    samples, data = run.batch()
    check_batch(run, samples, data)
    assert time.monotonic() - begun < 30


def test_partial_rollouts_are_begun_anew(start: Start) -> None:
    # The group with the slow episode is aborted, and alone makes up the second batch.
    slow = [call("wait", seconds=60), earn(1.0)]
    run = start([slow, earn(0.5)], n_samples_per_prompt=2, over_sampling_batch_size=2, partial_rollout=True)
    first = run.batch(0)
    check_batch(run, *first)
    run.args.over_sampling_batch_size = 1
    second = run.batch(1)
    check_batch(run, *second)
    assert sorted(sample.index for sample in [*first[0], *second[0]]) == [0, 1, 2, 3]
    assert second[1]["raw_reward"] == [0.5, 0.5]


@pytest.mark.parametrize("path", MODES.values(), ids=MODES)
def test_a_batch_of_prompts_over_the_limit_ends_the_run(start: Start, path: str) -> None:
    run = start([earn(1.0)], rollout_function_path=path, rollout_max_context_len=4, dynamic_sampling_filter_path=None)
    with pytest.raises(InfrastructureFailure, match="the prompt is too long"):
        ended(run.batch)


def test_a_lost_rollout_can_be_batched_with_top_p_replay(start: Start) -> None:
    # The engine sends no top-p ids: those of the others' tokens are empty, too.
    run = start([LOST, earn(1.0)], dynamic_sampling_filter_path=None, rollout_top_p=0.9)
    samples = ended(lambda: run.manager._get_rollout_data(0))[0]
    (lost,) = [sample for sample in samples if sample.remove_sample]
    assert len(lost.rollout_top_p_token_offsets) == lost.response_length + 1


def test_the_data_set_of_a_vision_model_takes_the_rows(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    run = start([earn(1.0)])
    seen: list[Any] = []

    def read_images(prompt: Any, processor: Any) -> None:
        seen.append(prompt)

    monkeypatch.setattr("slime.utils.processing_utils.process_vision_info", read_images)
    keys = {"prompt_key": "prompt", "label_key": "label", "metadata_key": "metadata"}
    made = import_module("slime.utils.data").Dataset(run.args.prompt_data, None, "a processor", None, **keys)
    assert len(made) == len(seen) == 8


def test_slime_knows_the_recipes_arguments(tmp_path: Path) -> None:
    model = tmp_path / "model.sh"
    model.write_text("MODEL_ARGS=(--num-layers 2)\n")
    assert CHECKOUT is not None
    provider = slime_arguments.get_slime_extra_args_provider()
    # The backend is the checkout's: slime has had no other since March 2026.
    options = ["--ref-load", str(tmp_path), "--model-args", str(model)]
    args = parse_recipe("slime", CHECKOUT, provider, *options)
    assert args.custom_eval_rollout_log_function_path == "generate.log_eval_rollout_data"
    assert args.custom_reward_post_process_path == "generate.post_process_rewards"
    assert not args.colocate
    assert parse_recipe("slime", CHECKOUT, provider, *options, "--num-gpus", "8").colocate
