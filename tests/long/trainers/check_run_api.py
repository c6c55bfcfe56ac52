"""An ORS environment played for an Atropos trainer: the real ``run-api`` and Atropos's own command line, as processes.

The inference server is scripted (``tests/clients/scripted_engine.py``) and records every request, so that the trainer's
data can be compared with the requests. Run by ``tests/long/test_trainers.py`` in the trainers' virtual environment.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
import pytest
from ors_clients.samplers.scripted import scripted_logprob

from tests.clients.byte_tokenizer import save_byte_tokenizer
from tests.clients.scripted_engine import ScriptedEngine
from tests.support.servers import served

ENVIRONMENTS = Path(__file__).resolve().parents[2] / "clients" / "trainer_environments.py"
#: Registration of a trainer.
TRAINER = {
    "wandb_group": "check",
    "wandb_project": "check",
    "batch_size": 4,
    "max_token_len": 8000,
    "checkpoint_dir": "",
    "save_checkpoint_interval": -1,
    "starting_step": 0,
    "num_steps": 4,
}


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def waited_for(look: Callable[[], Any], log: Path, seconds: float = 150.0) -> Any:
    """Return the result of ``look``; fail with the program's log if there is none in time."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, log.read_text()[-6000:]
        time.sleep(0.2)
    return found


@contextlib.contextmanager
def running(log: Path, *command: str) -> Generator[subprocess.Popen[bytes]]:
    """Run a program during the block. ``tests.support.servers`` waits for an address, and these may print none."""
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@pytest.fixture(scope="module")
def tokenizer_name(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_byte_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def tokenizer(tokenizer_name: str) -> Any:
    return import_module("transformers").AutoTokenizer.from_pretrained(tokenizer_name)


@pytest.fixture
def ors_url(tmp_path: Path) -> Generator[str]:
    opened, server = tmp_path / "open", tmp_path / "server"
    opened.mkdir()
    server.mkdir()
    with served(server, ENVIRONMENTS, OPEN_SESSIONS=str(opened)) as address:
        yield address


@pytest.fixture
def api(tmp_path: Path) -> Generator[httpx.Client]:
    """Run the trajectory API, with a trainer registered."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    program = str(Path(sys.executable).with_name("run-api"))
    log = tmp_path / "run-api.log"
    with (
        running(log, program, "--host", "127.0.0.1", "--port", str(port)),
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client,
    ):

        def registered() -> bool:
            with contextlib.suppress(httpx.TransportError):
                return client.post("/register", json=TRAINER).status_code == 200
            return False

        waited_for(registered, log)
        client.get("/batch")  # a trainer's first request lets environments register
        yield client


def environment(ors_url: str, api: httpx.Client, engine: ScriptedEngine, tokenizer_name: str, **more: str) -> list[str]:
    """Run the command line of ``OrsAtroposEnv``."""
    flags = {
        "env.ors_url": ors_url,
        "env.ors_environment": "stepenvironment",
        "env.rollout_server_url": str(api.base_url).rstrip("/"),
        "env.tokenizer_name": tokenizer_name,
        "env.group_size": "2",
        "env.max_turns": "4",
        "env.max_token_length": "8000",
        "env.use_wandb": "false",
        "env.max_num_workers": "4",
        "openai.base_url": f"{engine.url}/v1",
        "openai.model_name": "scripted",
        "openai.tokenizer_name": tokenizer_name,
        "openai.health_check": "false",
        **more,
    }
    parts = [part for name, value in flags.items() for part in (f"--{name}", value)]
    return [sys.executable, "-m", "ors_clients.atropos", "serve", *parts]


@pytest.mark.parametrize("server_type", ["sglang"])
def test_groups_reach_the_trainer_token_exact(
    tmp_path: Path, ors_url: str, api: httpx.Client, tokenizer: Any, tokenizer_name: str, server_type: str
) -> None:
    numbers = itertools.count()

    def policy(prompt: str) -> str:
        if "No tool call" not in prompt:
            return f"Let me think, {next(numbers)}."
        return call("earn", reward=0.25) if "earned" not in prompt else call("finish", reward=next(numbers) % 2)

    engine = ScriptedEngine(policy, tokenizer)
    log = tmp_path / "environment.log"
    with engine.serve():
        flags = {"openai.server_type": server_type, "env.temperature": "0.7"}
        with running(log, *environment(ors_url, api, engine, tokenizer_name, **flags)):
            batch = waited_for(lambda: api.get("/batch").json()["batch"], log)
        asked = list(engine.prompts)

    assert len(batch) == 2  # two groups of two fill the batch of four
    for group in batch:
        assert sorted(group["scores"]) == [0.25, 1.25]  # groups with equal scores are left out
        assert group["generation_params"] == {"temperature": 0.7}
        for tokens, masks, logprobs, messages in zip(
            group["tokens"], group["masks"], group["inference_logprobs"], group["messages"], strict=True
        ):
            assert len(tokens) == len(masks) == len(logprobs)
            trained = [place for place, mask in enumerate(masks) if mask != -100]
            assert [masks[place] for place in trained] == [tokens[place] for place in trained]
            assert [logprobs[place] for place in trained] == [scripted_logprob(place) for place in trained]
            assert {logprob for place, logprob in enumerate(logprobs) if masks[place] == -100} == {1.0}
            # Its three requests are prefixes of the trained tokens.
            assert len({len(ids) for ids in asked if tokens[: len(ids)] == ids}) == 3
            text = tokenizer.decode([tokens[place] for place in trained])
            assert text.count("<|im_end|>") == 3
            assert "earned" not in text
            whole = tokenizer.decode(tokens)
            assert "earned 0.25" in whole
            assert messages[0]["role"] in ("system", "user")
            assert any("earned 0.25" in str(message["content"]) for message in messages)


def test_lost_machines_are_never_scored(
    tmp_path: Path, ors_url: str, api: httpx.Client, tokenizer: Any, tokenizer_name: str
) -> None:
    """Task 3 loses its machine; the others finish. No sample of task 3 arrives, not even with a reward of 0."""
    numbers = itertools.count()

    def policy(prompt: str) -> str:
        return call("lose") if "Task 3." in prompt else call("finish", reward=next(numbers) % 2 + 1)

    engine = ScriptedEngine(policy, tokenizer)
    log = tmp_path / "environment.log"
    groups: list[Any] = []
    with engine.serve(), running(log, *environment(ors_url, api, engine, tokenizer_name)):
        deadline = time.monotonic() + 150
        # Until the lost task has been tried and finally dropped.
        while len(groups) < 8 or log.read_text().count("group of task 3 is dropped") < 4:
            assert time.monotonic() < deadline, log.read_text()[-6000:]
            groups += api.get("/batch").json()["batch"] or []
            time.sleep(0.1)
    assert sum("Task 3." in tokenizer.decode(ids) for ids in engine.prompts) >= 4
    for group in groups:
        assert sorted(group["scores"]) == [1.0, 2.0]
        assert not any("Task 3." in tokenizer.decode(tokens) for tokens in group["tokens"])


def test_a_run_that_only_loses_groups_ends_with_its_reason(
    tmp_path: Path, ors_url: str, api: httpx.Client, tokenizer: Any, tokenizer_name: str
) -> None:
    """Atropos would log each error and go on with the next task, without end."""
    engine = ScriptedEngine(lambda prompt: call("lose"), tokenizer)
    log = tmp_path / "environment.log"
    flags = {"env.attempts": "1", "env.max_lost_groups_in_row": "3"}
    with engine.serve(), running(log, *environment(ors_url, api, engine, tokenizer_name, **flags)) as process:
        waited_for(lambda: "is dropped" in log.read_text(), log)
        assert process.wait(timeout=30) == 1
    last = log.read_text().strip().splitlines()[-1]
    assert last.startswith("The run ends: groups were lost 3 times in a row, the last one by this: ")


def test_evaluation(tmp_path: Path, ors_url: str, api: httpx.Client, tokenizer: Any, tokenizer_name: str) -> None:
    engine = ScriptedEngine(lambda prompt: call("finish", reward=0.5), tokenizer)
    with engine.serve():
        command = environment(ors_url, api, engine, tokenizer_name)
        command[command.index("serve")] = "evaluate"
        for name in ("env.rollout_server_url", "env.use_wandb", "env.max_num_workers"):
            place = command.index(f"--{name}")
            del command[place : place + 2]
        command += ["--env.eval_split", "train", "--env.data_dir_to_save_evals", str(tmp_path / "evals")]
        variables = os.environ | {"WANDB_MODE": "disabled"}
        finished = subprocess.run(command, capture_output=True, text=True, timeout=150, env=variables, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    metrics = json.loads((tmp_path / "evals" / "metrics.json").read_text())
    assert re.search(r'"eval/mean_score": 0\.5\b', json.dumps(metrics))
    assert len(engine.requests) == 5
