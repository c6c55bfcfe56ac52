"""What Miles' command line names, beside this recipe: --custom-generate-function-path generate.generate."""

from ors_clients.miles import generate, keep_group, log_rollout_data, run

__all__ = ["generate", "keep_group", "log_rollout_data", "run"]
