"""``ors-server train``: a model that gets better, and how sure that is."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import re
import shlex
import signal
import uuid
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import httpx
import typer
import uvloop
from ors_clients.api_keys import server_key
from ors_clients.client.async_client import AsyncClient
from ors_clients.errors import ConfigurationError, ResponseTooLarge
from ors_clients.learning.plan import Plan
from ors_clients.learning.stages import written
from ors_clients.transport.bounded_httpx import BoundedAsyncClient
from ors_containers.linux.syscalls import end_with_parent

from ors_cli.flags import read_settings
from ors_cli.measuring.eval_target import address_of, is_address, serving
from ors_cli.measuring.train_python import package_path, trainer_python
from ors_cli.measuring.train_subjects import make_plan, subject_of
from ors_server.errors import InfrastructureFailure
from ors_server.rollouts.location import data_directory

__all__ = ["TRAIN_EXAMPLES", "train"]

TRAIN_EXAMPLES = """[bold]Examples[/bold]
  ors-server train echo --tiny                        a model of 70,000 weights learns to echo words: three minutes
  ors-server train terminal --tiny                    … to write commands, graded in sandboxes: twelve minutes
  ors-server train terminal --tiny --seed 1 --json report.json
  ors-server train --resume NAME                      go on after a crash, or see the report again
  ors-server train http://127.0.0.1:8080 --tiny       on a server that runs already

[bold]The trainer's Python[/bold] has TRL 1.16 and PyTorch; a checkout makes one with scripts/trl-venv. It may be
another one than the server's. A tiny model is made on the spot, on two processors, without a download.

[bold]Exit status[/bold] 0: trained and measured, whether or not it got better. 1: interrupted, or the infrastructure
failed too often. 2: it cannot be trained."""


def train(
    ctx: typer.Context,
    target: Annotated[
        str | None, typer.Argument(metavar="[URL|TARGET]", help="echo, terminal, or a server with one of them.")
    ] = None,
    tiny: Annotated[
        bool, typer.Option("--tiny", help="Make a small model here, and teach it the form of calls first.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of the weights, the order of tasks and the samples.")] = 0,
    name: Annotated[
        str | None, typer.Option("--run", metavar="NAME", help="Its name; made of target and time.")
    ] = None,
    resume: Annotated[str | None, typer.Option(metavar="NAME", help="Go on with a run, from its checkpoint.")] = None,
    python: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The trainer's Python; one at hand. [dim]ORS_TRAIN_PYTHON[/dim]"),
    ] = None,
    report: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the report as JSON.")] = None,
    data_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Runs are in its folder trainings. [dim]ORS_DATA_DIR[/dim]")
    ] = None,
) -> None:
    """Train a model on an environment, and measure what it learnt on tasks whose values it never saw.

    The report has the difference with its interval, what other answers earn, and how much is only sharper sampling.
    """
    if not (target or resume):
        typer.echo(ctx.get_help())
        raise typer.Exit(2)
    if resume is None and not tiny:
        raise ConfigurationError(
            "Which model is to be trained?", "--tiny makes one here. For others, docs/trainers.md has a recipe each."
        )
    folder = data_directory(read_settings({} if data_dir is None else {"data_dir": data_dir}).data_dir).absolute()
    trainer = trainer_python(python)
    named = resume or _name(target or "", name)
    where = "" if data_dir is None else f" --data-dir {shlex.quote(str(data_dir))}"
    go_on = f"ors-server train --resume {named}{where}"
    run = folder / "trainings" / named
    try:
        with _locked(run, new=resume is None):
            plan = None if resume is None else _read_plan(run)
            if plan is not None:
                target, seed = plan.target, plan.seed
            code = uvloop.run(_train(target or "", seed, plan, run, folder, trainer))
    except KeyboardInterrupt:
        code = 130
    except InfrastructureFailure as error:  # the server that was started for the run has ended
        typer.echo(error.text, err=True)
        code = 1
    if code == 2:  # the process has said why
        raise typer.Exit(2)
    if code not in (0, 1) or not (run / "report.json").exists():
        ended = "Interrupted" if code in (1, 130) else f"The process that trains ended with status {code}"
        typer.echo(f"{ended}. Go on with: {go_on}", err=True)
        raise typer.Exit(1)
    _print_end(run, report, target or "", where)
    raise typer.Exit(code)


async def _train(target: str, seed: int, plan: Plan | None, run: Path, folder: Path, trainer: Path) -> int:
    """Serve the target, plan the run if it is new, and train in a process of its own. Return its exit status."""

    def serve(target: str) -> AbstractAsyncContextManager[tuple[str, str | None]]:
        return serving(target, folder, subject_of([target]).variables)

    async with address_of(target, serve) as (address, key):
        url = address.rstrip("/")
        variables = dict(os.environ)
        variables["ORS_API_KEY"] = server_key(url) if key is None else key
        if plan is None:
            async with AsyncClient(url, api_key=variables["ORS_API_KEY"]) as client:
                plan = await make_plan(client, target, run.name, seed)
            with written(run / "plan.json"):
                (run / "plan.json").write_text(json.dumps(plan.as_json()))
        upload = "upload" if await _keeps_rollouts(url, variables["ORS_API_KEY"]) else "none"
        if path := package_path():
            variables["PYTHONPATH"] = path
        process = await asyncio.create_subprocess_exec(
            *(str(trainer), "-W", "ignore::FutureWarning", "-m", "ors_clients.learning"),
            *(str(run), str(folder / "evals"), url, upload),
            stdin=asyncio.subprocess.DEVNULL,
            env=variables | {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "TQDM_DISABLE": "1"},
            preexec_fn=partial(end_with_parent, signal.SIGTERM),
        )  # fmt: skip
        try:
            return await process.wait()
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.terminate()
                await process.wait()


async def _keeps_rollouts(url: str, key: str) -> bool:
    try:
        async with BoundedAsyncClient(base_url=url, headers={"x-api-key": key}, timeout=30.0) as client:
            return (await client.get("/v1/runs", params={"limit": 1})).status_code == 200
    except (httpx.HTTPError, ResponseTooLarge):
        return False


def _name(target: str, name: str | None) -> str:
    """Return the name of a new run. Raises ``ConfigurationError`` for one that cannot be a folder's."""
    if name is None:
        now = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        name = re.sub(r"[^\w.-]+", "-", f"train-{target}-{now}-{uuid.uuid4().hex[:4]}").strip("-.")
    if not re.fullmatch(r"\w[\w.-]{0,150}", name):
        raise ConfigurationError(f"{name!r} is not a name of a run", "Use letters, digits, dots, - and _.")
    return name


@contextlib.contextmanager
def _locked(run: Path, *, new: bool) -> Any:
    """Make or find a run's folder, and hold its lock. Raises ``ConfigurationError``."""
    if new:
        try:
            run.mkdir(parents=True, mode=0o700)
        except FileExistsError:
            raise ConfigurationError(
                f"There is a run {run.name} already", f"--resume {run.name} goes on with it."
            ) from None
        except OSError as error:
            raise ConfigurationError(f"{run} cannot be made: {error}", "Name another --data-dir.") from error
    elif not run.is_dir():
        raise ConfigurationError(f"There is no run {run.name} in {run.parent}", "Its name is what --run gave it.")
    with (run / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigurationError(f"{run.name} is being trained by another process", "Wait for it.") from None
        yield


def _read_plan(run: Path) -> Plan:
    try:
        return Plan.from_json(json.loads((run / "plan.json").read_bytes()))
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{run.name} was interrupted before it had a plan ({error})", "Begin a new run."
        ) from error


def _print_end(run: Path, report: Path | None, target: str, where: str) -> None:
    """Print where the run and its page are, and copy the report."""
    text = (run / "report.json").read_text()
    if report is not None:
        try:
            report.write_text(text)
        except OSError as error:
            raise ConfigurationError(f"{report} cannot be written: {error}", f"The report is in {run}.") from error
    page = f"/ui/run?run={quote(run.name)}"
    if is_address(target):
        typer.echo(f"Every episode is on the run's page: {target.rstrip('/')}{page}")
    else:
        typer.echo(
            f"Every episode is on the run's page: ors-server serve {target}{where}, then http://127.0.0.1:8080{page}"
        )
