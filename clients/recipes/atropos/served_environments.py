"""Atropos environments served over ORS: `PYTHONPATH=<Atropos's checkout> ors-server serve served_environments.py`.

Any ORS client then plays them, and so any trainer that has one: TRL, slime, Miles, ROLL, SkyRL and the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from ors_clients.atropos.served import AtroposEnvironment


class Gsm8k(AtroposEnvironment):
    """Grade-school mathematics; the answer in \\boxed{}."""

    atropos_environment = "environments.gsm8k_server:GSM8kEnv"
    env_config: ClassVar[Mapping[str, Any]] = {"tokenizer_name": "Qwen/Qwen2.5-0.5B-Instruct"}
    # GSM8kEnv sends nothing for a group whose members score the same; a failing second answer makes a right one count.
    companions: ClassVar[Sequence[str]] = ("I do not know the answer to this question, so I do not give one.",)
    unscored: ClassVar[float | None] = -1.0
