"""ors-clients: the client side of the Open Reward Standard, from one tool call to a trainer's batch."""
