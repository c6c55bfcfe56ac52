"""The command ``ors-server``: serve environments, write and check what is served, keep images, sandboxes and rollouts.

Nothing here imports the web framework until ``serve`` builds a server, so that ``--help`` answers at once.
"""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Run the command line of this process. Ends it with 0, 1 or 2 (``docs/command-line.md``)."""
    from ors_cli.application import run

    run()
