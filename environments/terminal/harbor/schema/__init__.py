"""The tables of ``task.toml``."""
