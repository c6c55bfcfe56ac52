"""The package's version, from its metadata, and that of its private protocol."""

from importlib.metadata import version

from ors_containers.distribution import DISTRIBUTION

__all__ = ["HANDSHAKE", "VERSION"]

VERSION = version(DISTRIBUTION)

#: Version of the protocol between gateways, workers, supervisors and nodes. Each of them refuses another version;
#: packages of different versions with the same protocol work together, as during an update.
HANDSHAKE: int = 1
