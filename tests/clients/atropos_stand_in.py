"""The parts of atroposlib that our adapters use, where the package is not installed.

atroposlib 0.4.0 (NousResearch/atropos): ``envs/base.py``, ``envs/server_handling/server_baseline.py``,
``server_manager.py`` and ``managed_server.py``, with a tokenizer that has one token a byte. The same tests run with the
real package in ``tests/long/test_trainers.py``, which reveals differences.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from types import ModuleType, SimpleNamespace
from typing import Any, cast

from pydantic import BaseModel, ConfigDict

__all__ = ["install", "tokenizer_name"]


class ByteTokenizer:
    """One token a byte, ChatML."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int], **options: Any) -> str:
        return bytes(ids).decode(errors="replace")

    def apply_chat_template(self, messages: Sequence[dict[str, Any]], **options: Any) -> Any:
        text = "".join(f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n" for message in messages)
        if options.get("add_generation_prompt"):
            text += "<|im_start|>assistant\n"
        return list(text.encode()) if options.get("tokenize", True) else text


class BaseEnvConfig(BaseModel):
    model_config = ConfigDict(protected_namespaces=())

    group_size: int = 4
    tokenizer_name: str = "none"
    use_wandb: bool = True
    max_token_length: int = 2048
    ensure_scores_are_not_same: bool = True
    include_messages: bool = False
    wandb_name: str | None = None


class ServerBaseline(BaseModel):
    model_config = ConfigDict(protected_namespaces=())

    model_name: str = "default"


class APIServerConfig(ServerBaseline):
    api_key: str | None = ""
    base_url: str | None = ""
    health_check: bool = True


class APIServer:
    """The base of servers. Our servers must not use its semaphore: an intercepted request would hold it."""

    def __init__(self, config: Any) -> None:
        self.config = config
        self.server_healthy = True
        self.sem = asyncio.Semaphore(1)

    async def chat_completion(self, **request: Any) -> Any:
        async with self.sem:
            return await self._chat_completion_wrapper(**request)

    async def _chat_completion_wrapper(self, **request: Any) -> Any:
        raise NotImplementedError


class ServerManager:
    """Sends each request to its first server."""

    def __init__(self, configs: Any, *, testing: bool = False, max_n_completions: int = 8) -> None:
        assert testing, "only testing mode makes no connections"
        self.max_n_completions = max_n_completions
        self.servers: list[Any] = []

    def _checked(self, request: dict[str, Any]) -> dict[str, Any]:
        assert int(request.get("n", 1)) <= self.max_n_completions
        request.pop("split", None)
        return request

    async def chat_completion(self, **request: Any) -> Any:
        return await self.servers[0].chat_completion(**self._checked(request))

    async def completion(self, **request: Any) -> Any:
        return await self.servers[0].completion(**self._checked(request))

    async def get_logprobs(self, **request: Any) -> Any:
        return await self.servers[0].get_logprobs(**request)

    @asynccontextmanager
    async def managed_server(self, tokenizer: Any = None, **options: Any) -> AsyncGenerator[Any]:
        yield ManagedServer(self.servers[0], tokenizer)


class ManagedServer:
    """Renders messages, requests tokens, and records them."""

    def __init__(self, server: Any, tokenizer: Any = None, *, preserve_think_blocks: bool = False) -> None:
        self.server = server
        self.tokenizer = tokenizer
        self.nodes: list[Any] = []

    async def chat_completion(self, **request: Any) -> Any:
        prompt = self.tokenizer.apply_chat_template(request["messages"], tokenize=False, add_generation_prompt=True)
        ids = self.tokenizer.encode(prompt)
        prompt_ids, answers, logprobs, reasons = await self.server.tokens_and_logprobs_completion(
            prompt=prompt, input_ids=ids, n=request.get("n", 1)
        )
        self.nodes = [
            SimpleNamespace(
                tokens=prompt_ids + answer,
                masked_tokens=[-100] * len(prompt_ids) + answer,
                logprobs=[1.0] * len(prompt_ids) + numbers,
            )
            for answer, numbers in zip(answers, logprobs, strict=True)
        ]
        choices = [
            {"index": index, "finish_reason": reason, "message": {"content": self.tokenizer.decode(answer)}}
            for index, (answer, reason) in enumerate(zip(answers, reasons, strict=True))
        ]
        return answer_object(choices=choices)

    def get_state(self) -> dict[str, Any]:
        return {"nodes": list(self.nodes)}

    def reset(self) -> None:
        self.nodes = []


def answer_object(**fields: Any) -> Any:
    """Return an object like those of the openai package: attributes instead of keys."""

    def convert(value: Any) -> Any:
        if isinstance(value, dict):
            items = cast("dict[str, Any]", value).items()
            return SimpleNamespace(**{"tool_calls": None} | {key: convert(item) for key, item in items})
        return [convert(item) for item in cast("list[Any]", value)] if isinstance(value, list) else value

    return convert(fields)


class BaseEnv:
    """An environment, reduced to the parts that play one item."""

    def __init__(self, config: Any, server_configs: Any, slurm: bool = False, testing: bool = False) -> None:
        self.config = config
        self.max_token_len = -1
        self.tokenizer = ByteTokenizer()
        self.server: Any = ServerManager(server_configs, testing=testing)

    @classmethod
    def config_init(cls) -> tuple[BaseEnvConfig, list[APIServerConfig]]:
        return BaseEnvConfig(), [APIServerConfig()]

    async def collect_trajectory(self, item: Any) -> Any:
        raise NotImplementedError

    async def collect_trajectories(self, item: Any) -> Any:
        results = await asyncio.gather(*(self.collect_trajectory(item) for _ in range(self.config.group_size)))
        group: dict[str, Any] = {"tokens": [], "masks": [], "scores": []}
        for scored, _ in results:
            for name, values in group.items():
                values.append(scored[name])
        return group, []

    async def env_step_checks(self) -> None:
        """Do what Atropos does at each step of its main loop: nothing."""

    async def postprocess_histories(self, trajectories: Any) -> Any:
        return trajectories


def tokenizer_name(folder: Any) -> str:
    """Return a tokenizer's name for an environment's configuration; the real package loads it from a folder."""
    if not hasattr(importlib.import_module("atroposlib"), "__file__"):
        return "none"
    from tests.clients.byte_tokenizer import save_byte_tokenizer

    return save_byte_tokenizer(folder)


def install() -> None:
    """Put the modules into ``sys.modules`` if atroposlib is not installed."""
    try:
        importlib.import_module("atroposlib")
    except ImportError:
        handling = "atroposlib.envs.server_handling"
        contents: dict[str, dict[str, Any]] = {
            "atroposlib": {},
            "atroposlib.envs": {},
            "atroposlib.envs.base": {
                "BaseEnv": BaseEnv,
                "BaseEnvConfig": BaseEnvConfig,
                "APIServerConfig": APIServerConfig,
            },
            handling: {},
            f"{handling}.server_baseline": {
                "APIServer": APIServer,
                "APIServerConfig": APIServerConfig,
                "ServerBaseline": ServerBaseline,
            },
            f"{handling}.server_manager": {"ServerManager": ServerManager},
            f"{handling}.managed_server": {
                "ManagedServer": ManagedServer,
                "ChatCompletion": answer_object,
                "Completion": answer_object,
            },
        }
        for name, members in contents.items():
            module = ModuleType(name)
            vars(module).update(members)
            sys.modules[name] = module
