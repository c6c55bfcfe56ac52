"""HTTP/1.1 between a gateway and its workers."""
