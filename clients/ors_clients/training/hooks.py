"""Options of slime and Miles that name our functions, and what takes their place.

Two functions keep lost rollouts out of the baselines: the filter of groups and the function that makes rewards
relative to their groups. Trainers take one function an option, and of an option that is given twice the last one. So a
user's own would replace ours silently. Here such a run is refused: by ``replaced_options`` before it starts, and
by ``check_hooks`` at its first rollout, for a command line that was written by hand. A filter of the user's own is
chained to ours instead (``group_filter`` of the training file, ``load_hook``).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from typing import Any

from ors_clients.errors import ConfigurationError

__all__ = ["HOOKS", "check_hooks", "is_ours", "load_hook", "replaced_options"]

_FILTER = "--dynamic-sampling-filter-path"
_REWARDS = "--custom-reward-post-process-path"
#: Our function behind each option, and what the run loses without it.
HOOKS = {
    _FILTER: ("keep_group", "drops groups with a lost rollout"),
    _REWARDS: ("post_process_rewards", "leaves lost rollouts out of the baselines"),
    "--custom-rollout-log-function-path": ("log_rollout_data", "counts lost rollouts"),
    "--custom-eval-rollout-log-function-path": ("log_eval_rollout_data", "leaves lost rollouts out of evaluations"),
}
#: Replaces the conversion of a batch as a whole, and with it the function behind ``_REWARDS``.
_CONVERSION = "--custom-convert-samples-to-train-data-path"
#: It refuses a batch with a sample that is masked as a whole.
_NEEDS_FILTER = "reinforce_plus_plus"


def replaced_options(flags: Iterable[str], keys: Iterable[str] = ()) -> list[str]:
    """Return a sentence for each option or key that would take the place of a function of ours.

    ``flags``: names of options with their dashes, or the beginnings of names that trainers also take. ``keys``: names
    in the file of ``--custom-config-path`` (``dynamic_sampling_filter_path``).
    """
    ours = (*HOOKS, _CONVERSION, "--custom-generate-function-path")
    given = [flag.replace("_", "-") for flag in flags]
    # A beginning that several options share is refused by the trainer itself, as are --c and --d.
    replaced = [option for flag in given for option in ours if option.startswith(flag) and len(flag) > len("--d")]
    named = {"--" + key.replace("_", "-") for key in keys}
    return [_refusal(option) for option in (*replaced, *(option for option in ours if option in named))]


def _refusal(option: str) -> str:
    if option == _FILTER:
        return (
            f"{option} would replace the filter that drops groups with a lost rollout; name your own filter in the"
            " training file, as group_filter: PACKAGE.MODULE.FUNCTION"
        )
    if option == _CONVERSION:
        return f"{option} would replace the step that {HOOKS[_REWARDS][1]}; leave it out"
    if option in HOOKS:
        return f"{option} would replace the function that {HOOKS[option][1]}; leave it out"
    return f"{option} would replace the function that plays the episodes; leave it out"


def check_hooks(args: Any, package: str) -> None:
    """Raise ``ConfigurationError`` where a lost rollout would be trained on as a reward of 0.

    ``package``: the adapter, for the remedy. Arguments of a trainer without the options are not judged.
    """
    if not hasattr(args, "custom_reward_post_process_path"):
        return
    if getattr(args, "custom_convert_samples_to_train_data_path", None):
        raise ConfigurationError(_refusal(_CONVERSION))
    if is_ours(args, _FILTER):
        return
    if getattr(args, "advantage_estimator", None) == _NEEDS_FILTER:
        raise ConfigurationError(
            f"--advantage-estimator {_NEEDS_FILTER} takes no batch with a lost rollout, and nothing drops its group",
            f"Pass {_FILTER} {package}.keep_group; name your own filter in the training file (group_filter)",
        )
    if not is_ours(args, _REWARDS):
        raise ConfigurationError(
            "A lost rollout would be a reward of 0 in its group's baseline",
            f"Pass {_REWARDS} {package}.post_process_rewards, or {_FILTER} {package}.keep_group",
        )


def is_ours(args: Any, option: str) -> bool:
    """Return whether the function that ``args`` name with this option of ``HOOKS`` is ours, by whatever path."""
    path = getattr(args, option.removeprefix("--").replace("-", "_"), None)
    if not path:
        return False
    try:
        function = _load(path)
    except (ImportError, AttributeError):
        return False  # the trainer says so itself
    is_own = str(getattr(function, "__module__", "")).partition(".")[0] == "ors_clients"
    return is_own and getattr(function, "__name__", "") == HOOKS[option][0]


def load_hook(key: str, path: str) -> Callable[..., Any]:
    """Return the function at ``path``. Raises ``ConfigurationError``, which names ``key`` of the training file."""
    try:
        function = _load(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(f"{key}: no function {path}: {error}", "Give it as PACKAGE.MODULE.FUNCTION") from error
    if not callable(function):
        raise ConfigurationError(f"{key}: {path} is not a function", "Give it as PACKAGE.MODULE.FUNCTION")
    return function


def _load(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)
