"""The server: `python -m tests.compat.real_clients.serve all|one`, configured by ORS_* variables; prints its URL."""

from __future__ import annotations

import sys
from typing import Any

from ors_server import Server

from . import environments


def hosted(which: str) -> list[type[Any]]:
    """Return the environments to host, the default first."""
    if which == "one":
        return [environments.Workbench]
    # Imported here, because the SDKs they are written for take seconds to import.
    from . import openreward_environments, ors_environments

    return [*environments.OWN, *openreward_environments.ENVIRONMENTS, *ors_environments.ENVIRONMENTS]


def main() -> None:
    Server(hosted(sys.argv[1])).serve(on_ready=lambda url: print(url, flush=True))


if __name__ == "__main__":
    main()
