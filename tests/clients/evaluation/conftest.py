"""Runs of ``ors-server eval`` against a real server, which has an exam, and a scripted endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from ors_clients.evaluation.players import seed_of
from ors_clients.evaluation.run import Outcome, RunOptions, evaluate
from ors_clients.evaluation.settings import EvaluationSettings

from ors_server.server import Server
from ors_server.settings import Settings
from tests.clients.chat_stand_in import ChatStandIn, call
from tests.clients.evaluation.environments import Exam
from tests.clients.scripted_engine import serve_application

Evaluate = Callable[..., Outcome]


@pytest.fixture(scope="module")
def exam_url(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    """Return the address of a server with the exam, which keeps rollouts."""
    settings = Settings(data_dir=tmp_path_factory.mktemp("data"))
    with serve_application(Server([Exam], settings=settings).app) as url:
        yield url


@pytest.fixture(scope="module")
def shared_endpoint() -> Generator[tuple[ChatStandIn, str]]:
    endpoint = ChatStandIn()
    with endpoint.serve() as url:
        yield endpoint, url


@pytest.fixture
def endpoint(shared_endpoint: tuple[ChatStandIn, str]) -> Iterator[ChatStandIn]:
    """Return an endpoint whose model answers right."""
    found = shared_endpoint[0]
    found.__init__(policy=lambda body: call("answer", {"text": "right"}))
    Exam.reset()
    yield found
    assert found.broken == []


@pytest.fixture
def play(exam_url: str, shared_endpoint: tuple[ChatStandIn, str], endpoint: ChatStandIn, tmp_path: Path) -> Evaluate:
    """Return a function that plays a run with these settings and options, quietly and without long pauses."""

    def run(*, options: dict[str, Any] | None = None, **settings: Any) -> Outcome:
        chosen: dict[str, Any] = {
            "target": exam_url,
            "model": "scripted",
            "base_url": shared_endpoint[1],
            "split": "train",
        }
        plan: dict[str, Any] = {"runs": tmp_path / "evals", "url": exam_url, "upload": "none", "first_pause": 0.001}
        return asyncio.run(
            evaluate(EvaluationSettings(**{**chosen, **settings}), RunOptions(**{**plan, **(options or {})}))
        )

    return run


def outcomes_by_seed(table: dict[tuple[int, int], str]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a model whose answer to a sample of a question is known, whatever happens around it."""
    answers = {seed_of(7, f"train:{question}", sample): text for (question, sample), text in table.items()}
    return lambda body: call("answer", {"text": answers[body["seed"]]})
