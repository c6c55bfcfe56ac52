"""Differences between the launches of slime and Miles (``launch``)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ors_clients.training.launch_options import LaunchOptions, LaunchRefused, TrainerName

__all__ = ["TRAINERS", "Trainer", "tito_family"]

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


@dataclass(frozen=True)
class Trainer:
    """One trainer's launch, in what differs from the other's."""

    name: TrainerName
    title: str
    gradient_checkpointing: bool
    #: Kind of file that ``--model-args`` takes.
    model_file: str
    #: Where a checkpoint that Megatron can start from comes from.
    remedy: str
    #: Whether ``--model-args`` takes a Python file as well, which the trainer's own reader reads.
    reads_python_models: bool
    #: Whether Megatron loads a Hugging Face checkpoint without a bridge.
    loads_hugging_face: bool
    #: Returns the backend of a run whose command line names none; called in the repository.
    default_backend: Callable[[], str]
    #: Raises ``LaunchRefused`` for a checkout that cannot train so.
    check_checkout: Callable[[LaunchOptions], None]


def _lacks_fsdp() -> bool:
    """Return whether the working folder is a slime repository without the FSDP backend."""
    return Path("train_async.py").is_file() and not Path("slime/backends/fsdp_utils/actor.py").is_file()


def _check_slime(options: LaunchOptions) -> None:
    if options.train_backend == "fsdp" and _lacks_fsdp():
        raise LaunchRefused(
            "this slime has no FSDP backend; slime removed it in March 2026 (pull request 1664). Train with"
            " --train-backend megatron --model-args scripts/models/MODEL.sh --ref-load DIR, with the Miles recipe, or"
            " with an older slime (README.md, Known problems)"
        )


def _check_miles(options: LaunchOptions) -> None:
    if options.train_backend != "fsdp" or options.extra_value("--context-parallel-size") in ("", "1"):
        return
    try:
        source = Path("miles/utils/arguments.py").read_text(encoding="utf-8")
    except OSError:
        return
    if "Context parallelism is not supported for FSDP" in source:
        raise LaunchRefused(
            "--context-parallel-size needs --train-backend megatron: the FSDP backend of this Miles has none"
        )


_SLIME = Trainer(
    name="slime",
    title="slime",
    gradient_checkpointing=False,
    model_file="a script of slime's scripts/models/",
    remedy=f"{_CONVERT.format('slime')} (README.md, Megatron)",
    reads_python_models=False,
    loads_hugging_face=True,
    default_backend=lambda: "megatron" if _lacks_fsdp() else "fsdp",
    check_checkout=_check_slime,
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
    default_backend=lambda: "fsdp",
    check_checkout=_check_miles,
)
TRAINERS: dict[str, Trainer] = {trainer.name: trainer for trainer in (_SLIME, _MILES)}


def tito_family(model: str) -> str | None:
    """Return the family by which Miles' session server writes the turns of ``model``; None if it has none."""
    name = Path(model).name.lower()
    return next((family for pattern, family in _TITO_FAMILIES if re.search(pattern, name)), None)
