"""ors-clients: the client side of the Open Reward Standard, from one tool call to a trainer's batch.

``AsyncClient`` and ``Client`` talk to any ORS server, ``local`` plays an environment class without one, ``rollout``
lets a model play an episode, token-exact. A trainer's adapter is a module of its own: ``ors_clients.trl``, ``.slime``,
``.miles``, ``.roll``, ``.roll_atropos``, ``.atropos``, ``.atropos_served``. Importing this package imports none of it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ors_clients.client import AsyncClient
    from ors_clients.errors import (
        CallOutcomeUnknown,
        ClientError,
        ConfigurationError,
        DeadlineExceeded,
        InfrastructureFailure,
        RequestRefused,
        SamplerFailed,
        ServerUnavailable,
        SessionLost,
        ToolFailed,
    )
    from ors_clients.local_sessions import local, local_sync
    from ors_clients.models import Task, ToolResult
    from ors_clients.rollouts.chat_renderer import ChatRenderer
    from ors_clients.rollouts.episode import RolloutLimits, TurnEpisode
    from ors_clients.rollouts.loop import rollout
    from ors_clients.rollouts.rewards import RewardBridge, RewardRule, shape_reward
    from ors_clients.rollouts.trajectory import Trajectory
    from ors_clients.sync_client import Client
    from ors_clients.tool_schemas import anthropic_tools, google_tools, openai_tools

    __version__: str

__all__ = [
    "AsyncClient",
    "CallOutcomeUnknown",
    "ChatRenderer",
    "Client",
    "ClientError",
    "ConfigurationError",
    "DeadlineExceeded",
    "InfrastructureFailure",
    "RequestRefused",
    "RewardBridge",
    "RewardRule",
    "RolloutLimits",
    "SamplerFailed",
    "ServerUnavailable",
    "SessionLost",
    "Task",
    "ToolFailed",
    "ToolResult",
    "Trajectory",
    "TurnEpisode",
    "anthropic_tools",
    "google_tools",
    "local",
    "local_sync",
    "openai_tools",
    "rollout",
    "shape_reward",
]

_MODULES = {
    "models": ("Task", "ToolResult"),
    "client": ("AsyncClient",),
    "local_sessions": ("local", "local_sync"),
    "rollouts.chat_renderer": ("ChatRenderer",),
    "rollouts.rewards": ("RewardBridge", "RewardRule", "shape_reward"),
    "rollouts.loop": ("rollout",),
    "sync_client": ("Client",),
    "tool_schemas": ("anthropic_tools", "google_tools", "openai_tools"),
    "rollouts.trajectory": ("Trajectory",),
    "rollouts.episode": ("RolloutLimits", "TurnEpisode"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("ors-server")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_MODULE_OF.get(name, 'errors')}")
    # Kept, also because importing a submodule has put the module here where a function has its name.
    value = globals()[name] = getattr(module, name)
    return value
