"""Inference engines behind one protocol: ids in; ids and log-probabilities out.

``SGLangSampler`` and ``CompletionsSampler`` over HTTP, ``VLLMSampler`` in process, ``CallbackSampler`` for a trainer's
own engine, ``ScriptedSampler`` for tests and dry runs. None of them is imported before it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ors_clients.samplers.generations import FinishReason, Generation, Sampler, SamplingParameters

if TYPE_CHECKING:
    from ors_clients.samplers.callback import CallbackSampler
    from ors_clients.samplers.completions import CompletionsSampler
    from ors_clients.samplers.scripted import ScriptedSampler
    from ors_clients.samplers.sglang import SGLangSampler
    from ors_clients.samplers.vllm import VLLMSampler

__all__ = [
    "CallbackSampler",
    "CompletionsSampler",
    "FinishReason",
    "Generation",
    "SGLangSampler",
    "Sampler",
    "SamplingParameters",
    "ScriptedSampler",
    "VLLMSampler",
]

_MODULES = {
    "callback": ("CallbackSampler",),
    "completions": ("CompletionsSampler",),
    "scripted": ("ScriptedSampler",),
    "sglang": ("SGLangSampler",),
    "vllm": ("VLLMSampler",),
}


def __getattr__(name: str) -> Any:
    from ors_containers.lazy_names import lazy_name

    return lazy_name(__name__, name, _MODULES)
