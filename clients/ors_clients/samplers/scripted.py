"""A sampler without a model: texts that are given, for tests, dry runs of a recipe, and measuring the loop itself.

Its log-probabilities depend on the position alone, so that a shift by one anywhere shows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from ors_clients.errors import SamplerFailed
from ors_clients.samplers.generations import Generation, SamplingParameters
from ors_clients.samplers.tokenizer import Tokenizer

__all__ = ["ScriptedSampler", "scripted_logprob"]


def scripted_logprob(position: int) -> float:
    """Return the log-probability of the token at ``position`` (from 0) of prompt and response together."""
    return -(1 + position % 997) / 1000


class ScriptedSampler:
    """Answers turn ``i`` of each rollout with ``texts[i]``, or with ``function(text of the prompt)``.

    ``end_of_turn`` is written behind each text. Texts that end before the rollout does are ``SamplerFailed``.
    """

    def __init__(
        self,
        script: Sequence[str] | Callable[[str], str],
        tokenizer: Tokenizer,
        *,
        end_of_turn: str = "<|im_end|>",
    ) -> None:
        self._script = script
        self._tokenizer = tokenizer
        self._end = end_of_turn
        self._turns: Counter[str] = Counter()

    async def generate(
        self, ids: Sequence[int], parameters: SamplingParameters, *, rollout_id: str, images: Sequence[str] = ()
    ) -> Generation:
        """Return the next text of the script as ids, at most ``max_tokens`` of them."""
        if callable(self._script):
            prompt = self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
            assert isinstance(prompt, str)
            text = self._script(prompt)
        else:
            turn = self._turns[rollout_id]
            self._turns[rollout_id] += 1
            if turn >= len(self._script):
                raise SamplerFailed(f"The script has {len(self._script)} turns and no turn {turn + 1}")
            text = self._script[turn]
        sampled = self._tokenizer.encode(text + self._end, add_special_tokens=False)
        finish = "stop"
        if len(sampled) > parameters.max_tokens:
            sampled, finish = sampled[: parameters.max_tokens], "length"
        logprobs = [scripted_logprob(len(ids) + position) for position in range(len(sampled))]
        return Generation(sampled, logprobs, "", finish)
