"""The parts of ROLL and gem that our adapters meet, where the packages are not installed.

gem: ``gem/core.py`` and ``gem/envs/registration.py`` of gem-llm 0.1.0, as far as ROLL uses them; its real package runs
in ``tests/long``. ROLL has no package. Its manager here is a sketch of ``AgentNativeStepEnvManager`` with the same
dealings with the environment, in the same order: alibaba/ROLL,
``roll/pipeline/agentic/env_manager/agent_native_env_manager.py`` (``reset``, ``step``, ``make_decision``,
``run_rollout_loop``, ``formulate_rollouts``, ``create_placeholder_rollout``), with texts in place of tensors, and
``roll/utils/constants.py`` (``EpisodeStopReason``).
"""

from __future__ import annotations

import abc
import copy
import enum
import importlib
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

__all__ = ["AgentNativeStepEnvManager", "EpisodeStopReason", "Rollout", "install"]


class Env(abc.ABC):
    """gem's environment interface."""

    @abc.abstractmethod
    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]: ...

    @abc.abstractmethod
    def reset(self, seed: int | None = None) -> tuple[Any, dict[str, Any]]: ...


def _registration() -> ModuleType:
    module = ModuleType("gem.envs.registration")
    registry: dict[str, Any] = {}

    def register(env_id: str, entry_point: str, **kwargs: Any) -> None:
        if env_id in registry:
            raise ValueError(f"Environment {env_id} already registered.")
        registry[env_id] = SimpleNamespace(entry_point=entry_point, kwargs=kwargs)

    def make(env_id: str, **kwargs: Any) -> Any:
        spec = registry[env_id]
        name, _, attribute = spec.entry_point.partition(":")
        made = getattr(importlib.import_module(name), attribute)(**{**spec.kwargs, **kwargs})
        made.env_id, made.entry_point = env_id, spec.entry_point
        return made

    vars(module).update(ENV_REGISTRY=registry, register=register, make=make)
    return module


class EpisodeStopReason(enum.Enum):
    """Why ROLL ends an episode; the values are those of ROLL."""

    FINISH = "finish"
    MAX_LENGTH = "max_length"
    MAX_STEPS = "max_steps"
    ABORT = "abort"
    ENV_TIMEOUT = "env_timeout"


@dataclass
class Rollout:
    """ROLL's ``DataProto``: one sample a turn, and what is said about them all."""

    samples: list[dict[str, Any]]
    meta_info: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def dropped(self) -> bool:
        """What ROLL's ``GroupFilter`` looks at."""
        return bool(self.meta_info.get("drop_flag", False))


class AgentNativeStepEnvManager:
    """One environment and its rollout loop; ``policy`` is the model: conversation and tools in, text out."""

    def __init__(
        self,
        env: Any,
        policy: Callable[[list[dict[str, Any]], list[dict[str, Any]]], str],
        *,
        sequence_length: int = 10**9,
    ) -> None:
        self.env = env
        self.policy = policy
        self.sequence_length = sequence_length
        self.episode_id = 0
        self.failure_mode = ""
        self.stop_reason = EpisodeStopReason.FINISH
        self.tools: list[dict[str, Any]] = []
        self.prompts: list[str] = []

    def play(self, seed: int | None) -> Rollout:
        """One round of ``run_rollout_loop``."""
        self.stop_reason = EpisodeStopReason.FINISH
        observation, info = self.env.reset(seed=seed)
        json.dumps([observation, info])
        if self.env.env_reset_failed:
            self.failure_mode = info.get("failure_mode", "Sandbox Initialization Failed")
            rollout = self.create_placeholder_rollout(self.episode_id)
            rollout.meta_info["drop_flag"] = True
            self.env.close()
            return rollout
        self.tools = info.get("tools", [])
        cache = SimpleNamespace(history=[{"observation": copy.deepcopy(observation), **info}], terminated=False)
        while not cache.terminated:
            response = self._decide(cache.history[-1])
            observation, reward, terminated, truncated, info = self.env.step(action=response)
            cache.terminated, cache.truncated = terminated, truncated
            cache.history[-1].update(reward=reward, llm_response=response, **info)
            cache.history.append({"observation": copy.deepcopy(observation)})
        return self.formulate_rollouts(cache)

    def _decide(self, current: dict[str, Any]) -> Any:
        prompt = json.dumps([current["observation"], self.tools])
        if len(prompt) >= self.sequence_length:
            self.stop_reason = EpisodeStopReason.MAX_LENGTH
            return self.stop_reason
        self.prompts.append(prompt)
        text = self.policy(current["observation"], self.tools)
        current.update(prompt_ids=prompt, response_ids=text)
        return f"{text}<|im_end|>"  # ROLL decodes with the special tokens

    def formulate_rollouts(self, rollout_cache: Any) -> Rollout:
        """The samples of the turns, and the metrics of the last one."""
        history: list[dict[str, Any]] = rollout_cache.history[:-1]
        taken = [turn for turn in history if "response_ids" in turn]
        if not taken:
            raise ValueError("nothing to concatenate")  # what ROLL's DataProto.concat makes of it
        rewards = [turn["reward"] for turn in history]
        last = history[-1]
        assert set(last["metrics_agg_mode"].values()) == {"last"}
        rollout = Rollout([{"prompt": turn["prompt_ids"], "step_score": turn["reward"]} for turn in taken])
        rollout.meta_info |= {
            "episode_score": sum(rewards),
            "metrics": {name: float(value) for name, value in last["metrics"].items()},
            "stop_reason": last["stop_reason"],
            "failure_mode": last["failure_mode"],
            "error_messages": last["error_messages"],
            "env_info": json.loads(json.dumps(self.env.env_info)),
            "truncated": rollout_cache.truncated,
        }
        return rollout

    def create_placeholder_rollout(self, episode_id: int) -> Rollout:
        """A sample without a response: nothing of it goes into the loss."""
        return Rollout([], {"metrics": {}})


def install() -> None:
    """Put what is missing into ``sys.modules``. ROLL's manager is always the sketch of above."""
    try:
        importlib.import_module("gem")
    except ImportError:
        gem, envs, registration = ModuleType("gem"), ModuleType("gem.envs"), _registration()
        vars(gem).update(Env=Env, register=vars(registration)["register"], make=vars(registration)["make"])
        sys.modules |= {"gem": gem, "gem.envs": envs, "gem.envs.registration": registration}
    path = "roll.pipeline.agentic.env_manager.agent_native_env_manager"
    parts = path.split(".")
    for depth in range(1, len(parts) + 1):
        sys.modules.setdefault(".".join(parts[:depth]), ModuleType(".".join(parts[:depth])))
    vars(sys.modules[path])["AgentNativeStepEnvManager"] = AgentNativeStepEnvManager
