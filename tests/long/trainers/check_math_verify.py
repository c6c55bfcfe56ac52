"""Answers scored by the real math_verify, in Atropos environments that run on a thread of their own.

GSM8K's environment itself reads its data set from the hub; ``SolvingEnv`` scores in the same way. Run by
``tests/long/test_trainers.py`` in the trainers' environment.
"""

from __future__ import annotations

import sys
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from ors_clients.client.async_client import AsyncClient
from ors_clients.trainers.atropos.host import AtroposHost, AtroposSettings
from ors_clients.trainers.atropos.math_verify_timeouts import bound_math_verify

from tests.clients.byte_tokenizer import save_byte_tokenizer
from tests.support.paths import ROOT
from tests.support.servers import served

#: Answers to 2 + 2. Two of them can only be judged by mathematics.
ANSWERS = [
    ("It is $\\boxed{4}$.", 1.0),
    ("It is $\\boxed{\\frac{8}{2}}$.", 1.0),
    ("It is $\\boxed{5}$.", -1.0),
    ("It is $\\boxed{\\sqrt{5}}$.", -1.0),
]
COMPANION = "I do not know the answer to this question."


@pytest.fixture(scope="module")
def tokenizer_name(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_byte_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def host(tokenizer_name: str) -> AtroposHost:
    name, config = "tests.clients.atropos_environments:SolvingEnv", {"tokenizer_name": tokenizer_name}
    return AtroposHost(AtroposSettings(name, config, (COMPANION,), unscored=-1.0))


@pytest.mark.parametrize(("answer", "score"), ANSWERS)
def test_a_host_scores(host: AtroposHost, answer: str, score: float) -> None:
    async def play() -> Any:
        assert threading.current_thread() is not threading.main_thread()
        episode = await host.episode(2)
        await episode.start()
        return await episode.answer(answer)

    turn = host.loop.run(play(), 60)
    assert (turn.over, turn.outcome) == (True, score)


async def test_a_served_environment_scores(tokenizer_name: str, tmp_path: Path) -> None:
    target = ROOT / "tests" / "clients" / "atropos_served_environments.py"
    variables = {"BYTE_TOKENIZER": tokenizer_name, "PYTHONPATH": f"{ROOT}:{ROOT / 'clients'}:{ROOT / 'containers'}"}
    with served(tmp_path, target, **variables) as url:
        async with AsyncClient(url) as client:
            for answer, score in ANSWERS:
                async with client.environment("solving").session(split="train", index=2) as session:
                    result = await session.call("respond", {"message": answer})
                    assert (result.reward, result.finished) == (score, True)


@pytest.mark.parametrize("thread", ["main", "other"])
def test_time_limits_hold_on_every_thread(thread: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bound_math_verify()
    package = import_module("math_verify")

    def for_ever(*arguments: Any, **options: Any) -> None:
        while True:
            pass

    monkeypatch.setattr(sys.modules["math_verify.parser"], "extract_target_from_pred", for_ever)
    monkeypatch.setattr(sys.modules["math_verify.grader"], "sympy_expr_eq", for_ever)
    numbers = import_module("sympy").Integer(4), import_module("sympy").Integer(5)
    outcomes: list[Any] = []

    def work() -> None:
        outcomes.append(package.parse("$\\boxed{4}$", parsing_timeout=1))
        outcomes.append(package.verify(*numbers, timeout_seconds=1))

    begun = time.monotonic()
    if thread == "main":
        work()
    else:
        worker = threading.Thread(target=work, daemon=True)
        worker.start()
        worker.join(60)
    assert outcomes == [[], False]
    assert 2 <= time.monotonic() - begun < 20
