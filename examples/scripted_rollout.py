"""Play a rollout with a script in the model's place, and print which tokens a trainer would train on.

A real run has an engine as the sampler (``CompletionsSampler`` for vLLM, ``SglangSampler``) and the model's tokenizer.
The rollout is the same: token ids in, token ids out, and sampled ids are never encoded again.
"""

import asyncio
import re
from collections.abc import Sequence
from typing import Any

from guess_number import GuessNumber
from ors_clients import ChatRenderer, RewardRule, local, rollout
from ors_clients.samplers.scripted import ScriptedSampler
from ors_clients.tool_calls import find_format

TURNS = [
    '<tool_call>\n{"name": "guess", "arguments": {"number": 50}}\n</tool_call>',
    'Higher, then.\n<tool_call>\n{"name": "guess", "arguments": {"number": 64}}\n</tool_call>',
]


class ByteTokenizer:
    """A tokenizer with one id for each byte and one for each control token."""

    all_special_tokens = ("<|im_start|>", "<|im_end|>")
    all_special_ids = (256, 257)
    eos_token_id = 257

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        pieces = re.split(r"(<\|im_start\|>|<\|im_end\|>)", text)
        special = dict(zip(self.all_special_tokens, self.all_special_ids, strict=True))
        return [id for piece in pieces for id in ([special[piece]] if piece in special else piece.encode())]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool) -> str:
        special = dict(zip(self.all_special_ids, self.all_special_tokens, strict=True))
        return b"".join(special[id].encode() if id in special else bytes([id]) for id in token_ids).decode()

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any:
        raise NotImplementedError("the renderer writes plain ChatML")


async def main() -> None:
    """Play the second task and print its segments and its reward."""
    tokenizer = ByteTokenizer()
    trajectory = await rollout(
        local(GuessNumber, split="train", index=1),
        ScriptedSampler(TURNS, tokenizer),
        ChatRenderer(tokenizer, template="chatml"),
        find_format("hermes"),
    )
    for segment in trajectory.segments:
        print(f"{segment.kind:6} {len(segment.ids):4} tokens {'trained on' if segment.trainable else 'masked'}")
    print("stopped:", trajectory.stop_reason)
    print("tokens in the loss:", sum(trajectory.loss_mask), "of", len(trajectory.response_ids))
    print("reward:", trajectory.reward(RewardRule("sum")))


if __name__ == "__main__":
    asyncio.run(main())
