"""Uploaded rollouts: the events, the file, the routes, the commands, and openreward's own client and command."""
