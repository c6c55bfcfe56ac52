"""The server with keys, metrics and recording on, and without any of them, for the row ``observed``."""

from __future__ import annotations

import json
from pathlib import Path

from ors_benchmarks.harness.candidates import Candidate
from ors_benchmarks.harness.client import Client
from ors_benchmarks.harness.http11 import Address
from ors_benchmarks.harness.reports.latencies import Meter
from ors_server import Settings
from ors_server.keys.exposure import add_key

__all__ = ["OBSERVED", "UNOBSERVED", "KeyedClient", "arguments_of", "client_of"]

UNOBSERVED = Candidate("unobserved", "without them", "ors_server")
OBSERVED = Candidate("observed", "with them", "ors_server")

_KEYS = "observed-keys.json"
_KEY = "observed-key"


class KeyedClient(Client):
    """Send a key with every request."""

    def __init__(self, address: Address, meter: Meter, key: str) -> None:
        super().__init__(address, meter)
        self._head += f"X-API-Key: {key}\r\n"


def arguments_of(candidate: Candidate, folder: Path) -> list[str]:
    """Return the options of a candidate's server; its key and its records lie in ``folder``."""
    if candidate is UNOBSERVED:
        return ["--settings", json.dumps({"metrics": False})]
    if candidate is not OBSERVED:
        return []
    keys, key = folder / _KEYS, folder / _KEY
    if not key.exists():
        key.write_text(add_key(Settings(keys_file=keys), "benchmark"))
    settings = {"keys_file": str(keys), "metrics": True, "record": True, "data_dir": str(folder / "records")}
    return ["--settings", json.dumps(settings)]


def client_of(candidate: Candidate, folder: Path, address: Address, meter: Meter) -> Client:
    """Return a client of a candidate's server."""
    if candidate is OBSERVED:
        return KeyedClient(address, meter, (folder / _KEY).read_text())
    return Client(address, meter)
