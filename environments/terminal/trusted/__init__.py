"""Modules of an examination. They run in the sandbox, side by side, on the standard library alone."""
