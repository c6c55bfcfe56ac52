"""The bytes of the protocol: JSON and event streams, texts that UTF-8 can hold, request ids, the versions."""
