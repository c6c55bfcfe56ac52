"""Reports on Harbor tasks: what ``tasks prepare`` has found of the folders as they are now. Nothing runs again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ors_server import InfrastructureFailure

from ..harbor.playing.task import PreparedTask
from ..harbor.record import Record
from ..harbor.source import NotPrepared
from .folders import FolderSource
from .verification import Check, TaskReport

if TYPE_CHECKING:
    from ors_containers.images import ImageStore

__all__ = ["harbor_reports"]

#: The checks, and the stages that make them.
_STAGES = {"nothing": "nothing", "solution": "oracle", "cheat": "cheat"}


def harbor_reports(source: FolderSource, store: ImageStore) -> Iterator[TaskReport | InfrastructureFailure]:
    """Yield a report on each Harbor task of folders, or the reason why there is none, as for a session of the task.

    A task that cannot be played because of one of the checks has a report. Raises ``StoreFailed``.
    """
    for name in source.harbor:
        try:
            found = source.find(name)
            assert isinstance(found, PreparedTask), "it is one of `source.harbor`"
            task, record = found.task, found.record
        except NotPrepared as refused:
            task, record = refused.task, refused.record
            if record is None or record.ready or not any(_fails(record, stage) for stage in _STAGES.values()):
                yield refused
                continue
        except InfrastructureFailure as failure:
            yield failure
            continue
        if record.is_kept(store):
            yield _report(record)
        else:
            yield NotPrepared(task, "its image or a layer is no longer in the store", record)


def _report(record: Record) -> TaskReport:
    report = TaskReport(record.name, record.folder, mark=record.mark)
    for check, stage in _STAGES.items():
        result = record.stages.get(stage)
        if result is None:
            report.checks[check] = Check("error", "it was not tried, because a check before it fails")
        else:
            report.checks[check] = Check(result.outcome, result.detail)
            report.seconds += result.seconds
    return report


def _fails(record: Record, stage: str) -> bool:
    return stage in record.stages and record.stages[stage].outcome == "fails"
