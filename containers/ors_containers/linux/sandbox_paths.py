"""Paths in a sandbox that this package makes."""

from __future__ import annotations

__all__ = ["EXAMINATION"]

#: The directory of an examination's files, which its program alone sees. An empty directory to all other processes.
EXAMINATION = "/.examination"
