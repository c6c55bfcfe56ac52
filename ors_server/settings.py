"""The settings of a server, each defined once.

A field is a keyword of ``Settings``, the environment variable ``ORS_<NAME>`` and the flag ``--<name>`` of
``ors-server serve``; its description is the help text of all three. Times are seconds, sizes are bytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr, field_serializer
from pydantic_settings import BaseSettings, SettingsConfigDict

__all__ = ["ReturnErrors", "Settings"]

ReturnErrors = Literal["none", "exception", "stacktrace"]
Seconds = Annotated[float, Field(gt=0)]
Bytes = Annotated[int, Field(gt=0)]


def _check_database(url: SecretStr) -> SecretStr:
    # The value is not repeated: it may have a password in it.
    if not url.get_secret_value().startswith(("postgresql://", "postgres://")):
        raise ValueError("a database of rollouts is named as postgresql://USER@HOST/NAME")
    return url


class Settings(BaseSettings):
    """Settings of one server; ``Settings()`` reads ``ORS_*`` variables, and keywords override them.

    Raises pydantic's ``ValidationError`` (a ``ValueError``) where a value does not fit.
    """

    model_config = SettingsConfigDict(env_prefix="ORS_", extra="ignore", frozen=True)

    host: Annotated[str, Field(min_length=1)] = Field(
        default="127.0.0.1", description="Address to listen on; 0.0.0.0 for every interface."
    )
    port: Annotated[int, Field(ge=0, le=65535)] = Field(
        default=8080, description="Port to listen on; 0 picks a free one."
    )

    listen: str | None = Field(
        default=None,
        description="Listen for a proxy in front of the server instead of on a port: unix:PATH or tcp:HOST:PORT.",
    )

    keys_file: Path | None = Field(
        default=None, description="File of the keys (`ors-server keys`); keys.json in the data directory by default."
    )
    insecure: bool = Field(default=False, description="Serve without keys also where other machines reach the address.")
    make_key: bool = Field(
        default=False, description="Make a key where there is none, and print it once, instead of refusing to start."
    )

    session_ttl: Seconds = Field(
        default=900.0, description="Seconds without a request or ping after which a session is ended."
    )
    setup_timeout: Seconds = Field(
        default=900.0, description="Seconds a session's constructor may take, and its set-up after it."
    )
    setup_wait: Seconds = Field(
        default=25.0,
        description="Seconds /prompt and /messages wait for set-up before the openreward client gets 503 and retries.",
    )
    setup_wait_long: Seconds = Field(
        default=240.0, description="The same for every other client, which would give up after a few retries."
    )
    call_timeout: Seconds = Field(default=3600.0, description="Seconds one tool call may take.")
    teardown_timeout: Seconds = Field(default=30.0, description="Seconds a session's teardown may take.")
    shutdown_timeout: Seconds = Field(
        default=30.0, description="Seconds the server waits for its sessions to end when it is stopped."
    )
    stream_after: Seconds = Field(
        default=0.05,
        description="Seconds after which an unfinished call opens its event stream instead of waiting; for a call with "
        "an Idempotency-Key, by which its client finds it again, 20 times as many, up to one.",
    )
    heartbeat: Seconds = Field(default=10.0, description="Seconds between keep-alive comments in an open event stream.")

    max_body: Bytes = Field(default=16 * 2**20, description="Largest request body, in bytes (413 above it).")
    max_headers: Bytes = Field(default=64 * 2**10, description="Largest request head, in bytes (431 above it).")
    max_output: Bytes = Field(
        default=16 * 2**20, description="Largest result of one tool call, in bytes of JSON (an error event above it)."
    )
    max_sessions: Annotated[int, Field(ge=1)] = Field(
        default=65_536, description="Sessions at once; clients are asked to wait (503) above it."
    )
    max_calls: Annotated[int, Field(ge=1)] = Field(
        default=32_768, description="Tool calls running at once, over all sessions; 503 above it."
    )
    max_session_calls: Annotated[int, Field(ge=1)] = Field(
        default=256, description="Tool calls running at once in one session; 503 above it."
    )
    keep_alive: Seconds = Field(default=75.0, description="Seconds an idle connection is kept open.")

    result_ttl: Seconds = Field(
        default=300.0, description="Seconds an undelivered result stays in memory before it goes to disk."
    )
    result_memory: Bytes = Field(
        default=256 * 2**20, description="Bytes of undelivered results kept in memory before they go to disk."
    )
    delivered_ttl: Seconds = Field(
        default=60.0, description="Seconds a delivered result can still be fetched again by its task_id."
    )
    delivered_memory: Bytes = Field(
        default=64 * 2**20, description="Bytes of delivered results kept for that; the oldest go first."
    )
    tombstones: Annotated[int, Field(ge=1)] = Field(
        default=1_000_000, description="Ended sessions remembered, so that their late requests get 410 and not 404."
    )

    tool_threads: Annotated[int, Field(ge=1)] = Field(
        default=512, description="Threads for synchronous tools, started as they are needed."
    )
    lifecycle_threads: Annotated[int, Field(ge=1)] = Field(
        default=256, description="Threads for synchronous constructors, set-ups, prompts, task lists and teardowns."
    )
    sync_on_loop: bool = Field(
        default=False,
        description="Run the synchronous code of classes written for ors-sdk on the event loop, as that SDK does, "
        "instead of on one thread a session.",
    )
    enforce_finished: bool = Field(
        default=True, description="Refuse tool calls once a tool has returned finished=True."
    )
    trust_client_tasks: bool = Field(
        default=True, description="Accept task_spec as the client sends it; off: only tasks this server gave out."
    )
    return_errors: ReturnErrors = Field(
        default="exception",
        description="What a client sees of an exception in an environment: none, exception (type and text) or "
        "stacktrace.",
    )

    sandbox_runtime: Annotated[str, Field(min_length=1)] = Field(
        default="bubblewrap",
        description="What isolates sandboxes: bubblewrap, apptainer, or a runtime another package registers.",
    )
    sandbox_warm: Annotated[int, Field(ge=0)] = Field(
        default=2, description="Sandboxes kept started beforehand for each image in demand; 0 for none."
    )
    sandbox_warm_total: Annotated[int, Field(ge=0)] = Field(
        default=16, description="The same over all images; those of the image unused the longest go first."
    )
    sandbox_queue: Annotated[int, Field(ge=0)] = Field(
        default=256, description="Sandboxes that may wait for room on this machine; clients are asked to wait above it."
    )
    sandbox_queue_timeout: Seconds = Field(
        default=60.0, description="Seconds a sandbox waits for room before its client is asked to come back."
    )
    sandbox_reserve: Bytes = Field(
        default=16 * 2**20,
        description="Bytes of memory a sandbox that has just started is expected to grow by; after that what is "
        "measured counts.",
    )
    sandbox_memory: Bytes | None = Field(
        default=None,
        description="Bytes of memory that sandboxes may use together, where control groups measure it; by default what "
        "the machine has.",
    )
    sandbox_pressure: Annotated[float, Field(gt=0, le=100)] = Field(
        default=95.0,
        description="Percent of the time that work may wait for a processor (PSI) before sandboxes start in turns.",
    )
    sandbox_network: Literal["none", "open"] = Field(
        default="none",
        description="Network that docker-like sandboxes may have: none, or open for those that ask for it.",
    )
    sandbox_disk: Path = Field(
        default=Path("/var/tmp"),  # noqa: S108 - the files in it have no names
        description="Folder for the disks of docker-like sandboxes, where the server is root.",
    )
    sandbox_service: bool = Field(
        default=False,
        description="Serve OpenReward's sandbox service, which runs any command that a client of this address sends; "
        "`ors-server host` serves it unless this is off.",
    )
    sandbox_ttl: Seconds = Field(
        default=120.0, description="Seconds without a request or ping after which a sandbox of the service is ended."
    )
    max_sandboxes: Annotated[int, Field(ge=1)] = Field(
        default=1024, description="Sandboxes of the service at once; clients are asked to wait (503) above it."
    )
    node_table: Path | None = Field(
        default=None,
        description="File in which servers of one machine share what they reserve for sandboxes; --workers sets it.",
    )

    secrets_file: Path | None = Field(
        default=None,
        description="File of lines NAME=VALUE: secrets of sessions whose client leaves them out or sends them empty.",
    )

    data_dir: Path = Field(
        default=Path("~/.local/share/ors-server"),
        description="Directory for what is kept, such as rollouts. Made when there is something to keep.",
    )
    record: bool = Field(default=False, description="Store every session that the server plays, as a rollout.")
    rollouts: Annotated[SecretStr, AfterValidator(_check_database)] | None = Field(
        default=None,
        description="PostgreSQL database for rollouts, postgresql://USER@HOST/NAME; by default a SQLite file in the "
        "data directory. Needs the extra postgresql.",
    )

    pages: bool = Field(default=True, description="Serve the pages for a browser, below /ui.")
    show_verdicts: bool = Field(
        default=False,
        description="Show names and outputs of tests to visitors with a key, and with ORS_INSECURE to all.",
    )

    traces: bool = Field(
        default=False,
        description="Send OpenTelemetry traces of requests, set-ups, calls and sandboxes, as the OTEL_* variables say; "
        "needs the extra `traces`.",
    )
    metrics: bool = Field(
        default=True, description="Count requests, calls and sandboxes, and serve the counts to Prometheus at /metrics."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least severe log line that is written."
    )
    log_format: Literal["text", "json"] = Field(
        default="text", description="Log lines as text (time level event key=value …) or as one JSON object each."
    )

    @field_serializer("rollouts", when_used="json")
    def _pass_on(self, url: SecretStr | None) -> str | None:
        # As JSON the settings go to the processes that a server starts, which need the password.
        return None if url is None else url.get_secret_value()
