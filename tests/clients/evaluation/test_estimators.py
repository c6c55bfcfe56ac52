"""The estimators of ``ors-server eval`` beside closed forms, enumerations and the formulas of other projects."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Sequence

import pytest

from ors_server.rollouts.reports.estimators import (
    difference_interval,
    mean_interval,
    pass_at_k,
    permutation_p,
    proportion_interval,
    t_quantile,
    wilson,
)


@pytest.mark.parametrize("samples", range(1, 8))
def test_pass_at_k_is_the_share_of_subsets_with_a_success(samples: int) -> None:
    for successes, k in itertools.product(range(samples + 1), range(1, samples + 1)):
        outcomes = [place < successes for place in range(samples)]
        subsets = list(itertools.combinations(outcomes, k))
        assert pass_at_k(samples, successes, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


@pytest.mark.parametrize(("samples", "successes", "k"), [(200, 13, 100), (200, 199, 2), (10, 3, 4), (1000, 1, 10)])
def test_pass_at_k_is_that_of_human_eval_and_inspect(samples: int, successes: int, k: int) -> None:
    """Both compute ``1 - prod(1 - k / arange(n - c + 1, n + 1))``."""
    product = math.prod(1 - k / left for left in range(samples - successes + 1, samples + 1))
    theirs = 1.0 if samples - successes < k else 1 - product
    assert pass_at_k(samples, successes, k) == pytest.approx(theirs)


@pytest.mark.parametrize(("samples", "successes", "k"), [(3, 1, 4), (3, 4, 1), (3, 1, 0)])
def test_pass_at_k_of_too_few_samples(samples: int, successes: int, k: int) -> None:
    with pytest.raises(ValueError, match="pass@"):
        pass_at_k(samples, successes, k)


@pytest.mark.parametrize(("successes", "samples"), [(0, 10), (1, 10), (7, 12), (500, 1000), (20, 20)])
def test_wilson_inverts_the_score_test(successes: int, samples: int) -> None:
    """Its ends are the proportions from which what was seen is 1.96 standard deviations away."""
    share = successes / samples
    z = statistics.NormalDist().inv_cdf(0.975)
    for end in wilson(share, samples):
        if 0 < end < 1:
            assert abs(share - end) == pytest.approx(z * math.sqrt(end * (1 - end) / samples))
        else:
            assert end == share


def test_with_one_sample_a_task_the_interval_is_wilsons() -> None:
    for successes in range(11):
        scores = [1.0] * successes + [0.0] * (10 - successes)
        assert proportion_interval(scores, 10) == pytest.approx(wilson(successes / 10, 10))


def test_samples_of_tasks_that_never_differ_count_as_one_each() -> None:
    """Otherwise 2 tasks with 500 successes each would be as sure as 1,000 tasks."""
    assert proportion_interval([1.0, 1.0], 1000) == wilson(1.0, 2)
    assert proportion_interval([0.0] * 5, 500) == wilson(0.0, 5)


def test_more_samples_of_tasks_that_differ_widen_nothing_and_narrow_little() -> None:
    once = proportion_interval([0.0, 1.0] * 10, 20)
    often = proportion_interval([0.0, 1.0] * 10, 2000)
    assert once is not None
    assert often is not None
    assert often.high - often.low == pytest.approx(once.high - once.low, rel=0.1)


@pytest.mark.parametrize(("tasks", "samples"), [(5, 4), (10, 1), (30, 4)])
def test_intervals_cover_the_truth(tasks: int, samples: int) -> None:
    """Of tasks whose difficulty is spread as beta distributions are."""
    drawn = random.Random(3)
    for alpha, beta in ((0.5, 0.5), (9.0, 1.0)):
        covered = 0
        for _ in range(100):
            rates = [drawn.betavariate(alpha, beta) for _ in range(tasks)]
            scores = [sum(drawn.random() < rate for _ in range(samples)) / samples for rate in rates]
            interval = proportion_interval(scores, tasks * samples)
            assert interval is not None
            covered += interval.low <= alpha / (alpha + beta) <= interval.high
        assert covered >= 82


def test_nothing_has_no_interval() -> None:
    assert proportion_interval([], 0) is None
    assert mean_interval([0.5]) is None


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    [(1, 12.7062), (2, 4.30265), (3, 3.18245), (9, 2.26216), (30, 2.04227), (120, 1.97993), (1000, 1.96234)],
)
def test_the_quantiles_of_students_distribution(freedom: int, quantile: float) -> None:
    assert t_quantile(freedom) == pytest.approx(quantile, rel=1e-5)


def test_the_interval_of_a_mean() -> None:
    low, high = mean_interval([1.0, 2.0, 3.0, 4.0]) or (0, 0)
    half = 3.182446 * math.sqrt(5 / 3) / 2
    assert (low, high) == pytest.approx((2.5 - half, 2.5 + half))


@pytest.mark.parametrize(("better", "worse"), [(8, 2), (1, 0), (5, 5), (30, 12), (0, 6)])
def test_with_one_sample_a_task_the_test_is_mcnemars(better: int, worse: int) -> None:
    """Twice the tail of a binomial distribution over the tasks that differ."""
    count = better + worse
    tail = sum(math.comb(count, hits) for hits in range(max(better, worse), count + 1)) / 2**count
    differences = [1.0] * better + [-1.0] * worse + [0.0] * 50
    assert permutation_p(differences) == pytest.approx(min(1.0, 2 * tail))


def enumerated(differences: Sequence[float]) -> float:
    observed = abs(sum(differences)) - 1e-9
    flips = list(itertools.product((1, -1), repeat=len(differences)))
    return sum(
        abs(sum(sign * size for sign, size in zip(flip, differences, strict=True))) >= observed for flip in flips
    ) / len(flips)


def test_few_differences_are_enumerated() -> None:
    differences = [0.25, -0.5, 0.75, 0.5, 0.25, -0.25, 1.0]
    assert permutation_p(differences) == enumerated(differences)


def test_of_many_differences_a_group_of_flips_is_taken() -> None:
    drawn = random.Random(5)
    differences = [drawn.choice((-0.5, -0.25, 0.25, 0.5, 0.75)) for _ in range(15)]
    assert permutation_p(differences) == pytest.approx(enumerated(differences), abs=0.02)


def test_zeros_leave_the_test_exact() -> None:
    differences = [0.25, -0.5, 0.75, 0.5, 0.25, -0.25, 1.0]
    assert permutation_p([*differences, *[0.0] * 30]) == enumerated(differences)


def test_the_test_of_large_rewards_is_that_of_small_ones() -> None:
    differences = [0.3, 0.5, -0.2, 0.9, 0.1, 0.7]
    assert permutation_p([each * 1e99 for each in differences]) == permutation_p(differences) == enumerated(differences)


def test_no_difference_is_not_significant() -> None:
    assert permutation_p([]) == permutation_p([0.0] * 9) == 1.0


def test_the_test_calls_equal_models_different_one_time_in_twenty() -> None:
    drawn = random.Random(7)

    def score() -> float:
        return sum(drawn.random() < 0.5 for _ in range(3)) / 3

    significant = sum(permutation_p([score() - score() for _ in range(12)]) < 0.05 for _ in range(60))
    assert significant <= 8


def test_the_interval_of_a_difference_is_of_the_values_that_the_test_does_not_reject() -> None:
    """Found by enumerating the flips of the differences from each value; Student's interval is shorter here."""
    differences = [0.9, 0.1, 0.4, -0.2, 0.6, 0.3, 0.2, 0.5]
    interval = difference_interval(differences, permutation_p(differences))
    assert interval is not None
    assert interval.low > 0
    grid = [step / 100 for step in range(-20, 90)]
    kept = [value for value in grid if enumerated([each - value for each in differences]) >= 0.05]
    inverted = (min(kept), max(kept))
    student = mean_interval(differences) or (0, 0)
    assert interval.low == pytest.approx(min(inverted[0], student[0]), abs=0.01)
    assert interval.high == pytest.approx(max(inverted[1], student[1]), abs=0.01)


def test_interval_and_test_of_a_difference_never_contradict_each_other() -> None:
    drawn = random.Random(9)
    seen = {True: 0, False: 0}
    for number in range(60):
        tasks = drawn.randrange(6, 13) if number > 1 else 20 + number  # of which a group of flips is taken
        # Rewards may be of any size; with one sample a task there are three values.
        values = drawn.choice([(-1.0, 0.0, 0.0, 1.0, 1.0), (-0.1, 0.1, 0.2, 5.0), (-0.25, 0.0, 0.75)])
        differences = [drawn.choice(values) for _ in range(tasks)]
        p = permutation_p(differences)
        interval = difference_interval(differences, p)
        if interval is None:
            assert len(set(differences)) == 1
            continue
        assert (interval.low <= 0 <= interval.high) == (p >= 0.05)
        assert interval.low <= sum(differences) / tasks <= interval.high
        seen[p < 0.05] += 1
        mirrored = difference_interval([-each for each in differences], p)
        assert mirrored == pytest.approx((-interval.high, -interval.low))
    assert min(seen.values()) > 4


@pytest.mark.parametrize(("better", "worse"), [(12, 3), (13, 3), (8, 2), (9, 2), (5, 0), (6, 0)])
def test_the_exact_test_decides_beside_drawn_subsets(better: int, worse: int) -> None:
    differences = [1.0] * better + [-1.0] * worse + [0.0] * 20
    p = permutation_p(differences)
    interval = difference_interval(differences, p)
    assert interval is not None
    assert (interval.low > 0) == (p < 0.05)


def test_four_tasks_of_ten_are_no_sure_difference() -> None:
    """Student's interval alone left 0 out, beside p = 0.125."""
    differences = [1.0] * 4 + [0.0] * 6
    assert (mean_interval(differences) or (0, 0))[0] > 0
    assert (difference_interval(differences, permutation_p(differences)) or (1, 1))[0] == 0


def test_differences_without_an_interval() -> None:
    for differences in ([], [1.0], [1.0, 0.9, 0.8, 0.9, 1.0], [0.0] * 9, [1.0] * 9):
        assert difference_interval(differences, permutation_p(differences)) is None


@pytest.mark.parametrize("values", [[0.25, -0.5, 0.75], [0.1 * number for number in range(1, 40)]])
def test_the_order_of_differences_makes_no_difference(values: list[float]) -> None:
    """The command has them in the order of a run's tasks, a page in another one."""
    differences = [value * sign for value in values for sign in (1, 1, -1)] * 3
    shuffled = random.Random(1).sample(differences, len(differences))
    p = permutation_p(differences)
    assert permutation_p(shuffled) == p
    assert difference_interval(shuffled, p) == pytest.approx(difference_interval(differences, p), abs=1e-12)
