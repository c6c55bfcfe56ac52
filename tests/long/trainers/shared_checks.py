"""Checks of slime's and Miles' own modules with our functions, up to the tensors that would be trained on.

A driver makes a class of ``SharedChecks`` for its trainer, and the fixtures ``start`` and ``one_rank``.
"""

from __future__ import annotations

import argparse
import time
from abc import abstractmethod
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Protocol

import pytest
from ors_clients.errors import ConfigurationError, InfrastructureFailure
from ors_clients.training.sample_functions import RunEnded

from tests.clients.lost_rollout_table import OURS, expected
from tests.clients.scripted_engine import ScriptedEngine
from tests.clients.tiny_tokenizer import tiny_tokenizer
from tests.clients.trainer_setup import call, write_configuration
from tests.long.trainers.lost_rollouts import ESTIMATORS, GROUPS, ByTask, check_survivors, outcome_of
from tests.long.trainers.upstream import LOST, STEPS, Outcomes, check_baselines, check_tokens, earn, ended, write_rows

__all__ = [
    "OWN",
    "SLOW",
    "Run",
    "SharedChecks",
    "Start",
    "batch",
    "begin_run",
    "check_batch",
    "evaluation_set",
    "only_rank",
]

SEVERAL = [[call("earn", reward=0.25), earn(0.5)], earn(0.9), [call("write", count=3), earn(1.0)], earn(0.0)]
SLOW = [call("wait", seconds=60), earn(1.0)]
OWN = "tests.long.trainers.lost_rollouts.keep_everything"


class Run(Protocol):
    """One run of a trainer: its arguments, data source and rollout function."""

    args: Any
    engine: ScriptedEngine

    def samples(self, rollout_id: int = 0) -> tuple[list[Any], Any]:
        """Return the samples of a batch, logged, and what the trainer knows of them beside."""
        ...

    def convert(self, samples: list[Any], context: Any) -> dict[str, Any]:
        """Return the training data, without what is sent to GPUs."""
        ...

    def evaluate(self) -> dict[str, Any]:
        """Return the logged values of an evaluation."""
        ...


Start = Callable[..., Run]


def batch(run: Run, rollout_id: int = 0, seconds: float = 60) -> tuple[list[Any], dict[str, Any]]:
    """Return samples and training data; fail the test if the batch takes longer."""

    def make() -> tuple[list[Any], dict[str, Any]]:
        samples, context = run.samples(rollout_id)
        return samples, run.convert(samples, context)

    return ended(make, seconds)


def check_batch(run: Run, rollout_id: int = 0) -> tuple[list[Any], dict[str, Any]]:
    """Make a batch; check that every sample is of an episode that ended, with its reward and its group's baseline."""
    samples, data = batch(run, rollout_id)
    for place, sample in enumerate(samples):
        assert not sample.remove_sample
        assert not sample.metadata["failure"]
        assert data["raw_reward"][place] == sample.metadata["episode_reward"]
        check_tokens(data["tokens"][place], data["loss_masks"][place], data["rollout_log_probs"][place], run.engine)
    assert len(data["raw_reward"]) == len(samples)
    check_baselines(data, run.args.n_samples_per_prompt)
    return samples, data


def begin_run(
    package: str,
    stack: ExitStack,
    folder: Path,
    url: str,
    add_arguments: Callable[[Any], Any],
    outcomes: Sequence[Any] | ByTask,
    given: dict[str, Any],
) -> tuple[Any, ScriptedEngine]:
    """Serve an engine; return the arguments of a run of one group of four with our functions, and the engine.

    ``url``: the environments' server. ``add_arguments``: the trainer's. ``given``: arguments of the run, and
    ``configuration``, ``tasks``, ``rows`` and ``template``.
    """
    tokenizer = tiny_tokenizer(given.pop("template", "qwen3"))
    tokenizer.save_pretrained(folder / "checkpoint")
    engine = ScriptedEngine(outcomes if isinstance(outcomes, ByTask) else Outcomes(outcomes), tokenizer)
    stack.enter_context(engine.serve())
    file = write_configuration(folder, url, {STEPS: {}}, **given.pop("configuration", {}))
    tasks = ({"number": number} for number in range(given.pop("tasks", 8)))
    data = write_rows(folder / "tasks.jsonl", STEPS, tasks, **given.pop("rows", {}))
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    args: Any = parser.parse_args(["--rollout-batch-size", "1"])
    host, _, port = engine.url.removeprefix("http://").partition(":")
    functions = {
        "custom_generate_function_path": "generate",
        "custom_rm_path": "reward_func",
        "dynamic_sampling_filter_path": "keep_group",
        "custom_reward_post_process_path": "post_process_rewards",
        "custom_rollout_log_function_path": "log_rollout_data",
        "custom_eval_rollout_log_function_path": "log_eval_rollout_data",
    }
    args.__dict__.update(
        {option: f"ors_clients.{package}.{function}" for option, function in functions.items()},
        hf_checkpoint=str(folder / "checkpoint"),
        prompt_data=str(data),
        input_key="prompt",
        label_key="label",
        metadata_key="metadata",
        rollout_batch_size=1,
        n_samples_per_prompt=4,
        over_sampling_batch_size=1,
        rollout_max_response_len=256,
        rollout_num_gpus=1,
        rollout_num_gpus_per_engine=1,
        sglang_server_concurrency=64,
        sglang_router_ip=host,
        sglang_router_port=int(port),
        sglang_speculative_algorithm=None,
        use_distributed_post=False,
        advantage_estimator="grpo",
        rewards_normalization=True,
        grpo_std_normalization=True,
        num_layers=2,
        train_config=str(file),
    )
    args.__dict__.update(given)
    return args, engine


def evaluation_set(args: Any) -> dict[str, Any]:
    """Return the keywords of the trainer's ``EvalDatasetConfig`` for the tasks of a run, under the name ``e``."""
    keys = ("input_key", "label_key", "metadata_key", "n_samples_per_eval_prompt")
    sampling = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_response_len": 256}
    return {"name": "e", "path": args.prompt_data, **{key: getattr(args, key) for key in keys}, **sampling}


@contextmanager
def only_rank() -> Generator[pytest.MonkeyPatch]:
    """Make this process the only rank of a group; yield what patches the trainer's own groups."""
    distributed: Any = import_module("torch.distributed")
    with pytest.MonkeyPatch.context() as patch:
        distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
        yield patch
        distributed.destroy_process_group()


class SharedChecks:
    """Tests of both trainers. The attributes are what differs."""

    #: What filters the groups.
    FILTERS = (
        *("ours", "ours and the trainer's", "ours and the user's"),
        *("by deviation", "the trainer's second", "the user's", "none"),
    )
    #: Name in the table of lost rollouts.
    title: ClassVar[str]
    package: ClassVar[str]
    #: Rollout functions by the name of their mode, ``synchronous`` first.
    modes: ClassVar[dict[str, str]]
    #: The value of ``agent`` of ``start`` by the form of the generate function.
    forms: ClassVar[dict[str, str | None]] = {"generate": None}
    #: Whether a group begins after the one before it, also fully asynchronously.
    in_order: ClassVar[bool]
    #: The trainer's filter beside that by deviation.
    second_filter: ClassVar[str]
    #: The table's row of a fully asynchronous run.
    fully_async_row: ClassVar[tuple[str, str]]
    #: The error that ends a run with a mistake in its functions.
    refused: ClassVar[type[BaseException]]
    #: Modes and filters of which a run's end is tried.
    endings: ClassVar[Sequence[tuple[str, str]]]

    @classmethod
    def filtering(cls, name: str) -> tuple[str | None, str | None, str]:
        """Return what filters the groups: the option's value, ``group_filter``, and the row of the table."""
        ours, deviation = f"ors_clients.{cls.package}.keep_group", f"{cls.hub()}.check_reward_nonzero_std"
        replaced = "{} in its place, with `post_process_rewards`"
        second = f"{cls.hub()}.{cls.second_filter}"
        return {
            "ours": (ours, None, OURS),
            "ours and the trainer's": (ours, deviation, OURS),
            "ours and the user's": (ours, OWN, OURS),
            "by deviation": (deviation, None, replaced.format("`check_reward_nonzero_std`")),
            "the trainer's second": (second, None, replaced.format(f"`{cls.second_filter}`")),
            "the user's": (OWN, None, replaced.format("a filter of the user's own")),
            "none": (None, None, "none, with `post_process_rewards`"),
        }[name]

    @classmethod
    def hub(cls) -> str:
        """Return the module of the trainer's filters."""
        return f"{cls.package}.rollout.filter_hub.dynamic_sampling_filters"

    @abstractmethod
    def alone(self, run: Any, own: Sequence[Any]) -> list[float]:
        """Return the trainer's own rewards, relative to their group, of the samples of one group."""

    @abstractmethod
    def advantages(self, samples: Sequence[Any], rewards: Sequence[float], **estimator: Any) -> list[Any]:
        """Return the trainer's advantages of these samples with these rewards, a tensor for each."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Give each test the modes, forms and filters of the trainer that it names."""
        values: dict[str, dict[str, Any]] = {
            "agent": self.forms,
            "mode": self.modes,
            "filtering": {name: self.filtering(name) for name in self.FILTERS},
            "ending": {f"{mode}, {name}": (self.modes[mode], *self.filtering(name)) for mode, name in self.endings},
            "other_filter": {"none": None, "deviation": f"{self.hub()}.check_reward_nonzero_std"},
        }
        for name in values.keys() & set(metafunc.fixturenames):
            metafunc.parametrize(name, values[name].values(), ids=values[name].keys())

    def test_a_batch_is_what_happened(self, start: Start, mode: str, agent: str | None) -> None:
        run = start([*SEVERAL, earn(0.5)], rollout_function_path=mode, agent=agent)
        _, data = check_batch(run)
        if self.in_order or mode == self.modes["synchronous"]:
            assert sorted(data["raw_reward"]) == [0.0, 0.75, 0.9, 1.0]

    def test_a_lost_rollout_is_in_no_baseline(self, start: Start, mode: str, agent: str | None) -> None:
        assert expected(*self.fully_async_row) == "again"
        check_batch(start([LOST, earn(0.9), earn(1.0), LOST, earn(0.5)], rollout_function_path=mode, agent=agent))

    def test_a_run_that_loses_everything_ends(self, start: Start, mode: str, agent: str | None) -> None:
        run = start([LOST], rollout_function_path=mode, agent=agent, configuration={"max_failures_in_row": 2})
        with pytest.raises(InfrastructureFailure, match="2 times in a row"):
            batch(run)

    def test_a_mistake_of_configuration_ends_the_run(self, start: Start, mode: str, agent: str | None) -> None:
        rows: dict[str, Any] = {"metadata": {"env_name": "nobody", "task_spec": {}}}
        run = start([earn(1.0)], rollout_function_path=mode, agent=agent, rows=rows)
        with pytest.raises(ConfigurationError, match="nobody"):
            batch(run)

    def test_a_run_ends_with_its_reason_whatever_filters_its_groups(
        self, start: Start, ending: tuple[str, str | None, str | None, str], agent: str | None
    ) -> None:
        mode, path, chained, _ = ending
        run = start(
            [LOST],
            rollout_function_path=mode,
            agent=agent,
            dynamic_sampling_filter_path=path,
            configuration={"max_failures_in_row": 2, "group_filter": chained},
        )
        reason = r"2 times in a row|Every rollout of a batch was lost"
        with pytest.raises((InfrastructureFailure, RunEnded), match=reason):
            batch(run, seconds=30)

    @pytest.mark.usefixtures("one_rank")
    @pytest.mark.parametrize("group", GROUPS.values(), ids=GROUPS)
    def test_survivors_have_the_advantages_that_they_have_alone(
        self, start: Start, filtering: tuple[str | None, str | None, str], group: list[str]
    ) -> None:
        path, chained, row = filtering
        run = start(
            ByTask({0: group}),
            dynamic_sampling_filter_path=path,
            configuration={"group_filter": chained},
            rollout_batch_size=2,
            global_batch_size=8,
        )
        samples, context = ended(run.samples)
        if group is not GROUPS["all lost"]:  # a filter by deviation drops that one itself
            assert outcome_of(samples) == expected(self.title, row)
        else:
            assert len(samples) == 8
        for estimator in ESTIMATORS.values():
            if estimator["advantage_estimator"] == "reinforce_plus_plus" and outcome_of(samples) == "masked":
                continue  # refused: see below
            run.args.__dict__.update(estimator)
            data = run.convert(samples, context)
            check_survivors(
                samples,
                data["rewards"],
                lambda own: self.alone(run, own),
                lambda own, rewards, how=estimator: self.advantages(own, rewards, **how),
            )

    def test_a_run_whose_lost_rollouts_would_count_is_refused(
        self, start: Start, other_filter: str | None, mode: str
    ) -> None:
        run = start(
            [earn(1.0)],
            rollout_function_path=mode,
            dynamic_sampling_filter_path=other_filter,
            custom_reward_post_process_path=None,
        )
        assert expected(self.title, "neither of the two functions") == "refused"
        with pytest.raises(self.refused, match="--custom-reward-post-process-path"):
            batch(run)

    def test_an_estimator_that_takes_no_masked_sample_is_refused_without_our_filter(
        self, start: Start, other_filter: str | None
    ) -> None:
        estimator = "reinforce_plus_plus"
        run = start([earn(1.0)], dynamic_sampling_filter_path=other_filter, advantage_estimator=estimator)
        assert expected(self.title, f"none or another, with `{estimator}`") == "refused"
        with pytest.raises(self.refused, match=f"{estimator} takes no batch with a lost rollout"):
            batch(run)

    def test_rewards_of_a_whole_group_are_asked_for(self, start: Start) -> None:
        check_batch(start([LOST, *SEVERAL, *SEVERAL], group_rm=True))

    def test_an_evaluation_leaves_lost_rollouts_out(self, start: Start, agent: str | None) -> None:
        run = start([LOST, LOST, LOST, *[earn(1.0)] * 6, earn(0.5)], tasks=10, agent=agent)
        logged = ended(run.evaluate)
        assert logged["eval/e"] == pytest.approx(6.5 / 7)
        assert logged["eval/e/infrastructure_failures"] == 3

    def test_pass_rates_leave_out_prompts_that_lost_a_rollout(self, start: Start) -> None:
        run = start([LOST, *[earn(1.0)] * 7], tasks=4, log_passrate=True, n_samples_per_eval_prompt=2)
        logged = ended(run.evaluate)
        assert logged["eval/e"] == 1.0
        assert logged["eval/e-pass@1"] == 1.0

    def test_an_evaluation_of_which_everything_is_lost_has_no_score(self, start: Start) -> None:
        logged = ended(start([LOST], tasks=3).evaluate)
        assert "eval/e" not in logged
        assert logged["eval/e/infrastructure_failures"] == 3

    def test_a_complete_batch_waits_for_no_tool(self, start: Start, agent: str | None) -> None:
        # The group without the slow episode completes the batch.
        sizes = {"n_samples_per_prompt": 2, "over_sampling_batch_size": 2, "global_batch_size": 2}
        run = start([SLOW, earn(0.5)], agent=agent, **sizes)
        begun = time.monotonic()
        check_batch(run)
        assert time.monotonic() - begun < 30

    def test_partial_rollouts_are_begun_anew(self, start: Start, agent: str | None) -> None:
        # The group with the slow episode is aborted, and alone makes up the second batch.
        sizes = {"n_samples_per_prompt": 2, "over_sampling_batch_size": 2, "global_batch_size": 2}
        run = start([SLOW, earn(0.5)], agent=agent, partial_rollout=True, **sizes)
        first, _ = check_batch(run)
        run.args.over_sampling_batch_size = 1
        second, data = check_batch(run, 1)
        assert sorted(sample.index for sample in [*first, *second]) == [0, 1, 2, 3]
        assert data["raw_reward"] == [0.5, 0.5]

    def test_the_data_set_of_a_vision_model_takes_the_rows(self, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
        run = start([earn(1.0)])
        seen: list[Any] = []

        def read_images(prompt: Any, processor: Any) -> None:
            seen.append(prompt)

        monkeypatch.setattr(f"{self.package}.utils.processing_utils.process_vision_info", read_images)
        keys = {"prompt_key": "prompt", "label_key": "label", "metadata_key": "metadata"}
        data: Any = import_module(f"{self.package}.utils.data")
        assert len(data.Dataset(run.args.prompt_data, None, "a processor", None, **keys)) == len(seen) == 8
