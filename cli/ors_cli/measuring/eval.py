"""``ors-server eval``: how good a model is on an environment."""

from __future__ import annotations

import json
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from ors_clients.evaluation.run import RunOptions
from ors_clients.evaluation.settings import EvaluationSettings
from ors_clients.evaluation.summary import Prices

from ors_cli.flags import read_settings
from ors_cli.measuring.eval_run import run
from ors_cli.measuring.eval_target import serving
from ors_server.rollouts.location import data_directory

__all__ = ["EVAL_EXAMPLES", "evaluate"]

EVAL_EXAMPLES = """[bold]Examples[/bold]
  ors-server eval echo --model Qwen3-8B --base-url http://127.0.0.1:8000/v1   an environment, served for the run
  ors-server eval http://127.0.0.1:8080 --env terminalenvironment --limit 50 --samples 4 --model … --base-url …
  ors-server eval --resume my-run                                        go on after a crash, or see it again
  ors-server eval --resume my-run --compare older-run --report out/      is the difference significant?

[bold]The endpoint's key[/bold] is in the environment: ORS_MODEL_API_KEY, or the variable of --api-key-env.
OPENAI_API_KEY goes to OpenAI, and to OPENAI_BASE_URL. The environments' server gets ORS_API_KEY.

[bold]Exit status[/bold] 0: played, and its numbers stand. 1: the infrastructure failed too often (--max-failures), or
the run was interrupted. 2: it could not be played."""

_TASKS, _MODEL, _SCORE, _RUN = "Which tasks", "The model", "How it is scored", "The run"


def evaluate(
    ctx: typer.Context,
    target: Annotated[
        str | None,
        typer.Argument(metavar="[URL|TARGET]", help="A server's address, or what `ors-server serve` takes."),
    ] = None,
    environment: Annotated[
        str | None,
        typer.Option("--env", metavar="NAME", help="The environment; the server's default.", rich_help_panel=_TASKS),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="test where there is one, else the first.", rich_help_panel=_TASKS),
    ] = None,
    tasks: Annotated[
        str | None,
        typer.Option(metavar="0-9,15|ID,…", help="Tasks by index or id; all of them.", rich_help_panel=_TASKS),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="The first N of them.", rich_help_panel=_TASKS)
    ] = None,
    secrets: Annotated[
        list[str] | None,
        typer.Option(
            "--secret",
            metavar="NAME",
            help="A variable whose value the environment gets as a secret; may be repeated.",
            rich_help_panel=_TASKS,
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="As the endpoint calls it.", rich_help_panel=_MODEL)
    ] = None,
    base_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="The endpoint, as http://host:8000/v1. [dim]OPENAI_BASE_URL[/dim]",
            rich_help_panel=_MODEL,
        ),
    ] = None,
    api: Annotated[
        str | None,
        typer.Option(
            metavar="chat|completions|sglang",
            help="chat: chat completions with tools (default). completions (vLLM), sglang: token ids, --tokenizer.",
            rich_help_panel=_MODEL,
        ),
    ] = None,
    tool_calls: Annotated[
        str | None,
        typer.Option(
            metavar="api|auto|hermes|qwen_xml|json",
            help="api: the endpoint reads the model's calls (default). Else they are read from its text, in this form.",
            rich_help_panel=_MODEL,
        ),
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0, help="The endpoint's own.", rich_help_panel=_MODEL)
    ] = None,
    top_p: Annotated[
        float | None, typer.Option(min=0, max=1, help="The endpoint's own.", rich_help_panel=_MODEL)
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Each sample is sent a seed made of it, the same in each run.", rich_help_panel=_MODEL),
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens of one turn; the endpoint's own.", rich_help_panel=_MODEL)
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(
            "--context",
            min=1,
            help="Tokens of a whole episode, for token ids. Default: 32768.",
            rich_help_panel=_MODEL,
        ),
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(metavar="PATH", help="The model's, for token ids.", rich_help_panel=_MODEL)
    ] = None,
    thinking: Annotated[
        bool | None, typer.Option("--thinking", help="Let the chat template think.", rich_help_panel=_MODEL)
    ] = None,
    system_prompt: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Put before the task.", rich_help_panel=_MODEL)
    ] = None,
    extra: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=JSON",
            help='Sent with each request, as chat_template_kwargs={"enable_thinking":false}; may be repeated.',
            rich_help_panel=_MODEL,
        ),
    ] = None,
    drop_reasoning: Annotated[
        bool | None,
        typer.Option(
            "--drop-reasoning", help="Do not send the thinking of earlier turns back.", rich_help_panel=_MODEL
        ),
    ] = None,
    stream: Annotated[
        bool | None,
        typer.Option("--stream", help="For proxies that cut connections without data.", rich_help_panel=_MODEL),
    ] = None,
    key_variable: Annotated[
        str | None,
        typer.Option(
            "--api-key-env", metavar="NAME", help="The variable with the endpoint's key.", rich_help_panel=_MODEL
        ),
    ] = None,
    request_timeout: Annotated[
        float, typer.Option(min=1, metavar="SECONDS", help="Longest silence of the endpoint.", rich_help_panel=_MODEL)
    ] = 600.0,
    samples: Annotated[
        int | None,
        typer.Option(min=1, help="Episodes of each task. Default: 1.", rich_help_panel=_SCORE),
    ] = None,
    ks: Annotated[
        list[int] | None,
        typer.Option("--k", min=1, help="pass@k of this k; powers of two. May be repeated.", rich_help_panel=_SCORE),
    ] = None,
    reward: Annotated[
        str | None,
        typer.Option(
            metavar="sum|mean|max|min|last|terminal",
            help="How the rewards of an episode make one. Default: sum.",
            rich_help_panel=_SCORE,
        ),
    ] = None,
    success_at: Annotated[
        float | None,
        typer.Option(help="The reward from which on it is solved. Default: 1.0.", rich_help_panel=_SCORE),
    ] = None,
    max_turns: Annotated[
        int | None, typer.Option(min=1, help="Turns of an episode. Default: 20.", rich_help_panel=_SCORE)
    ] = None,
    max_tool_output: Annotated[
        int | None,
        typer.Option(min=1, metavar="CHARACTERS", help="A longer output loses its middle.", rich_help_panel=_SCORE),
    ] = None,
    episode_timeout: Annotated[
        float | None,
        typer.Option(
            min=0, metavar="SECONDS", help="An episode ends then with what it has earned; none.", rich_help_panel=_SCORE
        ),
    ] = None,
    compare: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Test the difference to another run or report.json.", rich_help_panel=_SCORE),
    ] = None,
    price_in: Annotated[
        float | None, typer.Option(min=0, help="Price of a million tokens read.", rich_help_panel=_SCORE)
    ] = None,
    price_out: Annotated[
        float | None, typer.Option(min=0, help="Price of a million tokens written.", rich_help_panel=_SCORE)
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--run", metavar="NAME", help="Its name; made of environment and time.", rich_help_panel=_RUN),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Play what is missing of a run, with its settings.", rich_help_panel=_RUN),
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Episodes at once.", rich_help_panel=_RUN)] = 8,
    prefetch: Annotated[
        int | None,
        typer.Option(
            min=0, help="Sessions opened ahead, at most; as many as at once if left out.", rich_help_panel=_RUN
        ),
    ] = None,
    retries: Annotated[
        int,
        typer.Option(min=0, help="Times an episode lost to infrastructure is played again.", rich_help_panel=_RUN),
    ] = 3,
    max_failures: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            help="The run fails if more than this share of its samples is missing, or was lost of the attempts in "
            "which the model took a turn.",
            rich_help_panel=_RUN,
        ),
    ] = 0.05,
    upload: Annotated[
        str | None,
        typer.Option(
            metavar="URL|none",
            help="The server that gets the episodes; the environment's, if it keeps rollouts.",
            rich_help_panel=_RUN,
        ),
    ] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write report.json and report.md.", rich_help_panel=_RUN)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.", rich_help_panel=_RUN)] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.", rich_help_panel=_RUN)] = False,
    data_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Runs are in its folder evals. [dim]ORS_DATA_DIR[/dim]", rich_help_panel=_RUN),
    ] = None,
) -> None:
    """Play a model on an environment's tasks and report how many it solves, how surely, and at what price.

    Failures of the infrastructure (the server, the endpoint) are played again and are in no score. What the model does
    wrong counts.
    """
    if not (target or resume):
        typer.echo(ctx.get_help())
        raise typer.Exit(2)
    folder = data_directory(read_settings({} if data_dir is None else {"data_dir": data_dir}).data_dir)
    # Parameters are named as the fields that they set.
    given = {name: value for name, value in ctx.params.items() if value not in (None, [])}
    if extra:
        given["extra"] = dict(_parse_extra(text) for text in extra)
    given |= {name: tuple(given[name]) for name in ("secrets", "ks") if name in given}
    settings, options = (
        {field.name: given[field.name] for field in fields(of) if field.name in given}
        for of in (EvaluationSettings, RunOptions)
    )
    plan = RunOptions(runs=folder / "evals", prices=Prices(price_in, price_out), **options)
    # The record has what a client does not learn: why an episode has its reward.
    defaults = {"ORS_RECORD": "true"} if plan.upload is None else {}
    serve = partial(serving, data_dir=folder, defaults=defaults)
    code = run(settings, plan, serve, as_json=as_json, report=report, data_dir=data_dir)
    raise typer.Exit(code)


def _parse_extra(text: str) -> tuple[str, Any]:
    name, separator, value = text.partition("=")
    if not (separator and name.strip()):
        raise typer.BadParameter(f"{text!r} is not NAME=JSON.", param_hint="--extra")
    try:
        parsed = json.loads(value)
    except ValueError:
        return name.strip(), value  # a word
    try:
        json.dumps(parsed, allow_nan=False)
    except ValueError:
        raise typer.BadParameter(f"{text!r} has a number that JSON does not have.", param_hint="--extra") from None
    return name.strip(), parsed
