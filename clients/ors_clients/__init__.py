"""ors-clients: the client side of the Open Reward Standard, from one tool call to a trainer's batch.

``AsyncClient`` and ``Client`` talk to any ORS server. ``local`` runs an environment class without a server. ``rollout``
samples an episode with exact tokens. Each trainer has a package: ``ors_clients.trl``, ``.slime``, ``.miles``,
``.roll``, ``.atropos`` (``trainers``). Importing this package imports none of them; a name is imported when it is first
used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ors_clients.trainers.public_names import install

if TYPE_CHECKING:
    from ors_clients import errors as errors
    from ors_clients.client.async_client import AsyncClient as AsyncClient
    from ors_clients.client.local_sessions import local as local
    from ors_clients.client.local_sessions import local_sync as local_sync
    from ors_clients.client.sessions import AsyncSession as AsyncSession
    from ors_clients.client.sync_client import Client as Client
    from ors_clients.client.sync_client import Session as Session
    from ors_clients.client.tool_schemas import openai_tools as openai_tools
    from ors_clients.errors import *  # noqa: F403 - every exception, by the `__all__` of the module
    from ors_clients.models import Task as Task
    from ors_clients.models import ToolResult as ToolResult
    from ors_clients.rollouts.chat_renderer import ChatRenderer as ChatRenderer
    from ors_clients.rollouts.episode import RolloutLimits as RolloutLimits
    from ors_clients.rollouts.episode import TurnEpisode as TurnEpisode
    from ors_clients.rollouts.loop import rollout as rollout
    from ors_clients.rollouts.rewards import RewardBridge as RewardBridge
    from ors_clients.rollouts.rewards import RewardRule as RewardRule
    from ors_clients.rollouts.rewards import shape_reward as shape_reward
    from ors_clients.rollouts.trajectory import Trajectory as Trajectory
    from ors_clients.samplers import CallbackSampler as CallbackSampler
    from ors_clients.samplers import CompletionsSampler as CompletionsSampler
    from ors_clients.samplers import Generation as Generation
    from ors_clients.samplers import Sampler as Sampler
    from ors_clients.samplers import SamplingParameters as SamplingParameters
    from ors_clients.samplers import ScriptedSampler as ScriptedSampler
    from ors_clients.samplers import SGLangSampler as SGLangSampler
    from ors_clients.samplers import VLLMSampler as VLLMSampler
    from ors_clients.tool_calls import find_format as find_format
    from ors_clients.transport.httpx_transport import HttpxTransport as HttpxTransport

    __version__: str

#: The names above by module; all names of ``errors``.
_MODULES = {
    "client.async_client": ("AsyncClient",),
    "client.local_sessions": ("local", "local_sync"),
    "client.sessions": ("AsyncSession",),
    "client.sync_client": ("Client", "Session"),
    "client.tool_schemas": ("openai_tools",),
    "models": ("Task", "ToolResult"),
    "rollouts.chat_renderer": ("ChatRenderer",),
    "rollouts.episode": ("RolloutLimits", "TurnEpisode"),
    "rollouts.loop": ("rollout",),
    "rollouts.rewards": ("RewardBridge", "RewardRule", "shape_reward"),
    "rollouts.trajectory": ("Trajectory",),
    "samplers": (
        "CallbackSampler",
        "CompletionsSampler",
        "Generation",
        "SGLangSampler",
        "Sampler",
        "SamplingParameters",
        "ScriptedSampler",
        "VLLMSampler",
    ),
    "tool_calls": ("find_format",),
    "transport.httpx_transport": ("HttpxTransport",),
    "errors": (),
}

install()


def __getattr__(name: str) -> Any:
    from ors_containers.lazy_names import lazy_name

    return lazy_name(__name__, name, _MODULES)
