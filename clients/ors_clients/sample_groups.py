"""Groups and batches of samples: which are fit for training, and what a batch's episodes were like.

Read from the metadata that ``samples`` writes, so it works on whatever a trainer has kept of a sample. A sample that
its infrastructure lost counts as such and in no mean.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, cast

from ors_clients.tasks import read_metadata

__all__ = ["episode_metrics", "flatten", "group_failed"]


def flatten(samples: Iterable[Any]) -> Iterator[Any]:
    """The samples of a group; a trainer nests them where one rollout made several."""
    for sample in samples:
        if isinstance(sample, list):
            yield from flatten(cast("list[Any]", sample))
        else:
            yield sample


def group_failed(samples: Iterable[Any]) -> bool:
    """Whether a group has a sample that its infrastructure lost, or that was aborted.

    It has no reward, so no mean over the group is a baseline for the others; such a group is better drawn again.
    """
    return any(
        sample.status == sample.Status.ABORTED or read_metadata(sample.metadata).get("failure")
        for sample in flatten(samples)
    )


def episode_metrics(samples: Iterable[Any]) -> dict[str, float]:
    """Means over a batch, for each environment and over all: reward, turns, calls, how the episodes ended.

    Rollouts that their infrastructure lost are counted, and left out of every mean.
    """
    groups: dict[str, list[tuple[dict[str, Any], Any]]] = defaultdict(list)
    for sample in flatten(samples):
        metadata = read_metadata(sample.metadata)
        if "stop_reason" in metadata:
            for name in ("all", str(metadata.get("env_name"))):
                groups[name].append((metadata, sample))
    metrics: dict[str, float] = {}
    for name, episodes in groups.items():
        prefix = f"rollout/episodes/{name}"
        kept = [(metadata, sample) for metadata, sample in episodes if not metadata.get("failure")]
        metrics[f"{prefix}/infrastructure_failures"] = len(episodes) - len(kept)
        if not kept:
            continue
        metrics[f"{prefix}/reward"] = sum(float(sample.reward or 0.0) for _, sample in kept) / len(kept)
        for key in ("num_turns", "num_tool_calls", "num_failed_tool_calls", "num_malformed_tool_calls", "tool_seconds"):
            metrics[f"{prefix}/{key}"] = sum(metadata.get(key) or 0 for metadata, _ in kept) / len(kept)
        for reason in ("finished", "max_turns", "max_tokens", "max_time"):
            share = sum(metadata["stop_reason"] == reason for metadata, _ in kept) / len(kept)
            metrics[f"{prefix}/stopped_by_{reason}"] = share
    return metrics
