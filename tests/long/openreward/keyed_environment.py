"""An environment that needs a secret: the model wins by echoing the task's word if the client sent the judge's key."""

from __future__ import annotations

from pydantic import BaseModel

from ors_server import Environment, JSONObject, TextBlock, ToolOutput, tool

KEY = "key-of-the-judge"


class Guess(BaseModel):
    """Input of the tool."""

    text: str


class Keyed(Environment):
    """Reward 1 for the right word, 0 for another word."""

    aliases = ("Somebody/Keyed",)
    required_secrets = ("tavily_api_key",)

    @classmethod
    def list_splits(cls) -> list[str]:
        return ["train", "test"]

    @classmethod
    def list_tasks(cls, split: str) -> list[JSONObject]:
        return [{"id": f"{split}-{number}", "word": f"word{number}"} for number in range(5)]

    def get_prompt(self) -> list[TextBlock]:
        return [TextBlock(text=f"Call the `guess` tool with text='{self.task_spec['word']}'.")]

    @tool
    def guess(self, params: Guess) -> ToolOutput:
        """Say the word."""
        if self.secrets.get("tavily_api_key") != KEY:
            raise PermissionError("The judge wants its key")
        right = params.text == self.task_spec["word"]
        text = "right" if right else "wrong, once more"
        return ToolOutput(blocks=[TextBlock(text=text)], reward=float(right), finished=right)
