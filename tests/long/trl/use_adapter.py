"""Uses of `OpenRewardSpec` by a TRL user short of training: datasets, tools, episodes.

    python use_adapter.py ECHO_URL PROBE_URL REPORT.json

ECHO_URL serves only the bundled echo environment, PROBE_URL serves it first and then the environment of
tests/long/probe_environment.py. Writes its observations to REPORT.json and asserts nothing: tests/long/test_trl.py
checks the report. Runs in the virtual environment that scripts/trl-venv makes.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from tiny_model import tool_schemas
from trl.experimental.openreward import OpenRewardSpec


def aim_client_at(url: str) -> None:
    """Set one host for everything; otherwise the openreward client uses api.HOST and sessions.HOST."""
    os.environ["OPENREWARD_API_URL"] = url
    os.environ["OPENREWARD_SESSION_URL"] = url


def dataset(spec: OpenRewardSpec) -> dict[str, Any]:
    """Return the columns and rows that a trainer gets."""
    return {"columns": spec.train_dataset.column_names, "rows": spec.train_dataset.to_list()}


def tools(environment: Any) -> dict[str, Any]:
    """Return the tools by name, as the trainer renders them."""
    return {schema["function"]["name"]: schema["function"] for schema in tool_schemas(environment)}


def state(environment: Any) -> dict[str, Any]:
    """Return the attributes of a rollout that reward functions may read."""
    return {
        "reward": environment.reward,
        "rewards": list(environment.rewards),
        "metadata": list(environment.metadata),
        "finished": environment.finished,
        "last_output": environment.last_output,
    }


def use_echo(url: str) -> dict[str, Any]:
    aim_client_at(url)
    spec = OpenRewardSpec(url, env_name="echoenvironment")
    make = spec.environment_factory

    winner, loser, idle = make(), make(), make()  # three sessions at once, their calls interleaved
    prompts = [winner.reset(task_index=2), loser.reset(task_index=2), idle.reset(task_index=3)]
    hint = winner.hint()
    after_hint = state(winner)
    answers = [winner.echo(text="trl"), loser.echo(text="no such word")]
    report = {
        "dataset": dataset(spec),
        "tools": tools(winner),
        "prompts": prompts,
        "hint": hint,
        "after_hint": after_hint,
        "answers": answers,
        "winner": state(winner),
        "loser": state(loser),
        # GRPOTrainer does not read `finished`: a model may continue to call tools.
        "call_after_the_end": winner.echo(text="trl"),
        "winner_after_the_end": state(winner),
        # The model's mistakes: TRL raises on an unknown name, but sends any argument.
        "wrong_type": loser.echo(text=["not", "a", "string"]),
        "loser_after_wrong_type": state(loser),
        "rewards_for_the_trainer": spec.reward_funcs(environments=[winner, loser, idle]),
    }
    report["prompt_after_reset"] = winner.reset(task_index=0)
    report["after_reset"] = state(winner)
    report["answer_after_reset"] = winner.echo(text="hello")
    for environment in (winner, loser, idle):
        environment._close()

    report["by_number"] = dataset(OpenRewardSpec(url, env_name="echoenvironment", num_tasks=2))
    report["by_index"] = dataset(OpenRewardSpec(url, env_name="echoenvironment", indices=[3, 1]))
    report["test_split"] = dataset(OpenRewardSpec(url, env_name="echoenvironment", split="test"))

    nameless = OpenRewardSpec(url)  # TRL then asks for an environment called "env"
    environment = nameless.environment_factory()
    report["nameless"] = {
        "dataset": dataset(nameless),
        "tools": sorted(tools(environment)),
        "prompt": environment.reset(task_index=1),
        "answer": environment.echo(text="world"),
        "state": state(environment),
    }
    environment._close()
    return report


def use_probe(url: str) -> dict[str, Any]:
    aim_client_at(url)
    # The client accepts a secret with an unknown name only with the domains to which it may be sent.
    secrets = {"openai_api_key": "unused", "grader_key": ("opens the grader", ["grader.test"])}
    name = "probeenvironment"
    spec = OpenRewardSpec(url, env_name=name, indices=[0, 7, 99_999], secrets=secrets)
    environment = spec.environment_factory()
    report = {
        "dataset": dataset(spec),
        "first_three": dataset(OpenRewardSpec(url, env_name=name, num_tasks=3)),
        "tools": tools(environment),
        "prompt": environment.reset(task_index=99_999),
        "answer": environment.answer(text="99999"),  # TRL sends the omitted argument as null
        "graded": state(environment),
    }
    environment._close()

    without_secret = OpenRewardSpec(url, env_name=name, num_tasks=1).environment_factory()
    without_secret.reset(task_index=0)
    report["answer_without_secret"] = without_secret.answer(text="0", note="kept")
    report["without_secret"] = state(without_secret)
    without_secret._close()

    report["tools_without_name"] = sorted(tools(OpenRewardSpec(url).environment_factory()))
    return report


def main() -> None:
    echo_url, probe_url, report_path = sys.argv[1:]
    report = {"echo": use_echo(echo_url), "probe": use_probe(probe_url)}
    Path(report_path).write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
