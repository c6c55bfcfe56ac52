"""The command ``ors-server``: serve environments, list the settings, write environment and Space folders.

Nothing here imports the web framework until ``serve`` builds a server, so that ``--help`` answers at once.
"""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Run the command line of this process. Ends it: 0 done, 1 cannot listen, 2 something to correct."""
    from ors_server.cli.application import run

    run()
