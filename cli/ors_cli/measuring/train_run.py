"""The run of ``ors-server train``: its folder, its lock, its server, and the process that trains."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import uuid
from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from urllib.parse import quote

import httpx
import typer
from ors_clients.api_keys import server_key
from ors_clients.client.async_client import AsyncClient
from ors_clients.errors import ConfigurationError, ResponseTooLarge
from ors_clients.learning.plan import Plan
from ors_clients.learning.stages import write_json
from ors_clients.transport.bounded_httpx import BoundedAsyncClient
from ors_containers.linux.file_locks import try_lock
from ors_containers.linux.syscalls import end_with_parent

from ors_cli.measuring.eval_target import address_of, is_address, serving
from ors_cli.measuring.train_python import package_path
from ors_cli.measuring.train_subjects import subject_of

__all__ = ["locked", "print_end", "read_plan", "run_named", "train_on"]


async def train_on(
    target: str,
    plan: Plan | None,
    make: Callable[[AsyncClient], Awaitable[Plan]],
    run: Path,
    folder: Path,
    trainer: Path,
    *,
    tiny: bool,
) -> int:
    """Serve the target, plan the run if it is new, and train in a process of its own. Return its exit status."""
    tiny = tiny if plan is None else plan.tiny is not None

    def serve(target: str) -> AbstractAsyncContextManager[tuple[str, str | None]]:
        return serving(target, folder, subject_of([target]).variables if tiny else None)

    async with address_of(target, serve) as (address, key):
        url = address.rstrip("/")
        variables = dict(os.environ)
        variables["ORS_API_KEY"] = server_key(url) if key is None else key
        if plan is None:
            async with AsyncClient(url, api_key=variables["ORS_API_KEY"]) as client:
                plan = await make(client)
            write_json(run / "plan.json", plan.as_json())
        upload = "upload" if await _keeps_rollouts(url, variables["ORS_API_KEY"]) else "none"
        if path := package_path():
            variables["PYTHONPATH"] = path
        if plan.model is None or Path(plan.model).is_absolute():
            variables["HF_HUB_OFFLINE"] = "1"
        # One GPU, the first that may be used: of several, transformers would use all.
        variables["CUDA_VISIBLE_DEVICES"] = variables.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        process = await asyncio.create_subprocess_exec(
            *(str(trainer), "-W", "ignore::FutureWarning", "-m", "ors_clients.learning"),
            *(str(run), str(folder / "evals"), url, upload),
            stdin=asyncio.subprocess.DEVNULL,
            env=variables | {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "TQDM_DISABLE": "1"},
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


def run_named(target: str, name: str | None) -> str:
    """Return the name of a new run. Raises ``ConfigurationError`` for one that cannot be a folder's."""
    if name is None:
        now = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        name = re.sub(r"[^\w.-]+", "-", f"train-{target}-{now}-{uuid.uuid4().hex[:4]}").strip("-.")
    if not re.fullmatch(r"\w[\w.-]{0,150}", name):
        raise ConfigurationError(f"{name!r} is not a name of a run", "Use letters, digits, dots, - and _.")
    return name


@contextlib.contextmanager
def locked(run: Path, *, new: bool) -> Generator[None]:
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
            free = try_lock(lock.fileno())
        except OSError as error:
            raise ConfigurationError(f"{run} cannot be locked: {error}", "Name another --data-dir.") from error
        if not free:
            raise ConfigurationError(f"{run.name} is being trained by another process", "Wait for it.")
        yield


def read_plan(run: Path) -> Plan:
    try:
        return Plan.from_json(json.loads((run / "plan.json").read_bytes()))
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{run.name} was interrupted before it had a plan ({error})", "Begin a new run."
        ) from error


def print_end(run: Path, report: Path | None, target: str, where: str) -> None:
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
