"""Start slime or Miles on the environments of a training configuration: the program behind the recipes' ``run.sh``.

    python -m ors_clients.training.launch {slime,miles} RECIPE_FOLDER [OPTIONS] [-- ARGUMENTS OF train_async.py]

The process becomes the trainer's, or prints its command line with ``--dry-run``. It ends with status 2 and a sentence
on standard error for a run that could only fail later. ``launch.trainers`` holds what differs between the two.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import MutableMapping, Sequence
from pathlib import Path

from ors_clients.training.hooks import HOOKS, replaced_options
from ors_clients.training.launch.options import parse_options
from ors_clients.training.launch.trainers import DEFAULTS, TRAINERS, Arguments, LaunchRefused, Trainer, tito_family

__all__ = ["main"]

#: Sourced with a model's script as its argument: writes MODEL_ARGS and the environment, each word ended by a null byte.
_SOURCE = r"""
set -euo pipefail
MODEL_ARGS=()
source "$1" >&2
printf '%s\0' "${#MODEL_ARGS[@]}" "${MODEL_ARGS[@]}"
env -0
"""
_DOWNLOAD = "import sys; from huggingface_hub import snapshot_download; print(snapshot_download(sys.argv[1]))"

#: Megatron's own default is a dropout of 0.1, under which no log-probability is the engine's.
_MEGATRON: Arguments = {
    "--attention-dropout": "0.0",
    "--hidden-dropout": "0.0",
    "--accumulate-allreduce-grads-in-fp32": None,
    "--attention-softmax-in-fp32": None,
}
_RECOMPUTATION: Arguments = {
    "--recompute-granularity": "full",
    "--recompute-method": "uniform",
    "--recompute-num-layers": "1",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command: the name of the trainer, the recipe's folder, its options."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if len(given) < 2 or given[0] not in TRAINERS:
        sys.stderr.write("usage: python -m ors_clients.training.launch {slime,miles} RECIPE_FOLDER [OPTIONS]\n")
        return 2
    name, folder, *words = given
    environment = dict(os.environ)
    try:
        options = parse_options(words, TRAINERS[name], folder)
        command = _command(TRAINERS[name], folder, options, environment)
    except LaunchRefused as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    if options.dry_run:
        sys.stdout.write(f"{shlex.join(command)}\n")
        return 0
    try:
        os.execvpe(command[0], command, environment)  # noqa: S606 - the trainer takes the place of this process
    except OSError as error:
        sys.stderr.write(f"error: cannot run {command[0]}: {error.strerror}\n")
        return 2


def _command(trainer: Trainer, folder: str, options: Namespace, environment: MutableMapping[str, str]) -> list[str]:
    """Return the trainer's command line; add its variables to ``environment``; enter the trainer's repository."""
    _refuse_replaced(options)
    if not Path(options.config).is_file():
        raise LaunchRefused(f"no training configuration at {options.config}")
    # Rollouts run in other processes, in other folders.
    config, task_data = _absolute(options.config), options.task_data
    if Path(task_data).is_file():
        task_data = _absolute(task_data)
    if options.repository:
        try:
            os.chdir(options.repository)
        except OSError:
            raise LaunchRefused(f"--{trainer.name}-path is not a folder that can be entered") from None
    if options.megatron_path:
        if not Path(options.megatron_path, "megatron").is_dir():
            raise LaunchRefused(f"no Megatron-LM repository at {options.megatron_path}")
        _prepend_path(environment, str(Path(options.megatron_path).resolve()))
    options.train_backend = trainer.backend(options)
    is_megatron = options.train_backend == "megatron"
    model = _model_arguments(trainer, options.model_args, environment) if is_megatron else []
    reference = _reference(trainer, options)
    ours = _arguments(trainer, options, environment)
    environment["TRAIN_CONFIG"] = config
    _prepend_path(environment, folder)
    if options.wandb_run:
        environment["OPENREWARD_RUN_NAME"] = options.wandb_run
    program = "train.py" if options.colocate else "train_async.py"  # train_async.py refuses GPUs that do both
    if not Path(task_data).is_file():
        raise LaunchRefused(
            f"no tasks at {task_data}; write them with: python {folder}/prepare_tasks.py --config {config}"
            f" --output {task_data}"
        )
    if not Path(program).is_file():
        raise LaunchRefused(f"no {program} here; run this from the root of the {trainer.title} repository")
    ours["--prompt-data"] = task_data
    if reference:
        is_name = reference == options.model and not Path(reference).is_dir()
        ours["--ref-load"] = _downloaded(options, environment) if is_name else reference
    given = {word.partition("=")[0] for word in options.passed}
    words = [word for flag, value in ours.items() if flag not in given for word in (flag, value) if word is not None]
    return ["python", program, *model, *words, *options.passed]


def _refuse_replaced(options: Namespace) -> None:
    """Raise ``LaunchRefused`` for a function of the user's in the place of one that keeps lost rollouts out."""
    flags = [word.partition("=")[0] for word in options.passed if word.startswith("--")]
    keys: list[str] = []
    if file := options.custom_config_path:
        try:
            keys = re.findall(r"(\w+)[\"']? *:", Path(file).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise LaunchRefused(f"--custom-config-path {file} cannot be read") from None
    for sentence in replaced_options(flags, keys):
        raise LaunchRefused(sentence)


def _absolute(file: str) -> str:
    """Return the path of ``file`` from the root; a link to a file is not followed."""
    return str(Path(file).parent.resolve() / Path(file).name)


def _prepend_path(environment: MutableMapping[str, str], folder: str) -> None:
    path = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = f"{folder}:{path}" if path else folder


def _arguments(trainer: Trainer, options: Namespace, environment: MutableMapping[str, str]) -> Arguments:
    """Return the trainer's arguments except its data and its reference model."""
    arguments: Arguments = {
        **DEFAULTS,
        "--rollout-num-gpus-per-engine": str(options.tp),
        "--train-backend": options.train_backend,
        "--hf-checkpoint": options.model,
        "--save": options.save,
        "--load": options.load or options.save,
        **_function_arguments(options),
        **_tracking_arguments(trainer, options, environment),
    }
    if options.colocate:
        del arguments["--rollout-num-gpus"]  # the trainer's default is then as many as train
    if not options.micro_batch_size:
        arguments["--use-dynamic-batch-size"] = None
    # A batch is generated while the one before it trains, so the weights that sampled it are one update older. A token
    # is weighed by its probability under the trained weights, divided by the recorded one.
    if not options.no_importance_sampling and not options.use_rollout_logprobs:
        arguments["--use-tis"] = None
    if options.train_backend == "megatron":
        environment["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
        arguments |= {**_MEGATRON, "--tensor-model-parallel-size": str(options.tp)}
        if options.tp > 1:
            arguments["--sequence-parallel"] = None  # mixtures of experts do not train without it
        arguments |= _RECOMPUTATION if options.gradient_checkpointing else {}
    elif options.gradient_checkpointing:
        arguments["--gradient-checkpointing"] = None
    return arguments


def _model_arguments(trainer: Trainer, file: str, environment: MutableMapping[str, str]) -> list[str]:
    """Megatron's arguments for the model: from Miles' Python file, or a shell script, whose exports are kept."""
    if not Path(file).is_file():
        raise LaunchRefused(f"megatron needs --model-args: {trainer.model_file}")
    if trainer.reads_python_models and file.endswith(".py"):
        # Such a file imports from Miles, and Miles has the reader.
        reader = Path(file).parent / "../../miles/utils/external_utils/model_args_utils.py"
        if not reader.is_file():
            raise LaunchRefused(
                f"{file} is in no scripts/models/ of a Miles repository; name one that is, or a script that sets"
                " MODEL_ARGS"
            )
        printed = _output([sys.executable, str(reader), Path(file).stem], environment)
        if printed is None:
            raise LaunchRefused(f"Miles cannot read {file}")
        arguments = printed.partition("\n")[0].split()
    else:
        printed = _output(["bash", "-c", _SOURCE, "bash", file], environment)
        if printed is None:
            raise LaunchRefused(f"{file} failed")
        count, *words = printed.rstrip("\0").split("\0")
        arguments = words[: int(count)]
        environment.update((name, value) for name, _, value in (word.partition("=") for word in words[int(count) :]))
    if not arguments:
        raise LaunchRefused(f"{file} sets no MODEL_ARGS; take {trainer.model_file}")
    return arguments


def _output(command: Sequence[str], environment: MutableMapping[str, str]) -> str | None:
    """Run a command; return its standard output, or None if it fails."""
    done = subprocess.run(command, env=dict(environment), stdout=subprocess.PIPE, check=False)
    return os.fsdecode(done.stdout) if done.returncode == 0 else None


def _reference(trainer: Trainer, options: Namespace) -> str:
    """Return the reference model; empty where none is needed.

    A KL penalty measures the distance to it, and Megatron takes its first weights from it. A trainer that needs one and
    has none ends with a ``TypeError``.
    """
    is_fsdp = options.train_backend == "fsdp"
    bridged = not trainer.loads_hugging_face and options.megatron_to_hf_mode == "bridge"
    resumed = options.load or options.save
    has_weights = is_fsdp or Path(resumed, "latest_checkpointed_iteration.txt").is_file()
    has_weights |= trainer.loads_hugging_face and Path(resumed, "config.json").is_file()
    if not options.ref_load:
        if has_weights and not options.use_kl_loss and not options.kl_coef:
            return ""
        if is_fsdp or bridged:
            return options.model
        if has_weights:
            raise LaunchRefused(
                "--use-kl-loss and --kl-coef need a reference model: -- --ref-load DIR, a torch_dist checkpoint;"
                f" {trainer.remedy}"
            )
        raise LaunchRefused(
            f"megatron has nothing to start from: no checkpoint in {resumed}, and no -- --ref-load DIR, a torch_dist"
            f" checkpoint; {trainer.remedy}"
        )
    reference, folder = options.ref_load, Path(options.ref_load)
    if not folder.is_dir():
        raise LaunchRefused(f"no folder at {reference}; --ref-load takes that of a checkpoint")
    is_hugging_face = (folder / "config.json").is_file()
    if is_fsdp and not is_hugging_face:
        raise LaunchRefused(
            f"no config.json in {reference}; with fsdp, --ref-load takes the folder of a Hugging Face checkpoint"
        )
    reads_it = is_fsdp or bridged or trainer.loads_hugging_face
    if not reads_it and is_hugging_face and not (folder / "latest_checkpointed_iteration.txt").is_file():
        raise LaunchRefused(
            f"--ref-load {reference} is a Hugging Face checkpoint, and megatron reads a torch_dist checkpoint;"
            f" {trainer.remedy}"
        )
    return reference


def _downloaded(options: Namespace, environment: MutableMapping[str, str]) -> str:
    """Return the folder of the model's checkpoint: trainers read a reference model from a folder only."""
    if options.dry_run:
        sys.stderr.write(
            f"note: a run has the folder of {options.model}'s download instead of its name behind --ref-load\n"
        )
        return options.model
    # huggingface_hub comes with transformers.
    printed = _output([sys.executable, "-c", _DOWNLOAD, options.model], environment)
    if printed is None:
        raise LaunchRefused(
            f"no Hugging Face checkpoint {options.model} to be the reference model; name its folder with -- --ref-load"
        )
    return printed.rstrip("\n")


def _function_arguments(options: Namespace) -> Arguments:
    arguments: Arguments = {"--custom-rm-path": "reward.reward_func"}
    arguments |= {option: f"generate.{function}" for option, (function, _) in HOOKS.items()}
    if not options.agent:
        return {**arguments, "--custom-generate-function-path": "generate.generate"}
    family = options.tito_model or tito_family(options.model)
    if family is None:
        raise LaunchRefused(
            f"--agent needs the family of {options.model}: -- --tito-model FAMILY, one of Miles'"
            " docs/user-guide/agentic-rollout.md (default: none of them; what it writes wrongly is not trained on)"
        )
    return {
        **arguments,
        "--tito-model": family,
        "--use-session-server": None,
        "--custom-generate-function-path": "generate.generate_with_agent",
        "--custom-agent-function-path": "generate.run",
        "--max-seq-len": options.rollout_max_context_len,
    }


def _tracking_arguments(trainer: Trainer, options: Namespace, environment: MutableMapping[str, str]) -> Arguments:
    if not environment.get("WANDB_API_KEY") and environment.get("WANDB_MODE") != "offline":
        return {}
    # The key itself stays in the environment: every user of the machine can read a command line.
    return {
        "--use-wandb": None,
        "--wandb-project": f"{trainer.name}-openreward",
        "--wandb-group": options.wandb_run or f"{trainer.name}-rl-openreward-{time.strftime('%Y%m%d-%H%M%S')}",
        "--disable-wandb-random-suffix": None,
    }
