"""The part of many combinations of parameters that the gate runs."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import product
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tests.support.combinations import not_needed


@given(st.lists(st.integers(1, 5), min_size=1, max_size=3))
def test_each_value_is_in_a_case_that_runs(sizes: list[int]) -> None:
    cases = [frozenset(enumerate(case)) for case in product(*map(range, sizes))]
    left_out = set(not_needed(cases, [bytes([index]) for index in range(len(cases))]))
    run = [case for index, case in enumerate(cases) if index not in left_out]
    assert frozenset[tuple[int, int]]().union(*run) == frozenset().union(*cases)
    assert max(sizes) <= len(run) <= sum(sizes)


SOURCE = """
import pytest

@pytest.fixture(params=["walk", "swim"])
def way(request):
    return request.param

@pytest.mark.combinations
@pytest.mark.parametrize("speed", ["slow", "fast", pytest.param("faster", marks=pytest.mark.long)])
def test_it(way, speed): pass

@pytest.mark.combinations
@pytest.mark.parametrize(("first", "second"), [(1, 1), (1, 2), (2, 1), (2, 2)])
def test_together(way, first, second): pass

@pytest.mark.parametrize("speed", [1, 2])
def test_every_one(way, speed): pass
"""


def test_the_long_tests_have_the_rest(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("from tests.conftest import pytest_collection_modifyitems\n")
    (tmp_path / "test_it.py").write_text(SOURCE)
    markers = "[pytest]\nmarkers =\n    long: long\n    combinations: combinations\n"
    (tmp_path / "pytest.ini").write_text(markers)

    def passed(selected: str) -> set[str]:
        command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-m", selected]
        variables = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, check=True, text=True)
        return {line.split("::")[1].split()[0] for line in done.stdout.splitlines() if " PASSED" in line}

    of_the_gate, long = passed("not long"), passed("long")
    assert not of_the_gate & long
    assert len(of_the_gate) == 2 + 4 + 4
    assert len(long) == 2 + 2 + 4
