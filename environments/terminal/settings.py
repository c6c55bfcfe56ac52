"""Settings of the terminal environment: ``ORS_TERMINAL_*``, each variable once.

Times are in seconds, sizes in bytes. The settings are read at the environment's first use. An invalid value keeps the
server from starting, and the error names the variable.
"""

from __future__ import annotations

import difflib
import logging
import os
from pathlib import Path
from typing import Annotated

from ors_containers import Limits
from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from ors_server import DefinitionError

from .task import TestsImportCode

__all__ = ["TerminalSettings", "read_settings"]

logger = logging.getLogger("ors_server.terminal")

Seconds = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]
MIB = 2**20


class TerminalSettings(BaseSettings):
    """Settings of the terminal environment."""

    model_config = SettingsConfigDict(env_prefix="ORS_TERMINAL_", extra="ignore", frozen=True)

    tasks: str = Field(
        default="",
        description="Folders of Endless Terminals and Harbor tasks, separated by `:`; empty for the generated tasks.",
    )
    task_variables: str = Field(
        default="",
        description="Variables of the server that `${NAME}` in a Harbor task's `env` may use, separated by commas.",
    )
    tests_import_code: TestsImportCode = Field(
        default="refuse",
        description="Tasks of `tasks` whose tests import the agent's code: `refuse` leaves them out, `flag` takes them "
        "and marks their verdicts.",
    )
    solvable_only: bool = Field(
        default=True, description="Leave tasks whose published pass@16 is 0 out of the training split."
    )
    families: str = Field(default="", description="Families of generated tasks, separated by commas; empty for all.")
    train_tasks: Count = Field(default=10_000, description="Generated tasks in the training split.")
    test_tasks: Count = Field(default=500, description="Generated tasks in the test split.")
    image: str = Field(
        default="host", description="Image generated tasks run in: `host`, or a name of `ors-server image list`."
    )

    build_network: bool = Field(
        default=False,
        description="Give the scripts of task definitions this machine's network while they are built (apt, pip); "
        "episodes never have one.",
    )

    task_network: bool = Field(
        default=False,
        description="Give agents of Harbor tasks an open network, where the task asks for one and ORS_SANDBOX_NETWORK "
        "allows it.",
    )
    harbor_steps: Count = Field(default=100, description="Commands in an episode of a Harbor task.")
    harbor_command_timeout: Seconds = Field(
        default=300.0,
        description="Seconds one command may take in an episode of a Harbor task.",
    )

    keep_final_states: Annotated[float, Field(ge=0)] = Field(
        default=0.0,
        description="Days for which the files that an agent left in a Harbor task are kept, for `tasks regrade`; 0 "
        "keeps none.",
    )
    final_state_size: Annotated[int, Field(ge=0)] = Field(
        default=1024 * MIB, description="Bytes of such files; an episode that left more is not kept."
    )
    final_states_size: Annotated[int, Field(ge=0)] = Field(
        default=50 * 1024 * MIB, description="Bytes of all that is kept; no more is kept until some is freed."
    )

    steps: Count = Field(default=16, description="Commands in an episode; after the last one it is graded.")
    command_timeout: Seconds = Field(default=10.0, description="Seconds one command may take.")
    episode_timeout: Seconds = Field(
        default=600.0, description="Seconds an episode may take from its first command on; then it ends with reward 0."
    )
    grading_timeout: Seconds = Field(default=120.0, description="Seconds the tests may take; longer earns 0.")
    output: Annotated[int, Field(ge=100)] = Field(
        default=50_000, description="Characters of a command's output that are shown, from its beginning and its end."
    )

    memory: Annotated[int, Field(ge=16 * MIB)] = Field(
        default=1024 * MIB, description="Bytes of memory a sandbox's processes may use."
    )
    disk: Annotated[int, Field(ge=MIB)] = Field(default=512 * MIB, description="Bytes of files a sandbox may write.")
    pids: Annotated[int, Field(ge=4)] = Field(default=256, description="Processes and threads in a sandbox at once.")
    cpu: Annotated[float, Field(ge=0.01)] = Field(default=1.0, description="Processor cores a sandbox may use.")

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folders of ``tasks``."""
        return tuple(Path(part).expanduser().absolute() for part in self.tasks.split(os.pathsep) if part)

    @property
    def variable_names(self) -> tuple[str, ...]:
        """The names in ``task_variables``."""
        return tuple(name.strip() for name in self.task_variables.split(",") if name.strip())

    @property
    def family_names(self) -> tuple[str, ...]:
        """The names in ``families``."""
        return tuple(name.strip() for name in self.families.split(",") if name.strip())

    @property
    def limits(self) -> Limits:
        """The limits of an episode's sandbox."""
        # In bytes: a character takes up to four.
        return Limits(memory=self.memory, pids=self.pids, cpu=self.cpu, disk=self.disk, output=4 * self.output)


def read_settings() -> TerminalSettings:
    """Read the settings from the environment. Raises ``DefinitionError``, which names the invalid variable."""
    for warning in _unknown_variables():
        logger.warning(warning)
    try:
        return TerminalSettings()
    except ValidationError as error:
        first = error.errors()[0]
        name = f"ORS_TERMINAL_{first['loc'][0]}".upper()
        raise DefinitionError(f"{name} is {first['input']!r}: {first['msg']}", "Correct the variable.") from error


def _unknown_variables() -> list[str]:
    known = [f"ORS_TERMINAL_{name}".upper() for name in TerminalSettings.model_fields]
    warnings: list[str] = []
    for name in sorted(os.environ):
        if name.upper().startswith("ORS_TERMINAL_") and name.upper() not in known:
            near = difflib.get_close_matches(name.upper(), known, n=1, cutoff=0.7)
            remedy = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}."
            warnings.append(f"The variable {name} is no setting of the terminal environment; {remedy}")
    return warnings
