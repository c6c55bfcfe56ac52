"""Benchmarks: this project measured beside the servers it replaces, in one run, with every answer verified.

``ors_benchmarks.server`` (``ors-server bench server``) measures servers; ``docs/performance.md`` says how to read it.
"""

from importlib.metadata import version

__all__ = ["__version__"]

__version__ = version("ors-server")
