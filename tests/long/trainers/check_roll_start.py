"""ROLL's start: the recipes composed by the real Hydra and OmegaConf, and read by the real dacite.

ROLL and Ray are stand-ins that record their arguments. Run by ``tests/long/test_trainers.py`` in the trainers' virtual
environment.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType
from typing import Any, ClassVar, cast

import pytest
from ors_clients.errors import ConfigurationError
from ors_clients.trainers.roll.start import compose, main

from tests.support.paths import RECIPES


@dataclass
class AgenticConfig:
    """A few fields of ROLL's own class; dacite ignores the others, there as here."""

    exp_name: str
    max_steps: int
    rollout_batch_size: int
    custom_envs: dict[str, Any] = field(default_factory=dict[str, Any])


class Pipeline:
    """Queries Ray for its nodes when it is made, like ROLL's ResourceManager, and then runs."""

    made: ClassVar[list[Any]] = []

    def __init__(self, pipeline_config: Any) -> None:
        nodes: Any = cast(Any, sys.modules["ray"]).nodes()
        self.processors = [node["Resources"]["CPU"] for node in nodes]
        self.config = pipeline_config
        self.ran = False
        self.made.append(self)

    def run(self) -> None:
        self.ran = True


@pytest.fixture
def roll(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    started: list[bool] = []
    reported = [{"Resources": {"GPU": 2.0}}]
    contents: dict[str, dict[str, Any]] = {
        "roll.pipeline.agentic.agentic_config": {"AgenticConfig": AgenticConfig},
        "roll.pipeline.agentic.agentic_pipeline": {"AgenticPipeline": Pipeline},
        "roll.distributed.scheduler.initialize": {"init": lambda: started.append(True)},
        "ray": dict.fromkeys(("available_resources", "cluster_resources"), lambda: {"GPU": 2.0})
        | {"nodes": lambda: reported},
    }
    for name, members in contents.items():
        parts = name.split(".")
        for depth in range(1, len(parts)):
            monkeypatch.setitem(sys.modules, ".".join(parts[:depth]), ModuleType(".".join(parts[:depth])))
        module = ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    Pipeline.made = []
    return started


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("roll", "openreward_endless_terminals_reinforce_qwen35_2b"),
        ("roll-atropos", "atropos_gsm8k_grpo_qwen25_0.5b"),
    ],
)
def test_recipes_start(roll: list[Any], folder: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORS_URL", "http://server:1")
    main(["--config_path", str(RECIPES / folder), "--config_name", name, "max_steps=7", "rollout_batch_size=64"])
    assert roll == [True]
    pipeline = Pipeline.made[0]
    assert pipeline.ran
    assert pipeline.processors == [0.0]  # a node that reports no processors
    assert (pipeline.config.exp_name, pipeline.config.max_steps, pipeline.config.rollout_batch_size) == (name, 7, 64)
    for environment in pipeline.config.custom_envs.values():
        assert environment["env_config"]["max_steps"] == environment["max_steps"]
        assert "${" not in str(environment)


def test_interpolations_of_the_recipes() -> None:
    omegaconf: Any = import_module("omegaconf")
    folder = str(RECIPES / "roll-atropos")
    zero2 = "actor_train.strategy_args.strategy_config=${deepspeed_zero2_cpuoffload}"
    composed = compose(folder, "atropos_gsm8k_grpo_qwen25_0.5b", [zero2])
    resolved: Any = omegaconf.OmegaConf.to_container(composed, resolve=True)
    strategy = resolved["actor_train"]["strategy_args"]["strategy_config"]
    assert strategy["zero_optimization"]["stage"] == 2
    assert "fsdp_size" not in strategy
    markers = resolved["custom_envs"]["AtroposGSM8KTrain"]["env_config"]["reward_config"]["format_markers"]
    assert markers == [{"marker": "<think>", "reward": 0.2}, {"marker": "\\boxed{", "reward": 0.3}]


def test_overrides_inside_of_env_config() -> None:
    change = "custom_envs.OpenRewardEndlessTerminalsTrain.env_config.split=test"
    composed = compose(str(RECIPES / "roll"), "openreward_endless_terminals_reinforce_qwen35_2b", [change])
    assert composed.custom_envs.OpenRewardEndlessTerminalsTrain.env_config.split == "test"


def test_environments_take_the_types_of_omegaconf(monkeypatch: pytest.MonkeyPatch) -> None:
    """ROLL passes ``env_config`` on unchanged."""
    from ors_clients.trainers.atropos.host import AtroposSettings
    from ors_clients.trainers.roll import OpenRewardEnv
    from ors_clients.trainers.roll.atropos_env import AtroposEnv

    composed = compose(str(RECIPES / "roll-atropos"), "atropos_gsm8k_grpo_qwen25_0.5b", [])
    settings: list[AtroposSettings] = []
    monkeypatch.setattr("ors_clients.roll.atropos_env.shared_host", settings.append)
    env = AtroposEnv(**composed.custom_envs.AtroposGSM8KTrain.env_config)
    assert env.bridge is not None
    assert [marker.marker for marker in env.bridge.format_markers] == ["<think>", "\\boxed{"]
    assert settings[0].env_config == {"tokenizer_name": "Qwen/Qwen2.5-0.5B-Instruct", "max_token_length": 2048}
    assert settings[0].companions[0].startswith("I do not know")
    assert "DictConfig" not in settings[0].key

    composed = compose(str(RECIPES / "roll"), "openreward_endless_terminals_reinforce_qwen35_2b", [])
    opened = OpenRewardEnv(**composed.custom_envs.OpenRewardEndlessTerminalsVal.env_config)
    assert (opened.environment_name, opened.split, opened.max_steps) == ("kanishk/EndlessTerminals", "test", 16)


def test_a_missing_configuration_is_said() -> None:
    with pytest.raises(ConfigurationError, match=r"no nothing\.yaml"):
        compose(str(RECIPES / "roll"), "nothing", [])
