"""The messages of the Open Reward Standard, as pydantic models.

The union of the specification, ``ors-sdk`` 0.1 and ``openreward`` 0.1.167. Models that a client sends forbid unknown
keys, except keys that only one of the dialects knows (``toolset_name``, ``secrets``). Field order is wire order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, RootModel, model_validator
from typing_extensions import TypeAliasType

__all__ = [
    "SUPPORTED_MESSAGE_BLOCK_TYPES",
    "VERDICT",
    "Blocks",
    "CreateSession",
    "GetTask",
    "GetTaskRange",
    "GroupCandidate",
    "GroupScore",
    "ImageBlock",
    "JSONObject",
    "JSONValue",
    "ListTasks",
    "ListToolsOutput",
    "Message",
    "MessageBlocks",
    "NumTasks",
    "ReasoningBlock",
    "Role",
    "RunToolError",
    "RunToolErrorReason",
    "RunToolOutput",
    "RunToolSuccess",
    "ScoreGroup",
    "ScoreGroupOutput",
    "Split",
    "SplitType",
    "TerminalToolSpec",
    "TextBlock",
    "ToolCall",
    "ToolCallBlock",
    "ToolOutput",
    "ToolResultBlock",
    "ToolSpec",
]

#: Member of a result's metadata for the server alone (``rollouts.verdicts``): it is not sent, and clients drop it.
VERDICT = "_ors_verdict"

JSONValue = TypeAliasType("JSONValue", Mapping[str, Any] | Sequence[Any] | str | int | float | bool | None)
JSONObject: TypeAlias = Mapping[str, JSONValue]


class _Wire(BaseModel):
    model_config = ConfigDict(extra="forbid")


# --- content -------------------------------------------------------------------------------------


class TextBlock(_Wire):
    """A piece of text; ``detail`` is free for the environment."""

    text: str
    detail: JSONObject | None = None
    type: Literal["text"] = "text"


class ImageBlock(_Wire):
    """An image: ``data`` is base64, ``mimeType`` for example ``image/png``."""

    data: str
    mimeType: str  # noqa: N815 - the wire's spelling
    detail: JSONObject | None = None
    type: Literal["image"] = "image"


Blocks = TypeAliasType("Blocks", Sequence[TextBlock | ImageBlock])


class ReasoningBlock(_Wire):
    """Reasoning in an assistant turn; ``signature`` passes through for providers that sign theirs."""

    text: str
    signature: str | None = None
    detail: JSONObject | None = None
    type: Literal["reasoning"] = "reasoning"


class ToolCallBlock(_Wire):
    """A tool call in an assistant turn."""

    id: str
    name: str
    input: JSONObject
    detail: JSONObject | None = None
    type: Literal["tool_call"] = "tool_call"


class ToolResultBlock(_Wire):
    """The result of the tool call ``tool_call_id``, in a user turn."""

    tool_call_id: str
    blocks: Blocks
    is_error: bool = False
    detail: JSONObject | None = None
    type: Literal["tool_result"] = "tool_result"


MessageBlocks = TypeAliasType(
    "MessageBlocks", Sequence[TextBlock | ImageBlock | ReasoningBlock | ToolCallBlock | ToolResultBlock]
)
Role = Literal["system", "user", "assistant"]

#: Block types accepted in messages; advertised in every tool list.
SUPPORTED_MESSAGE_BLOCK_TYPES = ["text", "image", "reasoning", "tool_call", "tool_result"]

_BLOCKS_OF_ROLE: dict[str, frozenset[str]] = {
    "system": frozenset({"text", "image"}),
    "user": frozenset({"text", "image", "tool_result"}),
    "assistant": frozenset({"text", "image", "reasoning", "tool_call"}),
}


class Message(_Wire):
    """One turn of a conversation. Raises ``ValueError`` for a block its role cannot carry."""

    role: Role
    blocks: MessageBlocks
    detail: JSONObject | None = None

    @model_validator(mode="after")
    def _blocks_fit_role(self) -> Message:
        allowed = _BLOCKS_OF_ROLE[self.role]
        for block in self.blocks:
            if block.type not in allowed:
                raise ValueError(
                    f"a {self.role} message cannot hold a {block.type} block; it can hold: {', '.join(sorted(allowed))}"
                )
        return self


# --- tools ---------------------------------------------------------------------------------------


class ToolOutput(_Wire):
    """Output of a tool: blocks for the model, an optional reward, and whether the episode has finished."""

    blocks: Blocks
    # Values of any type: one that JSON cannot hold is sent as its repr, so that the result is not lost (protocol 0.1).
    metadata: Mapping[str, Any] | None = None
    reward: float | None = None
    finished: bool = False


class RunToolSuccess(_Wire):
    """Result of a tool that ran."""

    ok: Literal[True] = True
    output: ToolOutput


RunToolErrorReason = Literal["not_found", "name_collision", "input_validation", "episode_finished"]


class RunToolError(_Wire):
    """Result of a call that ran no tool, with the reason; the episode goes on."""

    ok: Literal[False] = False
    error: str
    reason: RunToolErrorReason | None = None


class RunToolOutput(RootModel[RunToolSuccess | RunToolError]):
    """The result of a tool call."""

    root: RunToolSuccess | RunToolError = Field(discriminator="ok")


class ToolSpec(_Wire):
    """A tool as the model sees it. Clients build it from the JSON object, so no key may be added."""

    name: str
    description: str
    input_schema: JSONObject | None


class TerminalToolSpec(_Wire):
    """The tool that gets the assistant's final message; ``arg`` names the field of the message, if any."""

    name: str
    arg: str | None = None
    description: str = ""


class ListToolsOutput(_Wire):
    """The tools of an environment or a session, and the other abilities of the environment."""

    tools: list[ToolSpec]
    terminal_tool: TerminalToolSpec | None = None
    supports_score_group: bool | None = None
    message_block_types: list[str] | None = None


class ToolCall(_Wire):
    """Body of ``/call``; ``task_id`` fetches an earlier call and never starts one."""

    name: str
    input: dict[str, Any]
    task_id: str | None = None


# --- group scoring -------------------------------------------------------------------------------


class GroupCandidate(_Wire):
    """One rollout of a group, as a transcript."""

    messages: list[Message]
    metadata: JSONObject | None = None


class GroupScore(_Wire):
    """The comparative reward of one candidate."""

    reward: float
    metadata: JSONObject | None = None


class ScoreGroup(_Wire):
    """Body of ``/score_group``."""

    candidates: list[GroupCandidate]
    task_id: str | None = None


class ScoreGroupOutput(_Wire):
    """One score for each candidate, in the order of the request."""

    scores: list[GroupScore]


# --- tasks and sessions --------------------------------------------------------------------------

SplitType = Literal["train", "validation", "test"]


class Split(_Wire):
    """A named part of an environment's tasks."""

    name: str
    type: SplitType


class ListTasks(_Wire):
    """Body of ``/tasks``."""

    split: str


class NumTasks(_Wire):
    """Body of ``/num_tasks``."""

    split: str


class GetTask(_Wire):
    """Body of ``/task`` and ``/get_task``; ``num_tasks`` says which indices there are."""

    split: str
    index: int


class GetTaskRange(_Wire):
    """Body of ``/task_range`` and ``/get_task_range``, with the meaning of a Python slice."""

    split: str
    start: int | None = None
    stop: int | None = None


class CreateSession(_Wire):
    """Body of ``/create``: a task given whole, or by split and index."""

    env_name: str | None = None
    task_spec: dict[str, Any] | None = None
    split: str | None = None
    index: int | None = None
    toolset_name: str | None = None
    secrets: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _one_task(self) -> CreateSession:
        by_index = self.split is not None and self.index is not None
        if (self.task_spec is not None) == by_index:
            raise ValueError("Provide either task_spec or both split and index, not both/neither")
        if (self.split is None) != (self.index is None):
            raise ValueError("split and index must both be provided together")
        return self
