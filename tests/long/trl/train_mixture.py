"""Three environments in one run of the recipe's train.py: echo, one with odd tools that may fail, one without tools.

    python train_mixture.py URL REPORT.json

URL serves echo and the environments of tests/clients/trl_environments.py. The tiny model is first taught right and
wrong answers for each of the three. Writes its observations to REPORT.json and asserts nothing:
tests/long/test_trl_mixture.py checks the report. Runs in the virtual environment that scripts/trl-venv makes.
"""

from __future__ import annotations

import json
import runpy
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import yaml
from ors_clients.trainers.trl import EnvironmentMixture
from ors_clients.training.config import TrainingConfiguration
from tiny_model import Transcript, make_tiny_model, play, tool_schemas
from transformers import AutoModelForCausalLM

RECIPE = Path(__file__).resolve().parents[3] / "clients" / "recipes" / "trl" / "train.py"
ENVIRONMENTS = {
    "echoenvironment": {"reward_reduction": "last"},
    "awkwardenvironment": {"reward_reduction": "last", "num_samples": 2},
    "answeringenvironment": {"reward_reduction": "last"},
}


def record_transcripts(mixture: EnvironmentMixture) -> list[Transcript]:
    """Record every task with right and wrong answers."""
    rows = mixture.train_dataset.to_list()
    echo, awkward, answering = (factory() for factory in mixture.environment_factory.values())
    echo_rows, awkward_rows, answering_rows = (
        [row for row in rows if row["environment"] == name] for name in mixture.environments
    )
    words = [row["target"] for row in echo_rows]
    transcripts = [play(echo, row, "echo", {"text": word}) for row in echo_rows for word in words]
    for row in awkward_rows * 2:
        right, wrong = row["task_index"], 7
        transcripts += [play(awkward, row, "say", {"number": number}) for number in (right, right, wrong)]
        transcripts.append(play(awkward, row, "lose", {}))  # an infrastructure failure
    for row in answering_rows * 2:
        user = {"role": "user", "content": answering.reset(task_index=row["task_index"])}
        transcripts += [Transcript([user, {"role": "assistant", "content": digit}], []) for digit in ("2", "3")]
    return transcripts


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return AutoModelForCausalLM.from_pretrained(folder).state_dict()


def main() -> None:
    url, report_path = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        configuration = {"environments": ENVIRONMENTS, "base_url": url}
        (folder / "environments.yaml").write_text(yaml.safe_dump(configuration))
        with EnvironmentMixture.from_configuration(TrainingConfiguration.parse(configuration)) as mixture:
            tools: dict[str, Any] = {
                name: tool_schemas(factory()) for name, factory in mixture.environment_factory.items()
            }
            rows = mixture.train_dataset.to_list()
            tiny = make_tiny_model(record_transcripts(mixture), steps=200)
        tiny.model.save_pretrained(folder / "before")
        tiny.tokenizer.save_pretrained(folder / "before")
        settings: dict[str, Any] = {
            "environments": folder / "environments.yaml",
            "evaluation_split": "test",
            "evaluation_tasks": 1,
            "model_name_or_path": folder / "before",
            "output_dir": folder / "after",
            "use_cpu": True,
            "bf16": False,
            "per_device_train_batch_size": 8 * len(rows),
            "per_device_eval_batch_size": 24,
            "num_generations": 8,
            "max_steps": 2,
            "learning_rate": 3e-4,
            "beta": 0.0,
            "max_completion_length": 64,
            "max_tool_calling_iterations": 2,
            "logging_steps": 1,
            "eval_strategy": "steps",
            "eval_steps": 2,
            "save_steps": 2,
            "report_to": "none",
            "seed": 0,
        }
        sys.argv = [str(RECIPE), *(text for name, value in settings.items() for text in (f"--{name}", str(value)))]
        runpy.run_path(str(RECIPE), run_name="__main__")
        before, after = weights(folder / "before"), weights(folder / "after")
        state = json.loads((folder / "after" / "checkpoint-2" / "trainer_state.json").read_text())

    report = {
        "rows": rows,
        "tools": tools,
        "loss": tiny.loss,
        "log": [entry for entry in state["log_history"] if "loss" in entry],
        "evaluation": [entry for entry in state["log_history"] if "eval_reward" in entry],
        "largest_weight_change": max((after[name] - value).abs().max().item() for name, value in before.items()),
        "weights_finite": all(bool(torch.isfinite(value).all()) for value in after.values()),
    }
    report_path.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
