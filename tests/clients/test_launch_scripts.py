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
#: With this ``python`` first, the scripts run trainers and helpers under the one that runs the tests.
PYTHON_FIRST = f"{Path(sys.executable).parent}:{os.environ['PATH']}"


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


def trainer_repository(folder: Path, trainer: str, program: str = "import sys; print(*sys.argv[1:])") -> Path:
    """A checkout of a trainer that has both backends and runs ``program``; tasks and a training configuration in it."""
    repository = folder / trainer
    backend = repository / trainer / "backends" / "fsdp_utils"
    backend.mkdir(parents=True)
    (backend / "actor.py").touch()
    (repository / "train_async.py").write_text(program)
    (repository / "tasks.jsonl").touch()
    return repository


def checkpoint(folder: Path, kind: str) -> str:
    """A folder that looks like a checkpoint of Hugging Face or, as Megatron and FSDP write it, of a trainer."""
    folder.mkdir()
    (folder / {"hugging face": "config.json", "trainer": "latest_checkpointed_iteration.txt"}[kind]).touch()
    return str(folder)


@pytest.fixture
def megatron(tmp_path: Path) -> tuple[str, ...]:
    """What every run with Megatron needs, besides its weights."""
    model = tmp_path / "model.sh"
    model.write_text('MODEL_ARGS=(--num-layers 48 --hidden-size "2048")\n')
    return ("--train-backend", "megatron", "--model-args", str(model), "--save", str(tmp_path / "checkpoints"))


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
def test_every_command_of_the_readme_is_taken(trainer: str) -> None:
    readme = (RECIPES / trainer / "README.md").read_text()
    commands = re.findall(r"^bash run\.sh ([^#\n]*)", readme, re.M)
    assert len(commands) >= 7
    for arguments in commands:
        assert command(trainer, *shlex.split(arguments))[:2] == ["python", "train_async.py"]


@pytest.mark.parametrize("trainer", TRAINERS)
def test_megatron_takes_the_models_arguments(trainer: str, megatron: tuple[str, ...], tmp_path: Path) -> None:
    weights = checkpoint(tmp_path / "torch_dist", "trainer")
    words = command(trainer, *megatron, "--ref-load", weights, "--tp", "2")
    assert value(words, "--train-backend") == "megatron"
    assert value(words, "--num-layers") == "48"
    assert value(words, "--tensor-model-parallel-size") == "2"
    assert "--gradient-checkpointing" not in words
    assert ("--recompute-granularity" in words) == (trainer == "miles")
    refused = run(trainer, "--dry-run", "--train-backend", "megatron", "--ref-load", weights)
    assert refused.returncode == 2
    assert "--model-args" in refused.stderr
    (tmp_path / "model.sh").write_text("# nothing\n")
    refused = run(trainer, "--dry-run", *megatron, "--ref-load", weights)
    assert refused.returncode == 2
    assert "sets no MODEL_ARGS" in refused.stderr


@pytest.mark.parametrize("trainer", TRAINERS)
def test_megatron_trains_what_the_engine_sampled(trainer: str, megatron: tuple[str, ...], tmp_path: Path) -> None:
    """Its own defaults are a dropout of 0.1, and tensor parallelism without what mixtures of experts need."""
    options = (*megatron, "--ref-load", checkpoint(tmp_path / "torch_dist", "trainer"))
    words = command(trainer, *options)
    assert value(words, "--attention-dropout") == value(words, "--hidden-dropout") == "0.0"
    assert "--sequence-parallel" in words
    assert "--sequence-parallel" not in command(trainer, *options, "--tp", "1")
    assert "--hidden-dropout" not in command(trainer)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_megatron_starts_from_weights(trainer: str, megatron: tuple[str, ...], tmp_path: Path) -> None:
    refused = run(trainer, "--dry-run", *megatron)
    assert refused.returncode == 2
    assert f"no checkpoint in {tmp_path}/checkpoints, and no --ref-load" in refused.stderr
    assert "tools/convert_hf_to_torch_dist.py" in refused.stderr
    weights = checkpoint(tmp_path / "torch_dist", "trainer")
    assert value(command(trainer, *megatron, "--ref-load", weights), "--ref-load") == weights
    assert command(trainer, *megatron, "--", "--ref-load", weights)[-2:] == ["--ref-load", weights]
    assert command(trainer, *megatron, "--", f"--ref-load={weights}").count("--ref-load") == 0
    checkpoint(tmp_path / "checkpoints", "trainer")
    assert "--ref-load" not in command(trainer, *megatron)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_megatron_goes_on_from_elsewhere(trainer: str, megatron: tuple[str, ...], tmp_path: Path) -> None:
    earlier = checkpoint(tmp_path / "earlier", "trainer")
    assert "--ref-load" not in command(trainer, *megatron, "--load", earlier)
    assert "--ref-load" not in command(trainer, *megatron, "--", "--load", earlier)
    assert run(trainer, "--dry-run", *megatron, "--load", str(tmp_path)).returncode == 2


def test_slime_starts_megatron_from_hugging_faces_folder(megatron: tuple[str, ...], tmp_path: Path) -> None:
    model = checkpoint(tmp_path / "model", "hugging face")
    assert value(command("slime", *megatron, "--ref-load", model), "--ref-load") == model
    assert "--ref-load" not in command("slime", *megatron, "--load", model)


def test_miles_starts_megatron_from_hugging_faces_folder_over_its_bridge(
    megatron: tuple[str, ...], tmp_path: Path
) -> None:
    model = checkpoint(tmp_path / "model", "hugging face")
    for bridge in (["--megatron-to-hf-mode", "bridge"], ["--megatron-to-hf-mode=bridge"]):
        words = command("miles", *megatron, "--model", model, "--", *bridge)
        assert value(words, "--ref-load") == model
    for options in ("--ref-load", model), ("--load", model):
        refused = run("miles", "--dry-run", *megatron, *options)
        assert refused.returncode == 2
        assert "-- --megatron-to-hf-mode bridge" in refused.stderr


def test_miles_reads_its_models_files(tmp_path: Path) -> None:
    """They are Python and import from Miles; the reader prints what ``model_args`` returns."""
    repository = trainer_repository(tmp_path, "miles")
    reader = repository / "miles" / "utils" / "external_utils" / "model_args_utils.py"
    models = repository / "scripts" / "models"
    for folder in (reader.parent, models):
        folder.mkdir(parents=True)
    reader.write_text(
        "import sys\nassert sys.argv[1] == 'qwen3.5-4B'\nprint('--num-layers 32 --moe-layer-freq [1,1]')\n"
    )
    (models / "qwen3.5-4B.py").touch()
    weights = checkpoint(tmp_path / "torch_dist", "trainer")
    options = ("--train-backend", "megatron", "--ref-load", weights, "--model-args")
    words = command("miles", *options, str(models / "qwen3.5-4B.py"), PATH=PYTHON_FIRST)
    assert value(words, "--num-layers") == "32"
    assert value(words, "--moe-layer-freq") == "[1,1]"
    (models / "other.py").touch()
    refused = run("miles", "--dry-run", *options, str(models / "other.py"), PATH=PYTHON_FIRST)
    assert refused.returncode == 2
    assert f"Miles cannot read {models}/other.py" in refused.stderr
    (tmp_path / "alone.py").touch()
    refused = run("miles", "--dry-run", *options, str(tmp_path / "alone.py"))
    assert refused.returncode == 2
    assert "in no scripts/models/ of a Miles repository" in refused.stderr


# What makes both trainers load a reference model.
PENALTIES = [("--use-kl-loss", "--kl-loss-coef", "0.01"), ("--kl-coef", "0.1"), ("--kl-coef=1e-3",)]


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize("penalty", PENALTIES)
def test_a_penalty_has_a_reference_model(
    trainer: str, penalty: tuple[str, ...], megatron: tuple[str, ...], tmp_path: Path
) -> None:
    model = checkpoint(tmp_path / "model", "hugging face")
    other = checkpoint(tmp_path / "other", "hugging face")
    assert value(command(trainer, "--model", model, "--", *penalty), "--ref-load") == model
    assert value(command(trainer, "--model", model, "--ref-load", other, "--", *penalty), "--ref-load") == other
    words = command(trainer, "--model", model, "--", *penalty, "--ref-load", other)
    assert value(words, "--ref-load") == other
    checkpoint(tmp_path / "checkpoints", "trainer")
    refused = run(trainer, "--dry-run", *megatron, "--", *penalty)
    assert refused.returncode == 2
    assert "need a reference model: --ref-load DIR" in refused.stderr


@pytest.mark.parametrize("trainer", TRAINERS)
def test_without_a_penalty_fsdp_has_no_reference_model(trainer: str) -> None:
    assert "--ref-load" not in command(trainer)
    for coefficient in ("0", "0.0", "0.00", "0e0"):
        assert "--ref-load" not in command(trainer, "--", "--kl-coef", coefficient)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_the_reference_model_is_downloaded(trainer: str, tmp_path: Path) -> None:
    """The trainers read it from a folder only, and ``--model`` is by default a name."""
    noted = run(trainer, "--dry-run", "--", "--use-kl-loss")
    assert "--ref-load Qwen/Qwen3-30B-A3B" in noted.stdout
    assert "note: a run has the folder of Qwen/Qwen3-30B-A3B's download" in noted.stderr
    repository = trainer_repository(tmp_path, trainer)
    hub = tmp_path / "hub" / "huggingface_hub.py"
    hub.parent.mkdir()
    hub.write_text("def snapshot_download(name):\n    return f'/cache/{name}/snapshot'\n")
    surroundings = {"PATH": PYTHON_FIRST, "PYTHONPATH": str(hub.parent)}
    options = ("--task-data", "tasks.jsonl", "--model", "Qwen/Qwen3-4B", "--", "--use-kl-loss")
    done = run(trainer, *options, folder=repository, **surroundings)
    assert done.returncode == 0, done.stderr
    assert value(done.stdout.split(), "--ref-load") == "/cache/Qwen/Qwen3-4B/snapshot"
    hub.write_text("def snapshot_download(name):\n    raise OSError('offline')\n")
    done = run(trainer, *options, folder=repository, **surroundings)
    assert done.returncode == 2
    assert "no Hugging Face checkpoint Qwen/Qwen3-4B to be the reference model" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("trainer", TRAINERS)
def test_fsdp_reads_a_reference_model_of_hugging_face(trainer: str, tmp_path: Path) -> None:
    refused = run(trainer, "--dry-run", "--ref-load", checkpoint(tmp_path / "torch_dist", "trainer"))
    assert refused.returncode == 2
    assert "no config.json" in refused.stderr


@pytest.mark.parametrize("trainer", TRAINERS)
def test_the_recorded_log_probabilities_weigh_the_tokens(trainer: str) -> None:
    assert command(trainer).count("--use-tis") == 1
    assert command(trainer, "--", "--use-tis").count("--use-tis") == 1
    assert "--use-tis" not in command(trainer, "--no-importance-sampling")
    assert "--use-tis" not in command(trainer, "--", "--use-rollout-logprobs")  # the trainers refuse both together
    assert "--use-tis" in " ".join(run(trainer, "--help").stdout.split())


def test_a_slime_without_fsdp_is_told_apart(megatron: tuple[str, ...], tmp_path: Path) -> None:
    repository = trainer_repository(tmp_path, "slime")
    options = ("--task-data", "tasks.jsonl")
    assert run("slime", *options, folder=repository, PATH=PYTHON_FIRST).returncode == 0
    (repository / "slime" / "backends" / "fsdp_utils" / "actor.py").unlink()
    done = run("slime", *options, folder=repository, PATH=PYTHON_FIRST)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "this slime has no FSDP backend" in done.stderr
    assert "--train-backend megatron --model-args scripts/models/MODEL.sh --ref-load DIR" in done.stderr
    weights = checkpoint(tmp_path / "torch_dist", "trainer")
    done = run("slime", *options, *megatron, "--ref-load", weights, folder=repository, PATH=PYTHON_FIRST)
    assert done.returncode == 0, done.stderr
    assert value(done.stdout.split(), "--ref-load") == weights


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
    assert value(words, "--custom-generate-function-path") == "generate.generate_with_agent"
    assert value(words, "--custom-agent-function-path") == "generate.run"
    assert value(words, "--max-seq-len") == "4000"
    assert run("slime", "--dry-run", "--agent").returncode == 2


@pytest.mark.parametrize(
    ("model", "family"),
    [
        ("Qwen/Qwen3-4B", "qwen3"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3"),
        ("/models/Qwen3-4B-Thinking-2507", "qwennext"),
        ("Qwen/Qwen3-Next-80B-A3B-Thinking", "qwennext"),
        ("Qwen/Qwen3.5-2B", "qwen35"),
        ("zai-org/GLM-4.7", "glm47"),
        ("nvidia/Nemotron-3-Nano", "nemotron3"),
        ("moonshotai/Kimi-K2.6", "kimi26"),
        ("MiniMaxAI/MiniMax-M2.5", "minimax_m25"),
        ("deepseek-ai/DeepSeek-V3.2", "deepseekv32"),
    ],
)
def test_miles_session_server_writes_turns_as_the_models_family(model: str, family: str) -> None:
    assert value(command("miles", "--agent", "--model", model), "--tito-model") == family
    assert "--tito-model" not in command("miles", "--model", model)


@pytest.mark.parametrize("model", ["Qwen/Qwen2.5-7B", "/models/mine", "Qwen/Qwen3-VL-8B"])
def test_miles_agent_is_refused_without_the_models_family(model: str) -> None:
    refused = run("miles", "--dry-run", "--agent", "--model", model)
    assert refused.returncode == 2
    assert "--tito-model" in refused.stderr
    assert value(command("miles", "--agent", "--model", model, "--tito-model", "default"), "--tito-model") == "default"
    words = command("miles", "--agent", "--model", model, "--", "--tito-model", "qwen3")
    assert words.count("--tito-model") == 1


@pytest.mark.parametrize("trainer", TRAINERS)
def test_the_cookbooks_names_of_options_are_taken(trainer: str, megatron: tuple[str, ...], tmp_path: Path) -> None:
    weights = checkpoint(tmp_path / "torch_dist", "trainer")
    words = command(trainer, "--num-gpus", "8", "--actor-nodes", "2")
    assert words[:2] == ["python", "train.py"]  # train_async.py refuses it
    assert "--colocate" in words
    assert (value(words, "--actor-num-gpus-per-node"), value(words, "--rollout-num-gpus")) == ("8", "16")
    assert command(trainer, "--colocate", "--actor-gpus", "8") == command(trainer, "--num-gpus", "8")
    assert "--colocate" not in command(trainer)
    if trainer == "slime":
        named = command("slime", "--megatron-ckpt", weights, *megatron[2:])
        assert named == command("slime", *megatron, "--ref-load", weights)
    library = tmp_path / "Megatron-LM"
    (library / "megatron").mkdir(parents=True)
    program = "import os, sys; print(os.getcwd(), os.environ['PYTHONPATH'])"
    repository = trainer_repository(tmp_path, trainer, program)
    paths = (f"--{trainer}-path", str(repository), "--megatron-path", str(library))
    (tmp_path / "t.jsonl").touch()
    done = run(trainer, "--task-data", "t.jsonl", *paths, folder=tmp_path, PATH=PYTHON_FIRST)
    assert done.returncode == 0, done.stderr
    folder, path = done.stdout.split()
    assert folder == str(repository)
    assert str(library) in path.split(":")
    assert run(trainer, "--dry-run", "--megatron-path", str(tmp_path)).returncode == 2


def test_miles_without_context_parallelism_in_fsdp_is_told_apart(tmp_path: Path) -> None:
    repository = trainer_repository(tmp_path, "miles")
    options = ("--task-data", "tasks.jsonl", "--", "--context-parallel-size", "2")
    assert run("miles", *options, folder=repository, PATH=PYTHON_FIRST).returncode == 0
    (repository / "miles" / "utils").mkdir()
    source = 'assert args.context_parallel_size == 1, "Context parallelism is not supported for FSDP backend."'
    (repository / "miles" / "utils" / "arguments.py").write_text(source)
    refused = run("miles", *options, folder=repository, PATH=PYTHON_FIRST)
    assert refused.returncode == 2
    assert "--train-backend megatron" in refused.stderr


@pytest.mark.parametrize("trainer", TRAINERS)
def test_what_the_rollouts_find_in_their_surroundings(trainer: str, tmp_path: Path) -> None:
    """``train_async.py`` runs in the folder of the trainer, with the recipe importable and the file's full path."""
    repository = trainer_repository(
        tmp_path,
        trainer,
        "import os, generate, reward\n"
        "print(os.environ['TRAIN_CONFIG'], os.environ.get('OPENREWARD_RUN_NAME'), generate.__file__)\n"
        "print(generate.generate.__module__, reward.reward_func.__module__)\n",
    )
    (tmp_path / "my.yaml").write_text("environments: {a: }\n")
    options = ("--config", "../my.yaml", "--task-data", "tasks.jsonl", "--wandb-run", "run-1")
    done = run(trainer, *options, folder=repository, PATH=PYTHON_FIRST)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == f"{tmp_path}/my.yaml run-1 {RECIPES}/{trainer}/generate.py"
    assert second == f"ors_clients.{trainer}.functions ors_clients.slime.functions"


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
        (("--ref-load", "/nowhere"), "no folder at /nowhere; --ref-load takes that of a checkpoint"),
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
