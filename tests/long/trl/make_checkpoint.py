"""Make a checkpoint that calls the tool of the echo environment now and then: a Qwen3 of some ten thousand weights.

    python make_checkpoint.py URL FOLDER

It is warm-started as ``ors-server train --tiny`` does it, on a server of ``echo`` with ``ORS_ECHO_WORDS=600``.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers
from ors_cli.measuring.train_subjects import make_plan
from ors_clients.client.async_client import AsyncClient
from ors_clients.learning.episodes import Episodes
from ors_clients.learning.learner import RunContext
from ors_clients.learning.stages import Stages
from ors_clients.learning.tiny import learner


def qwen3(tokenizer: Any, *, hidden: int, layers: int, seed: int) -> Any:
    """Return a model with heads of a size that vLLM has on processors."""
    torch.manual_seed(seed)
    config = transformers.Qwen3Config(
        vocab_size=(len(tokenizer) + 15) // 16 * 16,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        initializer_range=hidden**-0.5,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    return transformers.Qwen3ForCausalLM(config)


def main() -> None:
    url, target = sys.argv[1:]
    learner.make_model = qwen3
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner() as runner:
        client = AsyncClient(url)
        plan = runner.run(make_plan(client, url, "made", 0))
        # Of the last training tasks: those that a run takes, the first, are not shown.
        plan = replace(plan, train=plan.train[::-1], tiny=replace(plan.tiny, warm_learning_rate=2e-3))
        made = learner.TinyLearner(RunContext(plan, Stages(Path(folder)), Episodes(client, plan), runner.run))
        made.begin()
        runner.run(client.close())
        shutil.copytree(Path(folder, "warm"), target)


if __name__ == "__main__":
    main()
