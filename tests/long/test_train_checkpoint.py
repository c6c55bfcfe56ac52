"""`ors-server train --model` as a user runs it, on processors: vLLM's build for them, TRL, real servers; and killed.

Only the device differs from a GPU's: the engine is in the trainer's process, and is given the weights of each step.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.long.train_command import Train, train_in
from tests.support.paths import ROOT
from tests.support.servers import served
from tests.support.virtualenvs import made_by

pytestmark = pytest.mark.long

#: Paths of this checkout's packages, for scripts in the trainer's Python.
PYTHONPATH = os.pathsep.join(str(ROOT / name) for name in ("clients", "containers", "cli", "."))
SIZES = ("--device", "cpu", "--context", "256", "--max-tokens", "48", "--max-turns", "1", "--learning-rate", "2e-3")


@pytest.fixture(scope="module")
def python() -> Path:
    """Return the Python that has TRL and vLLM. The first run of a machine downloads it."""
    return made_by("vllm-venv")


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of a server of echo with many words."""
    with served(tmp_path_factory.mktemp("echo"), "echo", ORS_ECHO_WORDS="600") as url:
        yield url


@pytest.fixture(scope="module")
def checkpoint(python: Path, echo: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a Qwen3 that solves a third of echo's tasks."""
    folder = tmp_path_factory.mktemp("models") / "tiny-qwen3"
    script = ROOT / "tests" / "long" / "trl" / "make_checkpoint.py"
    subprocess.run([python, script, echo, folder], check=True, timeout=900, env=os.environ | {"PYTHONPATH": PYTHONPATH})
    return folder


@pytest.fixture
def train(python: Path, tmp_path: Path) -> Train:
    return train_in(tmp_path, python)


def output(folder: Path) -> str:
    return (folder / "output").read_text()


def copied(checkpoint: Path, folder: Path, **changed: Any) -> Path:
    """Return a copy of a checkpoint whose configuration has other values."""
    shutil.copytree(checkpoint, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changed))
    return folder


def check_whole(report: dict[str, Any], steps: int) -> None:
    """Check that a report has every step once, and that the engine had the trainer's weights in each."""
    assert [point["step"] for point in report["curve"]] == list(range(1, steps + 1))
    # What the engine said of its tokens is what the trainer finds: of one step's weights late it would be 0.01 or more.
    assert max(point["logprob_gap"] for point in report["curve"]) < 1e-4
    assert report["failed"] == []
    assert report["episodes"] == {"training": steps * 64, "lost": {}}
    assert report["versions"].keys() >= {"torch", "transformers", "trl", "vllm"}


def test_a_checkpoint_gets_better(train: Train, tmp_path: Path, echo: str, checkpoint: Path, python: Path) -> None:
    report_file = tmp_path / "report.json"
    process = train(
        echo, "--model", checkpoint, *SIZES, "--steps", "80", "--tasks", "300", "--run", "one", "--json", report_file
    )
    assert process.wait(1800) == 0, output(tmp_path)
    report = json.loads(report_file.read_text())
    check_whole(report, 80)
    assert report["verdict"] == "The model got better.", output(tmp_path)
    low, high = report["difference"]["interval"]
    assert 0 < low <= report["difference"]["difference"] <= high
    assert report["model"]["name"] == str(checkpoint)
    assert report["tasks"] == {"training": 300, "held_out": 200}
    assert "The model got better." in output(tmp_path)
    assert "Traceback" not in output(tmp_path)
    # It loads like any other, in the precision that it had.
    trained = tmp_path / "data" / "trainings" / "one" / "model"
    load = "import sys; from transformers import AutoModelForCausalLM as A; print(A.from_pretrained(sys.argv[1]).dtype)"
    loaded = subprocess.run([python, "-c", load, trained], check=True, capture_output=True, text=True, timeout=300)
    assert loaded.stdout.strip() == "torch.float32"


def test_a_run_goes_on_after_each_kill(train: Train, tmp_path: Path, echo: str, checkpoint: Path) -> None:
    """It is killed with SIGKILL in each of its stages; in the end it has every step once."""
    run = tmp_path / "data" / "trainings" / "one"
    evaluations = tmp_path / "data" / "evals"
    begin: tuple[str | Path, ...] = (echo, "--model", checkpoint, *SIZES, "--steps", "12", "--run", "one")
    marks = [
        run / "plan.json",
        evaluations / "one-before-sampled",
        run / "checkpoints" / "checkpoint-5",
        run / "checkpoints" / "checkpoint-10",
        run / "training.json",
        evaluations / "one-after-greedy",
    ]
    for mark in marks:
        process = train(*begin)
        deadline = time.monotonic() + 900
        while not mark.exists():
            assert process.poll() is None, output(tmp_path)
            assert time.monotonic() < deadline, output(tmp_path)
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        begin = ("--resume", "one")
    report_file = tmp_path / "report.json"
    assert train("--resume", "one", "--json", report_file).wait(900) == 0, output(tmp_path)
    check_whole(json.loads(report_file.read_text()), 12)


def test_a_checkpoint_that_cannot_be_written_is_said_and_the_run_goes_on(
    train: Train, tmp_path: Path, echo: str, checkpoint: Path
) -> None:
    """A file in the place of the checkpoint's folder stands for the full disk."""
    in_the_way = tmp_path / "data" / "trainings" / "one" / "checkpoints" / "checkpoint-5"
    process = train(echo, "--model", checkpoint, *SIZES, "--steps", "6", "--run", "one")
    while "step   1 of 6" not in output(tmp_path):
        assert process.poll() is None, output(tmp_path)
        time.sleep(0.05)
    in_the_way.parent.mkdir(exist_ok=True)
    in_the_way.write_text("in the way")
    assert process.wait(900) == 2
    assert f"{in_the_way.parent} cannot be written" in output(tmp_path)
    in_the_way.unlink()
    assert train("--resume", "one").wait(900) == 0, output(tmp_path)


def test_what_cannot_be_trained_is_refused_before_anything_is_played(
    train: Train, tmp_path: Path, echo: str, checkpoint: Path
) -> None:
    without_template = copied(checkpoint, tmp_path / "base")
    (without_template / "chat_template.jinja").unlink()
    # Sixteen gigabytes of embeddings, of which nothing is made to find that out.
    large = copied(checkpoint, tmp_path / "large", vocab_size=2**31, hidden_size=128)
    short = copied(checkpoint, tmp_path / "short", max_position_embeddings=128)
    other = copied(checkpoint, tmp_path / "other", model_type="no_such_model")
    for model, options, said in (
        (without_template, SIZES, "has no chat template"),
        (large, SIZES, "GiB of memory: weights"),
        (short, SIZES, "takes 128 tokens, fewer than --context 256"),
        (other, SIZES, f"{other} cannot be trained"),
        (checkpoint, (), "PyTorch finds no GPU here. --tiny runs on processors"),
        ("no-such/model", SIZES, "The Hugging Face hub does not give no-such/model"),
    ):
        process = train(echo, "--model", model, *options, CUDA_VISIBLE_DEVICES="", HF_HUB_OFFLINE="1")
        assert process.wait(300) == 2, output(tmp_path)
        assert said in output(tmp_path), output(tmp_path)
    assert "Traceback" not in output(tmp_path)
    assert not (tmp_path / "data" / "evals").exists()


@pytest.mark.parametrize(
    ("forget", "said"),
    [
        # Of any text it says the end of the turn.
        (
            "[torch.nn.init.zeros_(weight) for name, weight in model.named_parameters() if 'norm' not in name]\n"
            "model.get_input_embeddings().weight.data.fill_(1.0)[model.config.eos_token_id] = 3.0",
            "called no tool",
        ),
        # It calls now and then, with any word.
        (
            "[torch.nn.init.normal_(weight, std=0.1) for weight in model.parameters()]",
            "In the first 10 steps all episodes of a task earned the same",
        ),
    ],
)
def test_a_model_that_never_earns_anything_is_not_trained_for_long(
    train: Train, tmp_path: Path, echo: str, checkpoint: Path, python: Path, forget: str, said: str
) -> None:
    model = tmp_path / "model"
    program = (
        "import sys, torch; from transformers import AutoModelForCausalLM as A; torch.manual_seed(0)\n"
        f"model = A.from_pretrained(sys.argv[1])\n{forget}\nmodel.save_pretrained(sys.argv[2])"
    )
    shutil.copytree(checkpoint, model)
    subprocess.run([python, "-c", program, checkpoint, model], check=True, timeout=300)
    assert train(echo, "--model", model, *SIZES, "--run", "one").wait(900) == 2, output(tmp_path)
    assert said in output(tmp_path), output(tmp_path)
    assert not (tmp_path / "data" / "trainings" / "one" / "model").exists()


def test_templates_of_models_are_told_apart(python: Path) -> None:
    """The templates that TRL ships: those whose calls are read here are taken, all others are refused."""
    program = """
from pathlib import Path
import trl
from ors_clients.errors import ConfigurationError
from ors_clients.learning.checkpoint.files import check_calls
from ors_clients.learning.tiny.model import make_tokenizer
for file in (Path(trl.__file__).parent / "chat_templates").glob("*.jinja"):
    tokenizer = make_tokenizer([])
    tokenizer.chat_template, tokenizer.bos_token = file.read_text(), tokenizer.pad_token
    try:
        check_calls(tokenizer, file.stem)
        print(file.stem)
    except ConfigurationError:
        pass
"""
    told = subprocess.run(
        [python, "-c", program],
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"PYTHONPATH": PYTHONPATH},
    )
    taken = set(told.stdout.split())
    assert taken >= {"qwen2_5", "qwen3", "qwen3_instruct_2507", "qwen3_5_think", "llama3_1", "llama3_2"}
    assert not taken & {"llama3", "gemma3", "phi3", "deepseekv3", "gptoss", "glm4moe", "gemma4", "lfm2"}
