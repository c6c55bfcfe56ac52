"""Whatever form a model writes its calls in: the text decides, turn by turn.

A ``<function=`` is Qwen's XML; another ``<tool_call>`` is Hermes; a text with neither may hold plain JSON. One turn is
read in one form, that of its first call.
"""

from __future__ import annotations

from collections.abc import Sequence

from ors_clients.tool_calls.calls import FoundCall
from ors_clients.tool_calls.hermes import HermesFormat
from ors_clients.tool_calls.plain_json import PlainJsonFormat
from ors_clients.tool_calls.qwen_xml import QwenXmlFormat
from ors_clients.tool_calls.thinking import places, skip_thinking
from ors_server import ToolSpec

__all__ = ["AutomaticFormat"]

_HERMES, _QWEN_XML, _PLAIN_JSON = HermesFormat(), QwenXmlFormat(), PlainJsonFormat()


class AutomaticFormat:
    """The form the text is written in; Hermes where the model has to be told one."""

    name = "auto"
    end_of_call = _HERMES.end_of_call
    instructions = _HERMES.instructions

    def parse(self, text: str, tools: Sequence[ToolSpec], *, turn: int = 0) -> list[FoundCall]:
        """Every call in ``text``, in order."""
        position = skip_thinking(text, places(text, "<tool_call>"))
        outer = text.find("<tool_call>", position)
        function = text.find("<function=", position)
        if function >= 0 and (outer < 0 or function < outer or not text[outer + len("<tool_call>") : function].strip()):
            return _QWEN_XML.parse(text, tools, turn=turn)
        if outer >= 0:
            return _HERMES.parse(text, tools, turn=turn)
        return _PLAIN_JSON.parse(text, tools, turn=turn)
