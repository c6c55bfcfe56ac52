"""The launch scripts of slime and Miles: every documented option, its default, and what it becomes."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

RECIPES = Path(__file__).parents[2] / "clients" / "recipes"
TRAINERS = ("slime", "miles")


def run(
    trainer: str, *arguments: str, folder: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB", "OPENREWARD"))}
    return subprocess.run(
        ["bash", str(RECIPES / trainer / "run.sh"), *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        env=clean | variables,
        cwd=folder,
    )


def command(trainer: str, *arguments: str, **variables: str) -> list[str]:
    """The command that the script would run."""
    done = run(trainer, "--dry-run", *arguments, folder=None, **variables)
    assert done.returncode == 0, done.stderr
    return shlex.split(done.stdout)


def value(words: list[str], flag: str) -> str:
    """What follows a flag that is there once."""
    assert words.count(flag) == 1, flag
    return words[words.index(flag) + 1]


# The table of the READMEs, and what else they document.
DOCUMENTED = [
    ("--model", "Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-4B", "--hf-checkpoint"),
    ("--lr", "1e-5", "5e-6", "--lr"),
    ("--n-samples", "16", "8", "--n-samples-per-prompt"),
    ("--rollout-batch-size", "32", "64", "--rollout-batch-size"),
    ("--max-response-len", "4096", "1024", "--rollout-max-response-len"),
    ("--max-tokens-per-gpu", "8192", "16384", "--max-tokens-per-gpu"),
    ("--temperature", "1.0", "0.6", "--rollout-temperature"),
    ("--actor-gpus", "4", "8", "--actor-num-gpus-per-node"),
    ("--rollout-gpus", "4", "2", "--rollout-num-gpus"),
    ("--tp", "4", "2", "--rollout-num-gpus-per-engine"),
    ("--actor-nodes", "1", "2", "--actor-num-nodes"),
    ("--save-interval", "10", "5", "--save-interval"),
    ("--weight-decay", "0.0", "0.1", "--weight-decay"),
    ("--adam-beta1", "0.9", "0.8", "--adam-beta1"),
    ("--adam-beta2", "0.999", "0.98", "--adam-beta2"),
    ("--adam-eps", "1e-8", "1e-6", "--adam-eps"),
    ("--lr-decay-style", "constant", "cosine", "--lr-decay-style"),
    ("--max-total-len", "8192", "32768", "--rollout-max-context-len"),
    ("--num-rollout", "3000", "10", "--num-rollout"),
    ("--train-backend", "fsdp", "fsdp", "--train-backend"),
]


@pytest.mark.parametrize("trainer", TRAINERS)
def test_every_documented_option_and_its_default(trainer: str) -> None:
    defaults = command(trainer)
    changed = command(trainer, *(word for flag, _, new, _ in DOCUMENTED for word in (flag, new)))
    for flag, default, new, meant in DOCUMENTED:
        assert value(defaults, meant) == default, flag
        assert value(changed, meant) == new, flag
    assert value(defaults, "--global-batch-size") == str(32 * 16)
    assert value(changed, "--global-batch-size") == str(64 * 8)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_help_names_every_option_and_its_default(trainer: str) -> None:
    done = run(trainer, "--help")
    assert done.returncode == 0
    for flag, default, _, _ in DOCUMENTED:
        line = next(line for line in done.stdout.splitlines() if re.match(rf"\s+{flag} ", line))
        assert f"default: {default})" in line, flag
    script = (RECIPES / trainer / "run.sh").read_text()
    for flag in re.findall(r"^        (--[a-z0-9-]+)\)", script, re.M):
        assert flag in done.stdout or flag in ("--gradient-checkpointing", "--no-gradient-checkpointing"), flag


@pytest.mark.parametrize("trainer", TRAINERS)
def test_the_command_that_every_run_has_in_common(trainer: str) -> None:
    folder = RECIPES / trainer
    words = command(trainer)
    assert words[:2] == ["python", "train_async.py"]
    assert value(words, "--advantage-estimator") == "grpo"
    assert value(words, "--prompt-data") == str(folder / "tasks.jsonl")
    for flag, key in (("--input-key", "prompt"), ("--label-key", "label"), ("--metadata-key", "metadata")):
        assert value(words, flag) == key
    assert value(words, "--custom-generate-function-path") == "generate.generate"
    assert value(words, "--custom-rm-path") == "reward.reward_func"
    assert value(words, "--dynamic-sampling-filter-path") == "generate.keep_group"
    assert value(words, "--custom-rollout-log-function-path") == "generate.log_rollout_data"
    assert "--use-dynamic-batch-size" in words
    assert value(words, "--save") == value(words, "--load") == f"{folder}/checkpoints/"


def test_gradient_checkpointing_is_the_default_of_miles_only() -> None:
    assert "--gradient-checkpointing" not in command("slime")
    assert "--gradient-checkpointing" in command("slime", "--gradient-checkpointing")
    assert "--gradient-checkpointing" in command("slime", "--", "--gradient-checkpointing")
    assert "--gradient-checkpointing" in command("miles")
    assert "--gradient-checkpointing" not in command("miles", "--no-gradient-checkpointing")


@pytest.mark.parametrize("trainer", TRAINERS)
def test_dynamic_batches_can_be_switched_off(trainer: str) -> None:
    words = command(trainer, "--no-dynamic-batch-size")
    assert "--use-dynamic-batch-size" not in words
    assert "--max-tokens-per-gpu" not in words


@pytest.mark.parametrize("trainer", TRAINERS)
def test_checkpoints_are_loaded_from_elsewhere(trainer: str) -> None:
    words = command(trainer, "--load", "/path/to/checkpoints/", "--save", "/elsewhere")
    assert value(words, "--load") == "/path/to/checkpoints/"
    assert value(words, "--save") == "/elsewhere"


@pytest.mark.parametrize("trainer", TRAINERS)
def test_the_rest_is_passed_on_unchanged(trainer: str) -> None:
    rest = ["--context-parallel-size", "2", "--use-kl-loss", "--kl-loss-coef", "0.01", "a b", "--model", "$HOME", "--"]
    assert command(trainer, "--lr", "5e-6", "--", *rest)[-len(rest) :] == rest


@pytest.mark.parametrize("trainer", TRAINERS)
def test_megatron_takes_the_models_arguments(trainer: str, tmp_path: Path) -> None:
    model = tmp_path / "model.sh"
    model.write_text('MODEL_ARGS=(--num-layers 48 --hidden-size "2048")\n')
    words = command(trainer, "--train-backend", "megatron", "--model-args", str(model), "--tp", "2")
    assert value(words, "--train-backend") == "megatron"
    assert value(words, "--num-layers") == "48"
    assert value(words, "--tensor-model-parallel-size") == "2"
    assert "--gradient-checkpointing" not in words
    assert ("--recompute-granularity" in words) == (trainer == "miles")
    refused = run(trainer, "--dry-run", "--train-backend", "megatron")
    assert refused.returncode == 2
    assert "--model-args" in refused.stderr


@pytest.mark.parametrize("trainer", TRAINERS)
def test_weights_and_biases(trainer: str) -> None:
    assert "--use-wandb" not in command(trainer)
    words = command(trainer, WANDB_API_KEY="wandb-secret")
    assert "--use-wandb" in words
    assert value(words, "--wandb-project") == f"{trainer}-openreward"
    assert re.fullmatch(rf"{trainer}-rl-openreward-\d{{8}}-\d{{6}}", value(words, "--wandb-group"))
    assert "wandb-secret" not in " ".join(words)
    words = command(trainer, "--wandb-project", "p", "--wandb-run", "r 1", WANDB_MODE="offline")
    assert (value(words, "--wandb-project"), value(words, "--wandb-group")) == ("p", "r 1")


def test_miles_can_leave_the_tokens_to_its_session_server() -> None:
    words = command("miles", "--agent", "--max-total-len", "4000")
    assert "--use-session-server" in words
    assert value(words, "--custom-generate-function-path").endswith("agentic_tool_call.generate")
    assert value(words, "--custom-agent-function-path") == "generate.run"
    assert value(words, "--max-seq-len") == "4000"
    assert run("slime", "--dry-run", "--agent").returncode == 2


@pytest.mark.parametrize("trainer", TRAINERS)
def test_what_the_rollouts_find_in_their_surroundings(trainer: str, tmp_path: Path) -> None:
    """``train_async.py`` runs in the folder of the trainer, with the recipe importable and the file's full path."""
    repository = tmp_path / trainer
    repository.mkdir()
    (repository / "train_async.py").write_text(
        "import os, generate, reward\n"
        "print(os.environ['TRAIN_CONFIG'], os.environ.get('OPENREWARD_RUN_NAME'), generate.__file__)\n"
        "print(generate.generate.__module__, reward.reward_func.__module__)\n"
    )
    (tmp_path / "my.yaml").write_text("environments: {a: }\n")
    (tmp_path / "tasks.jsonl").write_text("")
    options = ("--config", "../my.yaml", "--task-data", str(tmp_path / "tasks.jsonl"), "--wandb-run", "run-1")
    done = run(trainer, *options, folder=repository, PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == f"{tmp_path}/my.yaml run-1 {RECIPES}/{trainer}/generate.py"
    assert second == f"ors_clients.{trainer} ors_clients.slime"


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--modle", "x"), "no option --modle"),
        (("--model",), "--model takes a value"),
        (("stray",), "stray"),
        (("--train-backend", "jax"), "fsdp or megatron"),
        (("--n-samples", "08"), "--n-samples is a whole number over 0, not 08"),
        (("--rollout-batch-size", "abc"), "--rollout-batch-size is a whole number over 0, not abc"),
        (("--num-rollout", "0"), "--num-rollout is a whole number over 0, not 0"),
        (("--tp", "a[$(touch evaluated)]"), "--tp is a whole number"),
        (("--save-interval", ""), "--save-interval is a whole number"),
        (("--rollout-gpus", "-1"), "--rollout-gpus is a whole number, not -1"),
        (("--lr", "1e"), "--lr is a number, not 1e"),
        (("--temperature", "hot"), "--temperature is a number, not hot"),
        (("--load", "--dry-run"), "--load takes a value and is followed by the option --dry-run"),
        (("--config", "/nowhere.yaml"), "no training configuration at /nowhere.yaml"),
        (("--task-data", "/nowhere.jsonl"), "prepare_tasks.py"),
    ],
)
def test_a_wrong_start_says_what_to_do(trainer: str, arguments: tuple[str, ...], said: str, tmp_path: Path) -> None:
    done = run(trainer, *arguments, folder=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("trainer", TRAINERS)
def test_numbers_in_every_form(trainer: str) -> None:
    for number in ("1", "0", "0.5", ".5", "1.", "1e-6", "2.5E+3"):
        assert value(command(trainer, "--weight-decay", number), "--weight-decay") == number
    assert value(command(trainer, "--rollout-gpus", "0"), "--rollout-num-gpus") == "0"


@pytest.mark.parametrize("trainer", TRAINERS)
def test_help_says_where_each_key_goes(trainer: str) -> None:
    said = " ".join(run(trainer, "--help").stdout.split())
    assert "OPENREWARD_SESSION_URL and OPENREWARD_API_KEY, which goes to no other server" in said


@pytest.mark.parametrize("trainer", TRAINERS)
def test_elsewhere_than_in_the_trainers_repository(trainer: str, tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text("")
    done = run(trainer, "--task-data", str(tmp_path / "tasks.jsonl"), folder=tmp_path)
    assert done.returncode == 2
    assert "repository" in done.stderr
