"""All rules, in the order in which they are tried."""

from collections.abc import Sequence

from ors_clients.conformance.rule import Rule
from ors_clients.conformance.rules import calls, discovery, limits, sessions, target

__all__ = ["RULES", "SERVER_RULES"]

#: Those that are tried on any server.
SERVER_RULES: Sequence[Rule] = (*discovery.RULES, *sessions.RULES, *calls.RULES, *limits.RULES)
RULES: Sequence[Rule] = (*SERVER_RULES, *target.RULES)
