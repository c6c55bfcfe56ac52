"""Supervised steps on demonstrations: the warm start, and as many further steps as reinforcement learning had.

Random weights never write a call, and what never happens earns nothing. So the model first imitates, until
demonstrations that it was not shown have a certain mean probability: about the share of tasks that its samples will
solve, without an episode being played. The rest is left to be learnt from rewards.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ors_clients.learning.tiny.model import INSTALL_TRL
from ors_clients.training.optional_imports import import_trainer_module

__all__ = ["Example", "Supervised", "warm_start"]

#: Steps between two looks at the other demonstrations, and steps after which a warm start has failed.
_LOOK, _MOST = 2, 1000


@dataclass(frozen=True)
class Example:
    """Token ids of a demonstration; the answer includes the end of the turn."""

    prompt: Sequence[int]
    answer: Sequence[int]


class Supervised:
    """Steps of AdamW on the answers of examples, drawn by a seed."""

    def __init__(self, model: Any, examples: Sequence[Example], *, batch: int, learning_rate: float, seed: int) -> None:
        self._torch: Any = import_trainer_module("torch", INSTALL_TRL)
        self._model = model
        self._examples = examples
        self._batch = batch
        self._draws = self._torch.Generator().manual_seed(seed)
        self._optimizer = self._torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.0)

    def step(self) -> float:
        """Take one step; return the loss before it."""
        drawn = self._torch.randint(len(self._examples), (self._batch,), generator=self._draws)
        picked: list[int] = drawn.tolist()
        ids, labels = self._padded([self._examples[place] for place in picked])
        self._model.train()
        loss = self._model(input_ids=ids, labels=labels).loss
        self._optimizer.zero_grad()
        loss.backward()
        self._torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()
        return loss.item()

    def probability(self, examples: Sequence[Example]) -> float:
        """Return the mean probability of whole answers under the model."""
        torch = self._torch
        ids, labels = self._padded(examples)
        self._model.eval()
        with torch.no_grad():
            logprobs = self._model(input_ids=ids).logits[:, :-1].log_softmax(-1)
        wanted = labels[:, 1:]
        chosen = logprobs.gather(-1, wanted.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        return ((chosen * (wanted >= 0)).sum(-1).exp().mean()).item()

    def _padded(self, examples: Sequence[Example]) -> tuple[Any, Any]:
        """Return ids and labels, padded on the right, where attention that looks back never sees it."""
        longest = max(len(example.prompt) + len(example.answer) for example in examples)
        ids = self._torch.zeros((len(examples), longest), dtype=self._torch.long)
        labels = self._torch.full_like(ids, -100)
        for row, example in enumerate(examples):
            whole = self._torch.tensor([*example.prompt, *example.answer])
            ids[row, : len(whole)] = whole
            labels[row, len(example.prompt) : len(whole)] = whole[len(example.prompt) :]
        return ids, labels


def warm_start(supervised: Supervised, others: Sequence[Example], until: float) -> dict[str, Any]:
    """Take steps until the other examples have the mean probability ``until``. Return figures of it."""
    begun = time.monotonic()
    loss, probability, steps = float("nan"), 0.0, 0
    while steps < _MOST and probability < until:
        loss = supervised.step()
        steps += 1
        if steps % _LOOK == 0:
            probability = supervised.probability(others)
    return {
        "steps": steps,
        "loss": round(loss, 4),
        "probability": round(probability, 4),
        "seconds": round(time.monotonic() - begun, 1),
    }
