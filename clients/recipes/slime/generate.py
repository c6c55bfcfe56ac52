"""Functions that slime's command line names: --custom-generate-function-path generate.generate."""

from ors_clients.slime import (
    generate,
    keep_group,
    log_eval_rollout_data,
    log_rollout_data,
    post_process_rewards,
)

__all__ = ["generate", "keep_group", "log_eval_rollout_data", "log_rollout_data", "post_process_rewards"]
