"""Miles' own modules with our functions, up to the tensors that would be trained on.

``ORS_MILES_CHECKOUT`` names a checkout of radixark/miles. Its ``Dataset``, data source, rollout functions (synchronous,
fully asynchronous, evaluation), session server with its template merger, conversion, normalisation, logging and
argument parser run unmodified. SGLang is scripted behind its wire format, and a process of ours serves the
environments.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Generator, Sequence
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ors_clients.errors import InfrastructureFailure
from ors_clients.trainers import miles as ours
from ors_clients.training.sample_functions import RunEnded

from tests.clients.scripted_engine import ScriptedEngine, serve_application
from tests.clients.trainer_setup import call, serving
from tests.long.trainers.lost_rollouts import ByTask, advantage_arguments
from tests.long.trainers.shared_checks import SharedChecks, Start, batch, begin_run, evaluation_set, only_rank
from tests.long.trainers.upstream import (
    check_refused_names,
    checkout,
    earn,
    end_work,
    import_checkout,
    log_nothing,
    parse_recipe,
)

CHECKOUT = checkout("ORS_MILES_CHECKOUT", "miles")
if CHECKOUT is None:
    pytest.skip("ORS_MILES_CHECKOUT names no checkout of Miles", allow_module_level=True)
import_checkout(CHECKOUT)

metrics: Any = import_module("miles.ray.rollout.metrics")
conversion: Any = import_module("miles.ray.rollout.train_data_conversion")
postprocessing: Any = import_module("miles.ray.rollout.rollout_data_conversion")
base_types: Any = import_module("miles.rollout.base_types")
data_source: Any = import_module("miles.rollout.data_source")
compatibility: Any = import_module("miles.rollout.inference_rollout.compatibility")
session_server: Any = import_module("miles.rollout.session.server")
miles_arguments: Any = import_module("miles.utils.arguments")
async_utils: Any = import_module("miles.utils.async_utils")
eval_config: Any = import_module("miles.utils.eval_config")
templates: Any = import_module("miles.utils.chat_template_utils")
http_utils: Any = import_module("miles.utils.http_utils")
advantages_hub: Any = import_module("miles.backends.training_utils.loss_hub.advantages")
math_utils: Any = import_module("miles.backends.training_utils.loss_hub.math_utils")
misc: Any = import_module("miles.utils.misc")
torch: Any = import_module("torch")

SYNCHRONOUS = "miles.rollout.inference_rollout.inference_rollout_common.InferenceRolloutFn"
FULLY_ASYNC = "miles.rollout.fully_async_rollout.FullyAsyncRolloutFn"
MODES = {"synchronous": SYNCHRONOUS, "fully asynchronous": FULLY_ASYNC}
AGENT = "ors_clients.miles.generate_with_agent"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    with serving(tmp_path_factory.mktemp("server")) as address:
        yield address


class Run:
    """One run of Miles: its arguments, data source and rollout function."""

    def __init__(self, args: Any, engine: ScriptedEngine) -> None:
        self.args, self.engine = args, engine
        self.source = data_source.RolloutDataSourceWithBuffer(args)
        given = base_types.RolloutFnConstructorInput(args=args, data_source=self.source)
        self.rollout = compatibility.load_rollout_function(given, args.rollout_function_path)

    def post_process(self) -> Any:
        """Return the function that makes rewards relative to their groups; None for Miles' own."""
        path = self.args.custom_reward_post_process_path
        return misc.load_function(path) if path else None

    def samples(self, rollout_id: int = 0) -> tuple[list[Any], dict[str, Any]]:
        """Return the samples of a batch, logged, and what Miles knows of them beside."""
        given = base_types.RolloutFnTrainInput(rollout_id=rollout_id)
        output = compatibility.call_rollout_function(self.rollout, given)
        samples, metadata = postprocessing.postprocess_rollout_data(self.args, output.samples, {"dp_size": 1})
        metrics.log_rollout_data(rollout_id, self.args, samples, output.metrics, 1.0)
        return samples, metadata

    def convert(self, samples: list[Any], context: dict[str, Any]) -> dict[str, Any]:
        """Return the training data like ``RolloutManager.generate``, without what it sends to GPUs."""
        return conversion.convert_samples_to_train_data(
            self.args,
            samples,
            metadata=context,
            custom_convert_samples_to_train_data_func=None,
            custom_reward_post_process_func=self.post_process(),
        )

    def evaluate(self) -> dict[str, Any]:
        """Return the logged values like ``RolloutManager.eval``."""
        self.args.eval_datasets = [eval_config.EvalDatasetConfig(**evaluation_set(self.args))]
        result = compatibility.call_rollout_function(self.rollout, base_types.RolloutFnEvalInput(rollout_id=0))
        return metrics.log_eval_rollout_data(0, self.args, result.data, result.metrics)


@pytest.fixture
def start(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Start]:
    """Start a run whose model says what ``outcomes`` has for each episode."""
    monkeypatch.setattr(metrics.tracking, "log", log_nothing)
    monkeypatch.setattr(sys, "argv", ["train_async.py"])
    http_utils._http_client = None

    def make(
        outcomes: Sequence[Any] | ByTask, *, agent: str | None = None, version: Any = True, **arguments: Any
    ) -> Run:
        given: dict[str, Any] = {
            "rollout_function_path": SYNCHRONOUS,
            "global_batch_size": 4,
            "sglang_router_policy": None,
            "custom_agent_function_path": "ors_clients.miles.run",
            "max_seq_len": None,
            **arguments,
        }
        provider = miles_arguments.get_miles_extra_args_provider()
        args, engine = begin_run("miles", stack, tmp_path, url, provider, outcomes, given)
        monkeypatch.setenv("TRAIN_CONFIG", args.train_config)
        if agent is not None:
            args.__dict__.update(use_session_server=version, tito_model=agent, custom_generate_function_path=AGENT)
            if agent != "default":  # as `miles_validate_args` does
                family = templates.TITOTokenizerType(agent)
                args.chat_template_path, args.apply_chat_template_kwargs = templates.resolve_fixed_chat_template(family)
            args.session_server_ip = "127.0.0.1"
            server = session_server.SessionServer(args, engine.url)
            address = stack.enter_context(serve_application(server.app))
            args.session_server_ports = [int(address.rpartition(":")[2])]
        http_utils.init_http_client(args)
        return Run(args, engine)

    with ExitStack() as stack:
        yield make
        async_utils.run(end_work(ours.close))


@pytest.fixture(scope="module")
def one_rank() -> Generator[None]:
    """Make this process the only rank of every group."""
    state = SimpleNamespace(cp=SimpleNamespace(size=1, rank=0), effective_dp=SimpleNamespace(group=None))
    with only_rank() as patch:
        for module in (advantages_hub, math_utils):
            patch.setattr(module, "get_parallel_state", lambda: state)
        yield


class TestMiles(SharedChecks):
    title, package = "Miles", "miles"
    modes = MODES
    forms = {"generate": None, "agent": "qwen3"}  # noqa: RUF012 - as in the base
    in_order = False
    second_filter = "check_no_aborted"
    fully_async_row = ("Miles, fully asynchronous", "whichever")
    refused = RunEnded
    endings = tuple(itertools.product(MODES, SharedChecks.FILTERS))

    def alone(self, run: Any, own: Sequence[Any]) -> list[float]:
        """Return Miles' own rewards of one group."""
        return conversion._post_process_rewards(run.args, own, None)[1]

    def advantages(self, samples: Sequence[Any], rewards: Sequence[float], **estimator: Any) -> list[Any]:
        """Return Miles' advantages."""
        masks = [torch.tensor(sample.loss_mask, dtype=torch.int) for sample in samples]
        lengths = [sample.response_length for sample in samples]
        totals = [len(sample.tokens) for sample in samples]
        kl = [torch.zeros(length) for length in lengths]
        args = advantage_arguments(**estimator)
        found, _ = advantages_hub.compute_advantages(args, kl, list(rewards), kl, masks, totals, lengths)
        if args.normalize_advantages:
            found = advantages_hub.normalize_advantages(args, found, masks, totals, lengths)
        return found


@pytest.mark.parametrize("path", MODES.values(), ids=MODES)
def test_prompts_over_the_limit_are_dropped_until_too_many_are(start: Start, path: str) -> None:
    # Miles would generate them again without end, fully asynchronously and at once.
    run = start(
        [earn(1.0)],
        rollout_function_path=path,
        agent="qwen3",
        max_seq_len=4,
        configuration={"max_failures_in_row": 3},
    )
    with pytest.raises(InfrastructureFailure, match="max-seq-len"):
        batch(run)


@pytest.mark.parametrize("version", [True, "v2"], ids=["v1", "v2"])
@pytest.mark.parametrize("family", ["qwen3", "qwen35", "qwennext"])
def test_the_familys_merger_writes_turns_as_the_template_does(start: Start, family: str, version: Any) -> None:
    run = start([[call("earn", reward=0.5), earn(0.5)]], agent=family, version=version)
    samples, data = batch(run)
    assert data["raw_reward"] == [1.0] * 4
    for sample in samples:
        text = run.engine.tokenizer.decode(sample.tokens, skip_special_tokens=False)
        assert "<|im_end|>\n<|im_start|>" in text
        assert "<|im_end|><|im_start|>" not in text


def test_the_default_mergers_guesses_are_not_trained_on(start: Start) -> None:
    run = start(
        [[call("earn", reward=0.5), earn(0.5)]],
        agent="default",
        template="qwen2",
        configuration={"max_failures_in_row": 2},
    )
    with pytest.raises(InfrastructureFailure, match="--tito-model"):
        batch(run)


def test_miles_knows_the_recipes_arguments() -> None:
    provider = miles_arguments.get_miles_extra_args_provider()
    assert CHECKOUT is not None
    args = parse_recipe("miles", CHECKOUT, provider)
    assert args.custom_eval_rollout_log_function_path == "generate.log_eval_rollout_data"
    assert args.custom_reward_post_process_path == "generate.post_process_rewards"
    assert args.train_config is None  # an argument of our own, added by `generate`
    args = parse_recipe("miles", CHECKOUT, provider, "--agent", "--", "--colocate", "--actor-num-gpus-per-node", "8")
    assert (args.tito_model, args.custom_agent_function_path) == ("qwen3", "generate.run")
    assert args.colocate


def test_every_name_that_miles_takes_for_an_option_of_ours_is_refused() -> None:
    check_refused_names(miles_arguments.get_miles_extra_args_provider())
