"""``ors-server workers`` and ``ors-server drain``: the workers of a server, or of a cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from ors_server.cluster.errors import ControlError
from ors_server.keys.cluster_key import take_cluster_key

__all__ = ["DRAIN_EXAMPLES", "drain", "wait_for_new_workers", "wait_for_the_end", "workers"]

DRAIN_EXAMPLES = """[bold]Examples[/bold]
  ors-server drain 2      replace the worker of slot 2 once its sessions have ended
  ors-server drain --all  replace all of them, one after the other: an update without an end
  ors-server drain --all --wait   … and return when the last new worker serves
  ors-server drain node-3 --gateway http://gw:8080   all workers of a node of a cluster, with its ORS_CLUSTER_KEY
  ors-server drain --all --stop --wait --gateway http://gw:8080   end all nodes, at once"""

Rows = Sequence[Mapping[str, Any]]
ListRows = Callable[[], dict[str, Any]]

#: The state of a slot that stays empty.
_OUT = "out"
#: Seconds that a slot gets for its next worker, beyond those for its sessions.
_RESTART = 120.0

Port = Annotated[int, typer.Option(help="Port of a server on this machine.")]
Host = Annotated[str | None, typer.Option(help="Address of the server, where several have the port.")]
GatewayUrl = Annotated[
    str | None,
    typer.Option("--gateway", metavar="URL", help="A gateway of a cluster, whose ORS_CLUSTER_KEY is set here."),
]


def workers(
    port: Port = 8080,
    host: Host = None,
    gateway: GatewayUrl = None,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the workers of a server on this machine, or of a cluster."""
    reply = _ask(port, host, {"command": "workers"}) if gateway is None else _asker(gateway)("GET", "/_ors/nodes")
    _print(reply, as_json=json_)


def drain(
    slots: Annotated[
        list[str] | None, typer.Argument(metavar="SLOT|NODE", help="Slots of workers, or names of nodes.")
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="All slots, one after the other.")] = False,
    port: Port = 8080,
    host: Host = None,
    gateway: GatewayUrl = None,
    deadline: Annotated[
        float, typer.Option(min=0, help="Seconds after which sessions that go on are ended, with the reason.")
    ] = 900.0,
    wait: Annotated[
        bool,
        typer.Option(
            "--wait", help="Return when new workers serve, or the nodes have ended; status 2 where one cannot."
        ),
    ] = False,
    stop: Annotated[
        bool, typer.Option("--stop", help="End nodes of a cluster, all at once, instead of replacing their workers.")
    ] = False,
) -> None:
    """Place no new sessions in a slot, and replace its worker once it is empty."""
    if bool(slots) == all_:
        raise typer.BadParameter("name slots or nodes, or --all")
    if stop and gateway is None:
        raise typer.BadParameter("--stop ends nodes, found by --gateway; SIGTERM to `ors-server serve` ends a server")
    if gateway is not None:
        ask = _asker(gateway)
        list_rows = partial(ask, "GET", "/_ors/nodes")
        before = list_rows()["workers"]
        names = slots or sorted({row["node"] for row in before})
        reply = ask("POST", "/_ors/stop" if stop else "/_ors/drain", {"names": names, "deadline": deadline})
    else:
        if any(not name.isdecimal() for name in slots or ()):
            raise typer.BadParameter("a server has numbered slots; nodes belong to a cluster, found by --gateway")
        list_rows = partial(_ask, port, host, {"command": "workers"})
        before = list_rows()["workers"]
        names = slots or [str(row["slot"]) for row in before]
        numbers = [int(name) for name in names]
        reply = _ask(port, host, {"command": "drain", "slots": numbers, "deadline": deadline})
    if wait:
        chosen = [row for row in before if str(row["slot"]) in names or row.get("node") in names]
        reply = (wait_for_the_end if stop else wait_for_new_workers)(list_rows, chosen, deadline)
    _print(reply)


def wait_for_new_workers(
    list_rows: ListRows,
    before: Rows,
    deadline: float,
    pause: Callable[[float], None] = time.sleep,
) -> dict[str, Any]:
    """Wait until each slot of these rows has another process that serves, or has gone; return the rows then.

    Raises ``ControlError`` for a slot whose new worker cannot serve, or that takes longer than the drain may.
    """
    left: dict[tuple[str, int], Any] = {_place(row): row["pid"] for row in before if row["state"] != _OUT}

    def still_left(now: Rows) -> list[str]:
        nonlocal left
        rows = {_place(row): row for row in now}
        for place, row in rows.items():
            if place in left and row["state"] == _OUT:
                raise ControlError(
                    f"The drain has ended: the new worker of slot {row['slot']} was abandoned: {row['reason']}",
                    "The other slots go on with the workers that they have. Correct this, and drain them again.",
                )
        left = {
            place: pid
            for place, pid in left.items()
            if place in rows and (rows[place]["state"] != "serving" or rows[place]["pid"] in (None, pid))
        }
        return [str(slot) for _, slot in sorted(left)]

    seconds = len(left) * (deadline + _RESTART)
    return _wait(list_rows, still_left, seconds, "No new worker serves in time in slot {}", pause)


def wait_for_the_end(
    list_rows: ListRows,
    before: Rows,
    deadline: float,
    pause: Callable[[float], None] = time.sleep,
) -> dict[str, Any]:
    """Wait until the nodes of these rows have left; return the rows then. Raises ``ControlError`` after too long."""
    nodes = {row["node"] for row in before}

    def still_left(now: Rows) -> list[str]:
        return sorted(nodes & {row["node"] for row in now})

    return _wait(list_rows, still_left, deadline + _RESTART, "{} did not end in time", pause)


def _wait(
    list_rows: ListRows,
    still_left: Callable[[Rows], list[str]],
    seconds: float,
    too_late: str,
    pause: Callable[[float], None],
) -> dict[str, Any]:
    """Wait until nothing is left in the rows; return them. Raises ``ControlError`` with what is left after too long."""
    end = time.monotonic() + seconds
    while True:
        reply = list_rows()
        left = still_left(reply["workers"])
        if not left:
            return reply
        if time.monotonic() > end:
            raise ControlError(too_late.format(", ".join(left)), "`ors-server workers` shows the slots.")
        pause(0.5)


def _place(row: Mapping[str, Any]) -> tuple[str, int]:
    return row.get("node", ""), row["slot"]


def _ask(port: int, host: str | None, request: dict[str, Any]) -> dict[str, Any]:
    # Imported late: --help does not wait for it.
    from ors_server.cluster.supervisor.control import ask

    return ask(port, request, host)


def _asker(url: str) -> Callable[..., dict[str, Any]]:
    from ors_server.cluster.supervisor.gateway_requests import ask_gateway

    return partial(ask_gateway, url, take_cluster_key().node_token)


def _print(reply: dict[str, Any], *, as_json: bool = False) -> None:
    console = Console(highlight=False)
    if as_json:
        console.print_json(data=reply["workers"])
        return
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    of_cluster = any("node" in row for row in reply["workers"])
    for heading in (*(["Node"] if of_cluster else []), "Slot", "State", "Process", "Sessions", "Calls", "Restarts", ""):
        table.add_column(heading)
    for row in reply["workers"]:
        values = [row["slot"], row["state"], row["pid"] or "-", row["sessions"], row["calls"], row["restarts"]]
        table.add_row(*([row["node"]] if of_cluster else []), *map(str, values), row["reason"] or row.get("name", ""))
    console.print(table)
