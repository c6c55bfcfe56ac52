"""Two GRPO steps against a running echo environment, with every object of the trainer made by `OpenRewardSpec`.

    python train.py URL REPORT.json

The tiny model is first taught, on transcripts recorded from the server itself, to call `echo` with a random target:
about a quarter of the rollouts then earn the reward. Writes its observations to REPORT.json and asserts nothing:
tests/long/test_trl.py checks the report. Runs in the virtual environment that scripts/trl-venv makes.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from tiny_model import Transcript, make_tiny_model, play, tool_schemas
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from trl.experimental.openreward import OpenRewardSpec

GENERATIONS = 16


def record_transcripts(environment: Any, rows: list[dict[str, Any]]) -> list[Transcript]:
    """Play every task once with every task's target: one right answer and the wrong ones."""
    words = [row["target"] for row in rows]
    transcripts = [play(environment, row, "echo", {"text": word}) for row in rows for word in words]
    environment._close()
    return transcripts


class StepRecorder(TrainerCallback):
    """Reads, after every step, the rollouts' state in the environments, before the next `reset` clears it."""

    def __init__(self) -> None:
        self.trainer: GRPOTrainer | None = None
        self.rewards_of_steps: list[list[list[float | None]]] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        assert self.trainer is not None
        assert self.trainer.environments is not None
        self.rewards_of_steps.append([list(environment.rewards) for environment in self.trainer.environments])


def main() -> None:
    url, report_path = sys.argv[1], Path(sys.argv[2])
    # Such a small model gains nothing from more threads, and on a busy machine waits between them slow it down tenfold.
    torch.set_num_threads(1)
    spec = OpenRewardSpec(url, env_name="echoenvironment")
    rows = spec.train_dataset.to_list()
    environment = spec.environment_factory()
    transcripts = record_transcripts(environment, rows)
    tiny = make_tiny_model(transcripts)
    before = {name: value.detach().clone() for name, value in tiny.model.named_parameters()}

    recorder = StepRecorder()
    with tempfile.TemporaryDirectory() as output:
        trainer = GRPOTrainer(
            model=tiny.model,
            processing_class=tiny.tokenizer,
            args=GRPOConfig(
                output_dir=output,
                use_cpu=True,
                bf16=False,
                per_device_train_batch_size=len(rows) * GENERATIONS,
                num_generations=GENERATIONS,
                max_steps=2,
                learning_rate=3e-4,
                beta=0.0,
                max_completion_length=96,
                max_tool_calling_iterations=2,
                logging_steps=1,
                save_strategy="no",
                report_to="none",
                seed=0,
            ),
            train_dataset=spec.train_dataset,
            environment_factory=spec.environment_factory,
            reward_funcs=spec.reward_funcs,
            callbacks=[recorder],
        )
        recorder.trainer = trainer
        started = time.monotonic()
        trainer.train()
        training_seconds = time.monotonic() - started

    report = {
        "columns": spec.train_dataset.column_names,
        "rows": [{key: row[key] for key in ("task_index", "id", "target")} for row in rows],
        "tools": [schema["function"]["name"] for schema in tool_schemas(environment)],
        "recorded_calls": len(transcripts),
        "tiny_model": {
            "parameters": sum(value.numel() for value in before.values()),
            "loss": tiny.loss,
            "seconds": tiny.seconds,
        },
        "training_seconds": training_seconds,
        "steps": trainer.state.global_step,
        "rollouts_per_step": len(rows) * GENERATIONS,
        "log": [entry for entry in trainer.state.log_history if "loss" in entry],
        "rewards_of_steps": recorder.rewards_of_steps,
        "largest_weight_change": max(
            (value.detach() - before[name]).abs().max().item() for name, value in tiny.model.named_parameters()
        ),
        "weights_finite": all(bool(torch.isfinite(value).all()) for value in tiny.model.parameters()),
    }
    report_path.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
