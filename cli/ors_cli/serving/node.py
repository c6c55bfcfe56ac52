"""``ors-server node``: workers on this machine for the gateways of a cluster."""

from __future__ import annotations

import socket
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ors_cli.flags import with_settings
from ors_cli.serving.serve import worker_arguments
from ors_server.keys.cluster_key import take_cluster_key
from ors_server.keys.errors import ClusterError
from ors_server.settings import Settings

__all__ = ["NODE_EXAMPLES", "node"]

NODE_EXAMPLES = """[bold]A cluster[/bold]
  `ors-server gateway --help` explains the cluster and its key. A node starts workers that listen on TCP, and registers
  them with every gateway: with all addresses of each name of --join, once a second. Node and gateways may start in any
  order, and either may be started again. SIGTERM places no new sessions here, waits ORS_SHUTDOWN_TIMEOUT seconds for
  those there are, and ends; a second SIGTERM ends the wait.

[bold]Examples[/bold]
  ors-server node --join http://gw:8080 terminal --workers 4
  ors-server node --join http://gw-1:8080,http://gw-2:8080 my_env/      two gateways
  ors-server node --join http://gateways:8080 my_env/ --advertise $POD_IP --worker-ports 9000   with fixed ports
  srun ors-server node --join http://$HEAD:8080 my_env/                 under Slurm, one node a machine"""

_SETTINGS = tuple(
    name for name in Settings.model_fields if name not in ("host", "port", "listen", "keep_alive", "make_key")
)


@partial(with_settings, names=_SETTINGS)
def node(
    targets: Annotated[
        list[str],
        typer.Argument(metavar="TARGET", help="What to serve, as for `ors-server serve`; the same everywhere."),
    ],
    join: Annotated[
        list[str],
        typer.Option(metavar="URL[,URL]", help="Gateways of the cluster, as http://HOST:PORT; may be repeated."),
    ],
    settings: Settings,
    workers: Annotated[int, typer.Option(metavar="N", min=1, max=1024, help="Processes with sessions.")] = 1,
    pools: Annotated[
        Path | None, typer.Option(metavar="FILE", help="TOML file of further workers, as for `ors-server serve`.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of this node, unique in the cluster; that of the machine.")
    ] = None,
    advertise: Annotated[
        str | None,
        typer.Option(
            metavar="HOST", help="Address by which gateways reach this machine; by default that of its way to them."
        ),
    ] = None,
    worker_ports: Annotated[
        int,
        typer.Option(
            metavar="FIRST", min=0, max=65535, help="Port of the first worker, the others follow; 0 for any free ones."
        ),
    ] = 0,
    end_with_stdin: Annotated[
        bool,
        typer.Option(
            "--end-with-stdin",
            help="End, with all sessions, when the pipe of the standard input ends: with the parent.",
        ),
    ] = False,
    orphan_ttl: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0,
            envvar="ORS_ORPHAN_TTL",
            help="End after so many seconds without a gateway; by default a node waits forever.",
        ),
    ] = None,
    alias: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=ENVIRONMENT", help="Another name for an environment; may be repeated."),
    ] = None,
    tasks: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="Folder of tasks for environments that take some; may be repeated."),
    ] = None,
) -> None:
    """Serve environments on this machine behind the gateways of a cluster, until Ctrl-C or SIGTERM."""
    key = take_cluster_key()
    urls = [url.strip() for text in join for url in text.split(",") if url.strip()]
    if not urls:
        raise ClusterError("--join names no gateway", "Write it as --join http://HOST:PORT.")
    # Imported late: --help and a missing key do not wait for it.
    from ors_server.cluster.supervisor.gateway_requests import host_and_port
    from ors_server.cluster.supervisor.node import Node, serve_node
    from ors_server.cluster.supervisor.pools import Pool, read_pools
    from ors_server.keys.exposure import refuse_open_address

    hosts = [host_and_port(url)[0] for url in urls]
    refuse_open_address(settings, [*hosts, *([advertise] if advertise else [])], may_make=False, listens=False)
    serve_node(
        Node(
            name=name or socket.gethostname(),
            urls=urls,
            pools=[
                Pool(worker_arguments(targets, alias or [], tasks or []), workers),
                *(read_pools(pools) if pools is not None else []),
            ],
            advertise=advertise,
            first_port=worker_ports,
            ends_with_stdin=end_with_stdin,
            orphan_ttl=orphan_ttl,
        ),
        settings,
        key,
    )
