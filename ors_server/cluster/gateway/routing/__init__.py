"""The worker or the answer for a request, by its session, its environment and its key."""
