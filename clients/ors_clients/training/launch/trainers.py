"""Differences between the launches of slime and Miles (``launch``)."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

__all__ = ["DEFAULTS", "TRAINERS", "Arguments", "LaunchRefused", "Trainer", "tito_family"]

#: Arguments of the trainers by name; None for a switch. Where the user gives one, it takes the place of ours.
Arguments = dict[str, str | None]
#: What a launch of both adds.
DEFAULTS: Arguments = {
    "--actor-num-nodes": "1",
    "--actor-num-gpus-per-node": "4",
    "--rollout-num-gpus": "4",
    "--save-interval": "10",
    "--advantage-estimator": "grpo",
    "--optimizer": "adam",
    "--lr": "1e-5",
    "--lr-decay-style": "constant",
    "--weight-decay": "0.0",
    "--adam-beta1": "0.9",
    "--adam-beta2": "0.999",
    "--adam-eps": "1e-8",
    "--input-key": "prompt",
    "--label-key": "label",
    "--metadata-key": "metadata",
    "--rollout-shuffle": None,
    "--n-samples-per-prompt": "16",
    "--rollout-batch-size": "32",
    "--num-steps-per-rollout": "1",
    "--rollout-max-response-len": "4096",
    "--rollout-max-context-len": "8192",
    "--rollout-temperature": "1.0",
    "--num-rollout": "3000",
    "--max-tokens-per-gpu": "8192",
    "--sglang-mem-fraction-static": "0.8",
}

_CONVERT = "tools/convert_hf_to_torch_dist.py of {} makes one from a Hugging Face checkpoint"

#: How Miles' session server writes the text between two turns, by the model's name; the first match counts. None: the
#: model has a template of its own. Miles' default only joins the texts: with Qwen's templates every line break between
#: turns is missing, or each second turn fails.
_TITO_FAMILIES: tuple[tuple[str, str | None], ...] = (
    (r"qwen3-next|qwen3.*thinking-2507", "qwennext"),
    (r"qwen3\.5", "qwen35"),
    (r"qwen3\.[6-9]|qwen3-vl|qwen3-omni|qwen3-coder", None),
    (r"qwen3", "qwen3"),
    (r"glm-4\.7|glm-5", "glm47"),
    (r"nemotron-3", "nemotron3"),
    (r"kimi-k2\.5", "kimi25"),
    (r"kimi-k2\.6", "kimi26"),
    (r"minimax-m2\.5", "minimax_m25"),
    (r"minimax-m2\.7", "minimax_m27"),
    (r"deepseek-v3\.2", "deepseekv32"),
    (r"deepseek-v4", "deepseekv4"),
    (r"inkling", "inkling"),
)


class LaunchRefused(Exception):
    """A run that cannot start as it was asked for. The text says what to change."""


@dataclass(frozen=True)
class Trainer:
    """One trainer's launch, in what differs from the other's."""

    name: Literal["slime", "miles"]
    title: str
    #: Whether activations are computed again without an option that says so.
    gradient_checkpointing: bool
    #: Kind of file that ``--model-args`` takes.
    model_file: str
    #: Where a checkpoint that Megatron can start from comes from.
    remedy: str
    #: Whether ``--model-args`` takes a Python file as well, which the trainer's own reader reads.
    reads_python_models: bool
    #: Whether Megatron loads a Hugging Face checkpoint without a bridge.
    loads_hugging_face: bool
    #: Returns the backend of a run in the trainer's repository; raises ``LaunchRefused`` for one that it does not have.
    backend: Callable[[Namespace], str]


def _slime_backend(options: Namespace) -> str:
    """Return the named backend, else the one that the checkout in the working folder has."""
    lacks_fsdp = Path("train_async.py").is_file() and not Path("slime/backends/fsdp_utils/actor.py").is_file()
    if options.train_backend == "fsdp" and lacks_fsdp:
        raise LaunchRefused(
            "this slime has no FSDP backend; slime removed it in March 2026 (pull request 1664). Train with"
            " --model-args scripts/models/MODEL.sh -- --train-backend megatron --ref-load DIR, with the Miles recipe,"
            " or with an older slime (README.md, Known problems)"
        )
    return options.train_backend or ("megatron" if lacks_fsdp else "fsdp")


_SLIME = Trainer(
    name="slime",
    title="slime",
    gradient_checkpointing=False,
    model_file="a script of slime's scripts/models/",
    remedy=f"{_CONVERT.format('slime')} (README.md, Megatron)",
    reads_python_models=False,
    loads_hugging_face=True,
    backend=_slime_backend,
)
_MILES = Trainer(
    name="miles",
    title="Miles",
    gradient_checkpointing=True,
    model_file="a file of Miles' scripts/models/",
    remedy=f"{_CONVERT.format('Miles')}, and with -- --megatron-to-hf-mode bridge Miles reads that one itself"
    " (README.md, Megatron)",
    reads_python_models=True,
    loads_hugging_face=False,
    backend=lambda options: options.train_backend or "fsdp",
)
TRAINERS: dict[str, Trainer] = {trainer.name: trainer for trainer in (_SLIME, _MILES)}


def tito_family(model: str) -> str | None:
    """Return the family by which Miles' session server writes the turns of ``model``; None if it has none."""
    name = Path(model).name.lower()
    return next((family for pattern, family in _TITO_FAMILIES if re.search(pattern, name)), None)
