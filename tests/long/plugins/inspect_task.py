"""An evaluation of Inspect with a scripted model that calls the bash tool; the score is read from the sandbox."""

from __future__ import annotations

import json
from typing import Any

import tiktoken
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput, get_model
from inspect_ai.scorer import Score, accuracy, scorer
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import bash
from inspect_ai.util import sandbox

COMMAND = "cat data; echo $(($(cat data) + 1)) > answer; id -un"


class Words:
    """Count tokens without the encoding that would be downloaded."""

    def encode(self, text: str, **_: Any) -> list[str]:
        return text.split()

    encode_ordinary = encode


@scorer(metrics=[accuracy()])
def written() -> Any:
    async def score(_state: Any, target: Any) -> Any:
        return Score(value=int(await sandbox().read_file("answer") == f"{target.text}\n"))

    return score


if __name__ == "__main__":
    tiktoken.get_encoding = lambda name: Words()
    samples = [Sample(input="Add 1.", target=str(n + 1), files={"data": str(n)}) for n in range(3)]
    calls = [
        ModelOutput.for_tool_call("mockllm/model", "bash", {"command": COMMAND}),
        ModelOutput.from_content("m", "-"),
    ]
    task = Task(dataset=samples, solver=[use_tools(bash(timeout=60)), generate()], scorer=written(), sandbox="ors")
    model = get_model("mockllm/model", custom_outputs=calls * len(samples))
    log: Any = eval(task, model=model, display="none", max_samples=1)[0]
    said = [message.text for sample in log.samples for message in sample.messages if message.role == "tool"]
    print(json.dumps({"status": log.status, "accuracy": log.results.scores[0].metrics["accuracy"].value, "said": said}))
