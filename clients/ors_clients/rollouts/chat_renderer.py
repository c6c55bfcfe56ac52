"""Chat messages as token ids that are only ever appended.

``start`` renders the opening of a conversation with the tokenizer's own chat template. After that the template never
sees the conversation again: ``after_turn`` renders the new messages behind a placeholder for the model's turn and keeps
what the template writes after the placeholder. So the ids of the model stay the ids it sampled, and whatever a template
does to earlier turns (Qwen3 drops their thinking) happens to the placeholder only. Where a template cannot be used so,
plain ChatML is written instead. What messages say never becomes a control token (``control_tokens``); all else has the
ids that the template's text has.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast

from ors_clients.client.tool_schemas import openai_tools
from ors_clients.errors import ConfigurationError
from ors_clients.rollouts.chatml import chatml, merge_system, part_text, parts_of, without_images, wrapped
from ors_clients.rollouts.control_tokens import ControlTokens
from ors_clients.rollouts.messages import ChatMessage
from ors_clients.samplers.tokenizer import Tokenizer
from ors_server import ToolSpec

__all__ = ["ChatRenderer", "Rendered"]

#: Stands for a turn of the model; nothing a template does to text may change it.
_PLACEHOLDER = "ModelTurnPlaceholder"
_PROBE = "ProbeOfTheTemplate"
_PROBE_RESULT: ChatMessage = {"role": "tool", "tool_call_id": "call00000", "name": "probe", "content": _PROBE}
#: Contents that a template which does anything to contents changes.
_DELICATE = (
    "",
    "  \n spaced \t\n\n",
    "\"quoted\" 'twice' \\ \u00e4 <&>",
    "<tool_response>\nwrapped\n</tool_response>",
    "<think>\nthought\n</think>\n\nsaid</think>",
    '{"json": [1, null]}',
    "12",
)
_ROTATED = (_DELICATE, _DELICATE[::-1])
#: Messages that a frame is kept for, at most.
_LARGEST_FRAME = 8
_REMEDY = 'Use ChatRenderer(…, template="chatml")'
_NO_THINKING = "<think>\n\n</think>\n\n"


class Rendered(NamedTuple):
    """A text and its ids."""

    ids: list[int]
    text: str

    @property
    def opens_thinking(self) -> bool:
        """True if the model begins to write inside of thinking."""
        return self.text.rstrip().endswith("<think>")


@dataclass(frozen=True)
class _Frame:
    """The text of a template before, between and after the contents of some messages."""

    around: list[str]
    trimmed: bool

    def filled(self, contents: Sequence[str]) -> str:
        pieces = [self.around[0]]
        for content, after in zip(contents, self.around[1:], strict=True):
            pieces += (content.strip() if self.trimmed else content, after)
        return "".join(pieces)


class ChatRenderer:
    """Renders one model's conversations; shared by all rollouts of a run.

    ``thinking`` is what the template knows as ``enable_thinking``. ``template="chatml"`` writes plain ChatML whatever
    the tokenizer brings. Raises ``ConfigurationError`` if the tokenizer can do neither.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, thinking: bool = False, template: Literal["auto", "chatml"] = "auto"
    ) -> None:
        self._tokenizer: Tokenizer = tokenizer if hasattr(tokenizer, "encode") else cast("Any", tokenizer).tokenizer
        self._template = self._tokenizer if getattr(tokenizer, "chat_template", None) is None else tokenizer
        self._thinking = thinking
        self._control = ControlTokens(self._tokenizer)
        #: Whether plain ChatML is written instead of the tokenizer's own template.
        self.chatml = template == "chatml"
        self._lists_only = False
        if not self.chatml and not self._appends():
            self._lists_only = True  # as some templates of vision models want it
            self.chatml = not self._appends()
        self._tool_role = not self.chatml and self._shows_tool_results()
        self._system_role = self.chatml or _PROBE in self._attempt(
            [{"role": "system", "content": _PROBE}, {"role": "user", "content": "?"}]
        )
        #: Whether the template takes images; where not, their place is named in the text.
        self.images = not self.chatml and self._takes_images()
        #: Whether the template tells the model of its tools; where not, the system prompt has to.
        self.describes_tools = not self.chatml and self._describes_tools()
        self._frames: dict[tuple[str, ...], _Frame | None] = {}
        self._learn_ends()

    def start(self, messages: Sequence[ChatMessage], tools: Sequence[ToolSpec] = ()) -> Rendered:
        """Return the opening messages, up to where the model begins to write. Raises ``ConfigurationError``."""
        prepared = self._prepared(self._control.hidden(list(messages)))
        if not self._system_role:
            prepared = merge_system(prepared)
        if self.chatml:
            text = "".join(chatml(message) + "\n" for message in prepared) + self._chatml_turn()
        else:
            text = self._render(prepared, self._control.hidden(openai_tools(tools)) if tools else None)
        return Rendered(*self._control.encode(text))

    def after_turn(self, generated: Sequence[int], messages: Sequence[ChatMessage]) -> Rendered:
        """Return the tokens to append to a turn of the model.

        They are the turn's end, unless the model wrote it; ``messages``, which answer it; and the beginning of the
        next turn.
        """
        ids, text = self._control.encode(self._answer(self._prepared(self._control.hidden(list(messages)))))
        if generated and ids and self._same_end(generated[-1], ids[0]):
            text = text.removeprefix(self.decode(ids[:1]))
            del ids[0]
        return Rendered(ids, text)

    def _same_end(self, generated: int, written: int) -> bool:
        """Return whether the model's last token has the meaning of the token that the template writes there."""
        closes = len(self.stop_token_ids) == 1  # else it says who speaks next, too
        return generated == written or (closes and generated in self._end_ids and written in self._end_ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, special tokens included."""
        text = self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        return text

    def text_of_turn(self, generated: Sequence[int]) -> str:
        """Return the text of a turn of the model without the token that ends it."""
        ended = bool(generated) and generated[-1] in self._end_ids
        return self.decode(generated[:-1] if ended else generated)

    # --- templates ---------------------------------------------------------------------------------

    def _render(self, messages: Sequence[ChatMessage], tools: Sequence[dict[str, Any]] | None = None) -> str:
        if self._lists_only:
            messages = [{**message, "content": parts_of(message["content"])} for message in messages]
        try:
            text = self._template.apply_chat_template(
                messages, tools=tools, tokenize=False, add_generation_prompt=True, enable_thinking=self._thinking
            )
        except Exception as error:  # a template raises whatever it likes: jinja's own errors and its raise_exception
            raise ConfigurationError(f"The chat template refuses the conversation: {error}", _REMEDY) from error
        return cast("str", text)

    def _suffix(self, messages: Sequence[ChatMessage]) -> str:
        if self.chatml:
            return "<|im_end|>\n" + "".join(chatml(message) + "\n" for message in messages) + self._chatml_turn()
        text = self._render(
            [{"role": "user", "content": "?"}, {"role": "assistant", "content": _PLACEHOLDER}, *messages]
        )
        _, found, suffix = text.partition(_PLACEHOLDER)
        if not found:
            raise ConfigurationError("The chat template leaves out the model's turn before these messages", _REMEDY)
        return suffix

    def _answer(self, messages: list[ChatMessage]) -> str:
        """``_suffix``, from a frame where the template does no more than trim contents: in no time."""
        shape = tuple(message["role"] for message in messages)
        if len(shape) > _LARGEST_FRAME or not all(isinstance(message["content"], str) for message in messages):
            return self._suffix(messages)
        if shape not in self._frames:
            self._frames[shape] = self._frame(shape)
        frame = self._frames[shape]
        return self._suffix(messages) if frame is None else frame.filled([message["content"] for message in messages])

    def _frame(self, shape: tuple[str, ...]) -> _Frame | None:
        """Return the template's text around messages of these roles; None where it depends on their contents."""
        marks = [f"{_PROBE}{position}" for position in range(len(shape))]
        trials = [[content] * len(shape) for content in _DELICATE]
        trials += [[contents[position % len(contents)] for position in range(len(shape))] for contents in _ROTATED]
        try:
            around = re.split("|".join(marks), self._suffix(_messages(shape, marks)))
            written = [self._suffix(_messages(shape, contents)) for contents in trials]
        except ConfigurationError:
            return None  # it refuses one of them
        if len(around) != len(shape) + 1:
            return None
        for frame in (_Frame(around, trimmed=False), _Frame(around, trimmed=True)):
            if written == [frame.filled(contents) for contents in trials]:
                return frame
        return None

    def _chatml_turn(self) -> str:
        return "<|im_start|>assistant\n" + ("" if self._thinking else _NO_THINKING)

    def _prepared(self, messages: Iterable[ChatMessage]) -> list[ChatMessage]:
        """Return the messages as the template takes them: without images or the tool role if it has none."""
        prepared: list[ChatMessage] = []
        results = False
        for message in messages:
            if isinstance(message.get("content"), list) and not self.images:
                message = {**message, "content": without_images(message["content"])}
            result = message["role"] == "tool" and not self._tool_role
            if result:
                content = wrapped(message["content"])
                if results:  # one after another, they are one message
                    content = [*parts_of(prepared.pop()["content"]), *parts_of("\n"), *parts_of(content)]
                message = {
                    "role": "user",
                    "content": content if self.images else "".join(map(part_text, parts_of(content))),
                }
            results = result
            prepared.append(message)
        return prepared

    # --- what a template can do --------------------------------------------------------------------

    def _attempt(self, messages: Sequence[ChatMessage], tools: Sequence[dict[str, Any]] | None = None) -> str:
        """Return the text of a conversation; empty if the template refuses it."""
        try:
            return self._render(messages, tools)
        except ConfigurationError:
            return ""

    def _appends(self) -> bool:
        """Return whether the messages behind a turn can be cut out of the template's text."""
        if getattr(self._template, "chat_template", None) is None:
            return False
        text = self._attempt(
            [
                {"role": "user", "content": "?"},
                {"role": "assistant", "content": _PLACEHOLDER},
                {"role": "user", "content": _PROBE},
            ]
        )
        return text.count(_PLACEHOLDER) == 1 and text.find(_PROBE) > text.find(_PLACEHOLDER)

    def _shows_tool_results(self) -> bool:
        try:
            return _PROBE in self._suffix([_PROBE_RESULT])
        except ConfigurationError:
            return False

    def _takes_images(self) -> bool:
        part = {"type": "text", "text": _PROBE}
        image = {"type": "image", "image": "data:image/png;base64,"}
        without = self._attempt([{"role": "user", "content": [part]}])
        with_image = self._attempt([{"role": "user", "content": [part, image]}])
        # A template that prints the list itself, or knows strings only, takes none.
        return _PROBE in without and "base64" not in with_image and "'text'" not in without and with_image != without

    def _describes_tools(self) -> bool:
        tool = ToolSpec(name=_PROBE, description="", input_schema={"type": "object", "properties": {}})
        return _PROBE in self._attempt([{"role": "user", "content": "?"}], openai_tools([tool]))

    def _learn_ends(self) -> None:
        """Find the tokens that end a turn, and the beginning of the next one."""
        suffix = self._suffix([{"role": "user", "content": _PROBE}])
        #: Whether the model begins to write inside of thinking, behind a user message.
        self.opens_thinking = Rendered([], suffix).opens_thinking
        # A token of its own for the end, or text that any tokens may spell?
        added = {*getattr(self._tokenizer, "all_special_ids", ())}
        added.update(getattr(self._tokenizer, "added_tokens_decoder", ()))
        firsts = [self._control.encode(suffix)[0][0]]
        if self._tool_role:  # some models end a turn with the mark of the next speaker (GLM)
            firsts.append(self._control.encode(self._suffix([_PROBE_RESULT]))[0][0])
        #: Tokens and texts an engine has to stop at: the template's end of a turn need not be the model's own.
        self.stop_token_ids: tuple[int, ...] = tuple(dict.fromkeys(token for token in firsts if token in added))
        self.stop: tuple[str, ...] = ("<|im_end|>",) if self.chatml and not self.stop_token_ids else ()
        eos = getattr(self._tokenizer, "eos_token_id", None)
        self._end_ids = {*self.stop_token_ids} if eos is None else {*self.stop_token_ids, eos}


def _messages(roles: Sequence[str], contents: Sequence[str]) -> list[ChatMessage]:
    """Messages whose ids and names differ, as those of an episode do."""
    return [
        {"role": role, "content": content, "tool_call_id": f"id{len(content)}{position}", "name": f"n{len(content)}"}
        for position, (role, content) in enumerate(zip(roles, contents, strict=True))
    ]
