"""Define an environment and play one episode of it without a server.

python examples/guess_number.py                 play it here
ors-server serve examples/guess_number.py       serve it over HTTP
"""

from ors_clients import local_sync
from pydantic import BaseModel, Field

from ors_server import Environment, JSONObject, TextBlock, ToolOutput, tool


class NumberTask(BaseModel):
    """A task: its id and the number to find."""

    id: int
    number: int


class Guess(BaseModel):
    """Input of the tool ``guess``."""

    number: int = Field(description="A number from 1 to 100.")


class GuessNumber(Environment):
    """The model searches for a number. Fewer guesses earn a higher reward."""

    #: The number stays in the server: clients, datasets and logs get each task without it.
    private_task_fields = ("number",)

    def __init__(self, task_spec: JSONObject = {}, secrets: dict[str, str] = {}) -> None:  # noqa: B006 - the SDKs' signature
        super().__init__(task_spec, secrets)
        self.task = NumberTask.model_validate(task_spec)
        self.guesses = 0

    @classmethod
    def list_splits(cls) -> list[str]:
        return ["train"]

    @classmethod
    def list_tasks(cls, split: str) -> list[JSONObject]:
        return [{"id": index, "number": number} for index, number in enumerate((17, 64, 99))]

    def get_prompt(self) -> list[TextBlock]:
        return [TextBlock(text="Find my number between 1 and 100. Call `guess` until it is right.")]

    @tool
    def guess(self, params: Guess) -> ToolOutput:
        """Compare a number with the one to find."""
        self.guesses += 1
        number = self.task.number
        if params.number == number:
            text = f"Right after {self.guesses} guesses."
            return ToolOutput(blocks=[TextBlock(text=text)], reward=1 / self.guesses, finished=True)
        return ToolOutput(blocks=[TextBlock(text="too low" if params.number < number else "too high")])


def main() -> None:
    """Play the second task by bisection."""
    low, high = 1, 100
    with local_sync(GuessNumber, split="train", index=1) as session:
        print(*(block.text for block in session.prompt() if isinstance(block, TextBlock)))
        while True:
            number = (low + high) // 2
            result = session.call("guess", {"number": number})
            print(number, result.text)
            if result.finished:
                print("reward", result.reward)
                break
            low, high = (number + 1, high) if result.text == "too low" else (low, number - 1)


if __name__ == "__main__":
    main()
