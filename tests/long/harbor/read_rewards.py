"""Read reward files as Harbor's own verifier does; run by a Python that has the package ``harbor``.

Reads a list of folders with reward files from its input and writes a list as long: the rewards, or the error.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

# By a string: the Python that checks types has no harbor.
Verifier: Any = importlib.import_module("harbor.verifier.verifier").Verifier


def read(folder: str) -> Any:
    verifier: Any = object.__new__(Verifier)
    text, table = Path(folder, "reward.txt"), Path(folder, "reward.json")
    verifier.trial_paths = SimpleNamespace(reward_text_path=text, reward_json_path=table)
    try:
        if table.exists():
            found: Any = verifier._parse_reward_json()
            return found if hasattr(found, "keys") else {"reward": found}
        return verifier._parse_reward_text() if text.exists() else {"error": "missing"}
    except Exception as error:  # noqa: BLE001 - whatever Harbor raises is its refusal
        return {"error": f"{type(error).__name__}: {error}"[:200]}


json.dump([read(folder) for folder in json.load(sys.stdin)], sys.stdout)
