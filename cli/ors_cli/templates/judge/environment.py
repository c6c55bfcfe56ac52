"""Explaining: the agent explains something in plain words, and a model judges whether it says what it must.

The judge decides one question at a time, whether a fact is stated, and the environment makes the reward of that: a
number that a model invents differs from call to call. A judge that fails is never a reward (`judge.py`).
"""

from judge import missing_settings, stated
from pydantic import BaseModel, Field

from ors_server import Environment, JSONObject, TextBlock, ToolOutput, tool

TASKS: dict[str, list[JSONObject]] = {
    "train": [
        {
            "question": "Why is the sky blue?",
            "facts": ["Sunlight has every colour", "Air scatters blue light more than red light"],
        },
        {
            "question": "Why do ships of steel float?",
            "facts": ["A ship is hollow and full of air", "It pushes away water as heavy as the ship"],
        },
        {
            "question": "Why is there summer and winter?",
            "facts": ["The axis of the Earth is tilted", "In summer sunlight falls more steeply"],
        },
    ],
    "test": [
        {
            "question": "Why does ice float on water?",
            "facts": ["Water expands when it freezes", "Ice is lighter than the same volume of water"],
        },
        {
            "question": "Why does the Moon change its shape?",
            "facts": ["The Moon moves around the Earth", "The Sun lights one half of the Moon"],
        },
    ],
}


class Question(BaseModel):
    """A task, checked."""

    question: str
    facts: list[str] = Field(min_length=1)


class ExplainInput(BaseModel):
    """Input of the tool `explain`. The limit keeps an agent from filling the judge's context."""

    text: str = Field(min_length=1, max_length=2000, description="The explanation, in plain words.")


class TemplateEnvironment(Environment):
    """One instance is one episode."""

    # The agent must not read what the judge looks for.
    private_task_fields = ("facts",)

    def __init__(self, task_spec: JSONObject = {}, secrets: dict[str, str] = {}) -> None:  # noqa: B006 - never changed
        super().__init__(task_spec, secrets)
        self.task = Question.model_validate(task_spec)

    @classmethod
    def unavailable(cls) -> str:
        """Return why this machine cannot serve the environment: no judge is named."""
        return missing_settings()

    @classmethod
    def name(cls) -> str:
        """Return the name by which clients find this environment."""
        return "template-environment"

    @classmethod
    def list_splits(cls) -> list[str]:
        """List the splits."""
        return list(TASKS)

    @classmethod
    def list_tasks(cls, split: str) -> list[JSONObject]:
        """List the tasks of a split."""
        return TASKS[split]

    def get_prompt(self) -> list[TextBlock]:
        """Return the question to the model, which learns about the tools separately."""
        text = f"Explain to a child of ten, in a few sentences: {self.task.question} Call `explain` with your text."
        return [TextBlock(text=text)]

    # A judge takes seconds. `async` lets the other sessions go on meanwhile.
    @tool(exclusive=True)
    async def explain(self, params: ExplainInput) -> ToolOutput:
        """Give the explanation. There is one try."""
        verdicts = await stated(self.task.facts, params.text)
        reward = sum(verdicts) / len(verdicts)
        text = f"It states {sum(verdicts)} of {len(verdicts)} facts."
        # `metadata` is for readers of the rollout; the model does not see it.
        return ToolOutput(blocks=[TextBlock(text=text)], metadata={"stated": verdicts}, reward=reward, finished=True)
