"""A tiny model in a run: demonstrations, the warm start, and as many further supervised steps as the training had."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

from ors_clients.errors import ConfigurationError
from ors_clients.learning.episodes import Demonstration, call_text
from ors_clients.learning.learner import Learner, RunContext, say
from ors_clients.learning.plan import TinySizes
from ors_clients.learning.tiny.local_sampler import LocalSampler
from ors_clients.learning.tiny.model import INSTALL_TRL, make_model, make_tokenizer
from ors_clients.learning.tiny.supervised import Example, Supervised, warm_start
from ors_clients.rollouts.chat_renderer import ChatRenderer
from ors_clients.training.optional_imports import import_trainer_module

__all__ = ["TinyLearner"]


class TinyLearner(Learner):
    """See the module."""

    evaluations: ClassVar[Mapping[str, tuple[str, float]]] = {
        "before-sampled": ("warm", 1.0),
        "before-greedy": ("warm", 0.0),
        "after-sampled": ("model", 1.0),
        "after-greedy": ("model", 0.0),
        "supervised-sampled": ("supervised", 1.0),
    }

    def __init__(self, context: RunContext) -> None:
        super().__init__(context)
        self._sizes = self.plan.tiny or TinySizes()
        self._transformers = import_trainer_module("transformers", INSTALL_TRL)
        self._prompts: dict[tuple[str, int], list[int]] = {}
        self._shown: dict[str, Any] = {}
        self._warm: dict[str, Any] = {}
        self._further: dict[str, Any] = {}
        # So small a model gains nothing from more threads, and the server needs the other processor.
        import_trainer_module("torch", INSTALL_TRL).set_num_threads(1)

    def begin(self) -> None:
        """Play the demonstrations, and make the model that imitates them."""
        self._shown = self.stages("demonstrations", self._demonstrate)
        self._read()
        self._warm = self.stages("warm", self._warm_start)
        say(
            f"warm start: {self._warm['steps']} supervised steps in {self._warm['seconds']:.0f} s; a demonstration that"
            f" was not shown has probability {self._warm['probability']:.2f}"
        )

    def load(self) -> Any:
        """Return the warm-started model."""
        return self._load("warm")

    def save(self, model: Any) -> None:
        """Save the trained model."""
        self._save("model", model)

    def training_sampler(self, model: Any, indices: Sequence[int]) -> LocalSampler:
        """Return the model itself, which has generated for these tasks."""
        return self._sampler(model, self.plan.train_split, indices, 1.0)

    def stage_sampler(self, stage: str, temperature: float) -> LocalSampler:
        """Return the model of a stage, which has generated for the held-out tasks."""
        model = self._load(stage)
        import_trainer_module("torch", INSTALL_TRL).manual_seed(self.plan.seed)
        return self._sampler(model, self.plan.held_out_split, [task.index for task in self.plan.held_out], temperature)

    def trainer_settings(self) -> dict[str, Any]:
        """Return those for a whole batch at once, on the processors."""
        return {
            "use_cpu": True,
            "bf16": False,
            "gradient_checkpointing": False,
            "per_device_train_batch_size": self.plan.recipe.episodes,
        }

    def end(self) -> None:
        """Take as many further supervised steps as the training had."""
        self._further = self.stages("supervised", self._supervise)

    def report(self, compared: Callable[[str, str], dict[str, Any]]) -> dict[str, Any]:
        """Return what a constant answer, the solutions and imitation alone earn."""
        oracle = [one["reward"] for one in self._shown["splits"][self.plan.held_out_split]]
        return {
            "over_supervised": compared("after-sampled", "supervised-sampled"),
            "constant": fmean(self._shown["constant"]["rewards"]),
            "oracle": fmean(oracle),
            "warm_start": {key: self._warm[key] for key in ("steps", "probability", "loss")},
            "further_supervised_steps": self._further["steps"],
            "model": {key: self._warm[key] for key in ("weights", "tokens")},
            "seconds": {
                "demonstrations": self._shown["seconds"],
                "warm_start": self._warm["seconds"],
                "further_supervised_steps": self._further["seconds"],
            },
        }

    # --- stages ------------------------------------------------------------------------------

    def _demonstrate(self) -> dict[str, Any]:
        plan = self.plan
        say(f"demonstrations: the solutions of {len(plan.train)} training and {len(plan.held_out)} held-out tasks")
        found = {
            split: self.wait(self.episodes.demonstrate(split, tasks, call_text))
            for split, tasks in ((plan.train_split, plan.train), (plan.held_out_split, plan.held_out))
        }
        constant = call_text(plan.train[0])
        tried = self.wait(self.episodes.demonstrate(plan.held_out_split, plan.held_out, lambda _: constant))
        if not found[plan.train_split][0].tools:
            raise ConfigurationError(f"{plan.environment} has no tools", "A model learns here by calls of tools.")
        return {
            "splits": {split: [one.as_json() for one in shown] for split, shown in found.items()},
            "constant": {"answer": constant, "rewards": [one.reward for one in tried]},
        }

    def _read(self) -> None:
        """Make tokenizer and prompts of the demonstrations. Raises ``ConfigurationError`` for solutions that fail."""
        plan, wanted = self.plan, self._sizes.demonstrations
        splits = {split: [Demonstration(**one) for one in found] for split, found in self._shown["splits"].items()}
        right = [one for one in splits[plan.train_split] if one.reward >= 1.0]
        if len(right) <= wanted:
            raise ConfigurationError(
                f"{len(right)} of {len(splits[plan.train_split])} solutions of training tasks earn their reward",
                f"The warm start needs more than {wanted}: look at the server's log.",
            )
        bare = ChatRenderer(make_tokenizer([]))
        texts = [bare.decode(one.prompt(bare)) + one.answer for one in right[:wanted]]
        self.tokenizer = make_tokenizer(texts)
        self.renderer = ChatRenderer(self.tokenizer)
        for split, found in splits.items():
            self._prompts |= {(split, one.index): one.prompt(self.renderer) for one in found}
        end = [self.tokenizer.eos_token_id]
        examples = [
            Example(
                self._prompts[plan.train_split, one.index],
                self.tokenizer.encode(one.answer, add_special_tokens=False) + end,
            )
            for one in right
        ]
        self._examples, self._others = examples[:wanted], examples[wanted:]

    def _warm_start(self) -> dict[str, Any]:
        sizes = self._sizes
        model = make_model(self.tokenizer, hidden=sizes.hidden, layers=sizes.layers, seed=self.plan.seed)
        found = warm_start(self._supervised(model), self._others, sizes.warm_until)
        if found["probability"] < sizes.warm_until:
            raise ConfigurationError(
                f"After {found['steps']} supervised steps the model does not write the calls of the demonstrations",
                "A model that cannot call tools earns nothing that it could learn from. Try another --seed.",
            )
        self._save("warm", model)
        weights = sum(each.numel() for each in model.parameters())
        return {**found, "weights": weights, "tokens": len(self.tokenizer)}

    def _supervise(self) -> dict[str, Any]:
        model = self._load("warm")
        supervised = self._supervised(model, more=1)
        steps = self.plan.recipe.steps * self.plan.recipe.iterations
        for _ in range(steps):
            supervised.step()
        self._save("supervised", model)
        return {"steps": steps}

    # --- models ------------------------------------------------------------------------------

    def _supervised(self, model: Any, more: int = 0) -> Supervised:
        return Supervised(
            model,
            self._examples,
            batch=self._sizes.warm_batch,
            learning_rate=self._sizes.warm_learning_rate,
            seed=self.plan.seed + more,
        )

    def _sampler(self, model: Any, split: str, indices: Sequence[int], temperature: float) -> LocalSampler:
        sampler = LocalSampler(model, self.tokenizer.pad_token_id, self.renderer.stop_token_ids)
        prompts = [self._prompts[split, index] for index in indices]
        sampler.prepare(prompts, temperature, self.plan.recipe.max_tokens)
        return sampler

    def _save(self, name: str, model: Any) -> None:
        def save(folder: Path) -> None:
            model.save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)

        self.stages.model(name, save)

    def _load(self, name: str) -> Any:
        return self._transformers.AutoModelForCausalLM.from_pretrained(self.stages.folder / name)
