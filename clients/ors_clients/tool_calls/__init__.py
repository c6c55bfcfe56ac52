"""Tool calls in a model's text: the formats of the field behind one function, ``ToolCallFormat.parse``.

``hermes`` (Qwen2.5, Qwen3, Hermes: JSON in ``<tool_call>``), ``qwen_xml`` (Qwen3-Coder, Qwen3.5: one element a
parameter), ``json`` (Llama 3: a bare JSON object), and ``auto``, which takes the one the text is written in.
"""

from __future__ import annotations

from ors_clients.errors import ConfigurationError
from ors_clients.tool_calls.automatic import AutomaticFormat
from ors_clients.tool_calls.calls import FoundCall, MalformedCall, ToolCall, ToolCallFormat, describe_tools
from ors_clients.tool_calls.hermes import HermesFormat
from ors_clients.tool_calls.plain_json import PlainJsonFormat
from ors_clients.tool_calls.qwen_xml import QwenXmlFormat
from ors_clients.tool_calls.thinking import split_thinking

__all__ = [
    "TOOL_CALL_FORMATS",
    "FoundCall",
    "MalformedCall",
    "ToolCall",
    "ToolCallFormat",
    "describe_tools",
    "find_format",
    "split_thinking",
]

#: Every format by the name that configurations use.
TOOL_CALL_FORMATS: dict[str, ToolCallFormat] = {
    format.name: format for format in (HermesFormat(), QwenXmlFormat(), PlainJsonFormat(), AutomaticFormat())
}


def find_format(name: str) -> ToolCallFormat:
    """Return the format of this name. Raises ``ConfigurationError``."""
    try:
        return TOOL_CALL_FORMATS[name]
    except KeyError:
        known = ", ".join(TOOL_CALL_FORMATS)
        raise ConfigurationError(f"No tool-call format {name!r}", f"Use one of {known}") from None
