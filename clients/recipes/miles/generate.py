"""Functions that Miles' command line names: --custom-generate-function-path generate.generate."""

from ors_clients.miles import (
    generate,
    generate_with_agent,
    keep_group,
    log_eval_rollout_data,
    log_rollout_data,
    post_process_rewards,
    run,
)

__all__ = [
    "generate",
    "generate_with_agent",
    "keep_group",
    "log_eval_rollout_data",
    "log_rollout_data",
    "post_process_rewards",
    "run",
]
