"""Checks both ways between ORS and Atropos on this machine: no GPU, no model, no download.

    python verify.py

Out: an echo environment of ors-server is played for a trainer by ``OrsAtroposEnv``, through Atropos's real ``run-api``,
with a scripted inference server that speaks SGLang's wire format; a group is fetched as a trainer does and checked.
Back: an Atropos environment is served by ors-server and played with the client. Exit status 0 if every check holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

#: The scripted model: every second answer is wrong, so that the group's scores differ.
ANSWERS = ("hello", "wrong")
#: An Atropos environment of two turns, and the ORS environment that serves it.
COUNTING = """
from atroposlib.envs.base import BaseEnv
from ors_clients.atropos.served import AtroposEnvironment


class CountingEnv(BaseEnv):
    name = "counting"

    async def setup(self):
        pass

    async def get_next_item(self):
        return {"from": 2}

    async def evaluate(self, *args, **kwargs):
        pass

    async def collect_trajectory(self, item):
        messages = [{"role": "user", "content": "Count down from 2, one number a message."}]
        right = 0
        for number in (2, 1):
            completion = await self.server.chat_completion(messages=messages)
            text = completion.choices[0].message.content
            right += text == str(number)
            messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "Next."}]
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        return {"tokens": ids, "masks": ids, "scores": right / 2}, []


class Counting(AtroposEnvironment):
    atropos_environment = "counting:CountingEnv"
    env_config = {"tokenizer_name": TOKENIZER}


environments = [Counting]
"""


def save_tokenizer(folder: Path) -> Any:
    """Return a ChatML tokenizer with one token a byte, saved where ``AutoTokenizer`` finds it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    model = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    model.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=model,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
    )
    tokenizer.chat_template = (
        "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    tokenizer.save_pretrained(str(folder))
    return tokenizer


def logprob_at(position: int) -> float:
    """Return a log-probability that belongs to one position of a sequence only."""
    return -(position + 1) / 1000


@contextlib.contextmanager
def scripted_engine(tokenizer: Any) -> Generator[str]:
    """SGLang's ``/generate`` with scripted answers; its address."""
    asked = 0

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            nonlocal asked
            ids = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["input_ids"]
            call = json.dumps({"name": "echo", "arguments": {"text": ANSWERS[asked % len(ANSWERS)]}})
            asked += 1
            text = f"<tool_call>\n{call}\n</tool_call><|im_end|>"
            output = tokenizer.encode(text, add_special_tokens=False)
            logprobs = [[logprob_at(len(ids) + place), token, None] for place, token in enumerate(output)]
            body = json.dumps(
                {"text": text, "meta_info": {"finish_reason": {"type": "stop"}, "output_token_logprobs": logprobs}}
            ).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()


@contextlib.contextmanager
def program(folder: Path, name: str, command: Sequence[str], **variables: str) -> Generator[Path]:
    """Return a program that runs beside this one; the file of its output."""
    log = folder / f"{name}.log"
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=os.environ | variables)
        try:
            yield log
        except BaseException:  # Ctrl-C and a failed check too: the log goes with its folder
            print(f"--- {name} ---\n{log.read_text()[-3000:]}", file=sys.stderr)
            raise
        finally:
            process.terminate()
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()


@contextlib.contextmanager
def ors_server(folder: Path, name: str, target: str, **variables: str) -> Generator[str]:
    """``ors-server serve``; its address."""
    command = [sys.executable, "-m", "ors_cli", "serve", target, "--port", "0"]
    with program(folder, name, command, **variables) as log:
        yield waited_for(lambda: (found := re.search(r"listens on (http://\S+);", log.read_text())) and found[1])


def waited_for(look: Any, seconds: float = 120.0) -> Any:
    """Return the result of ``look`` within that time. Raises ``TimeoutError``."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        if time.monotonic() > deadline:
            raise TimeoutError("nothing came")
        time.sleep(0.2)
    return found


class Checks:
    """Prints checks and remembers whether all held."""

    def __init__(self) -> None:
        self.failed = 0

    def that(self, what: str, held: bool) -> None:
        self.failed += not held
        print(f"{'ok    ' if held else 'FAILED'} {what}", flush=True)


def verify_out(checks: Checks, folder: Path, tokenizer: Any) -> None:
    """Return an ORS environment, played for a trainer of Atropos."""
    api_command = [sys.executable, "-c", _RUN_API]
    with (
        program(folder, "run-api", api_command) as api_log,
        ors_server(folder, "echo", "echo") as ors_url,
        scripted_engine(tokenizer) as engine_url,
    ):
        found = waited_for(lambda: re.search(r"running on (http://127\.0\.0\.1:\d+)", api_log.read_text()))
        api = httpx.Client(base_url=found[1], timeout=30)
        api.post("/register", json=_TRAINER).raise_for_status()
        api.get("/batch")  # a trainer's first request starts the environments
        flags = {
            "env.ors_url": ors_url,
            "env.ors_environment": "echoenvironment",
            "env.rollout_server_url": found[1],
            "env.tokenizer_name": str(folder / "tokenizer"),
            "env.group_size": "2",
            "env.max_turns": "1",
            "env.use_wandb": "false",
            "env.seed": "1",
            "openai.base_url": f"{engine_url}/v1",
            "openai.model_name": "scripted",
            "openai.tokenizer_name": str(folder / "tokenizer"),
            "openai.health_check": "false",
        }
        command = [sys.executable, "-m", "ors_clients.atropos", "serve"]
        command += [part for name, value in flags.items() for part in (f"--{name}", value)]
        with program(folder, "environment", command):
            batch = waited_for(lambda: api.get("/batch").json()["batch"])
    group = batch[0]
    checks.that("a group of two reached the trainer", len(group["tokens"]) == 2)
    checks.that("one answer was right", sorted(group["scores"]) == [0.0, 1.0])
    for tokens, masks, logprobs in zip(group["tokens"], group["masks"], group["inference_logprobs"], strict=True):
        trained = [place for place, mask in enumerate(masks) if mask != -100]
        checks.that("ids, masks and log-probabilities have one length", len(tokens) == len(masks) == len(logprobs))
        checks.that(
            "what is trained on are the model's tokens", all(masks[place] == tokens[place] for place in trained)
        )
        checks.that(
            "each with its own log-probability", [logprobs[place] for place in trained] == [*map(logprob_at, trained)]
        )
        text = tokenizer.decode([tokens[place] for place in trained])
        checks.that("and nothing of the environment's", text.startswith("<tool_call>") and text.endswith("<|im_end|>"))


def verify_back(checks: Checks, folder: Path) -> None:
    """Return an Atropos environment, played over ORS."""
    from ors_clients.client.async_client import AsyncClient

    (folder / "counting.py").write_text(COUNTING.replace("TOKENIZER", repr(str(folder / "tokenizer"))))

    async def play(url: str, answers: Sequence[str]) -> list[Any]:
        async with (
            AsyncClient(url) as client,
            client.environment("counting").session(split="train", index=0) as session,
        ):
            return [await session.call("respond", {"message": answer}) for answer in answers]

    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    with ors_server(folder, "counting", str(folder / "counting.py"), PYTHONPATH=path) as url:
        first, last = asyncio.run(play(url, ("2", "1")))
        checks.that("the first answer is followed by the next request", first.text == "Next." and not first.finished)
        checks.that("the last one by the score", last.reward == 1.0 and last.finished)
        checks.that("half right is half the score", asyncio.run(play(url, ("2", "0")))[-1].reward == 0.5)


#: run-api on a free port; the program itself takes fixed ones.
_RUN_API = """
import uvicorn
uvicorn.run("atroposlib.api:app", host="127.0.0.1", port=0)
"""
_TRAINER = {
    "wandb_group": "verify",
    "wandb_project": "verify",
    "batch_size": 2,
    "max_token_len": 8192,
    "checkpoint_dir": "",
    "save_checkpoint_interval": -1,
    "starting_step": 0,
    "num_steps": 1,
}


def main() -> int:
    """1 if a check failed, else 0."""
    checks = Checks()
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        tokenizer = save_tokenizer(folder / "tokenizer")
        verify_out(checks, folder, tokenizer)
        verify_back(checks, folder)
    print("All checks hold." if not checks.failed else f"{checks.failed} checks failed.")
    return min(1, checks.failed)


if __name__ == "__main__":
    sys.exit(main())
