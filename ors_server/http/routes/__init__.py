"""The HTTP routes: ``table`` how one is answered, ``episodes`` and ``discovery`` the protocol's routes, ``platform``
and ``rollouts`` the few routes of the hosted platform that clients ask a self-hosted server for."""
