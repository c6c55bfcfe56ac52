"""Read task folders with Harbor's own model of the format; run by a Python that has the package ``harbor``.

Reads a list of folders from its input and writes a list of the same length: the settings, name and instruction of each
task, or the error.
"""

from __future__ import annotations

import importlib
import json
import sys
import warnings
from typing import Any

warnings.simplefilter("ignore")
# By a string: the Python that checks types has no harbor.
Task: Any = importlib.import_module("harbor.models.task.task").Task


def read(folder: str) -> dict[str, Any]:
    try:
        task = Task(folder)
    except Exception as error:  # noqa: BLE001 - whatever Harbor raises is its refusal
        return {"error": f"{type(error).__name__}: {error}"}
    return {"config": task.config.model_dump(mode="json"), "name": task.name, "instruction": task.instruction}


json.dump([read(folder) for folder in json.load(sys.stdin)], sys.stdout)
