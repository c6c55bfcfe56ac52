"""Configurations of nginx and HAProxy in front of several workers: one process each, sessions by a hash of their id."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ors_benchmarks.harness.http11 import Address

__all__ = ["haproxy", "nginx"]


def nginx(folder: Path, listening: Address, workers: Sequence[Address]) -> list[str]:
    """Write nginx's configuration; return its command."""
    servers = "".join(f"server {host}:{port};" for host, port in workers)
    kept = " ".join(
        f"{kind}_temp_path {folder / kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    # A connection that ended after 1,000 requests, as by default, would break off requests of the closed loops.
    path = folder / "nginx.conf"
    path.write_text(f"""
daemon off; master_process off; pid {folder}/nginx.pid; error_log {folder}/nginx-errors;
events {{ worker_connections 8192; }}
http {{
    access_log off; {kept}
    upstream workers {{
        hash $http_x_session_id consistent; {servers}
        keepalive 1024; keepalive_requests 1000000000;
    }}
    server {{
        listen {listening.host}:{listening.port} backlog=4096; keepalive_requests 1000000000; client_max_body_size 16m;
        location / {{
            proxy_pass http://workers; proxy_http_version 1.1; proxy_set_header Connection "";
            proxy_buffering off; proxy_request_buffering off; proxy_read_timeout 1h; proxy_next_upstream off;
        }}
    }}
}}
""")
    return ["nginx", "-e", str(folder / "nginx-errors"), "-p", str(folder), "-c", str(path)]


def haproxy(folder: Path, listening: Address, workers: Sequence[Address]) -> list[str]:
    """Write HAProxy's configuration; return its command."""
    servers = "\n".join(f"    server w{number} {host}:{port}" for number, (host, port) in enumerate(workers))
    path = folder / "haproxy.cfg"
    path.write_text(f"""
global
    nbthread 1
    maxconn 8192
defaults
    mode http
    timeout connect 5s
    timeout client 1h
    timeout server 1h
    retries 0
    option abortonclose
frontend clients
    bind {listening.host}:{listening.port}
    default_backend workers
backend workers
    balance hdr(X-Session-ID)
    hash-type consistent
    http-reuse always
{servers}
""")
    return ["haproxy", "-db", "-q", "-f", str(path)]
