"""Echo: the smallest complete environment. The model wins by echoing the task's word.

The contract is that of TRL's own test fixture, so that its guide and tests run against this server unchanged. With the
variable ``ORS_ECHO_WORDS`` each split has so many made-up words in the place of the fixture's, none in both: enough to
see whether a model has learnt to echo (`ors-server train echo --tiny`).
"""

import itertools
import os
import random
from functools import cache

from pydantic import BaseModel, Field

from ors_server import (
    DefinitionError,
    Environment,
    JSONObject,
    ListToolsOutput,
    Split,
    TextBlock,
    ToolOutput,
    ToolSpec,
    tool,
)

WORDS = {"train": ("hello", "world", "trl", "openreward"), "test": ("reward", "standard")}
_VARIABLE = "ORS_ECHO_WORDS"


@cache
def words() -> dict[str, tuple[str, ...]]:
    """Return the words of each split. Raises ``DefinitionError`` for a variable that is not a number of words."""
    given = os.environ.get(_VARIABLE)
    if not given:
        return WORDS
    syllables = [f"{first}{second}" for first, second in itertools.product("bdfgklmnprst", "aeiou")]
    made = [f"{first}{second}" for first, second in itertools.product(syllables, repeat=2)]
    most = len(made) // 2
    if not given.isdecimal() or not 1 <= int(given) <= most:
        raise DefinitionError(f"{_VARIABLE} is {given!r}", f"Give a number of words from 1 to {most}.")
    random.Random("echo").shuffle(made)  # noqa: S311 - tasks, not secrets
    return {"train": tuple(made[: int(given)]), "test": tuple(made[most : most + int(given)])}


class EchoTask(BaseModel):
    """A task: its id and the word to echo."""

    id: str
    target: str


class EchoParameters(BaseModel):
    """Input of the echo tool."""

    text: str = Field(description="The text to echo back.")


class EchoEnvironment(Environment):
    """Reward 1 for echoing the target, 0 otherwise."""

    def __init__(self, task_spec: JSONObject = {}, secrets: dict[str, str] = {}) -> None:  # noqa: B006 - the SDKs' signature
        super().__init__(task_spec, secrets)
        self.task = EchoTask.model_validate(task_spec)

    @classmethod
    def list_splits(cls) -> list[Split]:
        return [Split(name="train", type="train"), Split(name="test", type="test")]

    @classmethod
    def list_tasks(cls, split: str) -> list[JSONObject]:
        first = 0 if split == "train" else len(words()["train"])
        return [{"id": f"echo-{first + index}", "target": word} for index, word in enumerate(words()[split])]

    async def get_prompt(self) -> list[TextBlock]:
        return [TextBlock(text=f"Call the `echo` tool with text='{self.task.target}' to finish the task.")]

    @tool
    async def echo(self, params: EchoParameters) -> ToolOutput:
        """Submit a text. The reward is 1.0, and the episode ends, if it is the target.

        Args:
            text: The text to echo back.
        """
        correct = params.text == self.task.target
        return ToolOutput(
            blocks=[TextBlock(text="match" if correct else "no match")],
            reward=1.0 if correct else 0.0,
            finished=correct,
        )

    def list_task_tools(self) -> ListToolsOutput:
        return ListToolsOutput(
            tools=[ToolSpec(name="hint", description=f"Get a hint for task {self.task.id}.", input_schema=None)]
        )

    @tool(shared=False)
    async def hint(self) -> ToolOutput:
        """Get a hint: the first letter of the target and its length."""
        text = f"It starts with {self.task.target[0]!r} and has {len(self.task.target)} letters."
        return ToolOutput(blocks=[TextBlock(text=text)])
