"""Checks the adapter between ROLL and Atropos on this machine: no GPU, no model, no download.

    python verify_atropos.py                                                     two small environments of this file
    python verify_atropos.py --environment environments.gsm8k_server:GSM8kEnv --answer "…"     one of your own

It plays scripted answers through ``AtroposEnv``, as ROLL would, on the installed atroposlib, and prints each check.
Exit status 0 if all of them hold. An environment of your own is played with the one answer until it ends; its data set
and tokenizer have to be there.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any, ClassVar

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

from atroposlib.envs.base import BaseEnv
from ors_clients.roll.atropos_env import AtroposEnv

COMPANION = "I do not know the answer to this question, so I do not give one."


class SumEnv(BaseEnv):
    """One turn: a group that is dropped when all of it scores the same, as GSM8K's is."""

    name = "sum"

    async def setup(self) -> None:
        self.train = [(number, number + 1) for number in range(10)]
        self.position = 0

    async def get_next_item(self) -> Any:
        self.position += 1
        return self.train[(self.position - 1) % len(self.train)]

    async def evaluate(self, *args: Any, **kwargs: Any) -> None:
        """Nothing to evaluate."""

    async def collect_trajectories(self, item: Any) -> Any:
        question = {"role": "user", "content": f"What is {item[0]} + {item[1]}?"}
        async with self.server.managed_server(tokenizer=self.tokenizer) as managed:
            completions = await managed.chat_completion(messages=[question], n=self.config.group_size)
            nodes = managed.get_state()["nodes"]
        right = f"boxed{{{sum(item)}}}"
        scores = [1.0 if right in choice.message.content else -1.0 for choice in completions.choices]
        if len(set(scores)) == 1:
            return None, []
        group = {"tokens": [node.tokens for node in nodes], "masks": [node.masked_tokens for node in nodes]}
        return {**group, "scores": scores}, []


class CountdownEnv(BaseEnv):
    """Three turns, each asked for once; the score says how many were right."""

    name = "countdown"
    #: How often each turn was asked for.
    asked: ClassVar[list[int]] = []

    async def setup(self) -> None:
        self.asked.clear()

    async def get_next_item(self) -> Any:
        return {"from": 3}

    async def evaluate(self, *args: Any, **kwargs: Any) -> None:
        """Nothing to evaluate."""

    async def collect_trajectory(self, item: Any) -> Any:
        messages = [{"role": "user", "content": "Count down from 3, one number a message."}]
        right, text = 0, ""
        for number in (3, 2, 1):
            CountdownEnv.asked.append(number)
            completion = await self.server.chat_completion(messages=messages, max_tokens=8)
            text = completion.choices[0].message.content
            right += text.strip() == str(number)
            messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "Next."}]
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        return {"tokens": ids, "masks": ids, "scores": right / 3}, []


def save_tokenizer(folder: Path) -> str:
    """Return a tokenizer with one token a byte, where ``AutoTokenizer`` finds it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    model = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    model.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=model, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.chat_template = (
        "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    tokenizer.save_pretrained(str(folder))
    return str(folder)


class Checks:
    """Prints checks and remembers whether all held."""

    def __init__(self) -> None:
        self.failed = 0

    def that(self, what: str, found: object, expected: object) -> None:
        held = found == expected
        self.failed += not held
        print(f"{'ok    ' if held else 'FAILED'} {what}" + ("" if held else f": {found!r}, not {expected!r}"))


def verify_own(checks: Checks, tokenizer: str) -> None:
    """Return the environments of this file."""
    config = {"tokenizer_name": tokenizer}
    env = AtroposEnv("verify_atropos:SumEnv", env_config=config, companions=[COMPANION], unscored=-1.0)
    observation, _ = env.reset(seed=4)
    checks.that("the seed chooses the question", observation[-1]["content"], "What is 4 + 5?")
    _, reward, terminated, truncated, _ = env.step("It is \\boxed{9}.<|im_end|>")
    checks.that("a right answer earns its score", (reward, terminated, truncated), (1.0, True, False))
    env.reset(seed=4)
    reward = env.step("<think>hm</think> \\boxed{8}")[1]
    checks.that("a wrong one what the reward bridge gives", round(reward, 3), round(-1 + 0.2 + 0.3 + 0.027, 3))
    env.close()

    config_of_bridge = {"format_markers": [{"marker": "8", "reward": 0.5}], "length_bounty_max": 0.0}
    env = AtroposEnv(
        "verify_atropos:SumEnv",
        env_config=config,
        companions=[COMPANION],
        unscored=-1.0,
        reward_config=config_of_bridge,
    )
    env.reset(seed=4)
    checks.that("reward_config is used", env.step("\\boxed{8}")[1], -0.5)
    env.close()

    env = AtroposEnv("verify_atropos:CountdownEnv", env_config=config, reward_config=False)
    env.reset(seed=0)
    rewards = [env.step(answer)[1] for answer in ("3", "0", "1")]
    checks.that("three turns, the reward at the end", rewards, [0.0, 0.0, 2 / 3])
    asked: list[int] = sys.modules["verify_atropos"].CountdownEnv.asked
    checks.that("each turn is played once, none again", asked, [3, 2, 1])
    env.reset(seed=0)
    env.step("3")
    env.close()
    checks.that("an episode can be left in the middle", env.reset(seed=0)[1]["failure_mode"], "")
    env.close()


def verify_given(checks: Checks, path: str, answer: str) -> None:
    """Return an environment of the caller's, with the same answer for each turn."""
    env = AtroposEnv(path, max_steps=8, companions=[COMPANION], unscored=-1.0)
    observation, info = env.reset(seed=0)
    checks.that("reset opens an episode", info["failure_mode"], "")
    for message in observation:
        print(f"       {message['role']}: {str(message['content'])[:300]}")
    over = False
    while observation and not over:
        observation, reward, over, truncated, info = env.step(answer)
        print(f"       reward {reward:g}, over {over}, cut short {truncated}, {info['stop_reason']}")
    checks.that("the episode ends without a failure", info["failure_mode"], "")
    env.close()


def main() -> int:
    """Return the number of failed checks, at most 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environment", help="package.module:Class of another Atropos environment")
    parser.add_argument("--answer", default="<think>2</think> \\boxed{2}", help="what to answer it")
    given = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    warnings.simplefilter("ignore")
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    checks = Checks()
    if given.environment:
        verify_given(checks, given.environment, given.answer)
    else:
        with tempfile.TemporaryDirectory() as folder:
            verify_own(checks, save_tokenizer(Path(folder)))
    print("All checks hold." if not checks.failed else f"{checks.failed} checks failed.")
    return min(1, checks.failed)


if __name__ == "__main__":
    sys.exit(main())
