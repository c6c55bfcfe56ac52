"""A run on a server, stage by stage: the model, its evaluation, reinforcement learning, evaluation, the report."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ors_clients.client.async_client import AsyncClient
from ors_clients.errors import ConfigurationError
from ors_clients.evaluation.journal import read_run
from ors_clients.evaluation.players import Played, TokenPlayer
from ors_clients.evaluation.run import Outcome, RunOptions, evaluate
from ors_clients.evaluation.settings import EvaluationSettings
from ors_clients.learning.checkpoint.learner import CheckpointLearner
from ors_clients.learning.episodes import Episodes, Rollout
from ors_clients.learning.grpo import train
from ors_clients.learning.learner import Learner, RunContext, say
from ors_clients.learning.plan import Plan
from ors_clients.learning.report import curve_line, curve_point, make_report
from ors_clients.learning.stages import Stages
from ors_clients.learning.tiny.learner import TinyLearner
from ors_clients.learning.tiny.model import INSTALL_TRL
from ors_clients.rollouts.episode import EpisodeSession
from ors_clients.rollouts.sinks import RolloutsSink
from ors_clients.training.optional_imports import import_trainer_module
from ors_server.rollouts.reports.formats import TRAINING

__all__ = ["Run"]

#: Steps from the first one on without any difference to learn from, after which a training ends.
_NOTHING_TO_LEARN = 10


class _StagePlayer:
    """The model of a stage as a player, loaded once there is something to play."""

    def __init__(self, learner: Learner, stage: str, settings: EvaluationSettings) -> None:
        self._learner = learner
        self._stage = stage
        self._settings = settings
        self._player: TokenPlayer | None = None

    async def connect(self) -> None:
        """Load the model."""
        sampler = self._learner.stage_sampler(self._stage, self._settings.temperature or 0.0)
        self._player = TokenPlayer(sampler, self._learner.renderer, self._settings)

    async def play(self, session: EpisodeSession, rollout_id: str, seed: int | None) -> Played:
        """Play an episode."""
        assert self._player is not None
        return await self._player.play(session, rollout_id, seed)

    async def close(self) -> None:
        """Do nothing: nothing is connected."""


class Run:
    """A plan in its folder, on the server at ``url``; ``evaluations`` is the folder of all runs of ``eval``."""

    def __init__(self, plan: Plan, folder: Path, evaluations: Path, url: str, *, upload: bool) -> None:
        self.plan = plan
        self._stages = Stages(folder)
        self._evaluations = evaluations
        self._url = url
        self._upload = upload
        logging = import_trainer_module("transformers", INSTALL_TRL).utils.logging
        logging.disable_progress_bar()
        logging.set_verbosity_error()

    def run(self) -> dict[str, Any]:
        """Do what is left of the run. Return its report. Raises ``ClientError``."""
        plan = self.plan
        with asyncio.Runner() as self._loop:
            client = AsyncClient(self._url)
            self._sink = RolloutsSink(self._url, api_key=os.environ.get("ORS_API_KEY", "")) if self._upload else None
            self._episodes = Episodes(client, plan, self._sink)
            kind = CheckpointLearner if plan.tiny is None else TinyLearner
            self._learner = learner = kind(RunContext(plan, self._stages, self._episodes, self._loop.run))
            try:
                learner.begin()
                names = [name for name in learner.evaluations if name.startswith("before")]
                found = {name: self._evaluate(name) for name in names}
                played = [attempt for name in names for attempt in read_run(self._run_of(name)).scored.values()]
                learner.check_before(sum(attempt.tool_calls for attempt in played), len(played))
                log = self._stages("training", self._train)
                learner.end()
                found |= {name: self._evaluate(name) for name in learner.evaluations if name not in found}
            finally:
                if self._sink is not None:
                    self._loop.run(self._sink.close(30.0))
                self._loop.run(client.close())
        report = make_report(
            plan,
            evaluations=self._evaluations,
            results={name: outcome.report for name, outcome in found.items()},
            training=log,
            more=learner.report,
            versions=learner.versions(),
            checkpoint=str(self._stages.folder / "model"),
        )
        if self._sink is not None and (problem := self._sink.upload_report(plan.name, TRAINING, report)):
            say(f"The rollout store did not take the report: {problem}")
        return report

    def _run_of(self, name: str) -> Path:
        return self._evaluations / f"{self.plan.name}-{name}"

    def _train(self) -> dict[str, Any]:
        plan, recipe, learner = self.plan, self.plan.recipe, self._learner
        begun = time.monotonic()
        model = learner.load()

        def play(indices: Sequence[int], step: int) -> Sequence[Rollout]:
            sampler = learner.training_sampler(model, indices)
            played = self._loop.run(self._episodes.rollouts(indices, sampler, learner.renderer, step))
            learner.check_played()
            return played

        equal = 0

        def on_step(logs: dict[str, Any]) -> None:
            nonlocal equal
            point = curve_point(plan, logs)
            say(curve_line(point, recipe.steps))
            if point["step"] == equal + 1 and point["equal_groups"] == 1.0:
                equal += 1
                if equal == _NOTHING_TO_LEARN:
                    raise ConfigurationError(
                        f"In the first {equal} steps all episodes of a task earned the same",
                        "There is nothing to learn from: take easier or harder tasks, or another model.",
                    )

        say(f"training: {recipe.steps} steps of {recipe.episodes} episodes")
        log = train(model, learner, play, on_step)
        learner.save(model)
        curve = [curve_point(plan, logs) for logs in log]
        spent = round(sum(point["seconds"] for point in curve), 1)
        return {"curve": curve, "seconds": max(spent, round(time.monotonic() - begun, 1))}

    def _evaluate(self, name: str) -> Outcome:
        learner, (stage, temperature) = self._learner, self._learner.evaluations[name]
        plan, recipe = self.plan, self.plan.recipe
        settings = EvaluationSettings(
            target=plan.target,
            model=f"{plan.name}/{stage}",
            base_url="in the process that trains",
            environment=plan.environment,
            split=plan.held_out_split,
            limit=len(plan.held_out),
            samples=recipe.held_out_samples if temperature else 1,
            api="completions",
            tool_calls=plan.tool_calls,
            tokenizer=f"{plan.name}/{stage}",
            temperature=temperature,
            max_tokens=recipe.max_tokens,
            max_turns=recipe.max_turns,
            context=recipe.context,
            success_at=recipe.success_at,
        )
        folder = self._run_of(name)
        resume = folder.name if folder.is_dir() else None
        options = RunOptions(
            runs=self._evaluations,
            url=self._url,
            name=None if resume else folder.name,
            resume=resume,
            concurrency=recipe.concurrency,
            upload=None if self._upload else "none",
        )
        outcome = self._loop.run(evaluate(settings, options, _StagePlayer(learner, stage, settings)))
        learner.check_played()
        if outcome.stopped is not None:
            raise outcome.stopped
        say(f"{name.replace('-', ', ')}: {outcome.report['pass_at_k'][0]['value']:.3f} of held-out tasks solved")
        return outcome
