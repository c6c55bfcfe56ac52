"""The real clients, `openreward` and `ors-sdk`, against our server in a process of its own."""
