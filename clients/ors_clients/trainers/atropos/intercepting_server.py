"""The inference servers of an Atropos environment, replaced by held requests.

An environment reaches its model through ``self.server``: chat completions, completions, tokens with log-probabilities,
and the managed server that keeps track of tokens. Each of them ends in one of the wrappers below, which holds the
request of the current episode (``interception``). The model is a text policy: token ids are those of the
environment's own tokenizer for the text, log-probabilities are 0, and neither is meant to be trained on.

Interfaces: atroposlib 0.4, ``envs/server_handling`` (NousResearch/atropos).
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

from ors_clients.errors import ConfigurationError
from ors_clients.rollouts.messages import ChatMessage
from ors_clients.tool_calls import ToolCall, find_format
from ors_clients.trainers.atropos.interception import current_episode
from ors_clients.training.optional_imports import INSTALL_ATROPOS, import_trainer_module
from ors_server import ToolSpec

__all__ = ["InterceptingServerManager", "member"]

_baseline: Any = import_trainer_module("atroposlib.envs.server_handling.server_baseline", INSTALL_ATROPOS)
_managed: Any = import_trainer_module("atroposlib.envs.server_handling.managed_server", INSTALL_ATROPOS)
_manager: Any = import_trainer_module("atroposlib.envs.server_handling.server_manager", INSTALL_ATROPOS)

#: Which member of a group asks: 0 is the policy, all others are companions.
member: ContextVar[int] = ContextVar("ors_atropos_member", default=0)
#: The messages and tools behind a request that the managed server has already rendered as text.
_chat: ContextVar[tuple[list[ChatMessage], list[dict[str, Any]]] | None] = ContextVar("ors_atropos_chat", default=None)


class InterceptingServer(_baseline.APIServer):
    """A server whose every answer comes from the player of the episode, or from the companions.

    ``companions``: fixed texts that answer as the further members of a group, for environments that score a group's
    members against each other.
    """

    def __init__(self, tokenizer: Any, companions: Sequence[str]) -> None:
        config = _baseline.APIServerConfig(
            model_name="intercepted",
            base_url="http://intercepted.invalid/v1",
            api_key="x",
        )
        _baseline.APIServer.__init__(self, config)
        self.tokenizer = tokenizer
        self.companions = tuple(companions)

    async def check_server_status_task(self, chat_completion: bool = True) -> None:
        self.server_healthy = True

    async def _texts(
        self, count: int, messages: list[ChatMessage], prompt: str | None, tools: list[dict[str, Any]]
    ) -> list[str]:
        """Return the answers to a request for ``count`` completions, the policy's first."""
        episode = current_episode()
        if episode is None:
            raise ConfigurationError(
                "The environment asks its model outside of an episode",
                "Only collect_trajectories may ask; setup and evaluate have no caller to answer",
            )
        if count > 1 + len(self.companions):
            raise ConfigurationError(
                f"The environment asks for {count} completions of one prompt",
                "Set group_size to 1, or give a companion for each further member of the group",
            )
        if place := member.get():
            return [self.companions[(place - 1 + offset) % len(self.companions)] for offset in range(count)]
        return [await episode.ask(messages, prompt=prompt, tools=tools), *self.companions[: count - 1]]

    # The public methods of the base class take a semaphore, which held requests would exhaust, and repeat a failed
    # request up to nine times; there is nothing here to protect or to repeat.

    async def chat_completion(self, **request: Any) -> Any:
        """Answer a chat request, as an OpenAI ``ChatCompletion``."""
        return await self._chat_completion_wrapper(**request)

    async def completion(self, **request: Any) -> Any:
        """Answer a request to continue a text, as an OpenAI ``Completion``."""
        return await self._completion_wrapper(**request)

    async def tokens_and_logprobs_completion(self, **request: Any) -> Any:
        """Answer with (prompt ids, ids, log-probabilities, finish reasons), the last three one entry a completion."""
        return await self._tokens_and_logprobs_completion_wrapper(**request)

    async def _chat_completion_wrapper(self, **request: Any) -> Any:
        messages = [dict(message) for message in request.get("messages", [])]
        tools: list[dict[str, Any]] = list(request.get("tools") or [])
        texts = await self._texts(int(request.get("n") or 1), messages, None, tools)
        choices = [
            {"index": index, "finish_reason": "stop", "message": _assistant_message(text, tools)}
            for index, text in enumerate(texts)
        ]
        return _managed.ChatCompletion(**_answer("chat.completion", choices))

    async def _completion_wrapper(self, **request: Any) -> Any:
        texts = await self._texts(int(request.get("n") or 1), [], str(request.get("prompt", "")), [])
        choices = [{"index": index, "finish_reason": "stop", "text": text} for index, text in enumerate(texts)]
        return _managed.Completion(**_answer("text_completion", choices))

    async def _tokens_and_logprobs_completion_wrapper(self, **request: Any) -> Any:
        prompt = str(request.get("prompt", ""))
        chat = _chat.get()
        messages, tools = chat or ([], [])
        texts = await self._texts(int(request.get("n") or 1), messages, None if chat else prompt, tools)
        given: list[int] | None = request.get("input_ids")
        prompt_ids = self.tokenizer.encode(prompt) if given is None else given
        ids: list[list[int]] = [self.tokenizer.encode(text, add_special_tokens=False) for text in texts]
        return prompt_ids, ids, [[0.0] * len(answer) for answer in ids], ["stop"] * len(ids)

    async def get_logprobs(self, **request: Any) -> Any:
        """There is no model here that could score a prompt. Raises ``ConfigurationError``."""
        raise ConfigurationError(
            "The environment asks for the log-probabilities of a prompt, which a text policy does not have",
            "Run it with Atropos's own trainer",
        )


class InterceptingManagedServer(_managed.ManagedServer):
    """Atropos's managed server, which remembers the messages it renders."""

    async def chat_completion(self, **request: Any) -> Any:
        """Ask with the messages instead of their rendering."""
        tools: list[dict[str, Any]] = list(request.get("tools") or [])
        reset = _chat.set(([dict(message) for message in request.get("messages", [])], tools))
        try:
            completion = await _managed.ManagedServer.chat_completion(self, **request)
        finally:
            _chat.reset(reset)
        for choice in completion.choices:
            if calls := _tool_calls(choice.message.content or "", tools):
                choice.message.tool_calls = calls  # plain objects, as the managed server gives its own
        return completion


class InterceptingServerManager(_manager.ServerManager):
    """The ``self.server`` of an environment: one intercepting server."""

    def __init__(self, tokenizer: Any, companions: Sequence[str] = ()) -> None:
        # Above max_n_completions a request would be split, and the policy asked once for each part.
        _manager.ServerManager.__init__(self, _baseline.ServerBaseline(), testing=True, max_n_completions=1_000_000)
        self.use_proxy = False
        self.servers = [InterceptingServer(tokenizer, companions)]

    @asynccontextmanager
    async def managed_server(self, tokenizer: Any = None, **options: Any) -> AsyncGenerator[Any, None]:
        """Return a managed server on top of the intercepting one."""
        keep_thinking = bool(options.get("preserve_think_blocks", False))
        server = self.servers[0]
        managed = InterceptingManagedServer(server, tokenizer or server.tokenizer, preserve_think_blocks=keep_thinking)
        try:
            yield managed
        finally:
            managed.reset()


def _answer(kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": uuid.uuid4().hex,
        "object": kind,
        "created": int(time.time()),
        "model": "intercepted",
        "choices": choices,
    }


def _assistant_message(text: str, tools: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the policy's text as an OpenAI message, with the tool calls in it if tools were offered."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls := _tool_calls(text, tools):
        message["tool_calls"] = calls
    return message


def _tool_calls(text: str, tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the calls in a text, in the OpenAI form."""
    specs = [_tool_spec(tool["function"]) for tool in tools if "function" in tool]
    calls = [call for call in find_format("auto").parse(text, specs) if isinstance(call, ToolCall)] if specs else []
    return [
        {
            "id": f"call_{uuid.uuid4().hex[:24]}",
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(call.input)},
        }
        for call in calls
    ]


def _tool_spec(function: dict[str, Any]) -> ToolSpec:
    return ToolSpec(
        name=function["name"],
        description=function.get("description") or "",
        input_schema=function.get("parameters"),
    )
