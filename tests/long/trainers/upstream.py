"""Helpers for the drivers of trainers' own modules: importable checkouts, and stand-ins for packages that need a GPU.

A trainer's rollout code imports engines, clusters and parallel backends that it does not use between the prompt and the
tensors of a batch. ``import_checkout`` puts the checkout on ``sys.path``, and resolves imports of those packages to
empty modules whose attributes are empty classes. No module of the trainer itself is replaced.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.abc
import importlib.machinery
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import threading
import types
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from ors_clients.samplers.scripted import scripted_logprob
from ors_clients.training.dataset import TaskRow
from ors_clients.training.hooks import HOOKS, replaced_options

from tests.clients.scripted_engine import ScriptedEngine
from tests.clients.trainer_setup import call, row_of
from tests.support.paths import RECIPES

__all__ = [
    "LOST",
    "STEPS",
    "Outcomes",
    "check_baselines",
    "check_refused_names",
    "check_tokens",
    "checkout",
    "earn",
    "end_work",
    "ended",
    "import_checkout",
    "log_nothing",
    "parse_recipe",
    "write_rows",
]

#: The environment that the drivers play, and a turn of its model in which the infrastructure fails the episode.
STEPS = "stepenvironment"
LOST = call("lose")

#: Packages that need a GPU or a cluster.
ABSENT = (
    "deep_ep",
    "kubernetes_asyncio",
    "megatron",
    "memray",
    "polars",
    "ray",
    "setproctitle",
    "sglang",
    "sglang_router",
    "torchft",
    "wandb",
)


class _Nothing:
    """A class that accepts any arguments."""

    def __init__(self, *args: Any, **options: Any) -> None:
        pass


class _Attributes(type):
    """The type of classes whose attributes are empty classes."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Attributes(name, (_Nothing,), {})


class _Empty(types.ModuleType):
    """A module whose attributes are empty classes."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = _Attributes(name, (_Nothing,), {"__module__": self.__name__})
        setattr(self, name, made)
        return made


class _Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds an empty module for each name under ``ABSENT``."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] not in ABSENT:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Empty(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        if module.__name__ == "ray":
            vars(module)["remote"] = _undecorated
        if module.__name__ == "sglang_router":
            vars(module)["__version__"] = "0.3.2"
        if module.__name__ == "sglang.srt.debug_utils.dumper":
            vars(module)["DumperConfig"] = type("DumperConfig", (), {"_kv_pairs_to_dict": _no_pairs})
        if module.__name__ == "sglang.srt.entrypoints.openai.protocol":
            # Miles passes on those rollout parameters that are fields of SGLang's request.
            fields = dict.fromkeys(("max_tokens", "temperature", "top_p", "top_k", "stop", "stop_token_ids", "seed"))
            vars(module)["ChatCompletionRequest"] = type("ChatCompletionRequest", (), {"model_fields": fields})


def _no_pairs(raw: Any) -> dict[str, Any]:
    """Parse SGLang's option for dumps, which is empty."""
    return {}


def _undecorated(*args: Any, **options: Any) -> Any:
    """Stand in for ``ray.remote``: return the class unchanged."""

    def decorate(decorated: Any) -> Any:
        return decorated

    return args[0] if args and callable(args[0]) else decorate


def checkout(variable: str, package: str) -> Path | None:
    """Return the checkout that an environment variable names, or None. Fail for a folder without ``package``."""
    name = os.environ.get(variable)
    if not name:
        return None
    folder = Path(name).resolve()
    if not (folder / package / "__init__.py").is_file():
        pytest.fail(f"{variable}={name} is no checkout with the package {package}")
    return folder


def import_checkout(folder: Path) -> None:
    """Make the packages of a checkout importable in this process."""
    if not any(isinstance(finder, _Absent) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Absent())
    sys.path.insert(0, str(folder))


class Outcomes:
    """A policy that gives each episode the next item of a list: the turns of its model. The last item repeats."""

    def __init__(self, outcomes: Iterable[str | Sequence[str]]) -> None:
        self._left = [[outcome] if isinstance(outcome, str) else list(outcome) for outcome in outcomes]
        self._lock = threading.Lock()
        #: Remaining turns of the running episodes, by the turns so far.
        self._open: list[tuple[str, list[str]]] = []
        self.begun = 0

    def __call__(self, prompt: str) -> str:
        with self._lock:
            known = next((pair for pair in self._open if prompt.startswith(pair[0])), None)
            if known is not None:
                self._open.remove(known)
                turns = known[1]
            else:
                self.begun += 1
                turns = self._left.pop(0) if len(self._left) > 1 else list(self._left[0])
            said, rest = turns[0], turns[1:]
            if rest:
                self._open.append((prompt + said, rest))
            return said


def earn(reward: float) -> str:
    """Return a turn of the model that ends the episode with this reward."""
    return call("finish", reward=reward)


def log_nothing(*args: Any, **options: Any) -> None:
    """Replace a trainer's function that logs metrics."""


def write_rows(file: Path, environment: str, specs: Iterable[dict[str, Any]], **more: Any) -> Path:
    """Write rows of tasks as ``prepare_tasks`` writes them."""
    metadata = [row_of(environment, spec, index=number) for number, spec in enumerate(specs)]
    rows = [json.loads(TaskRow.of_metadata(row).line) | more for row in metadata]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def check_tokens(tokens: Sequence[int], mask: Sequence[int], logprobs: Sequence[float], engine: ScriptedEngine) -> None:
    """Compare the tokens that would be trained on with the engine's requests and responses.

    Every request of the episode is a prefix of the tokens. A trained token has the log-probability that the engine
    returned for its position; tokens that the model did not generate have none.
    """
    begin = len(tokens) - len(mask)
    assert len(mask) == len(logprobs)
    assert list(tokens[:begin]) in engine.prompts
    for place, (kept, logprob) in enumerate(zip(mask, logprobs, strict=True)):
        if kept or logprob:
            assert logprob == pytest.approx(scripted_logprob(begin + place))
    requests = [ids for ids in engine.prompts if list(tokens[: len(ids)]) == ids]
    assert requests
    assert sum(mask) > 0


def check_baselines(data: dict[str, Any], size: int) -> None:
    """Compare the rewards that would be trained on with GRPO's, for each group of ``size`` samples."""
    for first in range(0, len(data["raw_reward"]), size):
        raw = data["raw_reward"][first : first + size]
        mean = sum(raw) / size
        deviation = (sum((reward - mean) ** 2 for reward in raw) / (size - 1)) ** 0.5
        expected = [(reward - mean) / (deviation + 1e-6) for reward in raw]
        assert data["rewards"][first : first + size] == pytest.approx(expected, abs=1e-4)


#: Options of the recipes' command lines for the parsers of Megatron, the FSDP backend and SGLang.
BACKENDS = {
    "--accumulate-allreduce-grads-in-fp32",
    "--adam-beta1",
    "--adam-beta2",
    "--adam-eps",
    "--attention-dropout",
    "--attention-softmax-in-fp32",
    "--gradient-checkpointing",
    "--hidden-dropout",
    "--lr-decay-style",
    "--num-layers",
    "--optimizer",
    "--sequence-parallel",
    "--sglang-mem-fraction-static",
    "--tensor-model-parallel-size",
    "--train-backend",
    "--weight-decay",
}


def parse_recipe(trainer: str, folder: Path, add_arguments: Callable[[Any], Any], *options: str) -> Any:
    """Parse a recipe's command line with its trainer's parser; fail for an unknown argument.

    ``folder``: the trainer's checkout.
    """
    recipe = RECIPES / trainer
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as tasks:
        launch = [sys.executable, "-m", "ors_clients.training.launch", trainer, str(recipe), "--dry-run"]
        launch += [f"--{trainer}-path", str(folder), "--task-data", tasks.name, *options]
        printed = subprocess.run(launch, capture_output=True, text=True, check=False)
    assert printed.returncode == 0, printed.stderr
    words = shlex.split(printed.stdout)[2:]
    parser = argparse.ArgumentParser(allow_abbrev=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["train_async.py", *words])
        patch.setattr(sys, "path", [str(recipe), *sys.path])
        add_arguments(parser)
        args, rest = parser.parse_known_args(words)
    assert {word for word in rest if word.startswith("--")} <= BACKENDS
    return args


def check_refused_names(add_arguments: Callable[[Any], Any]) -> None:
    """Check that names of a trainer's options are refused where they stand for one of ours, and no others."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    names = set(re.findall(r"--\w[\w-]*", parser.format_usage()))
    ours = {option for option in names if replaced_options([option])}
    assert {*HOOKS, "--custom-generate-function-path"} < ours
    assert len(ours) == len(HOOKS) + 2  # those, and the option for the conversion
    for option in ours:
        for end in range(len("--"), len(option)):
            if [name for name in names if name.startswith(option[:end])] == [option]:
                assert replaced_options([option[:end]]), option[:end]


async def end_work(close: Callable[[], Awaitable[None]]) -> None:
    """End what still runs in this event loop: a rollout that was begun before a run failed would end the next run."""
    await close()
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=20)
    await close()


def ended(function: Callable[[], Any], seconds: float = 60) -> Any:
    """Return or raise the outcome of ``function``; fail the test if it still runs after this many seconds."""
    outcome: dict[str, Any] = {}

    def target() -> None:
        try:
            outcome["result"] = function()
        except BaseException as error:  # noqa: BLE001 - handed to the caller
            outcome["error"] = error

    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        pytest.fail(f"the run has not ended within {seconds} s")
    if "error" in outcome:
        raise outcome["error"]
    return outcome["result"]
