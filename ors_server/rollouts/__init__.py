"""Rollouts that clients upload (``POST /v1/rollouts``), kept in one SQLite file on the user's own machine.

``events`` what an upload may hold, ``file`` the file and its tables, ``writer`` the thread that fills it, ``queries``
what is read from it, ``export`` rows for training on, ``errors`` what may go wrong. ``docs/rollouts.md`` is the page
for users.
"""
