"""The launcher of slime and Miles: documented options, the resulting commands, and refused runs."""

from __future__ import annotations

import itertools
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ors_clients.training.launch.command import main

from tests.support.paths import RECIPES

TRAINERS = ("slime", "miles")
both = pytest.mark.parametrize("trainer", TRAINERS)


@pytest.fixture(autouse=True)
def no_tracking(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_API_KEY", "WANDB_MODE", "OPENREWARD_RUN_NAME"):
        monkeypatch.delenv(name, raising=False)


class Launcher:
    """Runs the launcher: in this process for its output, with ``run.sh`` for the trainer's command."""

    def __init__(self, capsys: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._capsys = capsys
        self._monkeypatch = monkeypatch
        #: Copies of the recipes with tasks, and checkouts of the trainers.
        self._recipes, self._repositories = folder / "recipes", folder / "repositories"
        for trainer in TRAINERS:
            shutil.copytree(RECIPES / trainer, self.recipe(trainer))
            (self.recipe(trainer) / "tasks.jsonl").touch()
            trainer_repository(self._repositories, trainer)

    def recipe(self, trainer: str) -> Path:
        """Return the folder of the recipe that the runs of this process are started from."""
        return self._recipes / trainer

    def repository(self, trainer: str) -> Path:
        """Return the checkout that ``command`` is called in."""
        return self._repositories / trainer

    def printed(self, trainer: str, *arguments: str) -> tuple[int, str, str]:
        """Return exit status, standard output and standard error of a run that does not reach the trainer."""
        status = main([trainer, str(self.recipe(trainer)), *arguments])
        out, err = self._capsys.readouterr()
        return status, out, err

    def help(self, trainer: str) -> str:
        """Return the text of ``--help``, which ends the process."""
        with pytest.raises(SystemExit) as ended:
            main([trainer, str(self.recipe(trainer)), "--help"])
        assert not ended.value.code
        return self._capsys.readouterr().out

    def command(self, trainer: str, *arguments: str) -> list[str]:
        """Return the command that a run in the trainer's repository would exec."""
        with self._monkeypatch.context() as patch:
            patch.chdir(self.repository(trainer))
            status, out, err = self.printed(trainer, "--dry-run", *arguments)
        assert status == 0, err
        return shlex.split(out)

    def refusal(self, trainer: str, *arguments: str) -> str:
        """Return the reason why a run does not start."""
        status, out, err = self.printed(trainer, *arguments)
        assert (status, out) == (2, "")
        assert err.startswith("error: ")
        return err

    def run(
        self, trainer: str, *arguments: str, folder: Path, refused: bool = False, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run ``run.sh`` in ``folder`` under the Python that runs the tests."""
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", str(RECIPES / trainer / "run.sh"), *arguments],
            capture_output=True,
            text=True,
            timeout=30,
            env={**os.environ, "PATH": path, **variables},
            cwd=folder,
        )
        assert done.returncode == (2 if refused else 0), done.stderr
        assert not (refused and done.stdout)
        return done


@pytest.fixture
def launch(
    capsys: pytest.CaptureFixture[str], tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Launcher:
    return Launcher(capsys, tmp_path_factory.mktemp("launch"), monkeypatch)


def trainer_repository(folder: Path, trainer: str, program: str = "import sys; print(*sys.argv[1:])") -> Path:
    """Create a checkout of a trainer that has both backends and runs ``program``, with tasks in it."""
    repository = folder / trainer
    backend = repository / trainer / "backends" / "fsdp_utils"
    backend.mkdir(parents=True)
    (backend / "actor.py").touch()
    for name in ("train.py", "train_async.py"):
        (repository / name).write_text(program)
    (repository / "tasks.jsonl").touch()
    return repository


@pytest.fixture
def checkpoints(tmp_path: Path) -> dict[str, str]:
    """Create folders that look like checkpoints of Hugging Face and of a trainer (``torch_dist``)."""
    files = {"hugging_face": "config.json", "torch_dist": "latest_checkpointed_iteration.txt"}
    for name, file in files.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / file).touch()
    return {name: str(tmp_path / name) for name in files}


@pytest.fixture
def megatron(tmp_path: Path) -> tuple[str, ...]:
    """Return the options of every run with Megatron, except its weights; the last ones are the trainer's."""
    model = tmp_path / "model.sh"
    model.write_text('echo noise\nMODEL_ARGS=(--num-layers 48 --hidden-size "2048")\nexport FROM_MODEL=yes\n')
    backend = ("--", "--train-backend", "megatron", "--save", str(tmp_path / "checkpoints"))
    return ("--model-args", str(model), *backend)


def value(words: list[str], flag: str) -> str:
    """Return the value of a flag that occurs once."""
    assert words.count(flag) == 1, flag
    return words[words.index(flag) + 1]


#: An option of ``run.sh`` with a value, the trainer's argument for it, and another value than the default.
OWN = {"--model": ("--hf-checkpoint", "Qwen/Qwen3-4B"), "--tp": ("--rollout-num-gpus-per-engine", "2")}
#: The trainers' arguments that have another value than theirs, and another one again.
PASSED = {
    "--lr": "5e-6",
    "--n-samples-per-prompt": "8",
    "--rollout-batch-size": "64",
    "--rollout-max-response-len": "1024",
    "--rollout-max-context-len": "32768",
    "--rollout-temperature": "0.6",
    "--max-tokens-per-gpu": "16384",
    "--actor-num-gpus-per-node": "8",
    "--actor-num-nodes": "2",
    "--rollout-num-gpus": "0",
    "--save-interval": "5",
    "--weight-decay": "0.1",
    "--adam-beta1": "0.8",
    "--adam-beta2": "0.98",
    "--adam-eps": "1e-6",
    "--lr-decay-style": "cosine",
    "--num-rollout": "10",
    "--train-backend": "fsdp",
    "--sglang-mem-fraction-static": "0.7",
}


@both
def test_every_documented_option_and_its_default(trainer: str, launch: Launcher) -> None:
    """The command has the default that ``--help`` and the tables of the README name, or the value that is given."""
    readme = (RECIPES / trainer / "README.md").read_text()
    table = dict(re.findall(r"^\| `(--[\w-]+)` \| `([^`]+)` \|", readme, re.M))
    defaults = launch.command(trainer)
    own = [word for flag, (_, new) in OWN.items() for word in (flag, new)]
    changed = launch.command(trainer, *own, "--", *(f"{flag}={new}" for flag, new in PASSED.items()))
    text = " ".join(launch.help(trainer).split())
    assert len(table) >= 10
    assert table.keys() <= {*OWN, *PASSED, "--wandb-project"}
    for flag, (meant, new) in OWN.items():
        assert table[flag] == value(defaults, meant)
        assert re.search(rf"{flag} [A-Z]+ [^:]* \(default: {value(defaults, meant)}\)", text)
        assert value(changed, meant) == new
    for flag, new in PASSED.items():
        default = value(defaults, flag)
        assert table.get(flag, default) == default
        assert f"{flag} {default}" in text or flag == "--train-backend"
        assert flag not in changed  # what the user gives takes the place of ours
        assert changed.count(f"{flag}={new}") == 1


@both
def test_every_option_of_the_help_is_in_the_readme(trainer: str, launch: Launcher) -> None:
    readme = (RECIPES / trainer / "README.md").read_text()
    options = set(re.findall(r"^  (?:-h, )?(--[\w-]+)", launch.help(trainer), re.M)) - {"--help"}
    assert len(options) == 11 + (trainer == "miles")
    assert all(f"`{option}`" in readme for option in options)


#: An option of release 0.2, and the trainer's argument that takes its place.
REPLACED = {
    "--lr 5e-6": "--lr 5e-6",
    "--lr=5e-6 --temperature=0.6": "--lr=5e-6 --rollout-temperature=0.6",
    "--n-samples 8 --rollout-batch-size 64": "--n-samples-per-prompt 8 --rollout-batch-size 64",
    "--max-response-len 1024 --max-total-len 4096": "--rollout-max-response-len 1024 --rollout-max-context-len 4096",
    "--actor-gpus 8 --actor-nodes 2 --rollout-gpus 4": "--actor-num-gpus-per-node 8 --actor-num-nodes 2"
    " --rollout-num-gpus 4",
    "--num-gpus 8": "--colocate --actor-num-gpus-per-node 8",
    "--megatron-ckpt /w --load /l": "--train-backend megatron --ref-load /w --load /l",
    "--no-dynamic-batch-size": "--micro-batch-size 1",
    "--save 'a folder'": "--save 'a folder'",
    "--train-backend fsdp --ref-load /w --colocate": "--train-backend fsdp --ref-load /w --colocate",
    "--num-rollout 3 --save-interval 3": "--num-rollout 3 --save-interval 3",
    "--lr-decay-style cosine --weight-decay .1": "--lr-decay-style cosine --weight-decay .1",
    "--adam-beta1 .8 --adam-beta2 .9 --adam-eps 1": "--adam-beta1 .8 --adam-beta2 .9 --adam-eps 1",
    "--max-tokens-per-gpu 4096": "--max-tokens-per-gpu 4096",
    "--wandb-project p --tito-model qwen3": "--wandb-project p --tito-model qwen3",
}


@pytest.mark.combinations
@both
@pytest.mark.parametrize(("old", "new"), REPLACED.items())
def test_an_argument_of_the_trainers_before_the_dashes_is_refused_with_its_name(
    trainer: str, old: str, new: str, launch: Launcher
) -> None:
    refused = launch.refusal(trainer, "--dry-run", "--model", "m", *shlex.split(old))
    assert refused.startswith(f"error: {old}: run.sh has no such option")
    assert refused.endswith(f": -- {new}\n")


@both
def test_every_run_calls_the_functions_of_the_recipe(trainer: str, launch: Launcher) -> None:
    folder, words = launch.recipe(trainer), launch.command(trainer)
    assert words[:2] == ["python", "train_async.py"]
    assert value(words, "--prompt-data") == str(folder / "tasks.jsonl")
    assert value(words, "--save") == value(words, "--load") == f"{folder}/checkpoints/"
    named = [word for flag, word in itertools.pairwise(words) if re.fullmatch(r"--(custom|dynamic)-.*-path", flag)]
    assert len(named) == 6
    for module, name in (word.split(".") for word in named):
        assert callable(runpy.run_path(str(folder / f"{module}.py"))[name])


@both
def test_every_command_of_the_readme_is_taken(trainer: str, launch: Launcher) -> None:
    readme = (RECIPES / trainer / "README.md").read_text()
    commands = re.findall(r"^bash run\.sh ([^#\n]*)", readme, re.M)
    assert len(commands) >= 7
    for arguments in commands:
        assert launch.command(trainer, *shlex.split(arguments))[:2] == ["python", "train_async.py"]


@pytest.mark.combinations
@both
@pytest.mark.parametrize(
    ("options", "present", "absent"),
    [
        ((), "--use-dynamic-batch-size --use-tis", "--ref-load --colocate --hidden-dropout --use-wandb --tito-model"),
        (("--", "--micro-batch-size", "2"), "--micro-batch-size 2", "--use-dynamic-batch-size"),
        (("--", "--load", "/a/", "--save", "/b"), "--load /a/ --save /b", ""),
        (("--", "--save=/b"), "--save=/b --load /b", "--save"),
        (("--no-importance-sampling",), "", "--use-tis"),
        (("--gradient-checkpointing",), "--gradient-checkpointing", ""),
        (("--no-gradient-checkpointing",), "", "--gradient-checkpointing"),
        (("--", "--use-rollout-logprobs"), "", "--use-tis"),  # the trainers refuse the combination
        (("--", "--use-tis"), "--use-tis", ""),
        (("--", "--kl-coef", "0.00"), "", "--ref-load"),
        (("--", "--kl-coef", "0e0"), "", "--ref-load"),
        # the trainers make the GPUs that generate of those that train
        (
            ("--", "--colocate", "--actor-num-gpus-per-node", "8"),
            "python train.py --colocate --actor-num-gpus-per-node 8",
            "train_async.py --rollout-num-gpus",
        ),
        (("--", "--coloc"), "python train.py --coloc", "train_async.py --rollout-num-gpus"),
    ],
)
def test_options_add_and_remove_arguments(
    trainer: str, options: tuple[str, ...], present: str, absent: str, launch: Launcher
) -> None:
    words = launch.command(trainer, *options)
    assert all(words.count(flag) == 1 for flag in present.split() if flag.startswith("--"))
    pairs = f" {' '.join(words)} "
    assert all(f" {part} " in pairs for part in re.split(r" (?=--)", present) if part)
    assert not set(absent.split()) & set(words)


def test_gradient_checkpointing_is_the_default_of_miles_only(launch: Launcher) -> None:
    assert "--gradient-checkpointing" not in launch.command("slime")
    assert "--gradient-checkpointing" in launch.command("miles")


@both
def test_arguments_behind_two_dashes_are_passed_on_unchanged(trainer: str, launch: Launcher) -> None:
    rest = ["--context-parallel-size", "2", "--use-kl-loss", "--kl-loss-coef", "0.01", "a b", "--model", "$HOME", "--"]
    assert launch.command(trainer, "--tp", "2", "--", *rest)[-len(rest) :] == rest


@both
def test_megatron_trains_the_tokens_that_the_engine_sampled(
    trainer: str, megatron: tuple[str, ...], checkpoints: dict[str, str], launch: Launcher
) -> None:
    """Megatron's own defaults are a dropout of 0.1, and no sequence parallelism, which mixtures of experts need."""
    options = (*megatron, "--ref-load", checkpoints["torch_dist"])
    words = launch.command(trainer, "--tp", "2", *options)
    assert value(words, "--train-backend") == "megatron"
    assert (value(words, "--num-layers"), value(words, "--hidden-size")) == ("48", "2048")
    assert value(words, "--tensor-model-parallel-size") == "2"
    assert value(words, "--attention-dropout") == value(words, "--hidden-dropout") == "0.0"
    assert "--gradient-checkpointing" not in words
    assert ("--recompute-granularity" in words) == (trainer == "miles")
    assert "--sequence-parallel" in words
    assert "--sequence-parallel" not in launch.command(trainer, "--tp", "1", *options)
    assert "--model-args" in launch.refusal(trainer, *options[2:])
    Path(megatron[1]).write_text("# nothing\n")
    assert "sets no MODEL_ARGS" in launch.refusal(trainer, *options)
    Path(megatron[1]).write_text("false\n")
    assert "model.sh failed" in launch.refusal(trainer, *options)


@both
def test_megatron_starts_from_weights(
    trainer: str, megatron: tuple[str, ...], checkpoints: dict[str, str], tmp_path: Path, launch: Launcher
) -> None:
    refused = launch.refusal(trainer, "--dry-run", *megatron)
    assert f"no checkpoint in {tmp_path}/checkpoints, and no -- --ref-load" in refused
    assert "tools/convert_hf_to_torch_dist.py" in refused
    launch.refusal(trainer, "--dry-run", *megatron, "--load", str(tmp_path))
    weights = checkpoints["torch_dist"]
    assert launch.command(trainer, *megatron, "--ref-load", weights)[-2:] == ["--ref-load", weights]
    assert "--ref-load" not in launch.command(trainer, *megatron, f"--ref-load={weights}")
    assert "--ref-load" not in launch.command(trainer, *megatron, "--load", weights)


def test_megatron_reads_hugging_faces_folder_with_slime_and_over_miles_bridge(
    megatron: tuple[str, ...], checkpoints: dict[str, str], launch: Launcher
) -> None:
    model = checkpoints["hugging_face"]
    assert value(launch.command("slime", *megatron, "--ref-load", model), "--ref-load") == model
    assert "--ref-load" not in launch.command("slime", *megatron, "--load", model)
    for bridge in (["--megatron-to-hf-mode", "bridge"], ["--megatron-to-hf-mode=bridge"]):
        assert value(launch.command("miles", "--model", model, *megatron, *bridge), "--ref-load") == model
    for option in ("--ref-load", "--load"):
        refused = launch.refusal("miles", "--dry-run", *megatron, option, model)
        assert "-- --megatron-to-hf-mode bridge" in refused


def test_miles_reads_its_models_files(tmp_path: Path, checkpoints: dict[str, str], launch: Launcher) -> None:
    """They are Python and import from Miles; the reader prints what ``model_args`` returns."""
    repository = trainer_repository(tmp_path, "miles")
    reader = repository / "miles" / "utils" / "external_utils" / "model_args_utils.py"
    models = repository / "scripts" / "models"
    for folder in (reader.parent, models):
        folder.mkdir(parents=True)
    reader.write_text(
        "import sys\nassert sys.argv[1] == 'qwen3.5-4B'\nprint('--num-layers 32 --moe-layer-freq [1,1]')\n"
    )
    for file in (models / "qwen3.5-4B.py", models / "other.py", tmp_path / "alone.py"):
        file.touch()
    passed = ("--", "--train-backend", "megatron", "--ref-load", checkpoints["torch_dist"])
    words = launch.command("miles", "--model-args", str(models / "qwen3.5-4B.py"), *passed)
    assert (value(words, "--num-layers"), value(words, "--moe-layer-freq")) == ("32", "[1,1]")
    refused = launch.refusal("miles", "--model-args", str(models / "other.py"), *passed)
    assert f"Miles cannot read {models}/other.py" in refused
    refused = launch.refusal("miles", "--model-args", str(tmp_path / "alone.py"), *passed)
    assert "in no scripts/models/ of a Miles repository" in refused


@both
@pytest.mark.parametrize(
    "penalty", [("--use-kl-loss", "--kl-loss-coef", "1"), ("--kl-coef", "0.1"), ("--kl-coef=1e-3",)]
)
def test_a_penalty_has_a_reference_model(
    trainer: str, penalty: tuple[str, ...], megatron: tuple[str, ...], checkpoints: dict[str, str], launch: Launcher
) -> None:
    model = checkpoints["hugging_face"]
    assert value(launch.command(trainer, "--model", model, "--", *penalty), "--ref-load") == model
    assert value(launch.command(trainer, "--", *penalty, "--ref-load", model), "--ref-load") == model
    refused = launch.refusal(trainer, *megatron, "--load", checkpoints["torch_dist"], *penalty)
    assert "need a reference model: -- --ref-load DIR" in refused


@both
def test_the_reference_model_is_downloaded(
    trainer: str, tmp_path: Path, launch: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trainers read it from a folder only, and ``--model`` is a name by default."""
    monkeypatch.chdir(launch.repository(trainer))
    status, out, err = launch.printed(trainer, "--dry-run", "--", "--use-kl-loss")
    assert (status, "--ref-load Qwen/Qwen3-30B-A3B" in out) == (0, True)
    assert "note: a run has the folder of Qwen/Qwen3-30B-A3B's download" in err
    repository = trainer_repository(tmp_path, trainer)
    hub = tmp_path / "hub" / "huggingface_hub.py"
    hub.parent.mkdir()
    hub.write_text("def snapshot_download(name):\n    return f'/cache/{name}/snapshot'\n")
    options = ("--task-data", "tasks.jsonl", "--model", "Qwen/Qwen3-4B", "--", "--use-kl-loss")
    done = launch.run(trainer, *options, folder=repository, PYTHONPATH=str(hub.parent))
    assert value(done.stdout.split(), "--ref-load") == "/cache/Qwen/Qwen3-4B/snapshot"
    hub.write_text("def snapshot_download(name):\n    raise OSError('offline')\n")
    done = launch.run(trainer, *options, folder=repository, refused=True, PYTHONPATH=str(hub.parent))
    assert "no Hugging Face checkpoint Qwen/Qwen3-4B to be the reference model" in done.stderr


def test_a_slime_without_fsdp_is_refused(
    megatron: tuple[str, ...], checkpoints: dict[str, str], tmp_path: Path, launch: Launcher
) -> None:
    repository = trainer_repository(tmp_path, "slime", "import os, sys; print(*sys.argv[1:], os.getenv('FROM_MODEL'))")
    options = ("--task-data", "tasks.jsonl")
    launch.run("slime", *options, folder=repository)
    (repository / "slime" / "backends" / "fsdp_utils" / "actor.py").unlink()
    for dry in ((), ("--dry-run",)):
        named = ("--", "--train-backend", "fsdp")
        refused = launch.run("slime", *options, *dry, *named, folder=repository, refused=True).stderr
        assert "this slime has no FSDP backend" in refused
        assert "--model-args scripts/models/MODEL.sh -- --train-backend megatron --ref-load DIR" in refused
        refused = launch.run("slime", *options, *dry, folder=repository, refused=True).stderr
        assert "megatron needs --model-args" in refused  # the only backend that this slime has
    weights = ("--ref-load", checkpoints["torch_dist"])
    done = launch.run("slime", *options, *megatron[:2], "--", *megatron[-2:], *weights, folder=repository)
    assert value(done.stdout.split(), "--train-backend") == "megatron"
    done = launch.run("slime", *options, *megatron, *weights, folder=repository)
    words = done.stdout.split()
    assert value(words, "--ref-load") == checkpoints["torch_dist"]
    assert words[-1] == "yes"  # exported by the model's script


@both
def test_weights_and_biases(trainer: str, launch: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "wandb-secret")
    words = launch.command(trainer)
    assert "--use-wandb" in words
    assert value(words, "--wandb-project") == f"{trainer}-openreward"
    assert re.fullmatch(rf"{trainer}-rl-openreward-\d{{8}}-\d{{6}}", value(words, "--wandb-group"))
    assert "wandb-secret" not in " ".join(words)
    monkeypatch.delenv("WANDB_API_KEY")
    monkeypatch.setenv("WANDB_MODE", "offline")
    words = launch.command(trainer, "--wandb-run", "r 1", "--", "--wandb-project", "p")
    assert (value(words, "--wandb-project"), value(words, "--wandb-group")) == ("p", "r 1")


@pytest.mark.parametrize(
    ("model", "family"),
    [
        ("Qwen/Qwen3-4B", "qwen3"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3"),
        ("/models/Qwen3-4B-Thinking-2507/", "qwennext"),
        ("Qwen/Qwen3-Next-80B-A3B-Thinking", "qwennext"),
        ("Qwen/Qwen3.5-2B", "qwen35"),
        ("zai-org/GLM-4.7", "glm47"),
        ("nvidia/Nemotron-3-Nano", "nemotron3"),
        ("moonshotai/Kimi-K2.6", "kimi26"),
        ("MiniMaxAI/MiniMax-M2.5", "minimax_m25"),
        ("deepseek-ai/DeepSeek-V3.2", "deepseekv32"),
        ("Qwen/Qwen2.5-7B", None),
        ("/models/mine", None),
        ("Qwen/Qwen3-VL-8B", None),
    ],
)
def test_miles_session_server_writes_turns_as_the_models_family(
    model: str, family: str | None, launch: Launcher
) -> None:
    options = ("--agent", "--model", model, "--", "--rollout-max-context-len", "4000")
    if family is None:
        assert "-- --tito-model" in launch.refusal("miles", "--dry-run", *options)
        family, options = "default", (*options, "--tito-model", "default")
    words = launch.command("miles", *options)
    assert value(words, "--tito-model") == family
    assert "--use-session-server" in words
    assert value(words, "--custom-generate-function-path") == "generate.generate_with_agent"
    assert value(words, "--custom-agent-function-path") == "generate.run"
    assert value(words, "--max-seq-len") == "4000"
    assert launch.command("miles", *options, "--tito-model", "qwen3")[-2:] == ["--tito-model", "qwen3"]
    assert "--agent: run.sh has no such option" in launch.refusal("slime", *options[:1])


@both
def test_variables_and_folder_of_the_trainer(trainer: str, tmp_path: Path, launch: Launcher) -> None:
    """``train_async.py`` runs in the folder of the trainer, with the recipe importable and the file's full path."""
    library = tmp_path / "Megatron-LM"
    (library / "megatron").mkdir(parents=True)
    program = (
        "import os, generate, reward\n"
        "print(os.getcwd(), os.environ['PYTHONPATH'], generate.__file__)\n"
        "print(os.environ['TRAIN_CONFIG'], os.environ['OPENREWARD_RUN_NAME'])\n"
    )
    repository = trainer_repository(tmp_path, trainer, program)
    (tmp_path / "my.yaml").write_text("environments: {a: }\n")
    (tmp_path / "t.jsonl").touch()
    paths = (f"--{trainer}-path", str(repository), "--megatron-path", str(library), "--task-data", "t.jsonl")
    done = launch.run(trainer, *paths, "--config", "my.yaml", "--wandb-run", "run-1", folder=tmp_path, PYTHONPATH="/p")
    recipe = RECIPES / trainer
    assert done.stdout.splitlines() == [
        f"{repository} {recipe}:{library}:/p {recipe}/generate.py",
        f"{tmp_path}/my.yaml run-1",
    ]


@pytest.mark.combinations
@both
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--modle", "x"), "--modle x: run.sh has no such option (see --help)"),
        (("--model",), "argument --model: expected one argument"),
        (("--model", "--dry-run"), "argument --model: expected one argument"),
        (("stray",), "stray"),
        (("--tp", "a[$(touch evaluated)]"), "argument --tp: invalid int value"),
        (("--", "--train-backend", "jax"), "choose from 'fsdp', 'megatron'"),
        (("--", "--load"), "argument --load: expected one argument"),
        (("--", "--kl-coef", "high"), "argument --kl-coef: invalid float value: 'high'"),
        (("--config", "/nowhere.yaml"), "no training configuration at /nowhere.yaml"),
        (("--", "--ref-load", "/nowhere"), "no folder at /nowhere; --ref-load takes that of a checkpoint"),
        (("--", "--ref-load", "."), "no config.json in .; with fsdp"),
        (("--megatron-path", "."), "no Megatron-LM repository at ."),
        (("--task-data", "/nowhere.jsonl"), "prepare_tasks.py"),
        (("--task-data", "/dev/null"), "no tasks at /dev/null"),
        (("--task-data", __file__), "no train_async.py here; run this from the root of the"),
    ],
)
def test_a_refused_run_says_what_to_change(
    trainer: str,
    arguments: tuple[str, ...],
    said: str,
    tmp_path: Path,
    launch: Launcher,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in launch.refusal(trainer, *arguments)
    assert list(tmp_path.iterdir()) == []


@both
def test_a_folder_that_cannot_be_entered_is_refused(trainer: str, launch: Launcher) -> None:
    refused = launch.refusal(trainer, f"--{trainer}-path", "/nowhere")
    assert f"--{trainer}-path is not a folder that can be entered" in refused


#: An option of the user's that would replace a function of ours, its shortest beginning that the trainers take for it,
#: and what the refusal says.
REPLACEMENTS = [
    ("--dynamic-sampling-filter-path", "--dy", "group_filter: PACKAGE.MODULE.FUNCTION"),
    ("--custom-reward-post-process-path", "--custom-rew", "leaves lost rollouts out of the baselines"),
    ("--custom-convert-samples-to-train-data-path", "--custom-conv", "leaves lost rollouts out of the baselines"),
    ("--custom-rollout-log-function-path", "--custom-ro", "counts lost rollouts"),
    ("--custom-eval-rollout-log-function-path", "--custom-e", "leaves lost rollouts out of evaluations"),
    ("--custom-generate-function-path", "--custom-g", "plays the episodes"),
]


@pytest.mark.combinations
@both
@pytest.mark.parametrize(("option", "beginning", "said"), REPLACEMENTS)
@pytest.mark.parametrize("dry", [(), ("--dry-run",)], ids=["run", "dry run"])
def test_a_function_in_the_place_of_ours_is_refused(
    trainer: str, option: str, beginning: str, said: str, dry: tuple[str, ...], launch: Launcher, tmp_path: Path
) -> None:
    for flag in (option, option[:-4], beginning):
        for words in ((flag, "mine.function"), (f"{flag}=mine.function",)):
            refused = launch.refusal(trainer, *dry, "--", *words)
            assert said in refused
            assert refused.startswith(f"error: {option} would replace")
            assert refused.count("\n") == 1
    key, file = option.removeprefix("--").replace("-", "_"), tmp_path / "custom.yaml"
    for text in (f"a: 1\n{key}: mine.function\n", f'"{key}": mine.function\n', f"{{{key} : mine.function}}\n"):
        file.write_text(text)
        for flag in ("--custom-config-path", "--custom-conf"):
            assert said in launch.refusal(trainer, *dry, "--", flag, str(file))


@both
def test_functions_of_the_users_that_replace_none_of_ours_are_passed_on(
    trainer: str, launch: Launcher, tmp_path: Path
) -> None:
    file = tmp_path / "custom.yaml"
    file.write_text("custom: 1\ncustom_reward: 2\ncustom_rm_path: mine.reward\n")  # keys have no beginnings
    own = ["--custom-rm-path", "mine.reward", "--rollout-sample-filter-path", "mine.f"]
    own += ["--custom-config-path", str(file)]
    words = launch.command(trainer, "--", *own)
    assert words[-len(own) :] == own
    assert words.count("--custom-rm-path") == 1


@both
def test_a_dry_run_refuses_what_the_run_refuses(trainer: str, launch: Launcher, tmp_path: Path) -> None:
    for options, said in (((), "no train_async.py here"), (("--task-data", "/nowhere.jsonl"), "no tasks at /nowhere")):
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(tmp_path)
            refusals = [launch.refusal(trainer, *dry, *options) for dry in ((), ("--dry-run",))]
        assert refusals[0] == refusals[1]
        assert said in refusals[0]
