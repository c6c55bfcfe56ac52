"""From nothing to a model that has learnt the echo environment, on a CPU, in minutes: no GPU, no hub.

    python train_echo.py [--output FOLDER] [--steps 40] [--url URL]

Starts a server with the echo environment (or uses the one at URL), makes a tiny Qwen3, teaches it by supervised steps
to call `echo` with one of four words, the right one in two cases of five, and then lets GRPO do the rest. Writes the
curve of the mean reward to FOLDER as curve.png and curve.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from ors_clients.trl import EnvironmentMixture
from tiny_model import TinyModel, make_tiny_model, play
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

GENERATIONS = 16


@contextlib.contextmanager
def echo_server() -> Generator[str, None, None]:
    """Return a server with the echo environment, on a free port; its address."""
    command = [sys.executable, "-m", "ors_cli", "serve", "echo", "--port", "0"]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            while True:
                log.seek(0)
                if printed := re.search(r"http://127\.0\.0\.1:\d+", text := log.read()):
                    break
                if process.poll() is not None:
                    sys.exit(f"The server did not start:\n{text}")
                time.sleep(0.05)
            yield printed.group()
        finally:
            process.terminate()
            process.wait()


def warmed_up(mixture: EnvironmentMixture) -> TinyModel:
    """Return a model that calls `echo` with one of the words, with the right one twice as often as with others."""
    [factory] = mixture.environment_factory.values()
    environment, rows = factory(), mixture.train_dataset.to_list()
    words = [row["target"] for row in rows]
    transcripts = [play(environment, row, "echo", {"text": word}) for row in rows for word in [*words, row["target"]]]
    return make_tiny_model(transcripts)


class Progress(TrainerCallback):
    """Prints a line a step."""

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        if logs and "reward" in logs:
            calls, seconds = logs["tools/call_frequency"], logs["step_time"]
            figures = f"reward {logs['reward']:.3f}, calls a rollout {calls:.2f}, {seconds:.1f} s"
            print(f"step {state.global_step:3d}: {figures}", flush=True)


def train(mixture: EnvironmentMixture, model: TinyModel, steps: int, folder: Path) -> list[dict[str, float]]:
    """Run GRPO; what it logged of each step."""
    trainer = GRPOTrainer(
        model=model.model,
        processing_class=model.tokenizer,
        args=GRPOConfig(
            output_dir=str(folder),
            use_cpu=True,
            bf16=False,
            per_device_train_batch_size=GENERATIONS * len(mixture.train_dataset),
            num_generations=GENERATIONS,
            max_steps=steps,
            learning_rate=3e-4,
            lr_scheduler_type="constant",
            beta=0.0,
            max_completion_length=64,
            max_tool_calling_iterations=1,  # one try
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            seed=0,
        ),
        train_dataset=mixture.train_dataset,
        environment_factory=mixture.environment_factory,
        reward_funcs=mixture.reward_funcs,
        callbacks=[Progress()],
    )
    trainer.remove_callback(PrinterCallback)  # it prints every figure of every step
    trainer.train()
    return [entry for entry in trainer.state.log_history if "reward" in entry]


def draw(rewards: list[float], file: Path) -> None:
    """Return the mean reward of every step, and of the five steps around it."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    steps = range(1, len(rewards) + 1)
    smooth = [fmean(rewards[max(0, step - 3) : step + 2]) for step in steps]
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    axes.plot(steps, rewards, ".", color="0.6", label="step")
    axes.plot(steps, smooth, color="tab:blue", label="mean of five steps")
    axes.set(title="GRPO on echo, a tiny Qwen3 from nothing", xlabel="step", ylabel="mean reward", ylim=(0, 1.02))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", frameon=False)
    figure.savefig(file, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("echo-run"), help="where the curve goes")
    parser.add_argument("--steps", type=int, default=40, help="GRPO steps")
    parser.add_argument("--url", help="a running server with the echo environment; by default one is started")
    arguments = parser.parse_args()
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    # So small a model gains nothing from more threads.
    torch.set_num_threads(1)
    arguments.output.mkdir(parents=True, exist_ok=True)

    started = time.monotonic()
    server = contextlib.nullcontext(arguments.url) if arguments.url else echo_server()
    with (
        server as url,
        EnvironmentMixture(["echoenvironment"], url=url) as mixture,
        tempfile.TemporaryDirectory() as folder,
    ):
        model = warmed_up(mixture)
        print(
            f"{model.parameters:,} parameters, warmed up in {model.seconds:.0f} s (loss {model.loss:.2f})", flush=True
        )
        log = train(mixture, model, arguments.steps, Path(folder))

    rewards = [entry["reward"] for entry in log]
    report = {
        "parameters": model.parameters,
        "warm_up_seconds": round(model.seconds, 1),
        "seconds": round(time.monotonic() - started, 1),
        "rollouts_a_step": GENERATIONS * len(mixture.train_dataset),
        "mean_reward_of_ten_steps": [round(fmean(rewards[at : at + 10]), 3) for at in range(0, len(rewards), 10)],
        "rewards": [round(reward, 4) for reward in rewards],
        "calls_a_rollout": [round(entry["tools/call_frequency"], 3) for entry in log],
        "failed": [entry["environments/echoenvironment/failed"] for entry in log],
        "step_seconds": [round(entry["step_time"], 2) for entry in log],
    }
    (arguments.output / "curve.json").write_text(json.dumps(report, indent=1) + "\n")
    draw(rewards, arguments.output / "curve.png")
    print(f"mean reward of ten steps: {report['mean_reward_of_ten_steps']}; curve in {arguments.output}", flush=True)


if __name__ == "__main__":
    main()
