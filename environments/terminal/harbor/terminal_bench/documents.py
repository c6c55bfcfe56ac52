"""The YAML files of a Terminal-Bench task: ``task.yaml``, and its compose file.

Invariant: every error names the file, and the line or the key.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ors_server import DefinitionError

from ...task import FolderProblem
from ..files import read_text

__all__ = ["TaskDocument", "read_task_document", "read_yaml"]


class TaskDocument(BaseModel):
    """The part of ``task.yaml`` that Harbor's format has a place for. Times are in seconds, estimates in minutes."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    instruction: str
    author_name: str = "unknown"
    author_email: str = "unknown"
    difficulty: Literal["easy", "medium", "hard", "unknown"] = "unknown"
    category: str = "software_engineering"
    tags: list[str] = Field(default_factory=list[str])
    estimated_duration_sec: float | None = None
    expert_time_estimate_min: float | None = None
    junior_time_estimate_min: float | None = None
    max_agent_timeout_sec: float = Field(default=360.0, gt=0, allow_inf_nan=False)
    max_test_timeout_sec: float = Field(default=60.0, gt=0, allow_inf_nan=False)
    parser_name: str = "pytest"
    run_tests_in_same_shell: bool = False


def read_task_document(folder: Path) -> TaskDocument:
    """Read ``task.yaml`` of a folder. Raises ``FolderProblem``."""
    file = folder / "task.yaml"
    try:
        return TaskDocument.model_validate(read_yaml(file, folder))
    except ValidationError as error:
        first = error.errors()[0]
        raise FolderProblem(file, f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def read_yaml(file: Path, folder: Path) -> dict[str, Any]:
    """Read a YAML file that is a table. Raises ``FolderProblem``, and ``DefinitionError`` without PyYAML."""
    try:
        import yaml
    except ImportError as error:
        raise DefinitionError("PyYAML is not installed", "Install it: pip install pyyaml") from error
    text = read_text(file, folder)
    try:
        found: Any = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark is not None else None
        raise FolderProblem(file, f"it is not YAML: {error.problem}", line) from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date that does not exist
        raise FolderProblem(file, f"it is not YAML: {str(error).splitlines()[0]}") from error
    except RecursionError as error:
        raise FolderProblem(file, "it is nested too deeply") from error
    if not isinstance(found, dict):
        raise FolderProblem(file, "it is not a table")
    return {str(key): value for key, value in cast("dict[Any, Any]", found).items()}
