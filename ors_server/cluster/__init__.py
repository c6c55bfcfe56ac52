"""Servers of several processes: gateways, the supervisors of workers, and nodes on Ray."""
