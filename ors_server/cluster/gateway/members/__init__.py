"""The workers and nodes that a gateway knows, their health and their drains."""
