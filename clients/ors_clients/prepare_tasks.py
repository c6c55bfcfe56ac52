"""The command that writes a run's tasks to a file: ``python -m ors_clients.prepare_tasks --config C --output O``.

The arguments are those of the openreward-cookbook's ``prepare_tasks.py``. The file appears whole or not at all.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from ors_clients.errors import ClientError
from ors_clients.training.config import TrainingConfiguration
from ors_clients.training.dataset import prepare_tasks

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status: 0, or 1 with a sentence on standard error."""
    options = _parser().parse_args(arguments)
    try:
        configuration = TrainingConfiguration.load(options.config)
        rows = asyncio.run(prepare_tasks(configuration, max_tasks=options.max_tasks, seed=options.seed))
        output: Path = options.output
        partial = output.with_name(output.name + ".partial")
        partial.write_text("".join(f"{row.line}\n" for row in rows), encoding="utf-8")
        partial.replace(output)
    except (ClientError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    sys.stderr.write(f"{len(rows)} tasks of {len(configuration.environments)} environments in {output}\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ors_clients.prepare_tasks",
        description="Write the tasks of a training configuration as JSONL for slime and Miles.",
    )
    parser.add_argument("--config", help="training configuration; default: TRAIN_CONFIG, else train_config.yaml")
    parser.add_argument("--output", type=Path, default=Path("tasks.jsonl"), help="default: %(default)s")
    parser.add_argument("--max-tasks", type=_positive, help="most tasks a split where num_samples does not say it")
    parser.add_argument("--seed", type=int, default=42, help="which tasks are taken, in which order; default: 42")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("a number over 0 is needed")
    return number


if __name__ == "__main__":
    raise SystemExit(main())
