"""Texts that spell a control token, broken up for a trainer that tokenizes messages itself.

Our own renderer encodes such a text exactly (``control_tokens``). A trainer or an endpoint that gets messages as text
puts them into its chat template and tokenizes the whole: ``<|im_end|>`` in the output of a tool ends a turn. So what a
model reads gets a blank behind the first character of each spelling: ``< |im_end|>``. What is stored, and what
rewards are made of, stays as it was.

With a tokenizer, its own special and added control tokens are broken up; without one, the spellings that models use.
``ORS_CONTROL_TOKENS=keep`` leaves texts as they are.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

from ors_clients.errors import ConfigurationError
from ors_clients.rollouts.control_tokens import any_of, control_texts

__all__ = ["ControlTexts", "control_texts_of"]

#: The class of control tokens, for want of a tokenizer: ``<|…|>`` in both widths, marks of sentences and turns, and
#: capitals in brackets that instruct.
_SPELLED = re.compile(
    r"<\|[^|<>\s]{1,64}\|>|<\uff5c[^\uff5c<>]{1,64}\uff5c>"
    r"|</?s>|<(?:bos|eos|pad|unk|mask|sep|cls|image|audio|video)>|<unused\d+>|<reserved_\w{1,40}>"
    r"|<(?:start|end|begin|eo|bo)_of_[a-z_]{1,40}>|<extra_id_\d+>|<image_soft_token>|<fim_[a-z]+>|<\|?endofprompt\|?>"
    r"|<</?SYS>>|\[/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT|ARGS|CALL_ID|THINK|IMG)\]"
    r"|\[(?:gMASK|sMASK|MASK|CLS|SEP|PAD|UNK|BOS|EOS|IMG_BREAK|IMG_END)\]|\]~[a-z!]{1,8}\[|\]~b\]|\[e~\["
)
#: A text whose breaks spell new tokens is looked at again, so often at most.
_ROUNDS = 8


class ControlTexts:
    """The spellings to break up: of ``tokenizer``, or where there is none, of the models of the field."""

    def __init__(self, tokenizer: Any = None) -> None:
        texts = [] if tokenizer is None else sorted(set(control_texts(tokenizer)), key=len, reverse=True)
        self._spelled = any_of(texts) if texts else _SPELLED

    def in_text(self, text: str) -> str:
        """Return a text in which no control token is spelled."""
        for _ in range(_ROUNDS):
            broken = self._spelled.sub(lambda found: f"{found[0][:1]} {found[0][1:]}", text)
            if broken == text:
                break
            text = broken
        return text

    def in_content(self, content: Any) -> Any:
        """Return a message's content: a text, or parts, whose neighbouring texts may spell a token together."""
        if isinstance(content, str):
            return self.in_text(content)
        if not isinstance(content, list):
            return content
        parts: list[Any] = []
        for is_text, run in itertools.groupby(cast("list[Any]", content), _is_text):
            found = list(run)
            if is_text:
                whole = "".join(part["text"] for part in found)
                if (broken := self.in_text(whole)) != whole:
                    found = [{**found[0], "text": broken}]
            parts += found
        return parts

    def in_messages(self, messages: Iterable[Mapping[str, Any]], *, of_model: bool = False) -> list[dict[str, Any]]:
        """Return copies of messages. With ``of_model`` those of the assistant are the model's, and stay as they are."""
        return [
            dict(message)
            if of_model and message.get("role") == "assistant"
            else {**message, "content": self.in_content(message.get("content"))}
            for message in messages
        ]


class _Unbroken(ControlTexts):
    def in_text(self, text: str) -> str:
        return text


def control_texts_of(tokenizer: Any = None) -> ControlTexts:
    """Return what the setting says. Raises ``ConfigurationError`` for a setting that is none."""
    setting = os.environ.get("ORS_CONTROL_TOKENS") or "break"
    if setting not in ("break", "keep"):
        raise ConfigurationError(f"ORS_CONTROL_TOKENS={setting!r}", "Set it to break, the default, or to keep.")
    return ControlTexts(tokenizer) if setting == "break" else _Unbroken()


def _is_text(part: Any) -> bool:
    return isinstance(part, Mapping) and isinstance(cast("Mapping[str, Any]", part).get("text"), str)
