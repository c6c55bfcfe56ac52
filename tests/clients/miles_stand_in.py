"""A stand-in for Miles, which is not on PyPI: the parts that a custom generate or agent function uses.

Written in our own words after radixark/miles: ``miles/utils/types.py`` (``Sample``, ``validate``),
``miles/rollout/base_types.py`` and ``miles/rollout/inference_rollout`` (the caller of ``generate``, and the distinction
of its two forms), ``miles/rollout/filter_hub``, and of ``miles/rollout/generate_hub/agentic_tool_call.py`` with its
session server the parts that an agent function uses and that process its turns: ``merge_samples`` of
``miles/rollout/generate_utils/sample_utils.py`` and ``truncate_samples_by_total_tokens`` of
``miles/rollout/session/samples/merge.py``; of its template mergers (``tito_tokenizer.py`` of
``miles/utils/chat_template_utils``) the default one and Qwen's. ``install`` makes it importable under Miles' own names.
What slime has as well is in ``slime_and_miles_stand_in``.

``tests/long/trainers/check_miles.py`` plays the same with Miles' own modules.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import copy
import inspect
import json
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from fastapi import FastAPI, HTTPException

from tests.clients.scripted_engine import ScriptedEngine, serve_application
from tests.clients.slime_and_miles_stand_in import (
    BaseSample,
    DynamicFilterOutput,
    Trainer,
    call_generate,
    install_modules,
    load_function,
)

__all__ = [
    "GenerateFnInput",
    "GenerateState",
    "Sample",
    "SessionServer",
    "agentic_generate",
    "generate_and_rm",
    "generate_rollout",
    "install",
]


@dataclass
class Sample(BaseSample):
    """``miles.utils.types.Sample``; it has no ``append_response_tokens``."""

    routing_key: str | None = None

    def validate(self) -> None:
        """Check the lengths of the response's fields."""
        assert 0 <= self.response_length <= len(self.tokens)
        assert self.loss_mask is None or len(self.loss_mask) == self.response_length
        assert self.rollout_log_probs is None or len(self.rollout_log_probs) == self.response_length

    @property
    def oldest_weight_version(self) -> int | None:
        """Return the oldest weight version of all turns."""
        return min(map(int, self.weight_versions), default=None)

    def update_from_meta_info(self, args: Any, meta_info: dict[str, Any]) -> None:
        """Read the engine's ``meta_info`` of a generation."""
        assert args.sglang_speculative_algorithm is None
        self._finish(meta_info)


@dataclass
class GenerateState:
    """The input of a generate function."""

    args: Any
    tokenizer: Any = None
    aborted: bool = False


@dataclass(frozen=True)
class GenerateFnInput:
    """``miles.rollout.base_types.GenerateFnInput``."""

    state: GenerateState
    sample: Sample
    sampling_params: dict[str, Any]
    evaluation: bool

    @property
    def args(self) -> Any:
        """The arguments of the run."""
        return self.state.args


@dataclass(frozen=True)
class GenerateFnOutput:
    """``miles.rollout.base_types.GenerateFnOutput``."""

    samples: Sample | list[Sample]


def install(monkeypatch: Any) -> None:
    """Make this module importable as Miles during a test."""
    modules = {
        "miles.utils.types": {"Sample": Sample},
        "miles.rollout.base_types": {"GenerateFnInput": GenerateFnInput, "GenerateFnOutput": GenerateFnOutput},
        "miles.rollout.generate_hub.agentic_tool_call": {"generate": _agentic_tool_call},
        "miles.rollout.filter_hub.base_types": {"DynamicFilterOutput": DynamicFilterOutput},
    }
    install_modules(monkeypatch, modules)


Generate = Callable[[GenerateFnInput], Awaitable[GenerateFnOutput]]


def load_generate_function(path: str) -> Generate:
    """Load a function by its path; wrap a function of the older form, which its parameters reveal."""
    function = load_function(path)
    parameters = list(inspect.signature(function).parameters)
    return _wrapped(function) if len(parameters) >= 3 and parameters[0] != "input" else function


def _wrapped(function: Any) -> Generate:
    async def generate(input: GenerateFnInput) -> GenerateFnOutput:
        output = await call_generate(function, input.args, input.sample, input.sampling_params, input.evaluation)
        return output if isinstance(output, GenerateFnOutput) else GenerateFnOutput(output)

    return generate


async def _generate(args: Any, state: Any, sample: Sample, sampling_params: dict[str, Any], evaluation: bool) -> Any:
    function = load_generate_function(sample.generate_function_path or args.custom_generate_function_path)
    output = await function(GenerateFnInput(state, sample, sampling_params, evaluation))
    assert isinstance(output, GenerateFnOutput)
    return output.samples


_MILES = Trainer(_generate, logs_errors=True, rewards_once=True, names_sessions=False)


async def generate_and_rm(
    state: GenerateState, sample: Sample, sampling_params: dict[str, Any], evaluation: bool = False
) -> Sample | list[Sample]:
    """Run one sample through the custom functions, as Miles calls them."""
    return await _MILES.generate_and_rm(state.args, state, sample, sampling_params, evaluation)


def drop_all(args: Any, samples: Sequence[Any]) -> DynamicFilterOutput:
    """Drop what Miles' filter by deviation drops of a run in which every rollout fails: everything."""
    return DynamicFilterOutput(keep=False, reason="zero_std_0.0")


async def generate_rollout(
    state: GenerateState, prompts: Sequence[Sample], sampling_params: dict[str, Any], *, seconds: float = 40.0
) -> list[list[Any]]:
    """Draw a batch like ``generate_rollout_async``."""
    return (await _MILES.generate_rollout(state.args, state, prompts, sampling_params, seconds))[0]


# --- the session server --------------------------------------------------------------------------


@dataclass
class _Turn:
    prompt: list[int]
    output: list[int]
    logprobs: list[float]
    status: Sample.Status

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.output)


@dataclass
class _Session:
    messages: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    tokens: list[int] = field(default_factory=list[int])
    turns: list[_Turn] = field(default_factory=list[_Turn])
    mismatch: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])


#: The status of a turn, by the engine's finish reason.
_FINISHED = {
    "stop": Sample.Status.COMPLETED,
    "tool_calls": Sample.Status.COMPLETED,
    "length": Sample.Status.TRUNCATED,
    "abort": Sample.Status.ABORTED,
}


def _truncated(turns: list[_Turn], max_seq_len: int) -> list[_Turn]:
    """Return the turns up to the first that exceeds the limit; of that turn, the part within it."""
    kept: list[_Turn] = []
    for turn in turns:
        within = len(turn.output) - max(0, turn.length - max_seq_len)
        if within == len(turn.output):
            kept.append(turn)
            continue
        if within > 0:
            cut = (turn.output[:within], turn.logprobs[:within], Sample.Status.TRUNCATED)
            kept.append(_Turn(turn.prompt, *cut))
        break
    return kept


def _merged(turns: list[_Turn]) -> list[_Turn]:
    """Return the turns up to the first that was not completed: no later turn extends it."""
    for count, turn in enumerate(turns, 1):
        if turn.status != Sample.Status.COMPLETED:
            return turns[:count]
    return turns


@dataclass
class SessionServer:
    """Chat completions over an engine's ids: each session's tokens are kept, and never generated twice.

    Strict where Miles' server is: each request must repeat the stored conversation word for word. New messages are
    rendered after a conversation of their own, a system message and a turn of the model, and their ids are appended to
    the stored ids.
    """

    engine: ScriptedEngine
    #: The family whose turns are written. With ``qwen3`` the server adds the line break that the model omits.
    tito_model: str = "qwen3"
    #: Whether calls are parsed out of the text, as SGLang does with a tool-call parser.
    reads_calls: bool = False
    #: Whether the model keeps no tokens, so that any conversation is accepted.
    text_only: bool = False
    #: Seconds between storing a turn and its response.
    delay: float = 0.0
    #: Statuses of the first responses.
    failures: list[int] = field(default_factory=list[int])
    sessions: dict[str, _Session] = field(default_factory=dict[str, _Session])
    requests: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    url: str = ""

    async def complete(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        """Answer a chat completion of a session."""
        if self.failures:
            raise HTTPException(self.failures.pop(0), "not now")
        self.requests.append(body)
        answer = self._complete(self.sessions[name], body)
        await asyncio.sleep(self.delay)
        return answer

    def _complete(self, session: _Session, body: dict[str, Any]) -> dict[str, Any]:
        messages: list[dict[str, Any]] = body["messages"]
        if self.text_only:
            turns = sum(message["role"] == "assistant" for message in messages) + 1
            text = self.engine.policy("<|im_start|>assistant\n" * turns)
            return {"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]}
        if messages[: len(session.messages)] != session.messages:
            raise HTTPException(422, "no assistant message in matched prefix")
        if any(not message.get("content") and not message.get("tool_calls") for message in messages):
            raise HTTPException(400, "content cannot be empty")
        tools = body.get("tools")
        if session.tokens:
            ids = self._continued(session, messages[len(session.messages) :], tools)
        else:
            ids = self._encode(self._render(messages, tools))
        canonical = self._encode(self._render(messages, tools))
        session.mismatch = [] if ids == canonical else [{"type": "special_token_count"}]
        sampled, logprobs, text, finish = self.engine.generate(ids, body.get("max_tokens") or 4096)
        finish = self.engine.finish or finish
        session.turns.append(_Turn(ids, sampled, logprobs, _FINISHED[finish]))
        session.tokens = ids + sampled
        text = text.removesuffix(self.engine.end_of_turn)
        message: dict[str, Any] = {"role": "assistant", "content": text, "tool_calls": None}
        if self.reads_calls and body.get("tools") and "<tool_call>" in text:
            with contextlib.suppress(ValueError):  # SGLang's parser leaves calls that it cannot parse in the content
                message |= {"tool_calls": _read_calls(text, len(session.turns)), "content": "", "raw": text}
        session.messages = [*messages, {key: value for key, value in message.items() if value is not None}]
        usage = {"prompt_tokens": len(ids), "completion_tokens": len(sampled), "total_tokens": len(session.tokens)}
        return {"choices": [{"index": 0, "message": message, "finish_reason": finish}], "usage": usage}

    def _render(self, messages: list[dict[str, Any]], tools: Any, *, generate: bool = True) -> str:
        return self.engine.tokenizer.apply_chat_template(
            [_flat(message) for message in messages], tools=tools, tokenize=False, add_generation_prompt=generate
        )

    def _encode(self, text: str) -> list[int]:
        return self.engine.tokenizer.encode(text, add_special_tokens=False)

    def _continued(self, session: _Session, appended: list[dict[str, Any]], tools: Any) -> list[int]:
        """Return the session's ids with those of new messages appended."""
        base = [{"role": "system", "content": "s"}, {"role": "assistant", "content": "a"}]
        try:
            before = self._render(base, tools, generate=False)
            behind = self._render([*base, *appended], tools).removeprefix(before)
        except Exception as error:
            raise HTTPException(500, "Internal Server Error") from error
        glue = self._encode("\n") if self.tito_model == "qwen3" else []
        return [*session.tokens, *glue, *self._encode(behind)]

    def samples(self, name: str, sample: Sample, max_seq_len: int | None) -> list[Sample]:
        """Return the session's training samples: one, or none if the model was never queried within the limit."""
        session = self.sessions.pop(name)
        turns = session.turns
        turns = _merged(turns if max_seq_len is None else _truncated(turns, max_seq_len))
        if not turns:
            return []
        sample = copy.deepcopy(sample)
        begin = len(turns[0].prompt)
        sample.tokens = turns[-1].prompt + turns[-1].output
        sample.response_length = len(sample.tokens) - begin
        sample.response = self.engine.tokenizer.decode(sample.tokens[begin:], skip_special_tokens=False)
        mask, probabilities = [0] * len(sample.tokens), [0.0] * len(sample.tokens)
        for turn in turns:
            place = slice(len(turn.prompt), turn.length)
            mask[place], probabilities[place] = [1] * len(turn.output), turn.logprobs
        sample.loss_mask, sample.rollout_log_probs = mask[begin:], probabilities[begin:]
        sample.status = turns[-1].status
        sample.metadata["tito_session_mismatch"] = session.mismatch
        return [sample]

    @contextlib.asynccontextmanager
    async def serve(self) -> AsyncGenerator[SessionServer]:
        """Serve at a path of its own."""
        path = uuid.uuid4().hex
        self.url = f"{_address()}/{path}"
        _serving[path] = self
        try:
            yield self
        finally:
            del _serving[path]


_serving: dict[str, SessionServer] = {}


@cache
def _address() -> str:
    """Return the address of all session servers, in a thread of its own: starting one takes longer than most tests."""
    app = FastAPI()

    @app.post("/{path}/sessions/{name}/v1/chat/completions")
    async def _complete(path: str, name: str, body: dict[str, Any]) -> dict[str, Any]:
        return await _serving[path].complete(name, body)

    running = serve_application(app)
    atexit.register(running.__exit__, None, None, None)
    return running.__enter__()


def _flat(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message as this server's chat template expects it, with the calls in the model's text."""
    return {"role": message["role"], "content": message.get("raw") or message["content"]}


def _read_calls(text: str, turn: int) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = []
    for part in text.split("<tool_call>")[1:]:
        call = json.loads(part.partition("</tool_call>")[0])
        function = {"name": call["name"], "arguments": json.dumps(call["arguments"])}
        calls.append({"id": f"call_{turn}_{len(calls)}", "type": "function", "function": function})
    return calls


async def agentic_generate(
    agent: Callable[..., Awaitable[dict[str, Any] | None]],
    server: SessionServer,
    sample: Sample,
    sampling_params: dict[str, Any],
    max_seq_len: int | None = None,
) -> Sequence[Sample]:
    """Run an agent over a session of its own, like ``miles.rollout.generate_hub.agentic_tool_call.generate``."""
    limit = {} if max_seq_len is None else {"max_seq_len": max_seq_len}
    name = f"session-{uuid.uuid4().hex}"
    server.sessions[name] = _Session()
    request = dict(sampling_params)
    request["max_tokens"] = request.pop("max_new_tokens")
    metadata: dict[str, Any] | None = None
    with contextlib.suppress(Exception):  # Miles logs it and collects the samples so far
        metadata = await agent(
            base_url=f"{server.url}/sessions/{name}",
            prompt=sample.prompt,
            request_kwargs=request,
            metadata={**sample.metadata, **limit, "session_server_id": server.url},
        )
    samples = server.samples(name, sample, max_seq_len)
    if not samples:
        sample = copy.deepcopy(sample)
        sample.status = Sample.Status.ABORTED
        return [sample]
    for one in samples:
        one.metadata.update(metadata or {})
        measured: dict[str, float] = (metadata or {}).get("agent_metrics") or {}
        seconds = measured.get("total_tool_time")
        one.non_generation_time = one.non_generation_time if seconds is None else seconds
    return samples


async def _agentic_tool_call(input: GenerateFnInput) -> GenerateFnOutput:
    """Run the agent as Miles' command line does: agent and limit from the arguments, and the started server."""
    agent = load_function(input.args.custom_agent_function_path)
    assert input.sample.weight_versions == [], "the input sample must not carry weight versions"
    limit = getattr(input.args, "max_seq_len", None)
    samples = await agentic_generate(agent, input.args.session_server, input.sample, input.sampling_params, limit)
    return GenerateFnOutput(samples[0])
