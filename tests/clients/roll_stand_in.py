"""The parts of ROLL and gem that our adapters use, where the packages are not installed.

gem: ``gem/core.py`` and ``gem/envs/registration.py`` of gem-llm 0.1.0, as far as ROLL uses them; its real package runs
in ``tests/long``. ROLL has no package. Its manager here is a sketch of ``AgentNativeStepEnvManager`` that calls the
environment in the same order: alibaba/ROLL 8eb27cc2, ``roll/pipeline/agentic/env_manager/agent_native_env_manager.py``
(``reset``, ``step``, ``make_decision``, ``run_rollout_loop``, ``formulate_rollouts``, ``create_placeholder_rollout``,
``GroupFilter``), with texts instead of tensors, and ``roll/utils/constants.py`` (``EpisodeStopReason``).
``tests/long/trainers/check_roll.py`` runs ROLL's own.
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
from typing import Any, cast

__all__ = ["STRATEGIES", "AgentNativeStepEnvManager", "EpisodeStopReason", "GroupFilter", "Rollout", "install"]


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


#: ``strategy_name`` of ``roll/configs/worker_config.py``, a ``Literal`` that dacite enforces, since ROLL v0.3.0.
STRATEGIES = ("hf_infer", "vllm", "sglang", "megatron_infer", "megatron_train", "fsdp2_train", "fsdp2_infer")


class BatchProxy:
    """``DataProto.batch`` since ROLL v0.3.0: never None, empty or not."""

    def __init__(self, batch: dict[str, Any] | None) -> None:
        self._batch = batch or {}

    def __getitem__(self, key: str) -> Any:
        if key not in self._batch:
            raise KeyError(f"Key '{key}' not found in batch or remote_batch")
        return self._batch[key]

    def __contains__(self, key: str) -> bool:
        return key in self._batch


@dataclass
class Rollout:
    """ROLL's ``DataProto``: one sample a turn, and the metadata of all."""

    samples: list[dict[str, Any]]
    meta_info: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def dropped(self) -> bool:
        """Return whether the rollout requests to be dropped. A group filter decides."""
        return bool(self.meta_info.get("drop_flag", False))

    @property
    def returns(self) -> list[float]:
        """Return STEP_REINFORCE's return of each turn: the sum of the rewards from its step on, of samples only.

        ``compute_discounted_returns`` in ``roll/pipeline/agentic/utils.py``, with ``step_reward_gamma: 1``.
        """
        scores = [sample["step_score"] for sample in self.samples]
        return [sum(scores[step:]) for step in range(len(scores))]


class GroupFilter:
    """ROLL's own filter: it keeps every group once it has filtered half of them."""

    def __init__(self, config: Any, env_manager_config: Any, mode: str) -> None:
        self.total = self.filtered = 0

    def filter(self, group_id: int, episode_id: int, group: list[Rollout]) -> bool:
        self.total += 1
        if not any(rollout.dropped for rollout in group) or self.filtered / self.total >= 0.5:
            return False
        if (self.filtered + 1) / self.total > 0.5:
            return False
        self.filtered += 1
        return True


class AgentNativeStepEnvManager:
    """One environment and its rollout loop; ``policy`` is the model: conversation and tools in, text out."""

    def __init__(
        self,
        env: Any,
        policy: Callable[[list[dict[str, Any]], list[dict[str, Any]]], str],
        *,
        sequence_length: int = 10**9,
        adv_estimator: str = "step_reinforce",
        mode: str = "train",
        group_filter_cls: str = "ors_clients.roll.group_filter.LostGroupFilter",
    ) -> None:
        self.env = env
        self.env_config = {"tag": "Tag"}
        self.worker_config = SimpleNamespace(group_filter_cls=group_filter_cls)
        self.policy = policy
        self.pipeline_config = SimpleNamespace(sequence_length=sequence_length, adv_estimator=adv_estimator)
        self.mode = mode
        self.episode_id = 0
        self.failure_mode = ""
        self.stop_reason = EpisodeStopReason.FINISH
        self.tools: list[dict[str, Any]] = []
        self.prompts: list[str] = []
        self.rollout_cache: Any = None

    def play(self, seed: int | None) -> Rollout:
        """Play one round of ``run_rollout_loop``."""
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
        self.rollout_cache = SimpleNamespace(
            history=[{"observation": copy.deepcopy(observation), **info}], terminated=False, env_id=0
        )
        while not self.rollout_cache.terminated:
            output = self._decide(self.rollout_cache.history[-1])
            if output.meta_info["stop_reason"] == "MAX_LENGTH":
                self.stop_reason = EpisodeStopReason.MAX_LENGTH
            self.step(output)
        rollout = self.formulate_rollouts(self.rollout_cache)
        # Two episodes of this environment in one group have the same name, and STEP_REINFORCE adds up their returns.
        rollout.meta_info["traj_id"] = f"tag_group_{self.episode_id}_{self.rollout_cache.env_id}"
        return rollout

    def _decide(self, current: dict[str, Any]) -> Any:
        prompt = json.dumps([list(map(_text_only, current["observation"])), self.tools])
        if len(prompt) >= self.pipeline_config.sequence_length:
            return SimpleNamespace(batch=BatchProxy(None), meta_info={"stop_reason": "MAX_LENGTH"})
        self.prompts.append(prompt)
        text = self.policy(current["observation"], self.tools)
        current.update(prompt_ids=prompt, response_ids=text)
        return SimpleNamespace(batch=BatchProxy({"responses": [text]}), meta_info={"stop_reason": "FINISH"})

    def step(self, llm_output: Any) -> Any:
        """Pass the model's text to the environment; without a batch, the reason to stop."""
        # ROLL decodes with the special tokens.
        response = self.stop_reason if llm_output.batch is None else f"{llm_output.batch['responses'][0]}<|im_end|>"
        cache = self.rollout_cache
        observation, reward, cache.terminated, cache.truncated, info = self.env.step(action=response)
        cache.history[-1].update(reward=reward, llm_response=response, **info)
        cache.history.append({"observation": copy.deepcopy(observation)})
        return cache

    def formulate_rollouts(self, rollout_cache: Any) -> Rollout:
        """Return the samples of the turns up to the first step without a response, and the metrics of the last step."""
        history: list[dict[str, Any]] = rollout_cache.history[:-1]
        taken = [turn for turn in history if "response_ids" in turn]
        if not taken:
            raise ValueError("nothing to concatenate")  # the error of ROLL's DataProto.concat
        last = history[-1]
        assert set(last["metrics_agg_mode"].values()) == {"last"}
        rollout = Rollout([{"prompt": turn["prompt_ids"], "step_score": turn["reward"]} for turn in taken])
        rollout.meta_info |= {
            "episode_score": sum(turn["reward"] for turn in history),
            "metrics": {name: float(value) for name, value in last["metrics"].items()},
            "stop_reason": last["stop_reason"],
            "failure_mode": last["failure_mode"],
            "error_messages": last["error_messages"],
            "env_info": json.loads(json.dumps(self.env.env_info)),
            "truncated": rollout_cache.truncated,
        }
        return rollout

    def create_placeholder_rollout(self, episode_id: int) -> Rollout:
        """Return a sample without a response and with a score of 0, which counts in its group's mean if it is kept."""
        return Rollout([], {"metrics": {}, "episode_score": 0.0})


def _text_only(message: dict[str, Any]) -> dict[str, Any]:
    """Return the texts of a message's parts like ``convert_list_content_str``; other parts as Python prints them."""
    content = message["content"]
    if isinstance(content, list):
        parts = cast("list[dict[str, Any]]", content)
        return {**message, "content": "".join(part["text"] for part in parts if "text" in part)}
    return {**message, "content": str(content)}


def install() -> None:
    """Put missing modules into ``sys.modules``. ROLL's manager is always the sketch above."""
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
    vars(sys.modules[path]).update(AgentNativeStepEnvManager=AgentNativeStepEnvManager, GroupFilter=GroupFilter)
