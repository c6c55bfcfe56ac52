"""The memory and the disk that a training takes, from the shape of the model alone, before anything is loaded.

On a GPU the trainer has its weights, their gradients and both moments of Adam in 32 bits, and computes in 16; the
engine has the weights a second time, in 16 bits, and its cache. On processors all is in 32 bits. No GPU has measured
this; on processors a step of small models takes a little less.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ors_clients.errors import ConfigurationError
from ors_clients.learning.plan import Recipe

__all__ = ["Budget", "Shape", "budget_of", "check_disk", "check_memory"]

_GIB = 1 << 30
#: Tokens of the episodes that the trainer computes at once, unless one is longer.
_AT_ONCE = 4096
#: Checkpoints at a time: two that are kept, and the one that is being written.
_CHECKPOINTS = 3
#: What CUDA, its libraries and vLLM's graphs and buffers take, and PyTorch and vLLM on processors.
_OWN = {"cuda": 3 * _GIB, "cpu": _GIB}
#: TRL makes logits in tiles of so many tokens and entries of the vocabulary, each with so many bytes: without Triton,
#: as on processors, it takes some nine numbers of 32 bits for each.
_TILE_TOKENS, _TILE_ENTRIES = 4096, 32768
_TILE_BYTES = {"cuda": 4, "cpu": 36}


@dataclass(frozen=True)
class Shape:
    """The sizes of a model that decide about its memory."""

    weights: int
    layers: int
    hidden: int
    intermediate: int
    key_value_heads: int
    head_size: int
    vocabulary: int
    #: Longest text that it was made for.
    positions: int

    @classmethod
    def of(cls, config: Any, weights: int) -> Shape:
        """Return the sizes in the configuration of a ``transformers`` model. Raises ``ConfigurationError``."""
        try:
            heads = config.num_attention_heads
            return cls(
                weights,
                config.num_hidden_layers,
                config.hidden_size,
                config.intermediate_size,
                getattr(config, "num_key_value_heads", None) or heads,
                getattr(config, "head_dim", None) or config.hidden_size // heads,
                config.vocab_size,
                config.max_position_embeddings,
            )
        except AttributeError as error:
            raise ConfigurationError(
                f"The memory of a {config.model_type} is not known: {error}", "Give a model of text, as Qwen3 or Llama."
            ) from error


@dataclass(frozen=True)
class Budget:
    """Bytes by what they are for."""

    parts: Mapping[str, int]
    #: Of the engine's cache.
    kv_cache: int
    #: Episodes that the trainer computes at once.
    micro_batch: int
    #: Share of the device that is the engine's.
    engine_share: float
    #: Of all checkpoints and the trained model, on the disk.
    disk: int

    @property
    def memory(self) -> int:
        """All of it."""
        return sum(self.parts.values())

    def shown(self) -> str:
        """Return the parts for a reader."""
        parts = ", ".join(f"{name} {_gib(size)}" for name, size in self.parts.items())
        return f"{_gib(self.memory)} of memory: {parts}"


def budget_of(shape: Shape, recipe: Recipe, device: str, total: int) -> Budget:
    """Return what a training takes on a device with ``total`` bytes."""
    micro_batch = _micro_batch(recipe)
    tokens = micro_batch * recipe.context
    half = 2 if device == "cuda" else 4
    # Episodes share their prompts and seldom fill the context; what has no room waits, and one has to have it.
    cached = max(recipe.context, recipe.concurrency * recipe.context // 4)
    kv_cache = cached * 2 * shape.layers * shape.key_value_heads * shape.head_size * half
    engine = shape.weights * half + kv_cache
    # With checkpoints of activations each layer keeps its input, and one at a time all that it computes.
    activations = tokens * half * (shape.layers * shape.hidden + 8 * shape.hidden + 4 * shape.intermediate)
    logits = min(tokens, _TILE_TOKENS) * min(shape.vocabulary, _TILE_ENTRIES) * _TILE_BYTES[device]
    # The gradient of the weights that make them, before it is added to the others.
    logits += 4 * shape.vocabulary * shape.hidden
    own = _OWN[device]
    return Budget(
        {
            "weights": 4 * shape.weights,
            "gradients": 4 * shape.weights,
            "Adam": 8 * shape.weights,
            "vLLM's weights": half * shape.weights,
            "vLLM's cache": kv_cache,
            "activations": activations + logits,
            "the libraries": own,
        },
        kv_cache,
        micro_batch,
        min(0.9, (engine + own) / total),
        (_CHECKPOINTS * 12 + 4) * shape.weights,
    )


def check_memory(budget: Budget, free: int, device: str) -> None:
    """Raise ``ConfigurationError`` where a training does not fit into ``free`` bytes."""
    if budget.memory <= free:
        return
    where = "the GPU has" if device == "cuda" else "this machine has"
    raise ConfigurationError(
        f"The training needs {budget.shown()}; {where} {_gib(free)} free",
        "Take a smaller model; a smaller --context or --concurrency saves little.",
    )


def check_disk(budget: Budget, free: int, folder: str) -> None:
    """Raise ``ConfigurationError`` where the checkpoints do not fit into ``free`` bytes."""
    if budget.disk > free:
        raise ConfigurationError(
            f"Checkpoints of this model take {_gib(budget.disk)}, and {folder} has {_gib(free)} free",
            "Make room, or name another --data-dir.",
        )


def _micro_batch(recipe: Recipe) -> int:
    """Return how many episodes are computed at once: a divisor of those of a batch."""
    most = max(1, _AT_ONCE // recipe.context)
    return next(count for count in range(min(most, recipe.episodes), 0, -1) if recipe.episodes % count == 0)


def _gib(size: int) -> str:
    return f"{size / _GIB:.1f} GiB"
