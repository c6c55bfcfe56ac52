"""Miles' own modules with our functions, up to the tensors that would be trained on.

``ORS_MILES_CHECKOUT`` names a checkout of radixark/miles. Its ``Dataset``, data source, rollout functions (synchronous,
fully asynchronous, evaluation), session server with its template merger, conversion, normalisation, logging and
argument parser run unmodified. SGLang is scripted behind its wire format, and a process of ours serves the
environments.
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
from ors_clients import miles as ours
from ors_clients.errors import ConfigurationError, InfrastructureFailure
from ors_clients.training.sample_functions import RunEnded

from tests.clients.lost_rollout_table import OURS, expected
from tests.clients.scripted_engine import ScriptedEngine, serve_application
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
distributed: Any = import_module("torch.distributed")
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

    def batch(self, rollout_id: int = 0) -> tuple[list[Any], dict[str, Any]]:
        """Return samples and training data like ``RolloutManager.generate``, without what it sends to GPUs."""
        samples, metadata = self.samples(rollout_id)
        data = conversion.convert_samples_to_train_data(
            self.args,
            samples,
            metadata=metadata,
            custom_convert_samples_to_train_data_func=None,
            custom_reward_post_process_func=self.post_process(),
        )
        return samples, data

    def samples(self, rollout_id: int = 0) -> tuple[list[Any], dict[str, Any]]:
        """Return the samples of a batch, logged, and what Miles knows of them beside."""
        given = base_types.RolloutFnTrainInput(rollout_id=rollout_id)
        output = compatibility.call_rollout_function(self.rollout, given)
        samples, metadata = postprocessing.postprocess_rollout_data(self.args, output.samples, {"dp_size": 1})
        metrics.log_rollout_data(rollout_id, self.args, samples, output.metrics, 1.0)
        return samples, metadata

    def evaluate(self) -> dict[str, Any]:
        """Return the logged values like ``RolloutManager.eval``."""
        self.args.eval_datasets = [
            eval_config.EvalDatasetConfig(
                name="e",
                path=self.args.prompt_data,
                input_key="prompt",
                label_key="label",
                metadata_key="metadata",
                n_samples_per_eval_prompt=1,
                temperature=1.0,
                top_p=1.0,
                top_k=-1,
                max_response_len=256,
            )
        ]
        result = compatibility.call_rollout_function(self.rollout, base_types.RolloutFnEvalInput(rollout_id=0))
        return metrics.log_eval_rollout_data(0, self.args, result.data, result.metrics)


Start = Callable[..., Run]


@pytest.fixture
def start(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Start]:
    """Start a run whose model says what ``outcomes`` has for each episode."""
    opened: list[Any] = []
    checkpoint = tmp_path / "checkpoint"
    monkeypatch.setattr(metrics.tracking, "log", log_nothing)
    http_utils._http_client = None

    def serve(context: Any) -> Any:
        value = context.__enter__()
        opened.append(context)
        return value

    def make(
        outcomes: Sequence[Any] | ByTask,
        *,
        configuration: dict[str, Any] | None = None,
        rule: dict[str, Any] | None = None,
        tasks: int = 8,
        rows: dict[str, Any] | None = None,
        agent: str | None = None,
        version: Any = True,
        template: str = "qwen3",
        **arguments: Any,
    ) -> Run:
        tokenizer = tiny_tokenizer(template)
        tokenizer.save_pretrained(checkpoint)
        policy = outcomes if isinstance(outcomes, ByTask) else Outcomes(outcomes)
        engine = ScriptedEngine(policy, tokenizer)
        serve(engine.serve())
        file = write_configuration(tmp_path, url, {STEPS: rule or {}}, **(configuration or {}))
        monkeypatch.setenv("TRAIN_CONFIG", str(file))
        data = write_rows(tmp_path / "tasks.jsonl", STEPS, ({"number": n} for n in range(tasks)), **(rows or {}))
        parser = argparse.ArgumentParser()
        monkeypatch.setattr(sys, "argv", ["train_async.py"])
        miles_arguments.get_miles_extra_args_provider()(parser)
        args: Any = parser.parse_args(["--rollout-batch-size", "1"])
        host, _, port = engine.url.removeprefix("http://").partition(":")
        args.__dict__.update(
            hf_checkpoint=str(checkpoint),
            prompt_data=str(data),
            input_key="prompt",
            label_key="label",
            metadata_key="metadata",
            rollout_function_path=SYNCHRONOUS,
            rollout_batch_size=1,
            n_samples_per_prompt=4,
            over_sampling_batch_size=1,
            global_batch_size=4,
            rollout_max_response_len=256,
            rollout_num_gpus=1,
            rollout_num_gpus_per_engine=1,
            sglang_server_concurrency=64,
            sglang_router_ip=host,
            sglang_router_port=int(port),
            sglang_router_policy=None,
            sglang_speculative_algorithm=None,
            use_distributed_post=False,
            custom_generate_function_path="ors_clients.miles.generate" if agent is None else AGENT,
            custom_agent_function_path="ors_clients.miles.run",
            custom_rm_path="ors_clients.miles.reward_func",
            dynamic_sampling_filter_path="ors_clients.miles.keep_group",
            custom_reward_post_process_path="ors_clients.miles.post_process_rewards",
            custom_rollout_log_function_path="ors_clients.miles.log_rollout_data",
            custom_eval_rollout_log_function_path="ors_clients.miles.log_eval_rollout_data",
            advantage_estimator="grpo",
            rewards_normalization=True,
            grpo_std_normalization=True,
            num_layers=2,
            train_config=str(file),
            max_seq_len=None,
        )
        args.__dict__.update(arguments)
        if agent is not None:
            args.__dict__.update(use_session_server=version, tito_model=agent)
            if agent != "default":  # as `miles_validate_args` does
                family = templates.TITOTokenizerType(agent)
                args.chat_template_path, args.apply_chat_template_kwargs = templates.resolve_fixed_chat_template(family)
            args.session_server_ip = "127.0.0.1"
            address = serve(serve_application(session_server.SessionServer(args, engine.url).app))
            args.session_server_ports = [int(address.rpartition(":")[2])]
        http_utils.init_http_client(args)
        return Run(args, engine)

    yield make
    async_utils.run(end_work(ours.close))
    for context in reversed(opened):
        context.__exit__(None, None, None)


def check_batch(run: Run, samples: Sequence[Any], data: dict[str, Any]) -> None:
    """Check that every sample is of an episode that ended, with its reward and its group's baseline."""
    for place, sample in enumerate(samples):
        assert not sample.remove_sample
        assert not sample.metadata["failure"]
        assert data["raw_reward"][place] == sample.metadata["episode_reward"]
        check_tokens(data["tokens"][place], data["loss_masks"][place], data["rollout_log_probs"][place], run.engine)
    assert len(data["raw_reward"]) == len(samples)
    check_baselines(data, run.args.n_samples_per_prompt)


FORMS = {"generate": None, "agent": "qwen3"}
SEVERAL = [[call("earn", reward=0.25), earn(0.5)], earn(0.9), [call("write", count=3), earn(1.0)], earn(0.0)]


@pytest.mark.parametrize("agent", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("path", MODES.values(), ids=MODES)
def test_a_batch_is_what_happened(start: Start, path: str, agent: str | None) -> None:
    run = start([*SEVERAL, earn(0.5)], rollout_function_path=path, agent=agent)
    samples, data = ended(run.batch)
    check_batch(run, samples, data)
    if path == SYNCHRONOUS:
        assert sorted(data["raw_reward"]) == [0.0, 0.75, 0.9, 1.0]


@pytest.mark.parametrize("agent", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("path", MODES.values(), ids=MODES)
def test_a_lost_rollout_is_in_no_baseline(start: Start, path: str, agent: str | None) -> None:
    assert expected("Miles, fully asynchronous", "whichever") == "again"
    run = start([LOST, earn(0.9), earn(1.0), LOST, earn(0.5)], rollout_function_path=path, agent=agent)
    check_batch(run, *ended(run.batch))


@pytest.mark.parametrize("agent", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("path", MODES.values(), ids=MODES)
def test_a_run_that_loses_everything_ends(start: Start, path: str, agent: str | None) -> None:
    run = start([LOST], rollout_function_path=path, agent=agent, configuration={"max_failures_in_row": 2})
    with pytest.raises(InfrastructureFailure, match="2 times in a row"):
        ended(run.batch)


@pytest.mark.parametrize("agent", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("path", MODES.values(), ids=MODES)
def test_a_mistake_of_configuration_ends_the_run(start: Start, path: str, agent: str | None) -> None:
    rows: dict[str, Any] = {"metadata": {"env_name": "nobody", "task_spec": {}}}
    run = start([earn(1.0)], rollout_function_path=path, agent=agent, rows=rows)
    with pytest.raises(ConfigurationError, match="nobody"):
        ended(run.batch)


HUB = "miles.rollout.filter_hub.dynamic_sampling_filters"
OWN = "tests.long.trainers.lost_rollouts.keep_everything"
#: What filters the groups: the option's value, the training file's `group_filter`, and the row of the table.
FILTERS: dict[str, tuple[str | None, str | None, str]] = {
    "ours": ("ors_clients.miles.keep_group", None, OURS),
    "ours and Miles'": ("ors_clients.miles.keep_group", f"{HUB}.check_reward_nonzero_std", OURS),
    "ours and the user's": ("ors_clients.miles.keep_group", OWN, OURS),
    **{
        name: (f"{HUB}.{name}", None, f"`{name}` in its place, with `post_process_rewards`")
        for name in ("check_reward_nonzero_std", "check_no_aborted")
    },
    "the user's": (OWN, None, "a filter of the user's own in its place, with `post_process_rewards`"),
    "none": (None, None, "none, with `post_process_rewards`"),
}


@pytest.mark.parametrize("agent", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize(("filter_path", "chained", "row"), FILTERS.values(), ids=FILTERS)
@pytest.mark.parametrize("path", MODES.values(), ids=MODES)
def test_a_run_ends_with_its_reason_whatever_filters_its_groups(
    start: Start, path: str, filter_path: str | None, chained: str | None, row: str, agent: str | None
) -> None:
    run = start(
        [LOST],
        rollout_function_path=path,
        agent=agent,
        dynamic_sampling_filter_path=filter_path,
        configuration={"max_failures_in_row": 2, "group_filter": chained},
    )
    with pytest.raises((InfrastructureFailure, RunEnded), match=r"2 times in a row|Every rollout of a batch was lost"):
        ended(run.batch, seconds=30)


def advantages(samples: Sequence[Any], rewards: Sequence[float], **estimator: Any) -> list[Any]:
    """Return Miles' advantages of these samples with these rewards, a tensor for each."""
    masks = [torch.tensor(sample.loss_mask, dtype=torch.int) for sample in samples]
    lengths = [sample.response_length for sample in samples]
    totals = [len(sample.tokens) for sample in samples]
    kl = [torch.zeros(length) for length in lengths]
    args = advantage_arguments(**estimator)
    found, _ = advantages_hub.compute_advantages(args, kl, list(rewards), kl, masks, totals, lengths)
    if args.normalize_advantages:
        found = advantages_hub.normalize_advantages(args, found, masks, totals, lengths)
    return found


@pytest.fixture(scope="module")
def one_rank() -> Generator[None]:
    """Make this process the only rank of every group."""
    state = SimpleNamespace(cp=SimpleNamespace(size=1, rank=0), effective_dp=SimpleNamespace(group=None))
    with pytest.MonkeyPatch.context() as patch:
        for module in (advantages_hub, math_utils):
            patch.setattr(module, "get_parallel_state", lambda: state)
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
        global_batch_size=8,
    )
    samples, metadata = ended(run.samples)
    if group is not GROUPS["all lost"]:  # a filter by deviation drops that one itself
        assert outcome_of(samples) == expected("Miles", row)
    else:
        assert len(samples) == 8
    for estimator in ESTIMATORS.values():
        if estimator["advantage_estimator"] == "reinforce_plus_plus" and outcome_of(samples) == "masked":
            continue  # refused: see below
        run.args.__dict__.update(estimator)
        data = conversion.convert_samples_to_train_data(
            run.args,
            samples,
            metadata=metadata,
            custom_convert_samples_to_train_data_func=None,
            custom_reward_post_process_func=run.post_process(),
        )

        def alone(own: Sequence[Any]) -> list[float]:
            return conversion._post_process_rewards(run.args, own, None)[1]

        check_survivors(
            samples, data["rewards"], alone, lambda own, rewards, how=estimator: advantages(own, rewards, **how)
        )


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize("path", [None, f"{HUB}.check_reward_nonzero_std"])
def test_a_run_whose_lost_rollouts_would_count_is_refused(start: Start, path: str | None, mode: str) -> None:
    run = start(
        [earn(1.0)],
        rollout_function_path=mode,
        dynamic_sampling_filter_path=path,
        custom_reward_post_process_path=None,
    )
    assert expected("Miles", "neither of the two functions") == "refused"
    with pytest.raises(RunEnded, match="--custom-reward-post-process-path"):
        ended(run.batch)


@pytest.mark.parametrize("path", [None, f"{HUB}.check_reward_nonzero_std"])
def test_an_estimator_that_takes_no_masked_sample_is_refused_without_our_filter(start: Start, path: str | None) -> None:
    run = start([earn(1.0)], dynamic_sampling_filter_path=path, advantage_estimator="reinforce_plus_plus")
    assert expected("Miles", "none or another, with `reinforce_plus_plus`") == "refused"
    with pytest.raises(RunEnded, match="reinforce_plus_plus takes no batch with a lost rollout"):
        ended(run.batch)


def test_rewards_of_a_whole_group_are_asked_for(start: Start) -> None:
    run = start([LOST, *SEVERAL, *SEVERAL], group_rm=True)
    samples, data = ended(run.batch)
    check_batch(run, samples, data)


@pytest.mark.parametrize("agent", FORMS.values(), ids=FORMS)
def test_an_evaluation_leaves_lost_rollouts_out(start: Start, agent: str | None) -> None:
    run = start([LOST, LOST, LOST, *[earn(1.0)] * 6, earn(0.5)], tasks=10, agent=agent)
    logged = ended(run.evaluate)
    assert logged["eval/e"] == pytest.approx(6.5 / 7)
    assert logged["eval/e/infrastructure_failures"] == 3


@pytest.mark.parametrize("agent", FORMS.values(), ids=FORMS)
def test_a_complete_batch_waits_for_no_tool(start: Start, agent: str | None) -> None:
    slow = [call("wait", seconds=60), earn(1.0)]
    # The group without the slow episode completes the batch.
    outcomes = [slow, earn(0.5)]
    run = start(outcomes, n_samples_per_prompt=2, over_sampling_batch_size=2, global_batch_size=2, agent=agent)
    begun = time.monotonic()
    check_batch(run, *ended(run.batch))
    assert time.monotonic() - begun < 30


@pytest.mark.parametrize("agent", FORMS.values(), ids=FORMS)
def test_partial_rollouts_are_begun_anew(start: Start, agent: str | None) -> None:
    # The group with the slow episode is aborted, and alone makes up the second batch.
    slow = [call("wait", seconds=60), earn(1.0)]
    run = start(
        [slow, earn(0.5)],
        n_samples_per_prompt=2,
        over_sampling_batch_size=2,
        global_batch_size=2,
        partial_rollout=True,
        agent=agent,
    )
    first = ended(run.batch)
    check_batch(run, *first)
    run.args.over_sampling_batch_size = 1
    second = ended(lambda: run.batch(1))
    check_batch(run, *second)
    assert sorted(sample.index for sample in [*first[0], *second[0]]) == [0, 1, 2, 3]
    assert second[1]["raw_reward"] == [0.5, 0.5]


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
        ended(run.batch)


@pytest.mark.parametrize("version", [True, "v2"], ids=["v1", "v2"])
@pytest.mark.parametrize("family", ["qwen3", "qwen35", "qwennext"])
def test_the_familys_merger_writes_turns_as_the_template_does(start: Start, family: str, version: Any) -> None:
    run = start([[call("earn", reward=0.5), earn(0.5)]], agent=family, version=version)
    samples, data = ended(run.batch)
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
        ended(run.batch)


def test_the_data_set_of_a_vision_model_takes_the_rows(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    run = start([earn(1.0)])
    seen: list[Any] = []

    def read_images(prompt: Any, processor: Any) -> None:
        seen.append(prompt)

    monkeypatch.setattr("miles.utils.processing_utils.process_vision_info", read_images)
    keys = {"prompt_key": "prompt", "label_key": "label", "metadata_key": "metadata"}
    made = import_module("miles.utils.data").Dataset(run.args.prompt_data, None, "a processor", None, **keys)
    assert len(made) == len(seen) == 8


def test_miles_knows_the_recipes_arguments() -> None:
    provider = miles_arguments.get_miles_extra_args_provider()
    assert CHECKOUT is not None
    args = parse_recipe("miles", CHECKOUT, provider)
    assert args.custom_eval_rollout_log_function_path == "generate.log_eval_rollout_data"
    assert args.custom_reward_post_process_path == "generate.post_process_rewards"
    assert args.train_config is None  # an argument of our own, added by `generate`
    args = parse_recipe("miles", CHECKOUT, provider, "--agent", "--num-gpus", "8")
    assert (args.tito_model, args.custom_agent_function_path) == ("qwen3", "generate.run")
    assert args.colocate
