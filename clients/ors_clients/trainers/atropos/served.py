"""An Atropos environment served over ORS: one tool, ``respond``, and any number of turns.

    from ors_clients.trainers.atropos.served import AtroposEnvironment

    class Gsm8k(AtroposEnvironment):
        atropos_environment = "environments.gsm8k_server:GSM8kEnv"
        env_config = {"tokenizer_name": "Qwen/Qwen2.5-0.5B-Instruct"}
        companions = ("I do not know the answer to this question, so I give none.",)
        unscored = -1.0

    $ ors-server serve gsm8k.py

Any ORS client, and so any trainer, can then play it. The environment's coroutine is suspended at each request of its
model (``interception``): the request is the prompt, or the output of ``respond``, and the text of the
next call is the model's answer. When the coroutine returns, its score is the reward and the episode is over. When it
raises, the episode ends without a reward.

The items that an Atropos environment trains on may hold the answers, so a task is a number and nothing else.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, Field

from ors_clients.errors import InfrastructureFailure as ClientFailure
from ors_clients.rollouts.messages import text_of
from ors_clients.rollouts.rewards import RewardBridge, shape_reward
from ors_clients.trainers.atropos.host import AtroposHost, AtroposSettings, shared_host
from ors_clients.trainers.atropos.interception import InterceptedEpisode, Turn
from ors_server import (
    Environment,
    InfrastructureFailure,
    JSONObject,
    Message,
    MessageBlocks,
    ReasoningBlock,
    Split,
    TextBlock,
    ToolOutput,
    tool,
)

__all__ = ["AtroposEnvironment"]

Value = TypeVar("Value")

#: What ``unavailable`` says of a class that names no environment.
_UNNAMED = "It names no Atropos environment. Set atropos_environment to package.module:Class."


class RespondParameters(BaseModel):
    """Input of ``respond``."""

    message: str = Field(description="Your whole next message.")


class AtroposEnvironment(Environment):
    """Base of served Atropos environments; subclasses set the class variables."""

    #: ``package.module:Class`` of the Atropos environment.
    atropos_environment: ClassVar[str] = ""
    #: Fields of its configuration.
    env_config: ClassVar[Mapping[str, Any]] = {}
    #: Failing answers as further members of the group, for environments that drop groups of equal scores.
    companions: ClassVar[Sequence[str]] = ()
    #: The score where the environment gives none; None: the episode ends without a reward.
    unscored: ClassVar[float | None] = None
    #: How many items of the environment's stream are tasks. None: as many as its ``train`` has, else 256.
    num_items: ClassVar[int | None] = None
    #: The Universal Reward Bridge on top of the score; None: the score is the reward.
    reward_bridge: ClassVar[RewardBridge | None] = None

    def __init__(self, task_spec: JSONObject = {}, secrets: dict[str, str] = {}) -> None:  # noqa: B006 - the SDKs' signature
        super().__init__(task_spec, secrets)
        self._index = int(str(task_spec["index"]))
        self._episode: InterceptedEpisode[float] | None = None
        self._turn: Turn[float] | None = None

    @classmethod
    def _host(cls) -> AtroposHost:
        return shared_host(
            AtroposSettings(cls.atropos_environment, cls.env_config, cls.companions, cls.unscored, cls.num_items)
        )

    @classmethod
    def unavailable(cls) -> str:
        return "" if cls.atropos_environment else _UNNAMED

    @classmethod
    def list_splits(cls) -> list[Split]:
        return [Split(name="train", type="train")]

    @classmethod
    async def num_tasks(cls, split: str) -> int:
        host = cls._host()
        return await _elsewhere(host, host.count())

    @classmethod
    async def get_task(cls, split: str, index: int) -> JSONObject:
        count = await cls.num_tasks(split)
        return {"index": range(count)[index]}

    @classmethod
    async def list_tasks(cls, split: str) -> list[JSONObject]:
        return [{"index": index} for index in range(await cls.num_tasks(split))]

    async def setup(self) -> None:
        host = self._host()

        async def start() -> Turn[float]:
            self._episode = await host.episode(self._index)
            return await self._episode.start()

        self._turn = await _elsewhere(host, start())
        if self._turn.over:
            raise InfrastructureFailure("The Atropos environment scored the task without asking its model")

    async def teardown(self) -> None:
        if self._episode is not None:
            await _elsewhere(self._host(), self._episode.close())

    async def get_messages(self) -> list[Message]:
        """Return the environment's first messages for the model, and the tools that it describes in them."""
        assert self._turn is not None
        messages = [_message(message) for message in self._turn.messages]
        if self._turn.tools:
            listing = "\n".join(json.dumps(offered, ensure_ascii=False) for offered in self._turn.tools)
            note = f"<tools>\n{listing}\n</tools>\nTo use one, write its call in your message."
            messages.append(Message(role="user", blocks=[TextBlock(text=note)]))
        return messages

    @tool
    async def respond(self, params: RespondParameters) -> ToolOutput:
        """Send your next message. You get the reply, and at the end of the conversation the reward.

        Args:
            message: Your whole next message.
        """
        assert self._episode is not None
        turn = await _elsewhere(self._host(), self._episode.answer(params.message))
        if not turn.over:
            return ToolOutput(blocks=[TextBlock(text=_as_text(message)) for message in turn.new_messages])
        assert turn.outcome is not None
        score = turn.outcome
        reward = score if self.reward_bridge is None else shape_reward(score, params.message, self.reward_bridge)
        text = TextBlock(text="The conversation is over.")
        return ToolOutput(blocks=[text], reward=reward, finished=True, metadata={"atropos_score": score})


async def _elsewhere(host: AtroposHost, work: Coroutine[Any, Any, Value]) -> Value:
    """Await ``work`` on the host's loop; cancelling one cancels the other. Raises ``InfrastructureFailure``."""
    try:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, host.loop.loop))
    except ClientFailure as failure:
        raise InfrastructureFailure(failure.cause, failure.remedy) from failure


def _message(message: Mapping[str, Any]) -> Message:
    """One chat message as an ORS message. Results of tools are shown as text: there was no ORS call they answer."""
    role = message.get("role")
    text = _as_text(message) if role == "tool" else text_of(message.get("content"))
    blocks: MessageBlocks = [TextBlock(text=text)]
    if thinking := message.get("reasoning_content"):
        blocks = [ReasoningBlock(text=str(thinking)), *blocks]
    match role:
        case "system" | "assistant":
            return Message(role=role, blocks=blocks)
        case _:
            return Message(role="user", blocks=blocks)


def _as_text(message: Mapping[str, Any]) -> str:
    text = text_of(message.get("content"))
    return f"<tool_response>\n{text}\n</tool_response>" if message.get("role") == "tool" else text
