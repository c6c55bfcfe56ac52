"""A run from its settings to its report: the work of ``ors-server eval``."""

from __future__ import annotations

import asyncio
import json
import os
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx

from ors_clients.api_keys import server_key
from ors_clients.client.async_client import AsyncClient
from ors_clients.client.environments import AsyncEnvironment
from ors_clients.errors import EvaluationError, InfrastructureFailure, ResponseTooLarge
from ors_clients.evaluation.attempts import Attempt
from ors_clients.evaluation.compare import ComparedRun, compare, read_compared
from ors_clients.evaluation.endpoints.endpoint import ChatEndpoint
from ors_clients.evaluation.journal import JOURNAL, Journal
from ors_clients.evaluation.players import ChatPlayer, Played, Player, TokenPlayer
from ors_clients.evaluation.progress import RunProgress
from ors_clients.evaluation.redaction import Redaction
from ors_clients.evaluation.runner import Runner
from ors_clients.evaluation.settings import EvaluationSettings
from ors_clients.evaluation.summary import Prices, summarize
from ors_clients.evaluation.tasks import choose_environment, choose_tasks, describe, differing_tasks
from ors_clients.evaluation.uploads import EpisodeFile, Uploads, unnoted
from ors_clients.models import Task
from ors_clients.transport.bounded_httpx import BoundedAsyncClient

__all__ = ["Outcome", "RunOptions", "evaluate", "model_key", "run_folder", "run_name"]

#: Variable with the key of any model's endpoint.
MODEL_KEY = "ORS_MODEL_API_KEY"
_OPENAI = "https://api.openai.com"


@dataclass(frozen=True)
class RunOptions:
    """The part of a run that its settings leave open, and that may differ when it goes on."""

    #: Folder of all runs.
    runs: Path
    #: Address of the environments' server; empty where a target is served.
    url: str = ""
    #: Its key; None for that of the environment (``api_keys``).
    server_key: str | None = field(default=None, repr=False)
    name: str | None = None
    resume: str | None = None
    concurrency: int = 8
    #: Sessions that are opened before their episodes begin, at most; None for as many as are played at once.
    prefetch: int | None = None
    #: Times that a lost sample is played again.
    retries: int = 3
    #: Share of attempts with a turn, and of samples, above which failures of the infrastructure fail the run.
    max_failures: float = 0.05
    #: Values of k; the powers of two if none are given.
    ks: Sequence[int] = ()
    prices: Prices = field(default_factory=Prices)
    compare: str | None = None
    #: Address of a server that gets the episodes, ``none``, or None for the environments' own where it keeps them.
    upload: str | None = None
    #: Name of the variable with the endpoint's key.
    key_variable: str | None = None
    request_timeout: float = 600.0
    quiet: bool = False
    #: Seconds before a request or an episode that was lost is tried again; grows from there.
    first_pause: float = 1.0


@dataclass(frozen=True)
class Outcome:
    """A run that has ended, or was stopped."""

    folder: Path
    report: dict[str, Any]
    comparison: dict[str, Any] | None
    #: Why the run stopped early; None if it did not.
    stopped: InfrastructureFailure | None
    #: Where its episodes are, and why not all of them.
    store: str | None
    store_problem: str | None
    #: Why the store has no report of it.
    report_problem: str | None

    @property
    def failed(self) -> bool:
        """True if the run's numbers are not to be trusted."""
        return self.stopped is not None or bool(self.report["failed"])


def model_key(base_url: str, variable: str | None) -> str:
    """Return the key of a model's endpoint; empty if there is none.

    ``OPENAI_API_KEY`` goes to OpenAI's own address and to that of ``OPENAI_BASE_URL``, and to no other. Raises
    ``EvaluationError`` for a named variable that is not set.
    """
    if variable is not None:
        if not os.environ.get(variable):
            raise EvaluationError(f"The variable {variable} holds no key", "Set it, or leave out --api-key-env.")
        return os.environ[variable]
    if key := os.environ.get(MODEL_KEY):
        return key
    own = os.environ.get("OPENAI_BASE_URL", "").rstrip("/")
    if base_url.rstrip("/") == own or f"{base_url}/".startswith(f"{_OPENAI}/"):
        return os.environ.get("OPENAI_API_KEY", "")
    return ""


async def evaluate(settings: EvaluationSettings, options: RunOptions, player: Player | None = None) -> Outcome:
    """Play a run, or what is left of it, and report it. A cancellation leaves it to be resumed.

    ``player`` is the model; by default what the settings name. It is closed at the end. Raises
    ``ConfigurationError``, ``RequestRefused`` and ``ServerUnavailable``.
    """
    secrets = _secrets(settings)
    compared = None if options.compare is None else read_compared(options.runs, options.compare)
    player = player or make_player(settings, options)
    try:
        async with AsyncClient(options.url, api_key=options.server_key) as client:
            environment, split = await choose_environment(client, settings.environment, settings.split)
            settings = replace(settings, environment=environment.name, split=split)
            tasks = await choose_tasks(environment, split, settings.tasks, settings.limit)
            if compared is not None:  # refused before anything is played
                compare(ComparedRun("this run", settings, [describe(task) for task in tasks], []), compared)
            if options.resume is None:  # before its folder is made
                await player.connect()
            journal = _open(settings, options, tasks)
            try:
                if options.resume is not None and journal.record.missing:
                    await player.connect()
                return await _play(journal, environment, tasks, player, options, secrets, compared)
            finally:
                journal.close()
    finally:
        await player.close()


def _open(settings: EvaluationSettings, options: RunOptions, tasks: Sequence[Task]) -> Journal:
    """Open the run's journal. Raises ``EvaluationError`` for one of other settings or tasks."""
    described = [describe(task) for task in tasks]
    if options.resume is None:
        begun = datetime.now(UTC).isoformat(timespec="seconds")
        return Journal.create(options.runs / run_name(settings, options.name), settings, described, begun)
    folder = run_folder(options.runs, options.resume)
    journal = Journal.resume(folder)
    earlier = journal.record
    if different := earlier.settings.differences(settings):
        journal.close()
        raise EvaluationError(
            f"{earlier.name} was begun with other settings: {'; '.join(different)}",
            "Leave those options out, or begin another run.",
        )
    if different := differing_tasks(earlier.tasks, described):
        journal.close()
        raise EvaluationError(f"{earlier.name} was begun with other tasks: {different}", "Begin another run.")
    try:
        noted = {(attempt.task, attempt.sample, attempt.attempt) for attempt in earlier.attempts}
        for attempt in unnoted(folder, noted):
            journal.add(attempt)
    except BaseException:
        journal.close()
        raise
    return journal


async def _play(
    journal: Journal,
    environment: AsyncEnvironment,
    tasks: list[Task],
    player: Player,
    options: RunOptions,
    secrets: dict[str, str],
    compared: ComparedRun | None,
) -> Outcome:
    record = journal.record
    settings, folder = record.settings, options.runs / record.name
    if options.resume is not None:
        folder = run_folder(options.runs, options.resume)
    episodes = EpisodeFile(folder, _labels(record.id, settings), Redaction(secrets.values()))
    store = await _store(options)
    uploads = None if store is None else Uploads(folder, store, _key_of(store, options))
    if uploads is not None:
        uploads.start()
    progress = RunProgress(
        settings, len(record.tasks) * settings.samples, list(record.scored.values()), quiet=options.quiet
    )

    def ended(attempt: Attempt, played: Played) -> None:
        episodes.add(attempt, played, record.tasks[attempt.task], tasks[attempt.task].spec)
        progress.add(attempt)
        if uploads is not None:
            uploads.notify()

    runner = Runner(
        journal,
        environment,
        _in_order(tasks, record.tasks),
        player,
        concurrency=options.concurrency,
        prefetch=options.concurrency if options.prefetch is None else options.prefetch,
        retries=options.retries,
        secrets=secrets,
        on_end=ended,
        first_pause=options.first_pause,
    )
    stopped: InfrastructureFailure | None = None
    with progress:
        try:
            await runner.run()
        except InfrastructureFailure as failure:
            stopped = failure
    problem = None if uploads is None else await asyncio.to_thread(uploads.finish)
    report = summarize(record, max_failures=options.max_failures, ks=options.ks, prices=options.prices)
    unsent = None if uploads is None else await asyncio.to_thread(uploads.send_report, record.id, report)
    comparison = None if compared is None else compare(ComparedRun.of(record), compared)
    return Outcome(folder, report, comparison, stopped, store, problem, unsent)


def make_player(settings: EvaluationSettings, options: RunOptions) -> Player:
    """Return the model of a run. Raises ``ConfigurationError``."""
    key = model_key(settings.base_url, options.key_variable)
    if settings.api == "chat":
        named = {"temperature": settings.temperature, "top_p": settings.top_p, "max_tokens": settings.max_tokens}
        parameters = {name: value for name, value in named.items() if value is not None}
        endpoint = ChatEndpoint(
            settings.base_url,
            settings.model,
            api_key=key,
            parameters=parameters | dict(settings.extra),
            stream=settings.stream,
            timeout=options.request_timeout,
            first_pause=options.first_pause / 2,
        )
        return ChatPlayer(endpoint, settings)
    from ors_clients.rollouts.chat_renderer import ChatRenderer
    from ors_clients.samplers import CompletionsSampler, SGLangSampler
    from ors_clients.training.optional_imports import INSTALL_TRAIN, import_trainer_module

    transformers = import_trainer_module("transformers", INSTALL_TRAIN)
    tokenizer = transformers.AutoTokenizer.from_pretrained(settings.tokenizer)
    if settings.api == "sglang":
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        sampler: Any = SGLangSampler(settings.base_url, headers=headers)
    else:
        sampler = CompletionsSampler(settings.base_url, settings.model, api_key=key or None)
    return TokenPlayer(sampler, ChatRenderer(tokenizer, thinking=settings.thinking), settings)


def run_name(settings: EvaluationSettings, name: str | None) -> str:
    """Return the name of a new run: the given one, or one of the environment, the model and the time.

    Raises ``EvaluationError`` for a name that cannot be a folder's.
    """
    if name is None:
        model = settings.model.rstrip("/").rpartition("/")[2]
        now = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        # Runs that are begun together have the same second.
        words = ("eval", settings.environment or settings.target, model, now, uuid.uuid4().hex[:4])
        name = re.sub(r"[^\w.-]+", "-", "-".join(words)).strip("-.")
    if not re.fullmatch(r"\w[\w.-]{0,199}", name):
        raise EvaluationError(f"{name!r} is not a name of a run", "Use letters, digits, dots, - and _.")
    return name


def run_folder(runs: Path, name: str) -> Path:
    """Return the folder of a run that is given by its name or by its folder."""
    return Path(name) if Path(name, JOURNAL).is_file() else runs / name


def _in_order(tasks: Sequence[Task], described: Sequence[dict[str, Any]]) -> list[Task]:
    """Return the tasks in the order in which the journal has them."""
    known = {json.dumps(describe(task), sort_keys=True): task for task in tasks}
    return [known[json.dumps(task, sort_keys=True)] for task in described]


def _secrets(settings: EvaluationSettings) -> dict[str, str]:
    missing = [name for name in settings.secrets if name not in os.environ]
    if missing:
        raise EvaluationError(f"The variable {missing[0]} is not set", "A --secret is the name of a variable.")
    return {name: os.environ[name] for name in settings.secrets}


def _labels(name: str, settings: EvaluationSettings) -> dict[str, Any]:
    sampling = {key: getattr(settings, key) for key in ("temperature", "top_p", "max_tokens", "samples", "seed")}
    return {
        "run_name": name,
        "environment": settings.environment,
        # The rule of reward, by which stores and pages judge the run.
        "run_info": {
            "model_name": settings.model,
            "kind": "evaluation",
            "reward": settings.reward,
            "success_at": settings.success_at,
            **sampling,
        },
    }


def _key_of(url: str, options: RunOptions) -> str:
    """Return the key of the server at ``url``; empty if there is none."""
    return options.server_key if options.server_key is not None and url == options.url else server_key(url)


async def _store(options: RunOptions) -> str | None:
    """Return the address of the server that gets the episodes; None if there is none."""
    if options.upload == "none":
        return None
    url = options.upload or options.url
    headers = {"x-api-key": key} if (key := _key_of(url, options)) else {}
    problem = ""
    try:
        async with BoundedAsyncClient(base_url=url, headers=headers, timeout=30.0) as client:
            status = (await client.get("/v1/runs", params={"limit": 1})).status_code
        if status == 200:
            return url
        problem = f"it answers {status}"
    except (httpx.HTTPError, ResponseTooLarge) as error:
        problem = f"{type(error).__name__}: {error}"
    if options.upload is None:
        return None  # a server that keeps no rollouts
    raise EvaluationError(f"{url} takes no rollouts: {problem}", "Name another --upload, or none.")
