"""Atropos environments as ORS environments, for a server in a process of its own; see ``atropos_environments``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from ors_clients.rollouts.rewards import RewardBridge

from tests.clients import atropos_stand_in

atropos_stand_in.install()

from ors_clients.trainers.atropos.served import AtroposEnvironment  # noqa: E402 - needs the stand-in

_CONFIG = {"tokenizer_name": os.environ.get("BYTE_TOKENIZER", "none")}


class Served(AtroposEnvironment):
    """Base with the test's tokenizer."""

    env_config: ClassVar[Mapping[str, Any]] = _CONFIG


def serving(name: str) -> str:
    """Name the module with the Atropos environment."""
    return f"tests.clients.atropos_environments:{name}"


class Guessing(Served):
    atropos_environment = serving("GuessingEnv")


class Arithmetic(Served):
    atropos_environment = serving("ArithmeticEnv")
    companions: ClassVar[Sequence[str]] = ("I do not know the answer to this question.",)
    unscored = -1.0


class Solving(Arithmetic):
    atropos_environment = serving("SolvingEnv")


class Shaped(Arithmetic):
    reward_bridge: ClassVar[RewardBridge | None] = RewardBridge()


class Lonely(Served):
    atropos_environment = serving("ArithmeticEnv")


class Raising(Served):
    atropos_environment = serving("RaisingEnv")


class Silent(Served):
    atropos_environment = serving("SilentEnv")


class Doubling(Served):
    atropos_environment = serving("ToolEnv")


class Careful(Served):
    atropos_environment = serving("CarefulEnv")


class Unnamed(Served):
    """Does not name its Atropos environment."""


environments = [Guessing, Arithmetic, Solving, Shaped, Lonely, Raising, Silent, Doubling, Careful, Unnamed]
