"""``ors-server gateway``: the address of a cluster, behind which nodes serve."""

from __future__ import annotations

import logging
from functools import partial

from ors_cli.flags import with_settings
from ors_server.keys.cluster_key import take_cluster_key
from ors_server.settings import Settings
from ors_server.wire.version import VERSION

__all__ = ["GATEWAY_EXAMPLES", "gateway"]

logger = logging.getLogger("ors_server.serve")

GATEWAY_EXAMPLES = """[bold]A cluster[/bold]
  A gateway is the address of the clients. Nodes (`ors-server node`) serve behind it. Gateways and nodes have the same
  secret, in the variable ORS_CLUSTER_KEY or in the file that ORS_CLUSTER_KEY_FILE names. Any number of gateways serves
  the same nodes: they need not know each other.

[bold]Examples[/bold]
  openssl rand -hex 32 > cluster.key                             once; then copied to all machines
  export ORS_CLUSTER_KEY_FILE=cluster.key
  ors-server gateway --host 0.0.0.0                              on the machine gw, port 8080
  ors-server node --join http://gw:8080 terminal --workers 4     on each of the others"""

_SETTINGS = (
    "host",
    "port",
    "keep_alive",
    "data_dir",
    "keys_file",
    "insecure",
    "max_headers",
    "max_body",
    "session_ttl",
    "shutdown_timeout",
    "log_level",
    "log_format",
    "metrics",
)


@partial(with_settings, names=_SETTINGS)
def gateway(settings: Settings) -> None:
    """Serve the nodes of a cluster at one address, until Ctrl-C or SIGTERM. It runs no environment itself."""
    key = take_cluster_key()
    # Imported late: --help and a missing key do not wait for it.
    from ors_server.cluster.gateway.cluster import serve_cluster
    from ors_server.http.listeners import listen_publicly, url_of
    from ors_server.keys.exposure import refuse_open_address
    from ors_server.telemetry.logs import start_logging

    refuse_open_address(settings, [settings.host], may_make=False)
    logs = start_logging(settings)
    try:
        with listen_publicly(settings.host, settings.port) as listening:
            url = url_of(listening, settings.host)
            if settings.log_format == "json":
                logger.info("serving", extra={"url": url, "version": VERSION})
            else:
                logger.info(f"ors-server {VERSION}: a gateway listens on {url}; Ctrl-C stops it.")
                logger.info("`ors-server node --join URL TARGET` adds nodes; URL is the gateway's, as they reach it.")
            serve_cluster(listening, settings, key)
    finally:
        logs.stop()
