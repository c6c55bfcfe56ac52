"""The package's version, from its metadata."""

from importlib.metadata import version

__all__ = ["VERSION"]

VERSION = version("ors-server")
