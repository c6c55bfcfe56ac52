"""slime: the functions that its command line names."""

from __future__ import annotations

from ors_clients.slime.functions import (
    close,
    generate,
    keep_group,
    log_eval_rollout_data,
    log_rollout_data,
    reward_func,
)

__all__ = [
    "close",
    "generate",
    "keep_group",
    "log_eval_rollout_data",
    "log_rollout_data",
    "reward_func",
]
