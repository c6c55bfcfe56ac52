"""Small programs: the agent writes a shell script in a sandbox, and the script is run there on input it has not seen.

The verdict is found outside of the sandbox, by the output alone. So it does not matter what the agent has changed in
the sandbox: to print the right output for an input that it does not know is the task itself.
"""

from collections.abc import Callable
from random import Random

from ors_containers import InvalidCommand, Limits, ProcessesRemain, Sandbox
from pydantic import BaseModel, Field

from ors_server import Environment, JSONObject, TextBlock, ToolOutput, tool
from ors_server.sandboxes import sandbox_service, sandboxes_unavailable

# What a script is to print, and what is right.
PROGRAMS: dict[str, tuple[str, Callable[[list[int]], list[int]]]] = {
    "sum": ("their sum", lambda numbers: [sum(numbers)]),
    "largest": ("the largest of them", lambda numbers: [max(numbers)]),
    "ascending": ("them in ascending order", sorted),
    "even": ("the even ones, in their order", lambda numbers: [number for number in numbers if number % 2 == 0]),
    "backwards": ("them in reverse order, the last one first", lambda numbers: numbers[::-1]),
    "distinct": ("how many different ones there are", lambda numbers: [len(set(numbers))]),
}
TASKS = {"train": ["sum", "largest", "ascending", "even"], "test": ["backwards", "distinct"]}

LIMITS = Limits(memory=256 * 2**20, disk=64 * 2**20, pids=64)
# Seconds of a command, and of the script for one input.
COMMAND_TIMEOUT, SCRIPT_TIMEOUT = 60.0, 10.0
INPUTS = 5


class Program(BaseModel):
    """A task, checked."""

    program: str


class BashInput(BaseModel):
    """Input of the tool `bash`."""

    command: str = Field(max_length=20_000, description="A command for bash.")


class TemplateEnvironment(Environment):
    """One instance is one episode, with one sandbox."""

    sandbox: Sandbox | None = None

    def __init__(self, task_spec: JSONObject = {}, secrets: dict[str, str] = {}) -> None:  # noqa: B006 - never changed
        super().__init__(task_spec, secrets)
        self.program = Program.model_validate(task_spec).program
        if self.program not in PROGRAMS:
            raise ValueError(f"There is no program {self.program!r}")

    @classmethod
    async def unavailable(cls) -> str:
        """Return why this machine cannot serve the environment: it has no sandboxes."""
        return await sandboxes_unavailable()

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
        return [{"id": program, "program": program} for program in TASKS[split]]

    async def setup(self) -> None:
        """Start the sandbox: this machine's programs, none of its files, no network.

        Here and not in a tool: without room on the machine, set-up is tried again later.
        """
        sandboxes = await sandbox_service()
        self.sandbox = await sandboxes.open(sandboxes.runtime.host_image(), LIMITS)

    async def teardown(self) -> None:
        """Stop the sandbox. It is None where it did not start."""
        if self.sandbox is not None:
            await self.sandbox.stop()

    def get_prompt(self) -> list[TextBlock]:
        """Return the question to the model, which learns about the tools separately."""
        text = (
            "Write a bash script `solution.sh` in your home directory. It reads whole numbers from its standard input, "
            f"one a line, and prints {PROGRAMS[self.program][0]}, one number a line. Then call `submit`."
        )
        return [TextBlock(text=text)]

    @tool
    async def bash(self, params: BashInput) -> ToolOutput:
        """Run a command in a shell that stays from call to call."""
        assert self.sandbox is not None
        try:
            result = await self.sandbox.run(params.command, timeout=COMMAND_TIMEOUT)
        except InvalidCommand as error:  # text that no shell takes: the agent reads why, and goes on
            return ToolOutput(blocks=[TextBlock(text=str(error))])
        status = "timed out" if result.timed_out else f"exit status {result.exit_status}"
        return ToolOutput(blocks=[TextBlock(text=f"{result.text}\n({status})")])

    # Failures of the machine need no handling: the session is lost, and no reward is given.
    @tool(exclusive=True)
    async def submit(self) -> ToolOutput:
        """Hand in solution.sh. There is one try."""
        random = Random(self.program)
        right = 0
        for _ in range(INPUTS):
            numbers = [random.randint(-99, 99) for _ in range(random.randint(5, 15))]
            right += await self.prints(numbers, PROGRAMS[self.program][1](numbers))
        text = f"Right for {right} of {INPUTS} inputs."
        return ToolOutput(blocks=[TextBlock(text=text)], reward=float(right == INPUTS), finished=True)

    async def prints(self, numbers: list[int], expected: list[int]) -> bool:
        """Run the script on numbers, and return whether it prints what is expected.

        An examination is not a command of the agent's shell: every process of the agent is killed first, and none of
        its variables, functions and aliases is there.
        """
        assert self.sandbox is not None
        try:
            result = await self.sandbox.examine(
                ["/bin/bash", "-c", "exec bash solution.sh 2>/dev/null"],
                input="".join(f"{number}\n" for number in numbers).encode(),
                timeout=SCRIPT_TIMEOUT,
            )
        except ProcessesRemain:  # the agent's doing, unlike every other failure of an examination
            return False
        return not result.timed_out and result.text.split() == [str(number) for number in expected]
