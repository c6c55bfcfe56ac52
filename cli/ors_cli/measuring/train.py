"""``ors-server train``: a model that gets better, and how sure that is."""

from __future__ import annotations

import shlex
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
import uvloop
from ors_clients.client.async_client import AsyncClient
from ors_clients.errors import ConfigurationError
from ors_clients.learning.plan import Plan, Recipe

from ors_cli.flags import read_settings
from ors_cli.measuring.train_python import trainer_python
from ors_cli.measuring.train_run import locked, print_end, read_plan, run_named, train_on
from ors_cli.measuring.train_subjects import make_plan
from ors_cli.measuring.train_tasks import TaskChoice, model_named, plan_with_tasks
from ors_server.errors import InfrastructureFailure
from ors_server.rollouts.location import data_directory

__all__ = ["TRAIN_EXAMPLES", "train"]

TRAIN_EXAMPLES = """[bold]Examples[/bold]
  ors-server train echo --tiny                        a model of 70,000 weights learns to echo words: three minutes
  ors-server train terminal --tiny                    … to write commands, graded in sandboxes: twelve minutes
  ors-server train terminal --model Qwen/Qwen3-0.6B   a checkpoint, with vLLM on one GPU; or a folder with one
  ors-server train my_env.py:Env --model ./my-model --split train --held-out test --steps 200
  ors-server train --resume NAME                      go on after a crash, or see the report again
  ors-server train http://127.0.0.1:8080 --tiny       on a server that runs already

[bold]The trainer's Python[/bold] has TRL 1.16 and PyTorch, and for --model vLLM 0.32; it may be another one than the
server's. A checkout makes one for processors: scripts/trl-venv, or scripts/vllm-venv for --model.

[bold]--model[/bold] trains all weights by GRPO, in 32 bits: 16 bytes each, and 2 for vLLM. What is needed is compared
with what is free before anything is loaded. Each step plays --groups tasks --samples times; every fifth is a
checkpoint. The tasks to train on are the first ones of the split of the type train; those held out are of the type
test, or else validation, and each is played so often before and after that there are some 200 episodes.

[bold]Exit status[/bold] 0: trained and measured, whether or not it got better. 1: interrupted, or the infrastructure
failed too often. 2: it cannot be trained."""

_TASKS, _MODEL, _RUN = "Tasks, with --model", "The training, with --model", "The run"
_DEFAULT = Recipe()


def train(
    ctx: typer.Context,
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[URL|TARGET]",
            help="A server's address, or what `ors-server serve` takes; with --tiny echo or terminal, or a server with"
            " one of them.",
        ),
    ] = None,
    tiny: Annotated[
        bool, typer.Option("--tiny", help="Make a small model here, and teach it the form of calls first.")
    ] = False,
    model: Annotated[
        str | None, typer.Option(metavar="NAME|FOLDER", help="A checkpoint that calls tools: of the hub, or a folder.")
    ] = None,
    environment: Annotated[
        str | None,
        typer.Option("--env", metavar="NAME", help="The environment; the server's default.", rich_help_panel=_TASKS),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Trained on; the first of the type train.", rich_help_panel=_TASKS),
    ] = None,
    held_out: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Measured on; the first of the type test, or else validation.", rich_help_panel=_TASKS
        ),
    ] = None,
    tasks: Annotated[
        int | None,
        typer.Option(
            min=1, help="The first N to train on; as many as the steps take.", metavar="N", rich_help_panel=_TASKS
        ),
    ] = None,
    held_out_tasks: Annotated[
        int | None,
        typer.Option(min=1, help="The first N to measure on. Default: 200.", metavar="N", rich_help_panel=_TASKS),
    ] = None,
    success_at: Annotated[
        float | None,
        typer.Option(help="The reward from which on a task is solved. Default: 1.0.", rich_help_panel=_TASKS),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help=f"Steps. Default: {_DEFAULT.steps}.", rich_help_panel=_MODEL)
    ] = None,
    groups: Annotated[
        int | None, typer.Option(min=1, help=f"Tasks of a step. Default: {_DEFAULT.groups}.", rich_help_panel=_MODEL)
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=f"Episodes of each task, which are compared with each other. Default: {_DEFAULT.group_size}.",
            rich_help_panel=_MODEL,
        ),
    ] = None,
    learning_rate: Annotated[
        float | None,
        typer.Option(
            min=0, help=f"Falls to 0 by the last step. Default: {_DEFAULT.learning_rate:g}.", rich_help_panel=_MODEL
        ),
    ] = None,
    max_turns: Annotated[
        int | None,
        typer.Option(min=1, help=f"Turns of an episode. Default: {_DEFAULT.max_turns}.", rich_help_panel=_MODEL),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(min=1, help=f"Tokens of one turn. Default: {_DEFAULT.max_tokens}.", rich_help_panel=_MODEL),
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(
            "--context",
            min=1,
            help=f"Tokens of a whole episode. Default: {_DEFAULT.context}.",
            rich_help_panel=_MODEL,
        ),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(min=1, help=f"Episodes at once. Default: {_DEFAULT.concurrency}.", rich_help_panel=_MODEL),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            metavar="cuda|cpu", help="cpu: for some million weights, to try it. Default: cuda.", rich_help_panel=_MODEL
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, help="Of the weights, the order of tasks and the samples.", rich_help_panel=_RUN)
    ] = 0,
    name: Annotated[
        str | None,
        typer.Option("--run", metavar="NAME", help="Its name; made of target and time.", rich_help_panel=_RUN),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Go on with a run, from its checkpoint.", rich_help_panel=_RUN),
    ] = None,
    python: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The trainer's Python; one at hand. [dim]ORS_TRAIN_PYTHON[/dim]", rich_help_panel=_RUN
        ),
    ] = None,
    report: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the report as JSON.", rich_help_panel=_RUN)
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Runs are in its folder trainings. [dim]ORS_DATA_DIR[/dim]", rich_help_panel=_RUN
        ),
    ] = None,
) -> None:
    """Train a model on an environment, and measure what it learnt on tasks that it never saw.

    The report has the difference with its interval, what other answers earn, and how much is only sharper sampling.
    """
    if not (target or resume):
        typer.echo(ctx.get_help())
        raise typer.Exit(2)
    sizes: dict[str, Any] = {
        "success_at": success_at,
        "steps": steps,
        "groups": groups,
        "group_size": samples,
        "learning_rate": learning_rate,
        "max_turns": max_turns,
        "max_tokens": max_tokens,
        "context": context,
        "concurrency": concurrency,
    }
    given = {name: value for name, value in sizes.items() if value is not None}
    choice = TaskChoice(environment, split, held_out, tasks, held_out_tasks)
    _check_options(resume, tiny=tiny, model=model, others=bool(given or device or choice != TaskChoice()))
    folder = data_directory(read_settings({} if data_dir is None else {"data_dir": data_dir}).data_dir).absolute()
    named = resume or run_named(target or "", name)
    where = "" if data_dir is None else f" --data-dir {shlex.quote(str(data_dir))}"
    go_on = f"ors-server train --resume {named}{where}"
    run = folder / "trainings" / named
    draft = None
    if model is not None:
        recipe = replace(_DEFAULT, **given)
        _check_sizes(recipe, device)
        draft = Plan(
            named, target or "", "", [], [], seed, recipe=recipe, model=model_named(model), device=device or "cuda"
        )
    trainer = None if resume else trainer_python(python, vllm=draft is not None)
    try:
        with locked(run, new=resume is None):
            plan = None if resume is None else read_plan(run)
            if plan is not None:
                target, seed = plan.target, plan.seed
            trainer = trainer or trainer_python(python, vllm=plan is not None and plan.tiny is None)
            make = partial(_plan, target=target or "", name=run.name, seed=seed, draft=draft, choice=choice)
            code = uvloop.run(train_on(target or "", plan, make, run, folder, trainer, tiny=tiny))
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
    print_end(run, report, target or "", where)
    raise typer.Exit(code)


def _check_options(resume: str | None, *, tiny: bool, model: str | None, others: bool) -> None:
    """Raise ``ConfigurationError`` for options that do not go together."""
    if resume is not None:
        if tiny or model or others:
            raise ConfigurationError("A run goes on with its own model, tasks and sizes", "Give --resume alone.")
        return
    if tiny and (model or others):
        raise ConfigurationError("--tiny has a model, tasks and sizes of its own", "Give --tiny or --model.")
    if not (tiny or model):
        raise ConfigurationError(
            "Which model is to be trained?", "--tiny makes one here; --model takes a checkpoint, with vLLM on one GPU."
        )


def _check_sizes(recipe: Recipe, device: str | None) -> None:
    """Raise ``ConfigurationError`` for sizes with which nothing can be learnt."""
    if recipe.group_size < 2:
        raise ConfigurationError(
            "--samples 1 leaves nothing to compare", "GRPO learns from differences between episodes of the same task."
        )
    if recipe.max_tokens >= recipe.context:
        raise ConfigurationError(
            f"A turn of {recipe.max_tokens} tokens leaves no room for a prompt in --context {recipe.context}",
            "Give a smaller --max-tokens or a larger --context.",
        )
    if device not in (None, "cuda", "cpu"):
        raise ConfigurationError(f"There is no device {device}", "--device is cuda or cpu.")


async def _plan(
    client: AsyncClient, *, target: str, name: str, seed: int, draft: Plan | None, choice: TaskChoice
) -> Plan:
    """Return the plan of a new run. Raises ``ConfigurationError``."""
    if draft is None:
        return await make_plan(client, target, name, seed)
    return await plan_with_tasks(client, draft, choice)
