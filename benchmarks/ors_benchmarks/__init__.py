"""Benchmarks: this project measured beside the servers it replaces, in one run, with every answer verified.

``ors_benchmarks.server`` (``ors-server bench server``) measures servers; ``docs/performance.md`` says how to read it.
Nothing is imported here: ``scripts/*-venv`` import this package with a Python that has nothing installed.
"""
