"""A pytest plugin for OpenReward's own tests that replaces openreward's ``Server`` by ours."""

# pyright: reportMissingTypeStubs=false

from __future__ import annotations

from typing import Any, cast

import openreward.environments as environments
from openreward.environments import server as server_module

from ors_server import Server

for module in (environments, server_module):
    cast("Any", module).Server = Server
