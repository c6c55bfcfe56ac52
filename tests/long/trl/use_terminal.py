"""TRL on the terminal environment: a dataset, tools, and episodes that are solved or not.

    python use_terminal.py URL SOLUTIONS.json REPORT.json

SOLUTIONS.json holds ``[index, command that solves the task of this index]`` pairs. Writes its observations to
REPORT.json and asserts nothing: tests/long/test_trl_terminal.py checks the report. Runs in the virtual environment that
scripts/trl-venv makes.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tiny_model import tool_schemas
from trl.experimental.openreward import OpenRewardSpec


def main() -> None:
    url, solutions_path, report_path = sys.argv[1:]
    solutions: list[tuple[int, str]] = json.loads(Path(solutions_path).read_text())
    spec = OpenRewardSpec(url, env_name="kanishk/EndlessTerminals", indices=[index for index, _ in solutions])

    def play(index: int, command: str | None) -> dict[str, Any]:
        environment = spec.environment_factory()
        prompt = environment.reset(task_index=index)
        outputs = [] if command is None else [environment.bash(command=command)]
        outputs.append(environment.done())
        report = {
            "prompt": prompt,
            "outputs": outputs,
            "rewards": list(environment.rewards),
            "finished": environment.finished,
            "reward": spec.reward_funcs(environments=[environment])[0],
        }
        environment._close()
        return report

    # A group for each task, played at the same time as a trainer does.
    with ThreadPoolExecutor(8) as pool:
        solved = [pool.submit(play, index, command) for index, command in solutions for _ in range(2)]
        idle = [pool.submit(play, index, None) for index, _ in solutions]
        report = {
            "columns": spec.train_dataset.column_names,
            "rows": [{key: row[key] for key in ("task_index", "id")} for row in spec.train_dataset.to_list()],
            "tools": [schema["function"] for schema in tool_schemas(spec.environment_factory())],
            "solved": [future.result() for future in solved],
            "idle": [future.result() for future in idle],
        }
    Path(report_path).write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
