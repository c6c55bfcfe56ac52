"""Starts ROLL's agentic pipeline from a configuration file that lies anywhere.

    python -m ors_clients.roll.start --config_path DIRECTORY --config_name NAME [KEY=VALUE …]

The arguments are those of ROLL's ``examples/start_agentic_pipeline.py``, whose steps it takes with ROLL's own
functions. Two things differ: the directory need not lie in ROLL's checkout, and Ray's resources are read tolerantly
(``ors_clients.roll.ray_resources``). With a configuration copied to ROLL's examples, ROLL's own script does as well.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ors_clients.errors import ConfigurationError
from ors_clients.trainers.roll.ray_resources import tolerant_ray
from ors_clients.training.optional_imports import import_trainer_module

__all__ = ["compose", "main"]

_ROLL = "Run it in ROLL's environment, with ROLL's checkout on PYTHONPATH"
_PIPELINE = "roll.pipeline.agentic.agentic_pipeline.AgenticPipeline"


def compose(config_path: str, config_name: str, overrides: Sequence[str]) -> Any:
    """Return the configuration with Hydra's overrides applied, as OmegaConf. Raises ``ConfigurationError``."""
    hydra: Any = import_trainer_module("hydra", _ROLL)
    directory = Path(config_path).resolve()
    if not (directory / f"{config_name}.yaml").is_file():
        raise ConfigurationError(f"{directory} has no {config_name}.yaml", "Give its folder and its name without .yaml")
    with hydra.initialize_config_dir(config_dir=str(directory), job_name="app", version_base=None):
        return hydra.compose(config_name=config_name, overrides=list(overrides))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the pipeline to its end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config_path", required=True, help="folder of the configuration")
    parser.add_argument("--config_name", required=True, help="its name, without .yaml")
    parser.add_argument("overrides", nargs="*", help="Hydra overrides: max_steps=100")
    given = parser.parse_args(arguments)

    configuration = compose(given.config_path, given.config_name, given.overrides)
    omegaconf: Any = import_trainer_module("omegaconf", _ROLL)
    dacite: Any = import_trainer_module("dacite", _ROLL)
    agentic: Any = import_trainer_module("roll.pipeline.agentic.agentic_config", _ROLL)
    plain = omegaconf.OmegaConf.to_container(configuration, resolve=True)
    pipeline_config = dacite.from_dict(data_class=agentic.AgenticConfig, data=plain)

    import_trainer_module("roll.distributed.scheduler.initialize", _ROLL).init()
    module, _, name = str(plain.get("pipeline_cls", _PIPELINE)).rpartition(".")
    pipeline_class: Any = getattr(import_trainer_module(module, _ROLL), name)
    with tolerant_ray(import_trainer_module("ray", _ROLL)):
        pipeline = pipeline_class(pipeline_config=pipeline_config)
    pipeline.run()


if __name__ == "__main__":
    main()
