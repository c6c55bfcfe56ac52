"""``ors-server bench rollout``: the share of an engine's throughput that is left with environments between turns.

``python -m ors_benchmarks.rollout`` is the same, and the way to run it in vLLM's own virtual environment. The exit code
says whether every episode ended, never how fast.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
import uvloop
from ors_clients.rollouts.chat_renderer import ChatRenderer
from ors_clients.samplers.generations import SamplingParameters

from ors_benchmarks.harness.candidates import packages
from ors_benchmarks.harness.commands import (
    RESULTS,
    Charts,
    Output,
    Program,
    choose_names,
    make_folder,
    new_console,
    section,
)
from ors_benchmarks.harness.machine import Observer, describe
from ors_benchmarks.harness.processes import no_server_left, raise_file_limit
from ors_benchmarks.harness.reports.results import write_results
from ors_benchmarks.rollout import tiny_model
from ors_benchmarks.rollout.benchmark import CellPlan, Findings, Plan, measure, on_cores
from ors_benchmarks.rollout.engines.base import without_user
from ors_benchmarks.rollout.engines.emulated.profile import FIRST, Profile
from ors_benchmarks.rollout.engines.vllm import set_environment
from ors_benchmarks.rollout.opening import (
    ENGINES,
    check_available,
    counted,
    load_tokenizer,
    model_files,
    open_engine,
)
from ors_benchmarks.rollout.openreward_session import peer_version
from ors_benchmarks.rollout.reports import charts as rollout_charts
from ors_benchmarks.rollout.reports.progress import Progress
from ors_benchmarks.rollout.reports.report import RolloutReport, print_report
from ors_benchmarks.rollout.runs import RUN_LIMIT, Workload
from ors_benchmarks.rollout.servers import CLIENTS, SERVERS, ServedElsewhere, StartedServer
from ors_server.errors import OrsError

__all__ = ["benchmark", "main"]


def benchmark(
    model: Annotated[
        str | None, typer.Option(help="One of those below. An engine at a URL must serve the same. Default: tiny.")
    ] = None,
    engine: Annotated[str, typer.Option(help=f"One of {', '.join(ENGINES)}.")] = "vllm",
    engine_url: Annotated[
        str | None, typer.Option(metavar="URL", help="The engine of --engine url; ORS_ENGINE_API_KEY is its key.")
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(metavar="NAME", help=f"Of --engine emulated: a name or a JSON file. Default: {FIRST}."),
    ] = None,
    engine_option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A further argument of the engine, such as max_num_seqs=512."),
    ] = None,
    env: Annotated[
        str | None,
        typer.Option(help="What to play: echo, or any target of `ors-server serve`; with --server its name there."),
    ] = None,
    server: Annotated[
        str | None, typer.Option(metavar="URL", help="A running server, instead of one started for each run.")
    ] = None,
    servers: Annotated[
        str, typer.Option(metavar="NAME,...", help=f"Of {', '.join(SERVERS)}; all but ours host echo only.")
    ] = "ours",
    clients: Annotated[str, typer.Option(metavar="NAME,...", help=f"Of {', '.join(CLIENTS)}.")] = "ours",
    split: Annotated[str | None, typer.Option(help="The split tasks are taken from. Default: the first.")] = None,
    tasks: Annotated[
        int | None, typer.Option(min=1, help="How many tasks are played, from the first on. Default 64.")
    ] = None,
    episodes: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Episodes a run. Default: four for each played at once, at least 16, at most 64 more than at once.",
        ),
    ] = None,
    concurrency: Annotated[str | None, typer.Option(metavar="N,...", help="Episodes at once. Default 64.")] = None,
    prefetch: Annotated[
        int | None,
        typer.Option(min=0, help="Sessions of ours that are opened ahead, at most. Default: as many as at once."),
    ] = None,
    think_time: Annotated[str, typer.Option(metavar="SECONDS,...", help="How much longer each tool takes.")] = "0",
    turns: Annotated[
        int | None, typer.Option(min=1, help="Turns of an episode, the last of which ends it. Default 3.")
    ] = None,
    text: Annotated[int, typer.Option(min=0, help="Characters of free text before each call.")] = 0,
    steer: Annotated[
        bool | None,
        typer.Option("--steer/--free", help="Hold the model to valid calls. Default: for random weights only."),
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a turn, at most.")] = 512,
    max_total_tokens: Annotated[int, typer.Option(min=1, help="Tokens of an episode, at most.")] = 8192,
    temperature: Annotated[float, typer.Option(min=0.0)] = 1.0,
    top_p: Annotated[float, typer.Option(min=0.0, max=1.0)] = 1.0,
    top_k: Annotated[int, typer.Option(help="-1: no limit.")] = -1,
    system_prompt: Annotated[str | None, typer.Option(help="Put before each task.")] = None,
    prefix_caching: Annotated[bool, typer.Option("--prefix-caching/--no-prefix-caching")] = True,
    warm_up: Annotated[int, typer.Option(min=0, help="Episodes before anything counts.")] = 16,
    bind: Annotated[
        bool, typer.Option("--bind/--no-bind", help="On a CPU: half of the cores for the engine, half for the rest.")
    ] = True,
    run_limit: Annotated[
        float, typer.Option(metavar="SECONDS", min=1.0, help="A run that takes longer is cut off, and has failed.")
    ] = RUN_LIMIT,
    rounds: Annotated[int | None, typer.Option(min=1, help="How often each run is repeated. Default 5.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Two rounds, 16 at once, two turns.")] = False,
    output: Output = RESULTS,
    name: Annotated[
        str | None, typer.Option(help="Put into the files' names. Default: that of the environment.")
    ] = None,
    with_charts: Charts = True,
) -> None:
    """Measure what environments cost an engine: real episodes, and the same generations without them.

    \b
    Episodes are played through the rollout core of ors_clients against a server
    started for the run. Then the engine generates exactly as many tokens again,
    turn by turn, at the same concurrency and with the same prefixes cached, with
    no environment in between. It ends with 1 if an episode failed, a tool raised
    or the run ended early, and never because something was slow.
    """
    options = {name: value for name, value in locals().items() if name not in ("output", "with_charts", "name")}
    console = new_console()
    if engine not in ENGINES:
        raise typer.BadParameter(f"{engine!r} is none of {', '.join(ENGINES)}.", param_hint="--engine")
    if (engine == "url") != (engine_url is not None):
        raise typer.BadParameter("--engine url and --engine-url belong together.", param_hint="--engine-url")
    emulated: Profile | None = None
    if engine == "emulated":
        for option, given in (
            ("--model", model is not None),
            ("--engine-option", bool(engine_option)),
            ("--no-prefix-caching", not prefix_caching),
            ("--free", steer is False),
        ):
            if given:
                raise typer.BadParameter("An emulated engine is what its profile says.", param_hint=option)
        emulated = Profile.load(profile or FIRST)
    elif profile is not None:
        raise typer.BadParameter("--profile is of --engine emulated.", param_hint="--profile")
    model = model or ("tiny" if emulated is None else emulated.model)
    if emulated is not None and not quick:
        # As loaded as the machine that was recorded, with its waves of episodes.
        cores = len(os.sched_getaffinity(0))
        load, at_once = emulated.loads.get(env or "echo"), emulated.at_once(cores)
        if load is not None:
            turns, tasks = turns or load.turns, tasks or emulated.tasks(load, cores)
            episodes = episodes or (load.waves * at_once if concurrency is None else None)
        concurrency, rounds = concurrency or str(at_once), rounds or 3
    concurrency, tasks = concurrency or ("16" if quick else "64"), tasks or 64
    turns = turns or (2 if quick else 3)
    chosen_servers = choose_names(servers, SERVERS, "--servers")
    think_times = _numbers(think_time, "--think-time")
    if server is not None and (chosen_servers != ["ours"] or think_times != [0.0]):
        raise typer.BadParameter("A running server is what it is: no --servers or --think-time.", param_hint="--server")
    if env not in (None, "echo") and chosen_servers != ["ours"]:
        raise typer.BadParameter("The servers of the SDKs host echo only.", param_hint="--servers")
    counts = _counts(concurrency, "--concurrency")
    if not math.isfinite(run_limit):
        raise typer.BadParameter("A run needs a limit.", param_hint="--run-limit")
    chosen_clients = choose_names(clients, CLIENTS, "--clients")
    arguments = _options(engine_option)
    check_available(engine, model, with_charts=with_charts)
    make_folder(output)
    raise_file_limit()
    started, clock = datetime.now(UTC), time.monotonic()
    sampling = SamplingParameters(max_tokens=max_tokens, temperature=temperature, top_p=top_p, top_k=top_k)
    steered = (emulated is not None or model in tiny_model.SHAPES) if steer is None else steer
    pinned: Sequence[int] | None = None
    others: Sequence[int] | None = None
    allowed = sorted(os.sched_getaffinity(0))
    if bind and engine == "vllm" and len(allowed) > 1 and not _has_gpu():
        pinned, others = allowed[: len(allowed) // 2], allowed[len(allowed) // 2 :]
    found = Findings([], [])
    description: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="ors-bench-") as folder, Observer() as observer:

        def cell(name: str, client: str, count: int, think: float) -> CellPlan:
            served = (
                ServedElsewhere(server)
                if server is not None
                else StartedServer(SERVERS[name], env or "echo", think, Path(folder), None)
            )
            workload = Workload(
                tasks=(),
                episodes=episodes or max(16, min(4 * count, count + 64)),
                concurrency=count,
                turns=turns,
                sampling=sampling,
                max_total_tokens=max_total_tokens,
                steered=steered,
                free_characters=text,
                system_prompt=system_prompt,
                prefetch=(count if prefetch is None else prefetch) if client == "ours" else 0,
                limit=run_limit,
            )
            return CellPlan(served, client, workload)

        plan = Plan(
            cells=[
                cell(name, client, count, think)
                for think in think_times
                for count in counts
                for name in chosen_servers
                for client in chosen_clients
            ],
            rounds=rounds or (2 if quick else 5),
            warm_up=warm_up,
            environment=env if server is not None else None,
            split=split,
            tasks=tasks,
        )
        watcher = Progress(console)

        async def whole() -> None:
            watcher.begin(f"preparing the model {Path(model).name}", 0)
            if engine == "vllm":
                # Before anything imports torch.
                set_environment()
            files = model_files(model, engine)
            tokenizer = load_tokenizer(files)
            renderer = ChatRenderer(tokenizer)
            with on_cores(pinned) as move:
                watcher.begin(f"starting {engine} with {files.name}", 0)
                opened = await open_engine(
                    engine, files, engine_url, arguments, prefix_caching, pinned, others, max(counts), emulated
                )
                async with counted(opened, observer):
                    description.update(opened.description())
                    if others is not None:
                        move(others)
                    # What was made to start with is there to stay: no collection during a run need look at it.
                    gc.collect()
                    gc.freeze()
                    await measure(opened, renderer, plan, watcher, found)

        crash: Exception | None = None
        with no_server_left(), watcher.bar, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            try:
                runner.run(whole())
            except OrsError as error:
                found.ended_early = str(error)
            except KeyboardInterrupt:
                found.ended_early = "It was interrupted"
            except Exception as error:  # noqa: BLE001 - a bug; what was measured is reported before it is raised again
                crash, found.ended_early = error, f"{type(error).__name__}: {error}"
        machine = observer.finish(describe())
    report = RolloutReport(
        ratio=found.cells[0].ratio.median if found.cells and found.cells[0].ratio is not None else None,
        ended_early=found.ended_early,
        started=started.replace(microsecond=0),
        seconds=round(time.monotonic() - clock, 1),
        machine=machine.model_copy(update={"pinned": pinned is not None}),
        model=Path(model).name,
        engine=engine,
        engine_description=description,
        packages=_packages(plan),
        options={
            **options,
            # No path of this machine, and no secret.
            "engine_url": engine_url and without_user(engine_url),
            "server": server and without_user(server),
            "env": Path((env or "echo").partition(":")[0]).name,
            "model": Path(model).name,
            "profile": profile and Path(profile).name,
            "concurrency": counts,
            "episodes": episodes,
            "tasks": tasks,
            "turns": turns,
        },
        rounds=_rounds(found),
        cells=found.cells,
        timeline=found.timeline,
        cache_emptied=found.cache_emptied,
    )
    console.print()
    print_report(report, console)
    what = "emulated-" if emulated is not None and name is None else ""
    stem = f"rollout-{what}{_slug(name or env or 'echo')}-{report.started:%Y-%m-%d}"
    draw = partial(rollout_charts.draw, report, output) if with_charts else None
    written = write_results(report, output, stem, draw, console)
    if crash is not None:
        raise crash
    failed = any(cell.failures or cell.environment_errors or cell.notes for cell in report.cells)
    if report.ended_early or failed or not written:
        raise typer.Exit(1)


def _rounds(found: Findings) -> int:
    """Count the rounds of the first cell: fewer than planned if the run ended early."""
    seconds = found.cells[0].figures.get("seconds") if found.cells else None
    return len(seconds.values) if seconds is not None else 0


def _packages(plan: Plan) -> dict[str, dict[str, str]]:
    """Versions of the packages of this process and of the servers that are installed."""
    pythons = {"client": sys.executable}
    for cell in plan.cells:
        if isinstance(cell.server, StartedServer) and cell.server.candidate.requirements:
            python = cell.server.candidate.prepared()
            if python is not None:
                pythons[cell.server.title] = python
    found: dict[str, dict[str, str]] = {}
    for name, python in pythons.items():
        with contextlib.suppress(OSError, subprocess.CalledProcessError):  # also Ctrl-C ends what is asked
            found[name] = packages(python)
    version = peer_version()
    if version is not None:
        found["openreward client"] = {"openreward": version}
    return found


def _has_gpu() -> bool:
    return Path("/dev/nvidiactl").exists()


def _numbers(text: str, option: str) -> list[float]:
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a list of numbers.", param_hint=option) from None
    if not all(0 <= number < math.inf for number in found):
        raise typer.BadParameter("None may be negative, infinite or no number.", param_hint=option)
    return list(dict.fromkeys(found))


def _counts(text: str, option: str) -> list[int]:
    found = _numbers(text, option)
    if not all(number >= 1 and number.is_integer() for number in found):
        raise typer.BadParameter("At least one episode at once, and whole ones.", param_hint=option)
    return [int(number) for number in found]


def _options(pairs: Sequence[str] | None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if not equals:
            raise typer.BadParameter(f"{pair!r} is not NAME=VALUE.", param_hint="--engine-option")
        try:
            found[name] = json.loads(value)
        except ValueError:  # a plain word
            found[name] = value
    return found


def _slug(target: str) -> str:
    return "".join(sign if sign.isalnum() else "-" for sign in Path(target).name).strip("-").lower() or "environment"


main = Program(
    benchmark,
    section(
        "Models",
        [
            "tiny                1 M parameters with random weights, made here in seconds",
            *(f"{name:<19} that shape with random weights, for a GPU" for name in tiny_model.SHAPES if name != "tiny"),
            "PATH                a folder with a model of the Hugging Face form",
        ],
    ),
    section(
        "Engines",
        [
            "vllm          AsyncLLM in a process of its own, on CUDA or the CPU; needs vLLM's",
            "              environment: $(scripts/vllm-venv) -m ors_benchmarks.rollout …",
            "url           a running vLLM server: --engine-url http://127.0.0.1:8000",
            "emulated      the times of an accelerator, without one: --profile, by default",
            f"              {FIRST}; as many episodes at once as these cores can",
            "              be asked for, in as many turns, as were recorded",
        ],
    ),
    section(
        "Examples",
        [
            "python -m ors_benchmarks.rollout --quick      a minute or two, on a CPU",
            "python -m ors_benchmarks.rollout --servers ours,ors-sdk,openreward \\",
            "    --clients ours,openreward                 beside the SDKs it replaces",
            "python -m ors_benchmarks.rollout --env terminal --turns 4",
            "python -m ors_benchmarks.rollout --concurrency 64,1,4,16,256,1024 \\",
            "    --think-time 0,0.01,0.1,1 --rounds 1      the ladder",
            "python -m ors_benchmarks.rollout --model qwen3-0.6b-random \\",
            "    --concurrency 256                         on a GPU",
        ],
    ),
    "The headline is the ratio of the first server, client, concurrency and",
    "think-time: throughput with environments ÷ throughput of the same engine for",
    "the same generations without, which are replayed in the same run.",
)
