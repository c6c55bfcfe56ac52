"""A script: transformers' continuous batching as an engine process, a JSON object a line in and out.

    python -P script_transformers.py '{"model": FOLDER, "weights": true, …}'

First comes ``{"ready": {…}}``, or ``{"failed": text}``. A request is ``{"id", "ids", "max_tokens", "forced"}`` and its
answer ``{"id", "ids", "logprobs", "queue", "engine"}`` or ``{"id", "error"}``. ``forced`` are the ids that are to be
sampled, or null: a logits processor leaves no other choice, and the engine computes and samples every token as it would
otherwise.

It is a process of its own because its loop is Python: beside a rollout it would fight for the interpreter's lock.
"""

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportUntypedBaseClass=false
# torch and transformers have an environment of their own; here their types are unknown.

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, __version__

try:
    from transformers import ContinuousBatchingConfig
    from transformers.generation.continuous_batching.cb_logits_processors import ContinuousBatchingLogitsProcessor
except ImportError as error:
    told = {
        "failed": f"transformers {__version__} has no continuous batching with a configuration: {error}",
        "remedy": "Install transformers 5.17 or later, or measure with another --engine.",
    }
    sys.stdout.write(json.dumps(told) + "\n")
    sys.exit(1)

#: No token is forced.
FREE = -1


class Forced(ContinuousBatchingLogitsProcessor):
    """Leave each request only the next token of its ``forced``; requests without it are free.

    How far a request has come is counted here, at each of its tokens: with asynchronous batching its own list of tokens
    is a step behind.
    """

    supported_kwargs: dict[str, type] = {"forced": list}  # noqa: RUF012 - the base class's declaration
    ignored_kwargs: tuple[str, ...] = ()

    def __init__(self) -> None:
        self._made: dict[str, int] = {}

    def forget(self, request: str) -> None:
        """Forget a request that is over."""
        self._made.pop(request, None)

    def fill_defaults(self, int32_tensor: torch.Tensor) -> None:
        """Nothing forced."""
        int32_tensor.fill_(FREE)

    def prepare_tensor_args(self, requests_with_new_token: Sequence[Any]) -> torch.Tensor:
        """Return the next token of each request."""
        tokens: list[int] = []
        for request in requests_with_new_token:
            state = request.state
            forced = state.logit_processor_kwargs.get("forced", ())
            made = self._made.get(state.request_id, 0)
            self._made[state.request_id] = made + 1
            tokens.append(forced[made] if made < len(forced) else FREE)
        return torch.tensor(tokens, dtype=torch.int32)

    def __call__(self, scores: torch.Tensor, tensor_arg: torch.Tensor) -> torch.Tensor:
        """Return the scores with all tokens but the forced ones ruled out."""
        forced = tensor_arg[: scores.size(0)].to(torch.int64).unsqueeze(-1)
        vocabulary = torch.arange(scores.size(-1), device=scores.device).unsqueeze(0)
        return scores.masked_fill((forced != FREE) & (vocabulary != forced), float("-inf"))


def load(options: dict[str, Any]) -> Any:
    """Return the model, on the GPU where there is one."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    attention = options["options"].pop("attn_implementation", "sdpa")
    if options["weights"]:
        model = AutoModelForCausalLM.from_pretrained(options["model"], dtype=dtype, attn_implementation=attention)
        return model.to(torch.device(device))  # pyright: ignore[reportArgumentType]
    config = AutoConfig.from_pretrained(options["model"])
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention)


def start(options: dict[str, Any]) -> tuple[Any, Forced]:
    """Start the manager; returns it with its forced tokens."""
    model = load(options)
    sampling = options["sampling"]
    generation = GenerationConfig(
        do_sample=True,
        temperature=sampling["temperature"],
        top_p=sampling["top_p"],
        top_k=max(0, sampling["top_k"]),
        max_new_tokens=512,
        eos_token_id=model.generation_config.eos_token_id,
        pad_token_id=model.generation_config.pad_token_id,
    )
    settings: dict[str, Any] = {"allow_block_sharing": options["prefix_caching"], "return_logprobs": True}
    if torch.cuda.is_available():
        # transformers' own share where there are processors of scores, of which it knows none when it reserves memory.
        settings |= {"max_memory_percent": 0.8}
    else:
        # Of its own accord the cache takes most of the machine's memory.
        settings |= {"num_blocks": 1024, "max_batch_tokens": 2048}
    batching = ContinuousBatchingConfig(**settings | options["options"])
    manager = model.init_continuous_batching(generation_config=generation, continuous_batching_config=batching)
    forced = Forced()
    # The list is made from a generation configuration, which cannot hold a custom processor with arguments.
    processors = manager.logit_processor
    processors.logits_processor.append(forced)
    processors.tensors_required += 1
    processors.supported_keys |= forced.supported_kwargs
    processors.do_processing = True
    manager.start()
    return manager, forced


def answer(manager: Any, forced: Forced, write: Any) -> None:
    """Write each result when it comes, until the process ends."""
    while True:
        result = manager.get_result(timeout=0.5)
        if result is None:
            fatal = manager.background_thread_status.fatal_error
            if fatal is not None or not manager.is_running():
                write({"failed": f"the generation loop ended: {fatal}"})
                os._exit(1)
            continue
        forced.forget(result.request_id)
        if result.error is not None:
            write({"id": result.request_id, "error": result.error})
            continue
        began, ended = result.lifespan
        write(
            {
                "id": result.request_id,
                "ids": result.generated_tokens,
                "logprobs": result.logprobs,
                "queue": began - result.created_time,
                "engine": ended - began,
            }
        )


def main() -> None:
    """Serve until standard input ends."""
    output = os.fdopen(os.dup(1), "w", buffering=1)
    # Whatever libraries print must not come between the answers.
    os.dup2(2, 1)
    lock = threading.Lock()

    def write(message: dict[str, Any]) -> None:
        with lock:
            output.write(json.dumps(message) + "\n")

    options = json.loads(sys.argv[1])
    if options["threads"]:
        torch.set_num_threads(options["threads"])
    try:
        manager, forced = start(options)
    except Exception as error:  # noqa: BLE001 - whatever torch or the driver raise: the parent says what it means
        write({"failed": f"{type(error).__name__}: {error}"})
        sys.exit(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    write({"ready": {"transformers": __version__, "torch": torch.__version__, "device": device}})
    threading.Thread(target=answer, args=(manager, forced, write), daemon=True).start()
    for line in sys.stdin:
        request = json.loads(line)
        manager.add_request(
            request["ids"],
            request_id=request["id"],
            max_new_tokens=request["max_tokens"],
            **({"forced": request["forced"]} if request["forced"] else {}),
        )
    # The generation loop is not a daemon thread, and has nothing left to do.
    os._exit(0)


if __name__ == "__main__":
    main()
