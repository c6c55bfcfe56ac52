"""Observation by operators: logs, traces, metrics, and the redaction of secrets."""
