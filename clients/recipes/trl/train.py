"""GRPO on the environments of a YAML file.

    accelerate launch train.py --config grpo.yaml --environments environments.yaml [--any_key_of_GRPOConfig value]

Evaluates on another split of the same environments where ``--evaluation_split`` names one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ors_clients.training.config import TrainingConfiguration
from ors_clients.trl import EnvironmentMixture
from trl import GRPOConfig, GRPOTrainer, ModelConfig, TrlParser


@dataclass
class RunArguments:
    """Options that are neither TRL's nor the model's."""

    environments: str = field(default="environments.yaml", metadata={"help": "What to train on."})
    evaluation_split: str | None = field(default=None, metadata={"help": "A split to evaluate on, such as test."})
    evaluation_tasks: int = field(default=64, metadata={"help": "The most tasks of an environment to evaluate on."})


def main() -> None:
    run, args, model = TrlParser([RunArguments, GRPOConfig, ModelConfig]).parse_args_and_config()
    with EnvironmentMixture.from_configuration(TrainingConfiguration.load(run.environments)) as mixture:
        evaluation = mixture.dataset(run.evaluation_split, run.evaluation_tasks) if run.evaluation_split else None
        trainer = GRPOTrainer(
            model=model.model_name_or_path,
            args=args,
            train_dataset=mixture.train_dataset,
            eval_dataset=evaluation,
            environment_factory=mixture.environment_factory,
            reward_funcs=mixture.reward_funcs,
        )
        trainer.train()
        trainer.save_model()


if __name__ == "__main__":
    main()
