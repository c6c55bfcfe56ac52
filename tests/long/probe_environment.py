"""An environment that shows what the TRL adapter sends: secrets, nulls, task indices. test_trl.py serves it."""

from __future__ import annotations

from pydantic import BaseModel, Field

from ors_server import Environment, JSONObject, Split, TextBlock, ToolOutput, tool

TASKS = 100_000


class AnswerInput(BaseModel):
    """An answer; `note` is optional without a default in the schema, which makes TRL send null for it."""

    text: str = Field(description="The answer.")
    note: str = Field(default_factory=str, description="Anything else.")


class ProbeEnvironment(Environment):
    """Tasks by index only: a client that requests the whole list would get 100,000."""

    @classmethod
    def list_splits(cls) -> list[Split]:
        return [Split(name="train", type="train")]

    @classmethod
    def num_tasks(cls, split: str) -> int:
        return TASKS

    @classmethod
    def get_task(cls, split: str, index: int) -> JSONObject:
        return {"number": index}

    def get_prompt(self) -> list[TextBlock]:
        return [
            TextBlock(text=f"Answer {self.task_spec['number']}."),
            TextBlock(text=f"Secrets: {sorted(self.secrets)}."),
        ]

    @tool
    def answer(self, params: AnswerInput) -> ToolOutput:
        """Submit the answer."""
        if self.secrets.get("grader_key") != "opens the grader":
            return ToolOutput(blocks=[TextBlock(text=f"not graded, note {params.note!r}")])
        right = params.text == str(self.task_spec["number"])
        return ToolOutput(
            blocks=[TextBlock(text=f"graded, note {params.note!r}")],
            metadata={"right": right},
            reward=1.0 if right else 0.0,
            finished=True,
        )
