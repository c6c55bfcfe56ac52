"""The end of thinking in tokens, and withdrawn samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ors_clients.training.groups import drop_reason, episode_metrics, flatten, leave_out_lost
from ors_clients.training.samples import reset_sample, thinking_length, withdraw_sample

from tests.clients.slime_stand_in import Sample
from tests.clients.tiny_tokenizer import tiny_tokenizer

TEXT = st.text(st.sampled_from("ab \n<>/thinké漢\U0001f600"), max_size=30)


def decode(ids: Sequence[int]) -> str:
    return tiny_tokenizer().decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)


def encode(text: str) -> list[int]:
    return tiny_tokenizer().encode(text, add_special_tokens=False)


@settings(deadline=None)  # the first example loads the tokenizer
@given(thought=TEXT, space=st.text(" \n", max_size=4), answer=TEXT, begun=st.booleans())
@example(thought="é" * 20, space="\n\n", answer="漢", begun=False)
def test_thinking_ends_after_its_marker_and_the_white_space(thought: str, space: str, answer: str, begun: bool) -> None:
    thought = thought.replace("<", "").replace(">", "")
    answer = answer.lstrip()
    text = f"{'' if begun else '<think>'}{thought}</think>{space}{answer}"
    ids = encode(text)
    length = thinking_length(ids, decode, opened=begun)
    masked, trained = decode(ids[:length]), decode(ids[length:])
    assert masked.rstrip().endswith("</think>")
    assert trained.strip() == answer.strip() or "�" in trained + masked
    assert not trained[:1].isspace() or len(encode(space + answer)) < len(encode(space)) + len(encode(answer))


@given(TEXT)
def test_an_answer_without_thinking_is_all_answer(text: str) -> None:
    text = text.replace("<", "")
    assert thinking_length(encode(text), decode) == 0


@pytest.mark.parametrize(
    ("text", "opened", "all_of_it"),
    [("<think>on and on", False, True), ("on and on", True, True), ("on and on", False, False), ("", False, True)],
)
def test_thinking_without_an_end(text: str, opened: bool, all_of_it: bool) -> None:
    ids = encode(text)
    assert thinking_length(ids, decode, opened=opened) == (len(ids) if all_of_it else 0)


@pytest.mark.parametrize("tokens", [[], [5], [5, 6]])
def test_a_sample_that_is_withdrawn_can_be_batched(tokens: list[int]) -> None:
    sample = Sample(tokens=list(tokens))
    withdraw_sample(sample)
    assert sample.response_length == 1 == len(sample.loss_mask or [])
    assert len(sample.tokens) == max(2, len(tokens) + 1)
    assert sample.remove_sample
    assert sample.loss_mask == [0]
    assert sample.rollout_top_p_token_offsets == [0, 0]


def test_a_sample_is_reset_to_what_it_was() -> None:
    metadata: Any = {"env_name": "a", "rewards": [1.0], "stop_reason": "finished", "failure": None, "mine": 1}
    sample = Sample(tokens=[1, 2], response="x", response_length=1, reward=1.0, loss_mask=[1], metadata=metadata)
    sample.remove_sample = True
    sample.weight_versions = ["1"]
    sample.rollout_top_p_token_ids = [1]
    sample.prefix_cache_info.cached_tokens = 9
    reset_sample(sample)
    assert sample == Sample(metadata={"env_name": "a", "mine": 1})


def test_groups_nest() -> None:
    a, b, c = Sample(index=0), Sample(index=1), Sample(index=2)
    assert list(flatten([a, [b, [c]]])) == [a, b, c]
    assert drop_reason([a, [b]]) is None
    c.metadata["failure"] = "the machine died"
    assert drop_reason([a, [b, [c]]]) == "infrastructure_failure"
    b.status = Sample.Status.ABORTED
    assert drop_reason([a, b]) == "infrastructure_failure"
    assert episode_metrics([a, b]) == {}


def test_a_group_with_a_sample_that_has_no_reward_of_its_own_is_dropped() -> None:
    # Miles' session server says COMPLETED of a session whose episode was stopped after a turn.
    stopped = Sample(status=Sample.Status.COMPLETED, metadata={"stop_reason": "aborted"})
    assert drop_reason([Sample(), stopped]) == "infrastructure_failure"
    assert drop_reason([Sample(), Sample(remove_sample=True)]) == "prompt_too_long"


@pytest.mark.parametrize(("group", "kept"), [(1, [0, 2, 3]), (2, [2, 3])])
def test_lost_rollouts_are_left_out_of_an_evaluation(group: int, kept: list[int]) -> None:
    samples = [Sample(index=index) for index in range(4)]
    samples[1].metadata["failure"] = "the machine died"
    data: dict[str, Any] = {
        "e": {"rewards": [1.0, 0.0, 0.5, 0.25], "truncated": [False] * 4, "samples": samples, "other": "x"},
        "gone": {"rewards": [0.0], "samples": [Sample(status=Sample.Status.ABORTED)]},
        "foreign": {"rewards": [1.0]},
    }
    assert leave_out_lost(data, group) == {"e": 1, "gone": 1}
    assert [sample.index for sample in data["e"]["samples"]] == kept
    assert len(data["e"]["rewards"]) == len(data["e"]["truncated"]) == len(kept)
    assert 0.0 not in data["e"]["rewards"]
    assert set(data) == {"e", "foreign"}
