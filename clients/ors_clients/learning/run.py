"""A run on a server, stage by stage: demonstrations, warm start, evaluation, reinforcement learning, evaluation."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ors_clients.client.async_client import AsyncClient
from ors_clients.errors import ConfigurationError
from ors_clients.evaluation.players import TokenPlayer
from ors_clients.evaluation.run import RunOptions, evaluate
from ors_clients.evaluation.settings import EvaluationSettings
from ors_clients.learning.episodes import Demonstration, Episodes, Rollout, call_text
from ors_clients.learning.grpo import train
from ors_clients.learning.local_sampler import LocalSampler
from ors_clients.learning.plan import Plan
from ors_clients.learning.report import curve_line, curve_point, make_report
from ors_clients.learning.stages import Stages
from ors_clients.learning.supervised import Example, Supervised, warm_start
from ors_clients.learning.tiny_model import INSTALL_TRL, make_model, make_tokenizer
from ors_clients.rollouts.chat_renderer import ChatRenderer
from ors_clients.rollouts.sinks import RolloutsSink
from ors_clients.training.optional_imports import import_trainer_module
from ors_server.rollouts.reports.formats import TRAINING

__all__ = ["Run"]

#: The evaluations of a run: the stage whose model is played, and the temperature.
EVALUATIONS = {
    "before-sampled": ("warm", 1.0),
    "before-greedy": ("warm", 0.0),
    "after-sampled": ("model", 1.0),
    "after-greedy": ("model", 0.0),
    "supervised-sampled": ("supervised", 1.0),
}


class _LocalPlayer(TokenPlayer):
    """A model in this process: nothing is connected."""

    async def connect(self) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing."""


class Run:
    """A plan in its folder, on the server at ``url``; ``evaluations`` is the folder of all runs of ``eval``."""

    def __init__(self, plan: Plan, folder: Path, evaluations: Path, url: str, *, upload: bool) -> None:
        self.plan = plan
        self._stages = Stages(folder)
        self._evaluations = evaluations
        self._url = url
        self._upload = upload
        self._torch = import_trainer_module("torch", INSTALL_TRL)
        self._transformers = import_trainer_module("transformers", INSTALL_TRL)
        self._transformers.utils.logging.disable_progress_bar()
        self._prompts: dict[tuple[str, int], list[int]] = {}

    def run(self) -> dict[str, Any]:
        """Do what is left of the run. Return its report. Raises ``ClientError``."""
        plan = self.plan
        # So small a model gains nothing from more threads, and the server needs the other processor.
        self._torch.set_num_threads(1)
        with asyncio.Runner() as self._loop:
            client = AsyncClient(self._url)
            self._sink = RolloutsSink(self._url, api_key=os.environ.get("ORS_API_KEY", "")) if self._upload else None
            self._episodes = Episodes(client, plan, self._sink)
            try:
                shown = self._stages("demonstrations", self._demonstrate)
                self._read(shown)
                warm = self._stages("warm", self._warm_start)
                _say(
                    f"warm start: {warm['steps']} supervised steps in {warm['seconds']:.0f} s; a demonstration that was"
                    f" not shown has probability {warm['probability']:.2f}"
                )
                found = {name: self._evaluate(name) for name in ("before-sampled", "before-greedy")}
                log = self._stages("training", self._train)
                further = self._stages("supervised", self._supervise)
                found |= {name: self._evaluate(name) for name in EVALUATIONS if name not in found}
            finally:
                if self._sink is not None:
                    self._loop.run(self._sink.close(30.0))
                self._loop.run(client.close())
        report = make_report(
            plan,
            evaluations=self._evaluations,
            results={name: outcome.report for name, outcome in found.items()},
            demonstrations=shown,
            warm=warm,
            training=log,
            supervised=further,
            versions={name: version(name) for name in ("torch", "transformers", "trl")},
            checkpoint=str(self._stages.folder / "model"),
        )
        if self._sink is not None and (problem := self._sink.upload_report(plan.name, TRAINING, report)):
            _say(f"The rollout store did not take the report: {problem}")
        return report

    # --- stages ------------------------------------------------------------------------------

    def _demonstrate(self) -> dict[str, Any]:
        plan = self.plan
        _say(f"demonstrations: the solutions of {len(plan.train)} training and {len(plan.held_out)} held-out tasks")
        found = {
            split: self._loop.run(self._episodes.demonstrate(split, tasks, call_text))
            for split, tasks in ((plan.train_split, plan.train), (plan.held_out_split, plan.held_out))
        }
        constant = call_text(plan.train[0])
        tried = self._loop.run(self._episodes.demonstrate(plan.held_out_split, plan.held_out, lambda _: constant))
        if not found[plan.train_split][0].tools:
            raise ConfigurationError(f"{plan.environment} has no tools", "A model learns here by calls of tools.")
        return {
            "splits": {split: [one.as_json() for one in shown] for split, shown in found.items()},
            "constant": {"answer": constant, "rewards": [one.reward for one in tried]},
        }

    def _read(self, shown: dict[str, Any]) -> None:
        """Make tokenizer and prompts of the demonstrations. Raises ``ConfigurationError`` for solutions that fail."""
        plan = self.plan
        splits = {split: [Demonstration(**one) for one in found] for split, found in shown["splits"].items()}
        right = [one for one in splits[plan.train_split] if one.reward >= 1.0]
        if len(right) <= plan.recipe.demonstrations:
            raise ConfigurationError(
                f"{len(right)} of {len(splits[plan.train_split])} solutions of training tasks earn their reward",
                f"The warm start needs more than {plan.recipe.demonstrations}: look at the server's log.",
            )
        bare = ChatRenderer(make_tokenizer([]))
        texts = [bare.decode(one.prompt(bare)) + one.answer for one in right[: plan.recipe.demonstrations]]
        self._tokenizer = make_tokenizer(texts)
        self._renderer = ChatRenderer(self._tokenizer)
        for split, found in splits.items():
            self._prompts |= {(split, one.index): one.prompt(self._renderer) for one in found}
        end = [self._tokenizer.eos_token_id]
        examples = [
            Example(
                self._prompts[plan.train_split, one.index],
                self._tokenizer.encode(one.answer, add_special_tokens=False) + end,
            )
            for one in right
        ]
        self._examples, self._others = examples[: plan.recipe.demonstrations], examples[plan.recipe.demonstrations :]

    def _warm_start(self) -> dict[str, Any]:
        recipe = self.plan.recipe
        model = make_model(self._tokenizer, hidden=recipe.hidden, layers=recipe.layers, seed=self.plan.seed)
        found = warm_start(self._supervised(model), self._others, recipe.warm_until)
        if found["probability"] < recipe.warm_until:
            raise ConfigurationError(
                f"After {found['steps']} supervised steps the model does not write the calls of the demonstrations",
                "A model that cannot call tools earns nothing that it could learn from. Try another --seed.",
            )
        self._save("warm", model)
        weights = sum(each.numel() for each in model.parameters())
        return {**found, "weights": weights, "tokens": len(self._tokenizer)}

    def _train(self) -> dict[str, Any]:
        plan, recipe = self.plan, self.plan.recipe
        begun = time.monotonic()
        model = self._load("warm")
        sampler = self._sampler(model)

        def play(indices: Sequence[int], step: int) -> Sequence[Rollout]:
            sampler.prepare([self._prompts[plan.train_split, index] for index in indices], 1.0, recipe.max_tokens)
            return self._loop.run(self._episodes.rollouts(indices, sampler, self._renderer, step))

        def on_step(logs: dict[str, Any]) -> None:
            _say(curve_line(curve_point(plan, logs), recipe.steps))

        _say(f"training: {recipe.steps} steps of {recipe.groups * recipe.group_size} episodes")
        log = train(model, self._tokenizer, plan, self._stages.folder / "checkpoints", play, on_step)
        self._save("model", model)
        curve = [curve_point(plan, logs) for logs in log]
        spent = round(sum(point["seconds"] for point in curve), 1)
        return {"curve": curve, "seconds": max(spent, round(time.monotonic() - begun, 1))}

    def _supervise(self) -> dict[str, Any]:
        model = self._load("warm")
        supervised = self._supervised(model, more=1)
        steps = self.plan.recipe.steps * self.plan.recipe.iterations
        for _ in range(steps):
            supervised.step()
        self._save("supervised", model)
        return {"steps": steps}

    def _evaluate(self, name: str) -> Any:
        stage, temperature = EVALUATIONS[name]
        plan, recipe = self.plan, self.plan.recipe
        settings = EvaluationSettings(
            target=plan.target,
            model=f"{plan.name}/{stage}",
            base_url="in the process that trains",
            environment=plan.environment,
            split=plan.held_out_split,
            limit=len(plan.held_out),
            api="completions",
            tool_calls="hermes",
            tokenizer=f"{plan.name}/{stage}",
            temperature=temperature,
            max_tokens=recipe.max_tokens,
            max_turns=recipe.max_turns,
        )
        run = f"{plan.name}-{name}"
        resume = run if (self._evaluations / run).is_dir() else None
        sampler = self._sampler(self._load(stage))
        self._torch.manual_seed(self.plan.seed)
        sampler.prepare(
            [self._prompts[plan.held_out_split, task.index] for task in plan.held_out], temperature, recipe.max_tokens
        )
        options = RunOptions(
            runs=self._evaluations,
            url=self._url,
            name=None if resume else run,
            resume=resume,
            concurrency=recipe.concurrency,
            upload=None if self._upload else "none",
        )
        outcome = self._loop.run(evaluate(settings, options, _LocalPlayer(sampler, self._renderer, settings)))
        if outcome.stopped is not None:
            raise outcome.stopped
        _say(f"{name.replace('-', ', ')}: {outcome.report['pass_at_k'][0]['value']:.3f} of held-out tasks solved")
        return outcome

    # --- models ------------------------------------------------------------------------------

    def _supervised(self, model: Any, more: int = 0) -> Supervised:
        recipe = self.plan.recipe
        return Supervised(
            model,
            self._examples,
            batch=recipe.warm_batch,
            learning_rate=recipe.warm_learning_rate,
            seed=self.plan.seed + more,
        )

    def _sampler(self, model: Any) -> LocalSampler:
        return LocalSampler(model, self._tokenizer.pad_token_id, self._renderer.stop_token_ids)

    def _save(self, name: str, model: Any) -> None:
        def save(folder: Path) -> None:
            model.save_pretrained(folder)
            self._tokenizer.save_pretrained(folder)

        self._stages.model(name, save)

    def _load(self, name: str) -> Any:
        return self._transformers.AutoModelForCausalLM.from_pretrained(self._stages.folder / name)


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - the progress of the command that started this process
