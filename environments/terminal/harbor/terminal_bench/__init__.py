"""Folders of Terminal-Bench 1, converted to Harbor's format."""
