"""--custom-rm-path reward.reward_func: the reward by the rule of the sample's environment in train_config.yaml."""

from ors_clients.slime import reward_func

__all__ = ["reward_func"]
