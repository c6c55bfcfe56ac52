"""Miles: the functions that its command line names."""

from __future__ import annotations

from ors_clients.miles.functions import (
    add_arguments,
    close,
    generate,
    generate_with_agent,
    keep_group,
    log_eval_rollout_data,
    log_rollout_data,
    reward_func,
    run,
)

__all__ = [
    "add_arguments",
    "close",
    "generate",
    "generate_with_agent",
    "keep_group",
    "log_eval_rollout_data",
    "log_rollout_data",
    "reward_func",
    "run",
]
