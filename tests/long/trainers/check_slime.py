"""slime's own modules with our functions, up to the tensors that would be trained on.

``ORS_SLIME_CHECKOUT`` names a checkout of THUDM/slime. Its ``Dataset``, data source, rollout functions (synchronous,
fully asynchronous, evaluation), conversion, normalisation and logging run unmodified. SGLang is scripted behind its
wire format, and a process of ours serves the environments.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ors_clients.errors import ConfigurationError, InfrastructureFailure
from ors_clients.trainers import slime as ours

from tests.clients.scripted_engine import ScriptedEngine
from tests.clients.trainer_setup import serving
from tests.long.trainers.lost_rollouts import ByTask, advantage_arguments
from tests.long.trainers.shared_checks import (
    OWN,
    SharedChecks,
    Start,
    batch,
    begin_run,
    check_batch,
    evaluation_set,
    only_rank,
)
from tests.long.trainers.upstream import (
    LOST,
    check_refused_names,
    checkout,
    earn,
    end_work,
    ended,
    import_checkout,
    log_nothing,
    parse_recipe,
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
torch: Any = import_module("torch")

FULLY_ASYNC = "slime.rollout.fully_async_rollout.generate_rollout_fully_async"
MODES = {"synchronous": "slime.rollout.sglang_rollout.generate_rollout", "fully asynchronous": FULLY_ASYNC}


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

    def samples(self, rollout_id: int = 0) -> tuple[list[Any], None]:
        """Return the samples of a batch, logged."""
        samples, metrics = self.manager._get_rollout_data(rollout_id)
        rollout_metrics.log_rollout_data(rollout_id, self.args, samples, metrics, 1.0)
        return samples, None

    def convert(self, samples: list[Any], context: None) -> dict[str, Any]:
        """Return the training data like ``RolloutManager.generate``, without what it sends to GPUs."""
        return self.manager._convert_samples_to_train_data(samples)

    def evaluate(self) -> dict[str, Any]:
        """Return the logged values like ``RolloutManager.eval``."""
        self.args.eval_datasets = [eval_config.EvalDatasetConfig(**evaluation_set(self.args))]
        result = base_types.call_rollout_fn(sglang_rollout.generate_rollout, self.args, 0, self.source, evaluation=True)
        return rollout_metrics.log_eval_rollout_data(0, self.args, result.data, result.metrics)


@pytest.fixture
def start(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Start]:
    """Start a run whose model says what ``outcomes`` has for each episode."""
    monkeypatch.setattr(rollout_metrics.logging_utils, "log", log_nothing)
    monkeypatch.setattr(sys, "argv", ["train_async.py"])

    def make(outcomes: Sequence[Any] | ByTask, *, agent: None = None, **arguments: Any) -> Run:
        in_turn = arguments.get("rollout_function_path") == FULLY_ASYNC
        given: dict[str, Any] = {
            **vars(slime_arguments._pre_parse_mode()),
            "rollout_shuffle": False,
            "rollout_num_engines": 1,
            # Fully asynchronous, it is also the number of concurrent groups.
            "sglang_server_concurrency": 1 if in_turn else 64,
            "sglang_dp_size": 1,
            **arguments,
        }
        provider = slime_arguments.get_slime_extra_args_provider()
        args, engine = begin_run("slime", stack, tmp_path, url, provider, outcomes, given)
        http_utils.init_http_client(args)
        return Run(args, engine)

    with ExitStack() as stack:
        yield make
        fully_async_rollout._stop_global_worker()
        async_utils.run(end_work(ours.close))
        misc.SingletonMeta._instances.clear()


@pytest.fixture(scope="module")
def one_rank() -> Generator[None]:
    """Make this process the only rank of every group."""

    def no_group(**_: Any) -> None:
        return None

    mpu = SimpleNamespace(
        is_pipeline_last_stage=lambda: True,
        get_context_parallel_rank=lambda: 0,
        get_context_parallel_world_size=lambda: 1,
        get_data_parallel_group=no_group,
    )
    with only_rank() as patch:
        patch.setattr(loss, "mpu", mpu)
        patch.setattr(import_module("megatron.core"), "mpu", mpu, raising=False)
        yield


class TestSlime(SharedChecks):
    title = package = "slime"
    modes = MODES
    in_order = True
    second_filter = "check_reward_nonzero_std_with_fallback"
    fully_async_row = ("slime, fully asynchronous", "none (it calls none)")
    refused = ConfigurationError
    #: Fully asynchronous runs call no filter.
    endings = (
        *(("synchronous", name) for name in SharedChecks.FILTERS),
        ("fully asynchronous", "ours"),
        ("fully asynchronous", "none"),
    )

    def alone(self, run: Any, own: Sequence[Any]) -> list[float]:
        """Return slime's own rewards of one group."""
        args = SimpleNamespace(**{**vars(run.args), "n_samples_per_prompt": len(own), "rollout_batch_size": 1})
        manager = SimpleNamespace(args=args, custom_reward_post_process_func=None)
        return rollout_manager.RolloutManager._post_process_rewards(manager, own)[1]

    def advantages(self, samples: Sequence[Any], rewards: Sequence[float], **estimator: Any) -> list[Any]:
        """Return slime's advantages."""
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


def test_a_filter_that_a_mode_would_not_call_is_refused(start: Start) -> None:
    run = start([earn(1.0)], rollout_function_path=FULLY_ASYNC, configuration={"group_filter": OWN})
    with pytest.raises(ConfigurationError, match="calls no filter of groups"):
        batch(run, seconds=30)


def test_a_batch_of_which_everything_is_lost_ends_the_run(start: Start) -> None:
    run = start([LOST], dynamic_sampling_filter_path=None)
    with pytest.raises(InfrastructureFailure, match="Every rollout of a batch was lost"):
        batch(run)


def test_a_requeued_group_is_no_hot_loop(start: Start) -> None:
    run = start([LOST] * 12 + [earn(0.5), earn(1.0)], rollout_function_path=FULLY_ASYNC, sglang_server_concurrency=1)
    begun = time.monotonic()
    check_batch(run)
    assert run.engine.policy.begun <= 12 + 4 * (2 + time.monotonic() - begun)  # type: ignore[attr-defined]


@pytest.mark.parametrize("path", MODES.values(), ids=MODES)
def test_a_batch_of_prompts_over_the_limit_ends_the_run(start: Start, path: str) -> None:
    run = start([earn(1.0)], rollout_function_path=path, rollout_max_context_len=4, dynamic_sampling_filter_path=None)
    with pytest.raises(InfrastructureFailure, match="the prompt is too long"):
        batch(run)


def test_a_lost_rollout_can_be_batched_with_top_p_replay(start: Start) -> None:
    # The engine sends no top-p ids: those of the others' tokens are empty, too.
    run = start([LOST, earn(1.0)], dynamic_sampling_filter_path=None, rollout_top_p=0.9)
    samples, _ = ended(run.samples)
    (lost,) = [sample for sample in samples if sample.remove_sample]
    assert len(lost.rollout_top_p_token_offsets) == lost.response_length + 1


def test_slime_knows_the_recipes_arguments(tmp_path: Path) -> None:
    model = tmp_path / "model.sh"
    model.write_text("MODEL_ARGS=(--num-layers 2)\n")
    assert CHECKOUT is not None
    provider = slime_arguments.get_slime_extra_args_provider()
    # The backend is the checkout's: slime has had no other since March 2026.
    options = ["--model-args", str(model), "--", "--ref-load", str(tmp_path)]
    args = parse_recipe("slime", CHECKOUT, provider, *options)
    assert args.custom_eval_rollout_log_function_path == "generate.log_eval_rollout_data"
    assert args.custom_reward_post_process_path == "generate.post_process_rewards"
    assert not args.colocate
    assert parse_recipe("slime", CHECKOUT, provider, *options, "--colocate", "--actor-num-gpus-per-node", "8").colocate


def test_every_name_that_slime_takes_for_an_option_of_ours_is_refused() -> None:
    check_refused_names(slime_arguments.get_slime_extra_args_provider())
