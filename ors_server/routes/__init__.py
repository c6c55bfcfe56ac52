"""The HTTP routes: ``direct`` those on the hot path, ``discovery`` what environments there are and their tasks,
``platform`` the few routes of the hosted platform that clients ask a self-hosted server for."""
