"""The HTTP routes.

``operations`` declares the routes of the hot path, ``table`` answers them; ``episodes``, ``discovery`` and ``rollouts``
have their handlers. ``platform`` has routes of the hosted platform that clients also ask a self-hosted server for.
"""
