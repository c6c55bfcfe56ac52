"""Options of the launch scripts of slime and Miles (``run.sh``), and the trainer's own arguments that a launch reads.

A trainer's own arguments come behind ``--`` and are passed on unchanged.
"""

from __future__ import annotations

import argparse
import re
import shlex
import textwrap
from collections.abc import Sequence
from typing import NoReturn

from ors_clients.training.launch.trainers import DEFAULTS, LaunchRefused, Trainer

__all__ = ["parse_options"]

#: Names of ``run.sh`` in release 0.2 for arguments that the trainers name otherwise.
_RENAMED = {
    "--actor-gpus": "--actor-num-gpus-per-node",
    "--actor-nodes": "--actor-num-nodes",
    "--max-response-len": "--rollout-max-response-len",
    "--max-total-len": "--rollout-max-context-len",
    "--megatron-ckpt": "--train-backend megatron --ref-load",
    "--n-samples": "--n-samples-per-prompt",
    "--no-dynamic-batch-size": "--micro-batch-size 1",
    "--num-gpus": "--colocate --actor-num-gpus-per-node",
    "--rollout-gpus": "--rollout-num-gpus",
    "--temperature": "--rollout-temperature",
}
_ENVIRONMENT = (
    "Environment variables: ORS_URL (the environments' server) and ORS_API_KEY, or for environments that OpenReward"
    " hosts OPENREWARD_SESSION_URL and OPENREWARD_API_KEY, which goes to no other server; WANDB_API_KEY, and those of"
    " the environments' secrets."
)


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are refusals."""

    def error(self, message: str) -> NoReturn:
        """Raise ``LaunchRefused``."""
        raise LaunchRefused(message)


def parse_options(words: Sequence[str], trainer: Trainer, folder: str) -> argparse.Namespace:
    """Read a command line: our options, the words behind ``--`` (``passed``), and what a launch reads in those.

    ``folder``: the recipe's. Raises ``LaunchRefused`` for a command line that cannot be read, and ``SystemExit`` for
    ``--help``.
    """
    end = words.index("--") if "--" in words else len(words)
    options = argparse.Namespace(passed=list(words[end + 1 :]), agent=False)
    _, unknown = _own_parser(trainer, folder).parse_known_args(words[:end], options)
    if unknown:
        given = shlex.join(unknown)
        named = re.sub(r"(?<!\S)--[\w-]+", lambda flag: _RENAMED.get(flag[0], flag[0]), given)
        raise LaunchRefused(
            f"{given}: run.sh has no such option (see --help); arguments of {trainer.title} itself come behind --,"
            f" under the names that it has for them: -- {named}"
        )
    _passed_parser(folder).parse_known_args(options.passed, options)
    return options


def _own_parser(trainer: Trainer, folder: str) -> argparse.ArgumentParser:
    title = trainer.title
    added = " ".join(flag if value is None else f"{flag} {value}" for flag, value in DEFAULTS.items())
    parser = _Parser(
        usage="bash run.sh [OPTIONS] [-- ARGUMENTS OF train_async.py]",
        description=f"Train with {title}, from the root of its repository.",
        epilog="\n\n".join(
            textwrap.fill(text, width=100, break_on_hyphens=False)
            for text in (
                f"Arguments behind -- go to {title} unchanged. {title} also gets these, unless they are there: {added}",
                _ENVIRONMENT,
            )
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    run = f"{trainer.name}-rl-openreward-DATE; uploads: openreward_run_name of the training file"
    for flag, value, default, text in (
        ("--model", "NAME", "Qwen/Qwen3-30B-A3B", "Hugging Face checkpoint (default: %(default)s)"),
        ("--model-args", "FILE", "", f"{trainer.model_file}; megatron needs it"),
        ("--config", "FILE", f"{folder}/train_config.yaml", "training file (default: train_config.yaml beside run.sh)"),
        ("--task-data", "FILE", f"{folder}/tasks.jsonl", "prepared tasks (default: tasks.jsonl beside run.sh)"),
        ("--wandb-run", "NAME", "", f"name of the run, in Weights & Biases and of uploaded rollouts (default: {run})"),
        ("--megatron-path", "DIR", "", "the Megatron-LM repository, put on PYTHONPATH (default: as installed)"),
    ):
        parser.add_argument(flag, metavar=value, default=default, help=text)
    text = f"the {title} repository (default: the working folder)"
    parser.add_argument(f"--{trainer.name}-path", dest="repository", metavar="DIR", help=text)
    text = "GPUs an inference engine; with megatron also tensor parallelism (default: %(default)s)"
    parser.add_argument("--tp", metavar="N", type=int, default=4, help=text)
    default = trainer.gradient_checkpointing
    text = f"compute activations again: much less memory, about 10 %% slower (default: {'on' if default else 'off'})"
    parser.add_argument("--gradient-checkpointing", action=argparse.BooleanOptionalAction, default=default, help=text)
    text = "do not weigh tokens by the recorded log-probabilities (--use-tis), as with -- --use-rollout-logprobs"
    parser.add_argument("--no-importance-sampling", action="store_true", help=text)
    if trainer.name == "miles":
        text = "let Miles' session server keep the tokens, and only drive the conversation"
        parser.add_argument("--agent", action="store_true", help=text)
    parser.add_argument("--dry-run", action="store_true", help="print the command, or why it cannot run")
    return parser


def _passed_parser(folder: str) -> argparse.ArgumentParser:
    """Return a parser of the trainer's arguments that a launch reads. The trainers take beginnings of names as well."""
    parser = _Parser(add_help=False)
    for flag in ("--colocate", "--use-kl-loss", "--use-rollout-logprobs"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("--kl-coef", type=float, default=0.0)
    parser.add_argument("--save", default=f"{folder}/checkpoints/")
    parser.add_argument("--rollout-max-context-len", default=DEFAULTS["--rollout-max-context-len"])
    parser.add_argument("--train-backend", choices=("fsdp", "megatron"), default="")
    for flag in (
        *("--load", "--ref-load", "--micro-batch-size", "--megatron-to-hf-mode"),
        *("--custom-config-path", "--tito-model"),
    ):
        parser.add_argument(flag, default="")
    return parser
