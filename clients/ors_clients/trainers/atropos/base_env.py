"""An ORS environment as an environment of Atropos: groups of scored, token-exact rollouts for any Atropos trainer.

    run-api &
    python -m ors_clients.atropos serve --env.ors_url http://127.0.0.1:8080 --env.ors_environment echoenvironment …

Each item is a task, played ``group_size`` times by the rollout that all our token-level adapters share
(``ors_clients.rollout``). It samples through Atropos's own server handling, so that its inference servers, weights and
limits apply, and passes ids in and takes ids and log-probabilities out. What goes to the trainer are the very ids that
were sampled: ``masks`` has -100 and ``inference_logprobs`` 1.0, Atropos's conventions, wherever no model wrote.

A rollout whose infrastructure failed is played again, ``attempts`` times in all. If it still fails, the whole group is
dropped and its task put back a few times: a group with a made-up score, or one filled up with rollouts of another task,
would move its other members' advantages.

Atropos logs an exception of an item and goes on with the next one. So an error that every item would meet, and too many
lost groups in a row, are kept, and end the process with ``SystemExit`` at the next step of Atropos's main loop, which
does not catch it. The reason is the last line of standard error.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Sequence
from statistics import fmean
from typing import Any, cast

from pydantic import Field

from ors_clients.client.async_client import AsyncClient
from ors_clients.errors import ConfigurationError, RequestRefused, SamplerFailed
from ors_clients.rollouts.chat_renderer import ChatRenderer
from ors_clients.rollouts.loop import RolloutLimits, rollout
from ors_clients.rollouts.rewards import Reduction, RewardRule
from ors_clients.rollouts.trajectory import Trajectory
from ors_clients.samplers import CallbackSampler, FinishReason, Generation, SamplingParameters
from ors_clients.tool_calls import find_format
from ors_clients.training.config import EnvironmentConfiguration, resolve_secrets
from ors_clients.training.losses import Losses
from ors_clients.training.optional_imports import INSTALL_ATROPOS, import_trainer_module

__all__ = ["OrsAtroposConfig", "OrsAtroposEnv", "scored_group"]

_base: Any = import_trainer_module("atroposlib.envs.base", INSTALL_ATROPOS)

logger = logging.getLogger("ors_clients.atropos")

#: What Atropos has in ``masks`` and in ``inference_logprobs`` where nothing is trained.
_NOT_TRAINED = -100
_NO_LOGPROB = 1.0
#: How often a task whose group was lost is put back.
_RETURNS = 3


class OrsAtroposConfig(_base.BaseEnvConfig):
    """Atropos's own fields, and which ORS environment is played how."""

    ors_url: str | None = Field(default=None, description="The ORS server. Default: ORS_URL, OPENREWARD_SESSION_URL.")
    ors_environment: str | None = Field(default=None, description="Name or owner/Name. Default: the server's first.")
    split: str = Field(default="train", description="Split to take tasks from.")
    eval_split: str | None = Field(default=None, description="Split to evaluate on; none: no evaluation.")
    eval_tasks: int = Field(default=64, description="Most tasks of an evaluation.")
    secrets: str = Field(default="", description="Names of environment variables whose values sessions get as secrets.")
    seed: int = Field(default=0, description="Order of the tasks.")
    max_turns: int = Field(default=20, description="Turns of the model in an episode.")
    max_response_tokens_per_turn: int = Field(default=2048, description="Tokens of one generation.")
    max_seconds: float | None = Field(default=None, description="Wall-clock seconds of an episode.")
    max_tool_output_characters: int | None = Field(default=None, description="A longer tool output loses its middle.")
    temperature: float = Field(default=1.0, description="Sampling temperature.")
    top_p: float = Field(default=1.0, description="Nucleus sampling.")
    system_prompt: str | None = Field(default=None, description="System prompt; {tools} in it stands for the tools.")
    tool_call_format: str = Field(default="auto", description="auto, hermes, qwen_xml or json.")
    thinking: bool = Field(default=False, description="Whether the chat template opens the model's thinking.")
    reward_reduction: Reduction = Field(default="sum", description="How step rewards become the score.")
    nonterminal_reward: float | None = Field(default=None, description="Added where the episode was cut short.")
    min_reward: float | None = Field(default=None, description="Lower bound of the score.")
    max_reward: float | None = Field(default=None, description="Upper bound of the score.")
    attempts: int = Field(default=2, ge=1, description="How often a rollout is begun whose infrastructure fails.")
    max_lost_groups_in_row: int = Field(default=16, ge=1, description="Lost groups in a row that end the run.")


def scored_group(
    trajectories: Sequence[Trajectory], rule: RewardRule, *, temperature: float, messages: bool
) -> dict[str, Any]:
    """Return the group of one task as Atropos's ``ScoredDataGroup``; every trajectory has to be trainable.

    A trainer computes the log-probabilities of the tokens again, at the ``temperature`` that the group says, and at 1
    where it says none.
    """
    group: dict[str, Any] = {"tokens": [], "masks": [], "scores": [], "inference_logprobs": []}
    group["generation_params"] = {"temperature": temperature}
    for trajectory in trajectories:
        score = trajectory.reward(rule)
        assert score is not None
        prompt = trajectory.prompt_ids
        response = list(zip(trajectory.response_ids, trajectory.loss_mask, trajectory.logprobs, strict=True))
        group["tokens"].append(trajectory.ids)
        group["masks"].append(
            [_NOT_TRAINED] * len(prompt) + [token if on else _NOT_TRAINED for token, on, _ in response]
        )
        group["inference_logprobs"].append(
            [_NO_LOGPROB] * len(prompt) + [logprob if on else _NO_LOGPROB for _, on, logprob in response]
        )
        group["scores"].append(score)
    if messages:
        group["messages"] = [trajectory.messages for trajectory in trajectories]
    return group


class OrsAtroposEnv(_base.BaseEnv):
    """Plays the tasks of an ORS environment. ``OrsAtroposEnv.cli()`` has ``serve``, ``process`` and ``evaluate``."""

    name = "ors"
    env_config_cls = OrsAtroposConfig

    def __init__(self, config: Any, server_configs: Any, slurm: bool = False, testing: bool = False) -> None:
        _base.BaseEnv.__init__(self, config, server_configs, slurm, testing)
        self.rule = RewardRule(config.reward_reduction, config.nonterminal_reward, config.min_reward, config.max_reward)
        self.tool_call_format = find_format(config.tool_call_format)
        self.renderer = ChatRenderer(self.tokenizer, thinking=config.thinking)
        self.client = AsyncClient(config.ors_url)
        self.environment = self.client.environment(config.ors_environment)
        self._secrets = _secrets(config.secrets)
        #: Tasks given out so far; Atropos's checkpoints keep it.
        self.position = 0
        self._count = 0
        self._played: list[Trajectory] = []
        self._dropped = 0
        self._losses = Losses()
        self._lost_in_row, self._last_lost = 0, 0.0
        self._end_reason: str | None = None
        self._evaluations: list[tuple[str, float]] = []

    @classmethod
    def config_init(cls) -> tuple[Any, list[Any]]:
        """Defaults for Atropos's command line: Qwen2.5-0.5B-Instruct on an SGLang server on port 9001."""
        model = "Qwen/Qwen2.5-0.5B-Instruct"
        config = OrsAtroposConfig(
            tokenizer_name=model, wandb_name="ors", group_size=8, max_token_length=8192, include_messages=True
        )
        server = _base.APIServerConfig(
            model_name=model, base_url="http://localhost:9001/v1", api_key="x", server_type="sglang"
        )
        return config, [server]

    async def setup(self) -> None:
        """Ask how many tasks there are. Raises ``ClientError``."""
        self._count = await self.environment.num_tasks(self.config.split)
        if not self._count:
            raise ConfigurationError(f"Split {self.config.split!r} has no tasks")

    async def get_next_item(self) -> dict[str, Any]:
        """Return the next task: all of them in a random order, then in another one.

        Raises ``SystemExit`` for a run that has to end.
        """
        self._raise_end()
        round_number, place = divmod(self.position, self._count)
        self.position += 1
        order = list(range(self._count))
        random.Random(f"{self.config.seed} {round_number}").shuffle(order)  # noqa: S311 - an order, not a secret
        return {"split": self.config.split, "index": order[place], "returned": 0}

    async def collect_trajectories(self, item: Any) -> tuple[dict[str, Any] | None, list[Any]]:
        """Return the group of a task, or None and the task itself if its infrastructure failed."""
        begun = time.monotonic()
        try:
            trajectories = await asyncio.gather(*(self._attempt(item) for _ in range(self.config.group_size)))
        except (ConfigurationError, RequestRefused) as error:  # every item would meet it
            self._end(str(error))
            return None, []
        whole = [trajectory for trajectory in trajectories if trajectory.trainable]
        self._played += whole
        if len(whole) == len(trajectories):
            self._lost_in_row = 0
            options = {"temperature": self.config.temperature, "messages": self.config.include_messages}
            return scored_group(whole, self.rule, **options), []
        self._dropped += 1
        lost = next(trajectory for trajectory in trajectories if not trajectory.trainable)
        logger.warning("The group of task %s is dropped: %s", item["index"], lost.failure or lost.stop_reason)
        self._count_lost_group(begun, lost)
        returned = item["returned"] + 1
        return None, [{**item, "returned": returned}] if returned <= _RETURNS else []

    def _count_lost_group(self, begun: float, lost: Trajectory) -> None:
        """Note a lost group that began at ``begun``. Of those that were in flight together the first one counts."""
        if self._lost_in_row and begun < self._last_lost:
            return
        self._lost_in_row += 1
        self._last_lost = time.monotonic()
        if self._lost_in_row >= self.config.max_lost_groups_in_row:
            self._end(
                f"groups were lost {self._lost_in_row} times in a row, the last one by this:"
                f" {lost.failure or lost.stop_reason}"
            )

    def _end(self, reason: str) -> None:
        """Keep the reason why the run ends. The first one stands."""
        self._end_reason = self._end_reason or f"The run ends: {reason}"

    def _raise_end(self) -> None:
        if self._end_reason is not None:
            raise SystemExit(self._end_reason)

    async def env_step_checks(self) -> None:
        """Do Atropos's checks of each step of its main loop. Raises ``SystemExit`` for a run that has to end."""
        self._raise_end()
        await _base.BaseEnv.env_step_checks(self)

    async def _attempt(self, item: Any, mode: str = "train") -> Trajectory:
        """Return a rollout of the task; a failed one is begun again."""
        trajectory = await self._rollout(item, mode)
        for _ in range(self.config.attempts - 1):
            if trajectory.trainable:
                break
            logger.info("Task %s is played again: %s", item["index"], trajectory.failure or trajectory.stop_reason)
            trajectory = await self._rollout(item, mode)
        return trajectory

    async def _rollout(self, item: Any, mode: str) -> Trajectory:
        config = self.config

        async def generate(
            ids: Sequence[int], parameters: SamplingParameters, *, rollout_id: str, images: Sequence[str]
        ) -> Generation:
            return await self._generate(ids, parameters, images, mode)

        # The trainer drops every group with a sequence of its max_token_len or longer.
        longest = min(config.max_token_length, self.max_token_len - 1 if self.max_token_len > 0 else 2**31)
        played = await rollout(
            self.environment.session(split=item["split"], index=item["index"], secrets=self._secrets),
            CallbackSampler(generate),
            self.renderer,
            self.tool_call_format,
            limits=RolloutLimits(
                max_turns=config.max_turns,
                max_total_tokens=longest,
                max_response_tokens_per_turn=config.max_response_tokens_per_turn,
                max_seconds=config.max_seconds,
                max_tool_output_characters=config.max_tool_output_characters,
            ),
            sampling=SamplingParameters(
                max_tokens=config.max_response_tokens_per_turn, temperature=config.temperature, top_p=config.top_p
            ),
            system_prompt=config.system_prompt,
            task=item,
        )
        if mode == "train":
            self._losses.count(config.ors_environment or "default", played.failure)
        return played

    async def _generate(
        self, ids: Sequence[int], parameters: SamplingParameters, images: Sequence[str], mode: str
    ) -> Generation:
        if images:
            raise ConfigurationError("Atropos's inference servers take no images", "Use a text environment")
        request: dict[str, Any] = {
            "input_ids": list(ids),
            "max_tokens": parameters.max_tokens,
            "temperature": parameters.temperature,
            "top_p": parameters.top_p,
            "split": mode,
        }
        if parameters.stop:
            request["stop"] = list(parameters.stop)
        if parameters.stop_token_ids:
            request["stop_token_ids"] = list(parameters.stop_token_ids)
        answer: Any = await self.server.tokens_and_logprobs_completion(**request)
        sent, outputs, logprobs, reasons = answer
        if list(sent) != list(ids):
            raise SamplerFailed(
                "Atropos's server handling changed the prompt's ids, a double beginning-of-text token",
                "Use a tokenizer whose chat template does not repeat the token it adds itself",
            )
        return Generation(list(outputs[0]), [float(value) for value in logprobs[0]], "", _finish(reasons[0]))

    # --- evaluation and logging --------------------------------------------------------------

    async def evaluate(self, *args: Any, **kwargs: Any) -> None:
        """Play tasks of ``eval_split`` once each and log the mean score as ``eval/mean_score``."""
        split = self.config.eval_split
        if split is None:
            return
        count = min(self.config.eval_tasks, await self.environment.num_tasks(split))
        tasks = [{"split": split, "index": index} for index in range(count)]
        trajectories = await asyncio.gather(*(self._attempt(task, "eval") for task in tasks))
        scores = [score for trajectory in trajectories if (score := trajectory.reward(self.rule)) is not None]
        if scores:
            self._evaluations.append(("eval/mean_score", fmean(scores)))
            await self.evaluate_log(metrics={"eval/mean_score": fmean(scores), "eval/tasks": len(scores)})

    async def wandb_log(self, wandb_metrics: dict[str, Any] | None = None) -> None:
        """Add what the rollouts since the last time were like."""
        metrics = dict(wandb_metrics or {})
        played, self._played = self._played, []
        if played:
            metrics["train/mean_score"] = fmean(cast("float", one.reward(self.rule)) for one in played)
            metrics["train/turns"] = fmean(one.turns for one in played)
            metrics["train/tool_calls"] = fmean(one.tool_calls for one in played)
            metrics["train/malformed_calls"] = fmean(one.malformed_calls for one in played)
            metrics["train/finished"] = fmean(one.terminal for one in played)
        metrics["train/dropped_groups"], self._dropped = self._dropped, 0
        metrics |= self._losses.take("train/episodes")
        metrics |= dict(self._evaluations)
        self._evaluations = []
        await _base.BaseEnv.wandb_log(self, metrics)

    def save_checkpoint(self, step: int, data: dict[str, Any] | None = None) -> None:
        """Keep the place in the order of the tasks."""
        _base.BaseEnv.save_checkpoint(self, step, {**(data or {}), "position": self.position})


def _secrets(names: str) -> dict[str, str] | None:
    """Return the secrets of these names, separated by commas. Raises ``ConfigurationError`` for one without a value."""
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    found = resolve_secrets(EnvironmentConfiguration(secrets={}), dict.fromkeys(wanted))
    if missing := [name for name in wanted if name not in found]:
        raise ConfigurationError(f"No value for the secret {missing[0]}", "Set the environment variable of its name")
    return found or None


def _finish(reason: Any) -> FinishReason:
    """Return the engine's reason as ours; SGLang's is an object with a ``type``."""
    if isinstance(reason, dict):
        reason = cast("dict[str, Any]", reason).get("type")
    match reason:
        case "length":
            return "length"
        case "abort":
            return "abort"
        case _:
            return "stop"
