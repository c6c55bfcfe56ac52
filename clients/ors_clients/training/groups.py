"""Groups and batches of samples: whether they are trained on, and metrics of a batch's episodes.

Read from the metadata that ``samples`` writes, so it works on whatever a trainer has kept of a sample. A sample that
its infrastructure lost is in no mean.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, cast

from ors_clients.rollouts.trajectory import UNTRAINABLE
from ors_clients.training.dataset import read_metadata

__all__ = ["drop_reason", "episode_metrics", "flatten", "leave_out_lost", "sample_lost", "sample_withdrawn"]


def flatten(samples: Iterable[Any]) -> Iterator[Any]:
    """Return the samples of a group; a trainer nests them where one rollout made several."""
    for sample in samples:
        if isinstance(sample, list):
            yield from flatten(cast("list[Any]", sample))
        else:
            yield sample


def sample_lost(sample: Any) -> bool:
    """Return whether a sample has no reward because its infrastructure lost it or it was aborted."""
    metadata = read_metadata(sample.metadata)
    return (
        sample.status == sample.Status.ABORTED
        or bool(metadata.get("failure"))
        or metadata.get("stop_reason") in UNTRAINABLE
    )


def sample_withdrawn(sample: Any) -> bool:
    """Return whether a sample has no reward that others may be compared with.

    It was lost, or its prompt left the model nothing to write. One that the user's own filter removes from the loss
    (``remove_sample``) was played and has a reward.
    """
    if sample_lost(sample):
        return True
    return bool(sample.remove_sample) and not read_metadata(sample.metadata).get("num_turns")


def drop_reason(samples: Iterable[Any]) -> str | None:
    """Why a group is not to be trained on; None for one that is.

    A sample without a reward is in no mean, so no mean over its group is a baseline for the others. Neither is the
    reward of one whose prompt left the model nothing to write.
    """
    found = list(flatten(samples))
    if any(sample_lost(sample) for sample in found):
        return "infrastructure_failure"
    return "prompt_too_long" if any(sample.remove_sample for sample in found) else None


def leave_out_lost(data: dict[str, dict[str, Any]], group_size: int) -> dict[str, int]:
    """Take the rollouts that were lost out of an evaluation's results; how many there were of each data set.

    ``data``: slime's and Miles' form, lists of one entry a sample under each name. ``group_size``: samples of one
    prompt that a pass rate needs together; one that lacks a sample is left out whole. A data set of which nothing is
    left is taken out.
    """
    lost: dict[str, int] = {}
    for name, results in list(data.items()):
        samples: list[Any] | None = results.get("samples")
        if not samples:
            continue
        missing = [place for place, sample in enumerate(samples) if sample_lost(sample)]
        lost[name] = len(missing)
        left_out = {place // group_size for place in missing}
        kept = [place for place in range(len(samples)) if place // group_size not in left_out]
        for key, values in results.items():
            if isinstance(values, list) and len(cast("list[Any]", values)) == len(samples):
                results[key] = [values[place] for place in kept]
        if not kept:
            del data[name]
    return lost


def episode_metrics(samples: Iterable[Any]) -> dict[str, float]:
    """Means over a batch, for each environment and over all: reward, turns, calls, how the episodes ended.

    Rollouts that their infrastructure lost are in no mean. They are counted before any filter, by ``losses``.
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
        if not kept:
            continue
        metrics[f"{prefix}/reward"] = sum(float(sample.reward or 0.0) for _, sample in kept) / len(kept)
        for key in ("num_turns", "num_tool_calls", "num_failed_tool_calls", "num_malformed_tool_calls", "tool_seconds"):
            metrics[f"{prefix}/{key}"] = sum(metadata.get(key) or 0 for metadata, _ in kept) / len(kept)
        for reason in ("finished", "max_turns", "max_tokens", "max_time"):
            share = sum(metadata["stop_reason"] == reason for metadata, _ in kept) / len(kept)
            metrics[f"{prefix}/stopped_by_{reason}"] = share
    return metrics
