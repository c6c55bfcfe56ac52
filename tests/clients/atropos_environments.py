"""Atropos environments for the tests: one for each way in which environments query their model.

Importable where atroposlib is installed, or its stand-in. Class variables record events, for tests in one process.
"""

from __future__ import annotations

import asyncio
import random
from importlib import import_module
from typing import Any, ClassVar

from ors_clients.client.local_sessions import local
from ors_clients.errors import ToolFailed
from ors_clients.tool_calls import ToolCall, find_format

from tests.clients.trainer_environments import StepEnvironment

_base: Any = import_module("atroposlib.envs.base")


class ItemEnv(_base.BaseEnv):
    """Items are numbers, as ``{"number": n}``, in a stream that never ends."""

    name = "items"
    #: Written by episodes: their events, in order.
    journal: ClassVar[list[str]] = []

    async def setup(self) -> None:
        self.position = 0
        self.journal.append("setup")

    async def get_next_item(self) -> dict[str, Any]:
        self.position += 1
        return {"number": self.position - 1}

    async def evaluate(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""

    def scored(self, text: str, score: float) -> dict[str, Any]:
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        return {"tokens": ids, "masks": ids, "scores": score}


class ArithmeticEnv(ItemEnv):
    """One turn, as in GSM8K: a group by ``n``, shuffled; short answers left out; equal scores send nothing."""

    async def setup(self) -> None:
        await super().setup()
        self.train = [{"question": f"{number} + {number}", "answer": str(2 * number)} for number in range(7)]

    async def get_next_item(self) -> dict[str, Any]:
        item = self.train[self.position % len(self.train)]
        self.position += 1
        return item

    def right(self, answer: str, text: str) -> bool:
        return f"boxed{{{answer}}}" in text

    async def collect_trajectories(self, item: Any) -> Any:
        messages = [{"role": "system", "content": "Count."}, {"role": "user", "content": item["question"]}]
        async with self.server.managed_server(tokenizer=self.tokenizer) as managed:
            completions = await managed.chat_completion(messages=messages, n=self.config.group_size, max_tokens=100)
            nodes = managed.get_state()["nodes"]
        group: dict[str, Any] = {"tokens": [], "masks": [], "scores": []}
        answered = list(zip(completions.choices, nodes, strict=True))
        random.shuffle(answered)
        for choice, node in answered:
            if len([mask for mask in node.masked_tokens if mask != -100]) < 4:
                continue
            group["tokens"].append(node.tokens)
            group["masks"].append(node.masked_tokens)
            group["scores"].append(1.0 if self.right(item["answer"], choice.message.content) else -1.0)
        if len(set(group["scores"])) <= 1:
            return None, []
        return group, []


class SolvingEnv(ArithmeticEnv):
    """One turn, compared by math_verify within its own time limits, as GSM8K's ``score`` does."""

    def right(self, answer: str, text: str) -> bool:
        package = import_module("math_verify")
        options = {"extraction_mode": "first_match", "extraction_config": [package.LatexExtractionConfig()]}
        gold = package.parse(f"\\boxed{{{answer}}}", **options)
        return package.verify(package.parse(text, **options), gold)


class GuessingEnv(ItemEnv):
    """Three guesses in one conversation, by plain chat completions; the score is the number of guesses."""

    async def collect_trajectory(self, item: Any) -> Any:
        secret = str(item["number"])
        messages = [{"role": "user", "content": f"Guess a number. {'It is below 300.'}"}]
        score, text = 0.0, ""
        for guess in range(3):
            self.journal.append(f"ask {guess} of {secret}")
            completion = await self.server.chat_completion(messages=messages, max_tokens=10)
            text = completion.choices[0].message.content
            messages.append({"role": "assistant", "content": text})
            if text.strip() == secret:
                score = 1.0 - guess / 4
                break
            messages.append({"role": "user", "content": "No, guess again."})
        item["number"] = "overwritten"
        return self.scored(text, score), []


class CallingEnv(ItemEnv):
    """Runs the calls that it reads in chat completions, by the tools of ``StepEnvironment``; the score is their sum."""

    async def collect_trajectory(self, item: Any) -> Any:
        messages = [{"role": "user", "content": f"Task {item['number']}."}]
        score = 0.0
        async with local(StepEnvironment, split="train", index=item["number"]) as session:
            while True:
                completion = await self.server.chat_completion(messages=messages)
                text = completion.choices[0].message.content
                answers: list[str] = []
                for call in find_format("hermes").parse(text, []):
                    if not isinstance(call, ToolCall):
                        answers.append(f"A tool call could not be read: {call.problem}")
                        continue
                    try:
                        result = await session.call(call.name, call.input)
                    except ToolFailed as failed:
                        answers.append(f"Error: {failed.message}")
                        continue
                    answers.append(f"Error: {result.error}" if result.error else result.text)
                    score += result.reward or 0.0
                    if result.finished:
                        return self.scored(text, score), []
                answer = "\n".join(answers) or "No tool call was found."
                messages += [{"role": "assistant", "content": text}, {"role": "user", "content": answer}]


class UnopenedEnv(ItemEnv):
    """Fails before it asks its model."""

    async def collect_trajectory(self, item: Any) -> Any:
        raise OSError("no machine")


class StoryEnv(ItemEnv):
    """Two completions of one growing text."""

    async def collect_trajectory(self, item: Any) -> Any:
        text = f"Story {item['number']}: Once"
        for addition in (" Then", ""):
            completion = await self.server.completion(prompt=text, max_tokens=10)
            text += completion.choices[0].text + addition
        return self.scored(text, float(len(text))), []


class RewritingEnv(ItemEnv):
    """Shows a new conversation for each turn."""

    async def collect_trajectory(self, item: Any) -> Any:
        texts: list[str] = []
        for turn in range(2):
            completion = await self.server.chat_completion(messages=[{"role": "user", "content": f"Turn {turn}"}])
            texts.append(completion.choices[0].message.content)
        return self.scored(texts[-1], 0.5), []


class RaisingEnv(ItemEnv):
    """Raises after its first turn."""

    async def collect_trajectory(self, item: Any) -> Any:
        await self.server.chat_completion(messages=[{"role": "user", "content": "Say something."}])
        raise ValueError("the grader's password is hunter2")


class RaisingSetupEnv(ItemEnv):
    """Its set-up fails the first time."""

    tries: ClassVar[int] = 0

    async def setup(self) -> None:
        RaisingSetupEnv.tries += 1
        if RaisingSetupEnv.tries == 1:
            raise OSError("the data set is not there yet")
        await super().setup()

    async def collect_trajectory(self, item: Any) -> Any:
        await self.server.chat_completion(messages=[{"role": "user", "content": "Say something."}])
        return self.scored("x", 1.0), []


class SteppingEnv(ItemEnv):
    """Sends one group per step, as environments with rewards for each step do."""

    async def collect_trajectories(self, item: Any) -> Any:
        groups: list[Any] = []
        for step in range(2):
            completion = await self.server.chat_completion(messages=[{"role": "user", "content": f"Step {step}"}])
            scored = self.scored(completion.choices[0].message.content, 0.25 + step)
            groups.append({name: [value] for name, value in scored.items()})
        return [*groups, None], []


class CarefulEnv(ItemEnv):
    """Cleans up when it is cancelled, and queries from tasks of its own."""

    async def collect_trajectory(self, item: Any) -> Any:
        try:
            ask = self.server.chat_completion(messages=[{"role": "user", "content": "From a task."}])
            completion = await asyncio.create_task(ask)
            answers = await asyncio.gather(
                *(
                    self.server.chat_completion(messages=[{"role": "user", "content": f"Side {side}"}])
                    for side in ("a", "b")
                )
            )
        finally:
            await asyncio.sleep(0)
            self.journal.append("cleaned up")
        texts = [completion, *answers]
        return self.scored(" ".join(text.choices[0].message.content for text in texts), 1.0), []


class ImpatientEnv(ItemEnv):
    """Sets a short time limit for its first response."""

    async def collect_trajectory(self, item: Any) -> Any:
        try:
            ask = self.server.chat_completion(messages=[{"role": "user", "content": "Quick!"}])
            await asyncio.wait_for(ask, 0.05)
        except TimeoutError:
            self.journal.append("gave up")
        completion = await self.server.chat_completion(messages=[{"role": "user", "content": "Take your time."}])
        return self.scored(completion.choices[0].message.content, 1.0), []


class ToolEnv(ItemEnv):
    """Offers a tool and scores whether it was called."""

    async def collect_trajectory(self, item: Any) -> Any:
        schema = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
        offered = {"type": "function", "function": {"name": "double", "description": "Doubles.", "parameters": schema}}
        messages: list[dict[str, Any]] = [{"role": "user", "content": "Double 4."}]
        completion = await self.server.chat_completion(messages=messages, tools=[offered])
        message = completion.choices[0].message
        called = message.tool_calls
        if called:
            self.journal.append(called[0].function.arguments)
            messages += [{"role": "assistant", "content": message.content}, {"role": "tool", "content": "8"}]
            completion = await self.server.chat_completion(messages=messages, tools=[offered])
        return self.scored(completion.choices[0].message.content, 1.0 if called else 0.0), []


class ManagedToolEnv(ItemEnv):
    """Offers a tool through the managed server, whose calls are plain objects."""

    async def collect_trajectory(self, item: Any) -> Any:
        offered = {"type": "function", "function": {"name": "double", "description": "Doubles.", "parameters": None}}
        async with self.server.managed_server(tokenizer=self.tokenizer) as managed:
            completion = await managed.chat_completion(
                messages=[{"role": "user", "content": "Double 4."}], tools=[offered]
            )
        message = completion.choices[0].message
        calls: list[dict[str, Any]] = message.tool_calls or []
        called = [call["function"]["name"] for call in calls]
        return self.scored(message.content, float(called == ["double"])), []


class UnboundedEnv(ItemEnv):
    """The answer is its own score."""

    async def collect_trajectory(self, item: Any) -> Any:
        done = await self.server.chat_completion(messages=[{"role": "user", "content": "Say a number."}])
        text = done.choices[0].message.content
        return self.scored(text, float(text)), []


class SilentEnv(ItemEnv):
    """Scores without a query."""

    async def collect_trajectory(self, item: Any) -> Any:
        return self.scored("x", 1.0), []


class EmptyEnv(ItemEnv):
    """Has no items."""

    async def get_next_item(self) -> Any:
        return None


class ProbingEnv(ItemEnv):
    """Uses attributes that a text policy does not have."""

    async def collect_trajectory(self, item: Any) -> Any:
        await self.server.get_logprobs(prompt="x")
        return self.scored("x", 1.0), []
