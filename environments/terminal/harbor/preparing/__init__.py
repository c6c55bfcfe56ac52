"""Preparation of Harbor folders: each is built, verified once with a network, and tried without one."""
