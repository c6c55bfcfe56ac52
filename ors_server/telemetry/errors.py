"""Errors of traces."""

from __future__ import annotations

from ors_server.errors import OrsError

__all__ = ["TracesUnavailable"]


class TracesUnavailable(OrsError):
    """OpenTelemetry is not installed."""
