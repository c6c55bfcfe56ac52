"""An order desk: the agent asks for prices and answers what an order costs.

The parts of an environment, in the order of this file: its tasks, the inputs of its tools, and one class whose
instances are episodes. Replace them one at a time, and keep `ors-server serve .` and `pytest` running while you do.
"""

from itertools import combinations

from pydantic import BaseModel, Field

from ors_server import Environment, JSONObject, TextBlock, ToolOutput, tool

# Cents. The agent is never given the table, it has to ask for each price.
PRICES = {"apple": 45, "bread": 320, "butter": 275, "coffee": 640, "honey": 510, "milk": 135}

# A task is any JSON object. Clients see all of it, so the right answer is not in it: `total` works it out.
# Where an answer cannot be worked out, keep it in the task and name its field in `private_task_fields`.
ORDERS: list[JSONObject] = [
    {"id": f"order-{number}", "items": {item: 1 + (number + place) % 4 for place, item in enumerate(chosen)}}
    for number, chosen in enumerate(combinations(PRICES, 3))
]
# Train on one split and measure on another that the agent has never seen.
TASKS = {"train": ORDERS[:16], "test": ORDERS[16:]}


class Order(BaseModel):
    """A task, checked: a task that does not fit is refused before the episode starts."""

    items: dict[str, int]


class PriceInput(BaseModel):
    """Input of the tool `price`; the model reads the descriptions of the fields."""

    item: str = Field(description="The name of one item, for example 'bread'.")


class AnswerInput(BaseModel):
    """Input of the tool `answer`."""

    cents: int = Field(description="What the whole order costs, in cents.")


class TemplateEnvironment(Environment):
    """One instance is one episode. What it keeps in `self` belongs to that episode alone."""

    def __init__(self, task_spec: JSONObject = {}, secrets: dict[str, str] = {}) -> None:  # noqa: B006 - never changed
        super().__init__(task_spec, secrets)
        self.order = Order.model_validate(task_spec)

    @classmethod
    def name(cls) -> str:
        """Return the name by which clients find this environment."""
        return "template-environment"

    @classmethod
    def list_splits(cls) -> list[str]:
        """List the splits; every client knows "train", "validation" and "test"."""
        return list(TASKS)

    @classmethod
    def list_tasks(cls, split: str) -> list[JSONObject]:
        """List the tasks of a split. For more tasks than fit in a list, write `num_tasks` and `get_task` instead."""
        return TASKS[split]

    def get_prompt(self) -> list[TextBlock]:
        """Return the question to the model, which learns about the tools separately."""
        lines = "\n".join(f"- {count} x {item}" for item, count in self.order.items.items())
        text = f"A customer orders:\n{lines}\nLook the prices up, then answer what the order costs in cents."
        return [TextBlock(text=text)]

    # The docstring of a tool is its description for the model. A tool takes one pydantic model, or nothing.
    # `concurrent=True`: calls of it may overlap. Only for tools that change nothing and give no reward.
    @tool(concurrent=True)
    async def price(self, params: PriceInput) -> ToolOutput:
        """Look up what one piece of an item costs, in cents."""
        # A mistake of the agent is an answer like any other. An exception would end the episode.
        price = PRICES.get(params.item.strip().lower())
        text = f"No such item: {params.item}" if price is None else f"{params.item}: {price} cents"
        return ToolOutput(blocks=[TextBlock(text=text)])

    # `async` tools share one thread with every session and must not block; plain ones run on a thread of their own.
    # `exclusive=True`: waits for running calls and holds back new ones, as it should be for the tool that grades.
    @tool(exclusive=True)
    def answer(self, params: AnswerInput) -> ToolOutput:
        """Answer what the whole order costs. There is one try."""
        right = params.cents == self.total()
        text = "Right." if right else "Wrong."
        return ToolOutput(blocks=[TextBlock(text=text)], reward=1.0 if right else 0.0, finished=True)

    def total(self) -> int:
        """Compute the right answer, in cents. Not a tool: the agent cannot call it."""
        return sum(PRICES[item] * count for item, count in self.order.items.items())
