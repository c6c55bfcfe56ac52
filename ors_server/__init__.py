"""ors-server: reinforcement-learning environments for language models over the Open Reward Standard, self-hosted.

Authors subclass ``Environment`` and give it ``@tool`` methods; ``Server`` hosts the classes. Importing this package
imports no web framework; that happens when ``Server`` is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ors_server.environment import Environment, Toolset, terminal, tool
from ors_server.errors import DefinitionError, InfrastructureError, InfrastructureFailure, OrsError
from ors_server.hosting.prompts import flatten_messages
from ors_server.protocol import (
    SUPPORTED_MESSAGE_BLOCK_TYPES,
    Blocks,
    CreateSession,
    GetTask,
    GetTaskRange,
    GroupCandidate,
    GroupScore,
    ImageBlock,
    JSONObject,
    JSONValue,
    ListTasks,
    ListToolsOutput,
    Message,
    MessageBlocks,
    NumTasks,
    ReasoningBlock,
    Role,
    RunToolError,
    RunToolOutput,
    RunToolSuccess,
    Split,
    TerminalToolSpec,
    TextBlock,
    ToolCall,
    ToolCallBlock,
    ToolOutput,
    ToolResultBlock,
    ToolSpec,
)

if TYPE_CHECKING:
    from ors_server.server import Server
    from ors_server.settings import Settings

    __version__: str

__all__ = [
    "SUPPORTED_MESSAGE_BLOCK_TYPES",
    "Blocks",
    "CreateSession",
    "DefinitionError",
    "Environment",
    "GetTask",
    "GetTaskRange",
    "GroupCandidate",
    "GroupScore",
    "ImageBlock",
    "InfrastructureError",
    "InfrastructureFailure",
    "JSONObject",
    "JSONValue",
    "ListTasks",
    "ListToolsOutput",
    "Message",
    "MessageBlocks",
    "NumTasks",
    "OrsError",
    "ReasoningBlock",
    "Role",
    "RunToolError",
    "RunToolOutput",
    "RunToolSuccess",
    "Server",
    "Settings",
    "Split",
    "TerminalToolSpec",
    "TextBlock",
    "ToolCall",
    "ToolCallBlock",
    "ToolOutput",
    "ToolResultBlock",
    "ToolSpec",
    "Toolset",
    "__version__",
    "flatten_messages",
    "terminal",
    "tool",
]


def __getattr__(name: str) -> Any:
    from ors_containers.lazy_names import lazy_name

    return lazy_name(__name__, name, {"server": ("Server",), "settings": ("Settings",)})
