"""Rollouts that clients upload (``POST /v1/rollouts``) and that the server records (``--record``), in a database.

The database is a SQLite file on the user's own machine, or a PostgreSQL (``location``). ``tables`` has its tables,
``migrating`` and ``migrations`` their versions, ``database`` connections and faults. ``events`` is what an upload may
hold, ``additions`` and ``derived`` make rows of it; ``recorder``, ``records`` and ``record_rows`` do the same with
sessions. ``writer`` is the thread that stores both, and ``waiting`` what it keeps while a PostgreSQL is away. ``store``
opens the database for reading: ``queries`` and ``difficulty`` for routes, commands and pages, ``export`` for rows to
train on; ``sums`` keeps their sums finite. ``errors`` is what may go wrong.
``docs/rollouts.md`` is the page for users.
"""
