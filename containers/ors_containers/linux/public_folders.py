"""Folders that the processes of sandboxes have to reach."""

from __future__ import annotations

from pathlib import Path

__all__ = ["make_folder"]


def make_folder(path: Path, mode: int = 0o755) -> None:
    """Create a folder with exactly this mode, whatever the server's umask is; one that is there is left as it is.

    Those above it are created as the umask has it: they are the operator's, and are only passed through as root or as
    the server's own user. Raises ``OSError``.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.mkdir()
    except FileExistsError:
        if not path.is_dir():
            raise
    else:
        path.chmod(mode)
