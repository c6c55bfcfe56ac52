"""Reinforcement learning by TRL's ``GRPOTrainer``, whose rollouts are our episodes.

TRL asks ``rollout_func`` for the tokens of a batch. Here these are episodes of the same loop as the evaluation's, many
at once, with their tokens as they were sampled. A lost episode has no reward: TRL leaves it out of its group.

Checkpoints are TRL's own. Its last file is the trainer's state, so a folder with a readable one is whole.
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ors_clients.errors import ConfigurationError
from ors_clients.learning.episodes import Rollout
from ors_clients.learning.learner import Learner
from ors_clients.learning.stages import written
from ors_clients.learning.tiny.model import INSTALL_TRL
from ors_clients.training.optional_imports import import_trainer_module

__all__ = ["LOST", "last_checkpoint", "train"]

#: Begins the metrics of lost rollouts, of which each is the share of a cause.
LOST = "lost/"
_STATE = "trainer_state.json"
#: Batches of episodes between two checkpoints.
_SAVED = 5

#: Plays an episode of each of these tasks: a batch, with its number.
Play = Callable[[Sequence[int], int], Sequence[Rollout]]


def train(model: Any, learner: Learner, play: Play, on_step: Callable[[dict[str, Any]], None]) -> list[dict[str, Any]]:
    """Train a model, from the last checkpoint in the run's folder if there is one.

    Return what TRL logged of each batch. Raises ``ConfigurationError`` for a checkpoint that cannot be written, and
    for too little memory.
    """
    plan, tokenizer, folder = learner.plan, learner.tokenizer, learner.stages.folder / "checkpoints"
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    warnings.filterwarnings("ignore", message="TRL currently supports vLLM")  # in its own engine, which is not used
    trl = import_trainer_module("trl", INSTALL_TRL)
    transformers = import_trainer_module("transformers", INSTALL_TRL)
    datasets = import_trainer_module("datasets", INSTALL_TRL)
    recipe = plan.recipe

    def rollouts(prompts: list[str], trainer: Any) -> dict[str, Any]:
        played = play([int(prompt) for prompt in prompts], trainer.state.global_step // recipe.iterations + 1)
        padding, end = tokenizer.pad_token_id, tokenizer.eos_token_id
        # Of one whose prompt fills the context there is nothing to train on either, but it has a reward.
        kept = [one.trajectory if one.reward is not None and one.trajectory.response_ids else None for one in played]
        return {
            "prompt_ids": [one.prompt_ids if one else [padding] for one in kept],
            "completion_ids": [one.response_ids if one else [end] for one in kept],
            "logprobs": [one.logprobs if one else [0.0] for one in kept],
            "env_mask": [one.loss_mask if one else [0] for one in kept],
            "reward": [one.reward for one in played],
            "lost": [one.lost for one in played],
        }

    def environment_reward(
        reward: Sequence[float | None], lost: Sequence[str], log_metric: Callable[[str, float], None], **_: Any
    ) -> list[float | None]:
        # TRL makes a mean of what a metric was logged as: the share of the rollouts with each cause.
        for cause in sorted({*lost} - {""}):
            for found in lost:
                log_metric(f"{LOST}{cause}", float(found == cause))
        return list(reward)

    def of_batch(logs: dict[str, Any], steps: int) -> dict[str, Any]:
        return logs | {"step": steps // recipe.iterations, "step_time": logs["step_time"] * recipe.iterations}

    class Progress(transformers.TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if logs and "reward" in logs:
                on_step(of_batch(logs, state.global_step))

    grpo_trainer: Any = trl.GRPOTrainer

    class Trainer(grpo_trainer):
        def _save_checkpoint(self, *arguments: Any, **named: Any) -> None:
            with written(folder):
                grpo_trainer._save_checkpoint(self, *arguments, **named)

    trainer = Trainer(
        model=model,
        processing_class=tokenizer,
        args=trl.GRPOConfig(
            output_dir=str(folder),
            **learner.trainer_settings(),
            num_generations=recipe.group_size,
            num_iterations=recipe.iterations,
            max_steps=recipe.steps * recipe.iterations,
            learning_rate=recipe.learning_rate,
            lr_scheduler_type="linear",
            beta=0.0,
            max_completion_length=recipe.max_tokens,
            logging_steps=recipe.iterations,
            logging_nan_inf_filter=False,
            save_steps=_SAVED * recipe.iterations,
            save_total_limit=2,
            ignore_data_skip=True,
            report_to="none",
            disable_tqdm=True,
            seed=plan.seed,
        ),
        train_dataset=datasets.Dataset.from_dict(
            {"prompt": [str(task.index) for task in plan.train[plan.tiny.demonstrations if plan.tiny else 0 :]]}
        ),
        reward_funcs=environment_reward,
        rollout_func=rollouts,
        callbacks=[Progress()],
    )
    if learner.correct_sampling():
        # TRL does so for an engine of its own only. Ours has been given the weights before it plays.
        trainer.use_vllm = True
        trainer.vllm_generation = SimpleNamespace(sync_weights=lambda: None)
        trainer._last_loaded_step = -1
    trainer.remove_callback(transformers.PrinterCallback)  # it prints every figure of every step
    checkpoint = last_checkpoint(folder)
    try:
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    except import_trainer_module("torch", INSTALL_TRL).OutOfMemoryError as error:
        raise ConfigurationError(
            f"The memory of the {plan.device} is used up: {error}",
            "Begin a new run with a smaller --context or --concurrency, or a smaller model.",
        ) from error
    return [of_batch(entry, entry["step"]) for entry in trainer.state.log_history if "reward" in entry]


def last_checkpoint(folder: Path) -> Path | None:
    """Return the last whole checkpoint; remove later ones, which a kill or a full disk cut off.

    Raises ``ConfigurationError`` where one cannot be removed.
    """
    found = sorted(folder.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]), reverse=True)
    for path in found:
        try:
            json.loads((path / _STATE).read_bytes())
        except (OSError, ValueError):
            try:
                shutil.rmtree(path)
            except OSError as error:
                raise ConfigurationError(f"{path} is not whole and cannot be removed: {error}", "Remove it.") from error
        else:
            return path
    return None
