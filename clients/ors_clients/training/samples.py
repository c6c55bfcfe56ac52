"""A rollout written into a ``Sample``, the object in which slime and Miles keep what they train on.

Both trainers read ``tokens``, ``response_length``, ``loss_mask``, ``rollout_log_probs``, ``reward`` and ``status``.
Where the sample has ``append_response_tokens`` (slime), each segment goes through it, with the engine's ``meta_info``,
so that what the trainer keeps beside the tokens (weight versions, top-p replay, cache statistics) stays aligned with
them. Otherwise (Miles) the same lists are filled here. Invariants: tokens are a list of ints; mask and
log-probabilities have the length of the response, which is never 0; ``metadata`` stays a mapping; and a sample that
must not be trained on has a mask of zeros, ``remove_sample`` set and its failure in ``metadata``.

A lost rollout is ABORTED, because the trainers generate such samples again. A FAILED one would not be: slime's fully
asynchronous rollout looks at ABORTED only and calls no filter, so it would count as a reward of 0 in its group's
baseline.

Sources: slime ``slime/utils/types.py`` and ``slime/ray/rollout.py``; Miles ``miles/utils/types.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ors_clients.rollouts.chat_renderer import ChatRenderer
from ors_clients.rollouts.trajectory import Segment, StopReason, Trajectory
from ors_clients.samplers import Generation
from ors_clients.tool_calls.thinking import skip_opened_thinking
from ors_clients.training.dataset import read_metadata
from ors_clients.training.images import place_images

__all__ = [
    "RECORD_KEYS",
    "episode_record",
    "reset_sample",
    "spoil_sample",
    "thinking_length",
    "withdraw_sample",
    "write_sample",
]

_STATUS: dict[StopReason, str] = {
    "finished": "COMPLETED",
    "max_turns": "TRUNCATED",
    "max_tokens": "TRUNCATED",
    "max_time": "TRUNCATED",
    "stopped": "TRUNCATED",
    "aborted": "ABORTED",
    "infrastructure": "ABORTED",
}

_KEPT_BESIDE_TOKENS = (
    "multimodal_train_inputs",
    "rollout_top_p_token_ids",
    "rollout_top_p_token_offsets",
    "rollout_routed_experts",
)


def reset_sample(sample: Any) -> None:
    """Take everything of an earlier attempt out of ``sample``: an environment's session cannot be taken up again."""
    metadata = read_metadata(sample.metadata)
    sample.metadata = {key: value for key, value in metadata.items() if key not in RECORD_KEYS}
    sample.tokens = []
    sample.response = ""
    sample.response_length = 0
    sample.loss_mask = None
    sample.rollout_log_probs = None
    sample.weight_versions = []
    sample.reward = None
    sample.remove_sample = False
    for name in _KEPT_BESIDE_TOKENS:
        if hasattr(sample, name):
            setattr(sample, name, None)
    for counters, kind in (("spec_info", "SpecInfo"), ("prefix_cache_info", "PrefixCacheInfo")):
        if hasattr(sample, counters):
            setattr(sample, counters, getattr(sample, kind)())
    sample.status = sample.Status.PENDING


def write_sample(
    sample: Any,
    args: Any,
    trajectory: Trajectory,
    generations: Sequence[Generation],
    *,
    reward: float | None,
    renderer: ChatRenderer,
    processor: Any = None,
    mask_thinking: bool = True,
) -> None:
    """Fill a sample that was ``reset_sample`` with what ``trajectory`` holds.

    ``generations``: the engine's answers in order, for their ``meta_info``; ``renderer``: the rollout's;
    ``processor``: the vision model's, without which a sample with images is refused (``ConfigurationError``). A rollout
    that was aborted or lost is ABORTED, to be generated again; an aborted one leaves the sample empty. With
    ``--group-rm`` the sample has no reward yet: Miles sets it only where there is none.
    """
    if trajectory.stop_reason == "aborted":
        sample.status = sample.Status.ABORTED
        return
    answers = iter([generation for generation in generations if generation.ids])
    segments = place_images(sample, trajectory, processor) if renderer.images else trajectory.segments
    sample.tokens = list(segments[0].ids) if segments else []
    for segment in segments[1:]:
        if not segment.ids:
            continue
        if segment.kind == "model":
            _append_generated(sample, args, segment, next(answers, None))
            if mask_thinking:
                length = thinking_length(segment.ids, renderer.decode, opened=renderer.opens_thinking)
                begin = sample.response_length - len(segment.ids)
                sample.loss_mask[begin : begin + length] = [0] * length
        else:
            _append_given(sample, args, segment)
    sample.status = sample.Status[_STATUS[trajectory.stop_reason]]
    if hasattr(sample, "non_generation_time"):
        sample.non_generation_time = max(0.0, trajectory.seconds - trajectory.generation_seconds)
    sample.metadata |= episode_record(trajectory, reward)
    if reward is None or not sample.response_length:  # without a response: its prompt alone reaches a limit
        withdraw_sample(sample)
    if not getattr(args, "group_rm", False):
        sample.reward = reward or 0.0  # the trainers make a tensor of every sample's, withdrawn or not


def _append_generated(sample: Any, args: Any, segment: Segment, generation: Generation | None) -> None:
    """Tokens of the model, and what the engine said of them. The status this sets is the turn's, not the episode's."""
    meta_info = {} if generation is None else generation.metadata
    if hasattr(sample, "append_response_tokens"):
        sample.append_response_tokens(
            args,
            tokens=list(segment.ids),
            log_probs=list(segment.logprobs),
            trainable=True,
            meta_info=meta_info,
            text=segment.text,
        )
        return
    _append(sample, segment, mask=1)
    speculates = hasattr(args, "sglang_speculative_algorithm")
    if speculates and hasattr(sample, "update_from_meta_info") and "finish_reason" in meta_info:
        sample.update_from_meta_info(args, meta_info)
    elif "weight_version" in meta_info:
        sample.weight_versions.append(meta_info["weight_version"])


def _append_given(sample: Any, args: Any, segment: Segment) -> None:
    """Tokens that the model was given."""
    if hasattr(sample, "append_response_tokens"):
        sample.append_response_tokens(args, tokens=list(segment.ids), trainable=False, text=segment.text)
    else:
        _append(sample, segment, mask=0)


def _append(sample: Any, segment: Segment, *, mask: int) -> None:
    sample.tokens = sample.tokens + list(segment.ids)
    sample.response += segment.text
    sample.response_length += len(segment.ids)
    sample.loss_mask = (sample.loss_mask or []) + [mask] * len(segment.ids)
    sample.rollout_log_probs = (sample.rollout_log_probs or []) + list(segment.logprobs)


def thinking_length(ids: Sequence[int], decode: Callable[[Sequence[int]], str], *, opened: bool = False) -> int:
    """Return the number of a turn's first tokens that are thinking, its marks and the white space after it included.

    Found in the tokens as they were sampled, by decoding prefixes of them; nothing is encoded. ``opened``: the chat
    template began the thinking in the prompt, so that a turn without an end of it is thinking from end to end.
    """
    text = decode(ids)
    if not opened and not text.lstrip().startswith("<think>") and not skip_opened_thinking(text):
        return 0
    end = "</think>"
    if end not in text:
        return len(ids)
    low, high = 1, len(ids)  # the fewest tokens that hold the end; further ones never take it away
    while low < high:
        middle = (low + high) // 2
        if end in decode(ids[:middle]):
            high = middle
        else:
            low = middle + 1
    while low < len(ids) and decode(ids[low : low + 1]).isspace():
        low += 1
    return low


def withdraw_sample(sample: Any) -> None:
    """Make a sample that nothing can be learnt from; its lists stay such that a trainer can batch it."""
    if not sample.response_length:
        filler = sample.tokens[-1] if sample.tokens else 0
        sample.tokens = [*(sample.tokens or [filler]), filler]
        sample.response_length = 1
        sample.rollout_log_probs = [0.0]
    sample.loss_mask = [0] * sample.response_length
    sample.remove_sample = True
    if hasattr(sample, "rollout_top_p_token_offsets") and sample.rollout_top_p_token_offsets is None:
        # For the replay of top-p sampling slime wants a span for each token of every sample.
        sample.rollout_top_p_token_ids = []
        sample.rollout_top_p_token_offsets = [0] * (sample.response_length + 1)


def spoil_sample(sample: Any, args: Any, error: Exception) -> None:
    """Mark a sample of a run that cannot go on: no trainer drops it, generates it again, or trains on it.

    So the group reaches a function that raises the error (``process_state.raise_end``). Where none is configured, the
    mask ends the run, because its length is not that of the response.
    """
    reset_sample(sample)
    withdraw_sample(sample)
    sample.loss_mask = []
    sample.status = sample.Status.FAILED
    sample.metadata |= {"stop_reason": "infrastructure", "failure": str(error)}
    if not getattr(args, "group_rm", False):
        sample.reward = 0.0


#: What ``episode_record`` puts into a sample's metadata. The first four are openreward-cookbook's.
RECORD_KEYS = (
    "rewards",
    "stop_reason",
    "num_tool_calls",
    "num_failed_tool_calls",
    "num_malformed_tool_calls",
    "num_turns",
    "rollout_id",
    "generation_seconds",
    "tool_seconds",
    "failure",
    "episode_reward",
)


def episode_record(trajectory: Trajectory, reward: float | None) -> dict[str, Any]:
    """Return the record of a rollout besides its tokens: ``RECORD_KEYS``, JSON values.

    ``reward``: the episode's under its environment's rule, None where there is nothing to train on. It cannot be made
    of ``rewards``, which does not say of which step each one is.
    """
    values = (
        [reward for reward in trajectory.step_rewards if reward is not None],
        trajectory.stop_reason,
        trajectory.tool_calls,
        trajectory.failed_calls,
        trajectory.malformed_calls,
        trajectory.turns,
        trajectory.rollout_id,
        round(trajectory.generation_seconds, 6),
        round(trajectory.tool_seconds, 6),
        None if trajectory.failure is None else str(trajectory.failure),
        reward,
    )
    return dict(zip(RECORD_KEYS, values, strict=True))
