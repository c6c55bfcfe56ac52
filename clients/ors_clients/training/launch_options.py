"""Options of the launch scripts of slime and Miles (``run.sh``): the table, its reader and its ``--help``."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

__all__ = ["LaunchOptions", "LaunchRefused", "TrainerName", "parse_options", "usage"]

TrainerName = Literal["slime", "miles"]

#: Column at which ``--help`` describes an option, and its last column.
_COLUMN, _WIDTH = 29, 120


class LaunchRefused(Exception):
    """A run that cannot start as it was asked for. The text says what to change."""


@dataclass(frozen=True)
class LaunchOptions:
    """Values of the options. Numbers stay as they were written: the trainer reads them."""

    save: str
    config: str
    task_data: str
    gradient_checkpointing: bool
    wandb_project: str
    model: str = "Qwen/Qwen3-30B-A3B"
    load: str = ""
    ref_load: str = ""
    save_interval: str = "10"
    lr: str = "1e-5"
    weight_decay: str = "0.0"
    adam_beta1: str = "0.9"
    adam_beta2: str = "0.999"
    adam_eps: str = "1e-8"
    lr_decay_style: str = "constant"
    importance_sampling: bool = True
    actor_gpus: str = "4"
    rollout_gpus: str = "4"
    colocate: bool = False
    tp: str = "4"
    actor_nodes: str = "1"
    #: Empty for the checkout's (``Trainer.default_backend``).
    train_backend: str = ""
    model_args: str = ""
    max_tokens_per_gpu: str = "8192"
    dynamic_batch_size: bool = True
    rollout_batch_size: str = "32"
    n_samples: str = "16"
    max_response_len: str = "4096"
    max_total_len: str = "8192"
    temperature: str = "1.0"
    num_rollout: str = "3000"
    agent: bool = False
    tito_model: str = ""
    wandb_run: str = ""
    repository: str = ""
    megatron_path: str = ""
    dry_run: bool = False
    #: Arguments behind ``--``, which the trainer gets unchanged.
    extra: Sequence[str] = field(default_factory=tuple[str, ...])

    def has_extra(self, flag: str) -> bool:
        """Return whether ``flag`` is among the trainer's own arguments."""
        return any(word == flag or word.startswith(f"{flag}=") for word in self.extra)

    def extra_value(self, flag: str) -> str:
        """Return the last value of ``flag`` among the trainer's own arguments, which counts; else an empty string."""
        value = ""
        for place, word in enumerate(self.extra):
            if word == flag:
                value = "".join(self.extra[place + 1 : place + 2])
            elif word.startswith(f"{flag}="):
                value = word.partition("=")[2]
        return value


class _Form(NamedTuple):
    """Expression that a value has to match, and the words for it."""

    expression: str
    words: str


_COUNT = _Form(r"[1-9][0-9]*", "a whole number over 0")
_COUNT_OR_NONE = _Form(r"0|[1-9][0-9]*", "a whole number")  # 0 rollout GPUs where they share those that train
_NUMBER = _Form(r"([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][-+]?[0-9]+)?", "a number")


class _Option(NamedTuple):
    """One line of the table: an option, and the field that it sets."""

    flag: str
    #: Name of the value in ``--help``; empty for a switch.
    value: str = ""
    #: ``{default}`` stands for the field's default, ``{trainer}`` for the trainer's name; empty to leave it out.
    help: str = ""
    form: _Form | None = None
    #: The field, where it is not named as the option.
    sets: str = ""
    #: Other fields that the option sets, or the value of a switch.
    also: tuple[tuple[str, str | bool], ...] = ()
    only: TrainerName | None = None

    @property
    def field(self) -> str:
        return self.sets or self.flag.removeprefix("--").replace("-", "_")


_CHECKPOINTING = (("gradient_checkpointing", True),)
_NO_CHECKPOINTING = (("gradient_checkpointing", False),)

_OPTIONS: dict[str, tuple[_Option, ...]] = {
    "Model and checkpoints:": (
        _Option("--model", "NAME", "Hugging Face checkpoint (default: {default})"),
        _Option("--save", "DIR", "folder that checkpoints are written to (default: checkpoints/ beside this script)"),
        _Option("--load", "DIR", "checkpoints to resume from: the latest one, if there is one (default: as --save)"),
        _Option(
            "--ref-load",
            "DIR",
            "checkpoint of the reference model, and with megatron of the first weights: a folder (default: none; with"
            " fsdp and --use-kl-loss the checkpoint of --model)",
            only="slime",
        ),
        _Option(
            "--ref-load",
            "DIR",
            "checkpoint of the reference model, and with megatron of the first weights: a folder (default: none; with"
            " --use-kl-loss the checkpoint of --model, if the backend is fsdp, or megatron with"
            " -- --megatron-to-hf-mode bridge, which then starts from it as well)",
            only="miles",
        ),
        _Option(
            "--megatron-ckpt",
            "DIR",
            "openreward-cookbook's name for --train-backend megatron --ref-load DIR",
            sets="ref_load",
            also=(("train_backend", "megatron"),),
            only="slime",
        ),
        _Option("--save-interval", "N", "steps between checkpoints (default: {default})", _COUNT),
    ),
    "Optimizer:": (
        _Option("--lr", "FLOAT", "learning rate (default: {default})", _NUMBER),
        _Option("--weight-decay", "FLOAT", "weight decay (default: {default})", _NUMBER),
        _Option("--adam-beta1", "FLOAT", "Adam's beta 1 (default: {default})", _NUMBER),
        _Option("--adam-beta2", "FLOAT", "Adam's beta 2 (default: {default})", _NUMBER),
        _Option("--adam-eps", "FLOAT", "Adam's epsilon (default: {default})", _NUMBER),
        _Option("--lr-decay-style", "STYLE", "constant, cosine or linear (default: {default})"),
        _Option(
            "--no-importance-sampling",
            help="do not weigh tokens by the recorded log-probabilities (default: -- --use-tis; left out for"
            " -- --use-rollout-logprobs, which takes them as the old policy's)",
            also=(("importance_sampling", False),),
        ),
    ),
    "Cluster:": (
        _Option("--actor-gpus", "N", "GPUs that train, on each node (default: {default})", _COUNT),
        _Option("--rollout-gpus", "N", "GPUs that generate (default: {default})", _COUNT_OR_NONE),
        _Option(
            "--colocate",
            help="the GPUs that train generate as well, in turns (default: off); train.py then runs in place of"
            " train_async.py, and --rollout-gpus is not used",
            also=(("colocate", True),),
        ),
        _Option(
            "--num-gpus",
            "N",
            "openreward-cookbook's name for --colocate --actor-gpus N",
            _COUNT,
            sets="actor_gpus",
            also=(("colocate", True),),
        ),
        _Option(
            "--tp", "N", "GPUs an inference engine; with megatron also tensor parallelism (default: {default})", _COUNT
        ),
        _Option("--actor-nodes", "N", "nodes that train (default: {default})", _COUNT),
        _Option(
            "--train-backend",
            "NAME",
            "fsdp or megatron (default: fsdp, or megatron where the slime repository has no fsdp, as since March 2026)",
            only="slime",
        ),
        _Option("--train-backend", "NAME", "fsdp or megatron (default: fsdp)", only="miles"),
        _Option(
            "--model-args",
            "FILE",
            "script that sets MODEL_ARGS, from slime's scripts/models/; megatron needs it",
            only="slime",
        ),
        _Option(
            "--model-args",
            "FILE",
            "model's file in Miles' scripts/models/ (a .py), or a script that sets MODEL_ARGS; megatron needs it",
            only="miles",
        ),
        _Option("--max-tokens-per-gpu", "N", "most tokens a GPU trains on at once (default: {default})", _COUNT),
        _Option(
            "--no-dynamic-batch-size",
            help="do not pack samples up to --max-tokens-per-gpu",
            also=(("dynamic_batch_size", False),),
        ),
        _Option(
            "--gradient-checkpointing",
            help="compute activations again: much less memory, about 10 % slower (default: off)",
            also=_CHECKPOINTING,
            only="slime",
        ),
        _Option("--no-gradient-checkpointing", also=_NO_CHECKPOINTING, only="slime"),
        _Option("--gradient-checkpointing", also=_CHECKPOINTING, only="miles"),
        _Option(
            "--no-gradient-checkpointing",
            help="keep activations: about 10 % faster, much more memory (default: computed again)",
            also=_NO_CHECKPOINTING,
            only="miles",
        ),
    ),
    "Rollouts:": (
        _Option("--rollout-batch-size", "N", "prompts a batch (default: {default})", _COUNT),
        _Option("--n-samples", "N", "rollouts a prompt (default: {default})", _COUNT),
        _Option("--max-response-len", "N", "most tokens a generation (default: {default})", _COUNT),
        _Option(
            "--max-total-len",
            "N",
            "most tokens a rollout, prompt and tool outputs included (default: {default})",
            _COUNT,
        ),
        _Option("--temperature", "FLOAT", "sampling temperature (default: {default})", _NUMBER),
        _Option("--num-rollout", "N", "batches in all (default: {default})", _COUNT),
        _Option(
            "--agent",
            help="let Miles' session server keep the tokens, and only drive the conversation",
            also=(("agent", True),),
            only="miles",
        ),
        _Option(
            "--tito-model",
            "FAMILY",
            "with --agent: whose turns the session server writes (default: by the name of --model)",
            only="miles",
        ),
    ),
    "Data:": (
        _Option("--config", "FILE", "training configuration (default: train_config.yaml beside this script)"),
        _Option("--task-data", "FILE", "tasks that prepare_tasks.py wrote (default: tasks.jsonl beside this script)"),
    ),
    "Tracking, if WANDB_API_KEY is set or WANDB_MODE is offline:": (
        _Option("--wandb-project", "NAME", "project (default: {default})"),
        _Option(
            "--wandb-run",
            "NAME",
            "name of the run, there and for uploaded rollouts (default: {name}-rl-openreward-DATE; uploads:"
            " openreward_run_name of the training configuration)",
        ),
    ),
    "": (
        _Option(
            "--slime-path", "DIR", "the slime repository (default: the working folder)", sets="repository", only="slime"
        ),
        _Option(
            "--miles-path", "DIR", "the Miles repository (default: the working folder)", sets="repository", only="miles"
        ),
        _Option("--megatron-path", "DIR", "the Megatron-LM repository, put on PYTHONPATH (default: as installed)"),
        _Option("--dry-run", help="print the command instead of running it", also=(("dry_run", True),)),
        _Option("--help", help="print this"),
    ),
}

_ENVIRONMENT = """\
Environment variables: ORS_URL (the environments' server) and ORS_API_KEY, or for environments that OpenReward hosts
OPENREWARD_SESSION_URL and OPENREWARD_API_KEY, which goes to no other server; WANDB_API_KEY, and those of the
environments' secrets.
"""


def parse_options(words: Iterable[str], trainer: TrainerName, defaults: LaunchOptions) -> LaunchOptions | None:
    """Read a command line; None for ``--help``. Raises ``LaunchRefused`` for an option or value that cannot be."""
    table = {option.flag: option for group in _OPTIONS.values() for option in _shown(group, trainer)}
    options, rest = defaults, list(words)
    while rest:
        word = rest.pop(0)
        if word in ("--help", "-h"):
            return None
        if word == "--":
            return replace(options, extra=tuple(rest))
        option = table.get(word)
        if option is not None and not option.value:
            options = replace(options, **dict(option.also))
            continue
        if not rest:
            raise LaunchRefused(f"{word} takes a value, or is no option; see --help")
        value = rest.pop(0)
        if value.startswith("--"):
            raise LaunchRefused(
                f"{word} takes a value and is followed by the option {value}, or is no option; see --help"
            )
        if option is None:
            raise LaunchRefused(f"no option {word}; see --help")
        if option.form is not None and not re.fullmatch(option.form.expression, value):
            raise LaunchRefused(f"{word} is {option.form.words}, not {shlex.quote(value)}")
        options = replace(options, **{option.field: value}, **dict(option.also))
    return options


def usage(trainer: TrainerName, title: str, defaults: LaunchOptions) -> str:
    """Return the text of ``--help``. ``title``: the trainer's name in a sentence."""
    lines = [f"Usage, from the root of the {title} repository: bash run.sh [OPTIONS] [-- ARGUMENTS OF train_async.py]"]
    for heading, group in _OPTIONS.items():
        lines += ["", heading] if heading else [""]
        for option in _shown(group, trainer):
            if option.help:
                default = getattr(defaults, option.field, "")
                text = textwrap.wrap(
                    option.help.format(default=default, name=trainer), _WIDTH - _COLUMN, break_on_hyphens=False
                )
                flag = f"  {option.flag} {option.value}".rstrip().ljust(_COLUMN - 2) + "  "
                lines += [flag + text[0], *(" " * _COLUMN + line for line in text[1:])]
    return "\n".join([*lines, "", _ENVIRONMENT])


def _shown(group: Iterable[_Option], trainer: TrainerName) -> list[_Option]:
    return [option for option in group if option.only in (None, trainer)]
