"""A checkpoint in a run: it is looked at before anything is played, trained by TRL, and sampled with vLLM beside it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from ors_clients.errors import ConfigurationError
from ors_clients.learning.checkpoint.engine import INSTALL_VLLM, Engine, weights_in
from ors_clients.learning.checkpoint.files import check_calls, find_folder
from ors_clients.learning.checkpoint.memory import Budget, Shape, budget_of, check_disk, check_memory
from ors_clients.learning.learner import Learner, RunContext, say
from ors_clients.samplers.generations import Sampler
from ors_clients.training.optional_imports import import_trainer_module

__all__ = ["CheckpointLearner"]

#: The stage before the training: the checkpoint itself.
_BEFORE, _TRAINED = "checkpoint", "model"


class CheckpointLearner(Learner):
    """See the module."""

    evaluations: ClassVar[Mapping[str, tuple[str, float]]] = {
        "before-sampled": (_BEFORE, 1.0),
        "before-greedy": (_BEFORE, 0.0),
        "after-sampled": (_TRAINED, 1.0),
        "after-greedy": (_TRAINED, 0.0),
    }

    def __init__(self, context: RunContext) -> None:
        super().__init__(context)
        self._torch = import_trainer_module("torch", INSTALL_VLLM)
        self._transformers = import_trainer_module("transformers", INSTALL_VLLM)
        self._engine: Engine | None = None
        #: The stage whose weights the engine has; empty for those of the training.
        self._playing = ""

    @property
    def _name(self) -> str:
        return self.plan.model or ""

    def begin(self) -> None:
        """Find the checkpoint, and check that it can call tools and be trained on this machine."""
        self._check_device()
        found = self.stages("checkpoint", lambda: {"folder": str(find_folder(self._name))})
        self._folder = Path(found["folder"])
        if not self._folder.is_dir():
            raise ConfigurationError(f"The checkpoint {self._folder} is gone", "Put it back, or begin a new run.")
        try:
            self.tokenizer = self._transformers.AutoTokenizer.from_pretrained(self._folder)
            config = self._transformers.AutoConfig.from_pretrained(self._folder)
            with self._torch.device("meta"):
                empty = self._transformers.AutoModelForCausalLM.from_config(config)
        except Exception as error:  # transformers raises whatever its parts raise, for files it cannot read
            raise ConfigurationError(
                f"{self._name} cannot be trained: {error}", "Give a causal language model."
            ) from error
        if self.tokenizer.pad_token_id is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token
        self.renderer = check_calls(self.tokenizer, self._name)
        self._dtype = getattr(config, "dtype", None) or self._torch.float32
        self._shape = Shape.of(config, sum(each.numel() for each in empty.parameters()))
        if self.plan.recipe.context > self._shape.positions:
            raise ConfigurationError(
                f"{self._name} takes {self._shape.positions} tokens, fewer than --context {self.plan.recipe.context}",
                "Give a smaller --context.",
            )
        self._budget = self._check_room()

    def load(self) -> Any:
        """Return the checkpoint with weights of 32 bits."""
        # The engine first: it wants its share of the device free.
        self._started()
        auto = self._transformers.AutoModelForCausalLM
        return auto.from_pretrained(self._folder, dtype=self._torch.float32)

    def save(self, model: Any) -> None:
        """Save the trained model in the precision of the checkpoint."""

        def save(folder: Path) -> None:
            model.to(self._dtype).save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)

        self.stages.model(_TRAINED, save)

    def training_sampler(self, model: Any, indices: Sequence[int]) -> Sampler:
        """Return the engine, with the weights that the model has now."""
        engine = self._started()
        engine.load((name, weight.detach()) for name, weight in model.named_parameters())
        self._playing = ""
        return engine.sampler()

    def stage_sampler(self, stage: str, temperature: float) -> Sampler:
        """Return the engine, with the weights of a stage."""
        engine = self._started()
        if stage != self._playing:
            engine.load(weights_in(self._folder if stage == _BEFORE else self.stages.folder / stage))
            self._playing = stage
        return engine.sampler()

    def trainer_settings(self) -> dict[str, Any]:
        """Return those for as many episodes at once as the memory was planned for."""
        micro_batch = self._budget.micro_batch
        on_gpu = self.plan.device == "cuda"
        return {
            "use_cpu": not on_gpu,
            "bf16": on_gpu,
            "gradient_checkpointing": True,
            "gradient_checkpointing_kwargs": {"use_reentrant": False},
            "per_device_train_batch_size": micro_batch,
            "gradient_accumulation_steps": self.plan.recipe.episodes // micro_batch,
        }

    def correct_sampling(self) -> bool:
        """Return True: the engine computes in other kernels than the trainer, and on a GPU with fewer bits."""
        return True

    def check_played(self) -> None:
        """Raise the engine's failure."""
        if self._engine is not None and self._engine.failure is not None:
            raise self._engine.failure

    def check_before(self, tool_calls: int, episodes: int) -> None:
        """Raise ``ConfigurationError`` for a model that has called no tool."""
        if episodes and not tool_calls:
            raise ConfigurationError(
                f"In {episodes} episodes on held-out tasks {self._name} called no tool",
                "What never happens earns nothing to learn from: take a model that was trained to call tools.",
            )

    def versions(self) -> dict[str, str]:
        """Return vLLM's, too."""
        return {**super().versions(), "vllm": import_trainer_module("vllm", INSTALL_VLLM).__version__}

    def report(self, compared: Callable[[str, str], dict[str, Any]]) -> dict[str, Any]:
        """Return the checkpoint's sizes."""
        return {
            "model": {"name": self._name, "weights": self._shape.weights, "tokens": self._shape.vocabulary},
            "memory": dict(self._budget.parts),
        }

    # --- the machine -------------------------------------------------------------------------

    def _check_device(self) -> None:
        if self.plan.device == "cuda" and not self._torch.cuda.is_available():
            raise ConfigurationError(
                "PyTorch finds no GPU here",
                "--tiny runs on processors; --device cpu does so with a checkpoint of some million weights.",
            )

    def _check_room(self) -> Budget:
        """Raise ``ConfigurationError`` for a machine without the memory or the room on its disk."""
        device = self.plan.device
        free, total = self._torch.cuda.mem_get_info() if device == "cuda" else _processors_memory()
        budget = budget_of(self._shape, self.plan.recipe, device, total)
        if not (self.stages.folder / "training.json").exists():
            check_memory(budget, free, device)
            say(f"{self._name}: {self._shape.weights:,} weights; the training needs {budget.shown()}")
            if not (self.stages.folder / "checkpoints").exists():
                check_disk(budget, shutil.disk_usage(self.stages.folder).free, str(self.stages.folder))
        return budget

    def _started(self) -> Engine:
        if self._engine is None:
            say("starting vLLM")
            self._engine = Engine(self._folder, self.plan.recipe, self.plan.device, self._budget, self.plan.seed)
            self._playing = _BEFORE
        return self._engine


def _processors_memory() -> tuple[int, int]:
    """Return the free and the whole memory of this machine."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    sizes = {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines)}
    return sizes["MemAvailable"], sizes["MemTotal"]
