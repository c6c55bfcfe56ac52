"""Set-up for the tests of slime and Miles: a server, a training configuration, and a model that follows a script."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from ors_clients.client.async_client import AsyncClient

from tests.clients.scripted_engine import ScriptedEngine
from tests.clients.tiny_tokenizer import tiny_tokenizer
from tests.support.servers import served

__all__ = [
    "call",
    "closed",
    "forget_variables",
    "leaving",
    "make_arguments",
    "opened_folder",
    "outcomes",
    "row_of",
    "script",
    "sent_key",
    "serving",
    "sessions_of",
    "speaker",
    "until",
    "write_configuration",
]

HERE = Path(__file__).parent
_opened: dict[str, Path] = {}
SYSTEM_PROMPT = "Use the tools.\n<tools>\n{tools}\n</tools>"


def call(name: str, /, **arguments: Any) -> str:
    """Return a tool call as the model writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def script(*turns: str) -> Callable[[str], str]:
    """Return a policy that says these turns one after another, and then repeats the last."""

    def policy(prompt: str) -> str:
        return turns[min(prompt.count("<|im_start|>assistant\n"), len(turns)) - 1]

    return policy


def outcomes(*turns: str) -> Callable[[str], str]:
    """Return a policy whose first turn differs in each episode."""
    left = list(turns)
    return lambda prompt: left.pop(0) if len(left) > 1 else left[0]


class Speaker(ScriptedEngine):
    """An engine that is already served, and stays served."""

    @contextmanager
    def serve(self) -> Generator[ScriptedEngine]:
        """Do nothing."""
        yield self


@cache
def _speaker() -> Speaker:
    engine = Speaker(script(""), tiny_tokenizer())
    serving = ScriptedEngine.serve(engine)
    serving.__enter__()
    atexit.register(serving.__exit__, None, None, None)
    return engine


def speaker(*turns: str, template: str = "qwen3", **options: Any) -> ScriptedEngine:
    """Return an SGLang engine that says these turns; ``with engine.serve()``.

    There is one engine at a time: starting a server takes longer than most tests, so each call changes the turns of the
    same engine.
    """
    engine = _speaker()
    fresh = ScriptedEngine(script(*turns), tiny_tokenizer(template), url=engine.url, **options)
    vars(engine).update(vars(fresh))
    return engine


def write_configuration(folder: Path, url: str, environments: dict[str, Any], **options: Any) -> Path:
    """Write a training configuration of these environments. Return its path."""
    file = folder / "train_config.yaml"
    defaults = {"system_prompt_template": SYSTEM_PROMPT, "upload_rollouts": False, "base_url": url}
    file.write_text(yaml.safe_dump({"environments": environments, **defaults, **options}))
    return file


def make_arguments(configuration: Path, engine: ScriptedEngine, **more: Any) -> SimpleNamespace:
    """Return a trainer's arguments."""
    host, _, port = engine.url.removeprefix("http://").partition(":")
    defaults: dict[str, Any] = {
        "train_config": str(configuration),
        "sglang_router_ip": host,
        "sglang_router_port": int(port),
        "tokenizer": engine.tokenizer,
        "hf_checkpoint": "not/loaded",
        "rollout_max_context_len": None,
        "group_rm": False,
        "partial_rollout": False,
        "n_samples_per_prompt": 1,
    }
    return SimpleNamespace(**{**defaults, **more})


def forget_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unset the variables that the functions of slime and Miles read."""
    for name in ("TRAIN_CONFIG", "ORS_URL", "HF_CHECKPOINT", "SGLANG_ROUTER_URL", "OPENREWARD_RUN_NAME"):
        monkeypatch.delenv(name, raising=False)


def sent_key(client: AsyncClient) -> str:
    """Return the API key that a client sends; empty if it sends none."""
    headers: Any = vars(client._connection)["_get_headers"]  # pyright: ignore[reportPrivateUsage]
    return dict(headers.items).get("X-API-Key", "")


def row_of(environment: str, spec: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return the metadata of a row of ``prepare_tasks``."""
    return {
        "env_name": environment,
        "deployment_name": environment,
        "server_name": environment,
        "environment_name": environment,
        "namespace": None,
        "split": "train",
        "index": 0,
        "task_spec": spec,
        "task_hash": "0123456789abcdef",
        **more,
    }


@contextmanager
def serving(folder: Path, **variables: str) -> Generator[str]:
    """Run a server of ``trainer_environments`` in a process of its own."""
    opened = folder / "open"
    opened.mkdir()
    with served(folder, HERE / "trainer_environments.py", OPEN_SESSIONS=str(opened), **variables) as url:
        _opened[url] = opened
        yield url


def opened_folder(url: str) -> Path:
    """Return the folder in which each open session of the server of ``serving`` has a file."""
    return _opened[url]


def sessions_of(url: str) -> int:
    """Return the number of open sessions of the server of ``serving``."""
    return len(list(_opened[url].iterdir()))


@contextlib.asynccontextmanager
async def leaving(url: str) -> AsyncGenerator[str]:
    """Relay to a server until a request contains the word "vanish"; afterwards the address is dead."""
    writers: set[asyncio.StreamWriter] = set()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                if b"vanish" in data:
                    relay.close()
                    for each in writers:
                        each.transport.abort()
                    return
                writer.write(data)
        writer.close()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream, to_server = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writers.update((writer, to_server))
        await asyncio.gather(forward(reader, to_server), forward(upstream, writer))

    relay = await asyncio.start_server(connect, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{relay.sockets[0].getsockname()[1]}"
    finally:
        relay.close()


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition that another thread or process fulfils."""
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not happen within 10 seconds")


async def closed(url: str) -> None:
    """Wait until the server has no session open."""
    await until(lambda: sessions_of(url) == 0)
