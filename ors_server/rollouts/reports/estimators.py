"""Estimators of an evaluation: pass@k, intervals over tasks, and tests of paired differences. Pure functions.

Tasks are what is drawn: the samples of one task resemble each other, so an interval treats a task as a
cluster. Sources:

* pass@k: Chen et al. 2021, "Evaluating Large Language Models Trained on Code", the unbiased estimator.
* Intervals of proportions: Wilson's, with the effective number of samples of Korn and Graubard 1998 (compared with
  others for clusters by Dean and Pagano 2015). With one sample a task it is Wilson's interval itself.
* Intervals of means: Student's t over the means of tasks (Miller 2024, "Adding Error Bars to Evals").
* Differences: the sign-flip permutation test over tasks, which is McNemar's exact test where each task has one sample.
  Of many differences a group of flips is taken, whose sums one transform gives (Koning and Hemerik 2024, "More
  Efficient Exact Group-Invariance Testing: Using a Representative Subgroup"). Its interval inverts the same test: the
  ends are order statistics of the means of subsets (Hartigan 1969, "Using Subsample Values as Typical Values").
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from functools import cache
from operator import add, sub
from typing import NamedTuple

__all__ = [
    "FEWEST_DIFFERENCES",
    "SIGNIFICANT",
    "SMALLEST_P",
    "Interval",
    "difference_interval",
    "mean_interval",
    "pass_at_k",
    "permutation_p",
    "proportion_interval",
    "t_quantile",
    "wilson",
]

#: Two-sided 95 %.
_LEVEL = 0.975
_Z = statistics.NormalDist().inv_cdf(_LEVEL)
#: Differences that are seen by chance alone less often than this are called significant.
SIGNIFICANT = 0.05
#: Of fewer, even the surest of their flips is not significant.
FEWEST_DIFFERENCES = 6
#: Degrees of freedom from which on Student's t is taken from its expansion about the normal distribution.
_MANY = 200
#: Differences of which all sign flips are taken, at most; of more, a group of as many flips.
_ALL_FLIPS = 14
#: The least probability of a group of flips, of which two opposite ones count as one.
SMALLEST_P = 2.0 ** (1 - _ALL_FLIPS)
#: Sums that differ by less are the same: they are of the same terms in another order.
_SAME = 1e-9


class Interval(NamedTuple):
    """A 95 % confidence interval."""

    low: float
    high: float


def pass_at_k(samples: int, successes: int, k: int) -> float:
    """Return the unbiased estimate of the probability that one of ``k`` samples succeeds. Needs ``k <= samples``."""
    if not 0 < k <= samples or not 0 <= successes <= samples:
        raise ValueError(f"pass@{k} of {successes} successes in {samples} samples")
    return 1.0 - math.comb(samples - successes, k) / math.comb(samples, k)


def wilson(proportion: float, samples: float) -> Interval:
    """Return Wilson's interval of a proportion of so many independent samples, which need not be a whole number."""
    square = _Z * _Z / samples
    centre = proportion + square / 2
    half = _Z * math.sqrt(proportion * (1 - proportion) / samples + square / (4 * samples))
    low, high = (centre - half) / (1 + square), (centre + half) / (1 + square)
    return Interval(0.0 if proportion == 0 else max(0.0, low), 1.0 if proportion == 1 else min(1.0, high))


def proportion_interval(scores: Sequence[float], samples: int) -> Interval | None:
    """Return the interval of the mean of tasks' scores between 0 and 1, of so many samples in all; None without tasks.

    Of a single task it is the interval over its samples, and says nothing about other tasks.
    """
    tasks = len(scores)
    if not tasks:
        return None
    mean = min(1.0, max(0.0, math.fsum(scores) / tasks))
    if tasks == 1:
        return wilson(mean, samples)
    spread = mean * (1 - mean)
    squared_error = statistics.variance(scores, mean) / tasks
    if spread <= 0:
        return wilson(mean, tasks)  # no difference was seen between tasks: their samples count as one each
    effective = samples if squared_error <= 0 else spread / squared_error
    effective *= (t_quantile(samples - 1) / t_quantile(tasks - 1)) ** 2
    # A variance that is known from few tasks may be too small by chance, and cannot be larger than that of tasks which
    # are solved always or never.
    return wilson(mean, max(float(tasks), min(float(samples), effective)))


def mean_interval(means: Sequence[float]) -> Interval | None:
    """Return Student's interval of the mean of these means; None of fewer than two."""
    if len(means) < 2:
        return None
    mean = math.fsum(means) / len(means)
    half = t_quantile(len(means) - 1) * statistics.stdev(means, mean) / math.sqrt(len(means))
    return Interval(mean - half, mean + half)


@cache
def t_quantile(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t distribution."""
    if freedom >= _MANY:
        return _Z + (_Z**3 + _Z) / (4 * freedom) + (5 * _Z**5 + 16 * _Z**3 + 3 * _Z) / (96 * freedom**2)
    low, high = 0.0, 13.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_within(middle, freedom) < 2 * _LEVEL - 1 else (low, middle)
    return high


def _t_within(t: float, freedom: int) -> float:
    """Return P(-t < T < t): the finite sums of Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    angle = math.atan(t / math.sqrt(freedom))
    cosine = math.cos(angle)
    odd = freedom % 2
    term = total = 0.0
    if freedom > 1:
        term = total = cosine if odd else 1.0
        for step in range(2 + odd, freedom - 1, 2):
            term *= cosine * cosine * (step - 1) / step
            total += term
    total *= math.sin(angle)
    return (angle + total) * 2 / math.pi if odd else total


def permutation_p(differences: Sequence[float]) -> float:
    """Return the two-sided probability of a mean difference as large as this one, were each sign a coin's toss.

    Exact for equal sizes (McNemar) and for up to 14 differences; of more, a group of 16,384 flips is taken. Their order
    makes no difference.
    """
    sizes = [abs(difference) for difference in differences if difference]
    if not sizes:
        return 1.0
    if math.fsum(differences) < 0:
        return permutation_p([-difference for difference in differences])
    if max(sizes) - min(sizes) < _SAME:
        count = len(sizes)
        positive = sum(difference > 0 for difference in differences)
        tail = sum(math.comb(count, hits) for hits in range(max(positive, count - positive), count + 1))
        return min(1.0, 2 * tail / 2**count)
    flips = _flips(differences)
    observed = flips[0].real - _SAME * max(1.0, *sizes)
    return sum(abs(flip.real) >= observed for flip in flips) / len(flips)


def difference_interval(differences: Sequence[float], p: float) -> Interval | None:
    """Return the interval of a mean difference, which holds 0 just where ``p`` of ``permutation_p`` is not significant.

    None of fewer than six differences, of which the test excludes nothing, and where all are the same. Student's
    interval counts where it reaches further, but not to 0 from a significant difference: of few values, as of one
    sample a task, subsets alone give too short an interval.
    """
    student = mean_interval(differences)
    if student is None or len(differences) < FEWEST_DIFFERENCES or max(differences) - min(differences) < _SAME:
        return None
    if math.fsum(differences) < 0:
        mirrored = difference_interval([-difference for difference in differences], p)
        return None if mirrored is None else Interval(0.0 - mirrored.high, 0.0 - mirrored.low)
    means, total = _means_of_subsets(differences)
    # The test at a value counts the subsets whose mean is at most that value, the empty one among them, on either side.
    rank = math.ceil(SIGNIFICANT / 2 * total - _SAME) - 1
    low, high = means[rank - 1], max(means[-rank], student.high)
    if p >= SIGNIFICANT:
        return Interval(min(low, student.low, 0.0), high)
    # Ends of drawn subsets are near, and the test may be exact: it decides on which side of 0 they lie.
    lows = [end for end in (low, student.low) if end > _SAME]
    return Interval(min(lows) if lows else next((mean for mean in means if mean > _SAME), high), high)


def _means_of_subsets(values: Sequence[float]) -> tuple[list[float], int]:
    """Return the means of the subsets of flipped values but the empty one, in order; and how many there are with it."""
    flips = _flips(values)
    # A flip turns over one subset and leaves its complement, which is what the opposite flip turns over.
    rests = [(flips[0] - flip, flips[0] + flip) for flip in flips]
    return sorted(each.real / each.imag for rest in rests for each in rest if each.imag), 2 * len(flips)


def _flips(values: Sequence[float]) -> list[complex]:
    """Return the sum of the values in each flip of their signs, and, as imaginary part, that of as many ones.

    The first flip is the one that changes nothing. Of two opposite flips one is there. Of up to 14 values it is all
    flips, else a group that has all flips of the 14 largest.
    """
    rounds = min(len(values), _ALL_FLIPS) - 1
    sums = [0j] * 2**rounds
    numbers = [1 << place >> 1 for place in range(rounds + 1)]
    if len(values) > len(numbers):
        drawn = random.Random(0)  # noqa: S311 - statistics
        numbers += drawn.choices(range(1, len(sums)), k=len(values) - len(numbers))
    # Flip number f changes the sign of the values whose number has an odd count of bits with f in common.
    for number, value in zip(numbers, sorted(values, key=lambda value: (-abs(value), value)), strict=True):
        sums[number] += complex(value, 1)
    for _ in range(rounds):  # the transform of Walsh and Hadamard
        even, odd = sums[::2], sums[1::2]
        sums = [*map(add, even, odd), *map(sub, even, odd)]
    return sums
