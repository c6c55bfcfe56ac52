"""A server of hosted environments on a free port, without their virtual environments: ``FOLDER DATA`` for each.

``FOLDER -`` is a checkout whose virtual environment could not be made.
"""

import os
import sys
from pathlib import Path

from ors_server.checkouts.serving import Plan, serve_plans
from ors_server.http.listeners import listen_publicly, url_of
from ors_server.sessions.secrets import read_secrets_file
from ors_server.settings import Settings
from ors_server.telemetry.logs import start_logging


def main() -> None:
    settings = Settings(port=0, shutdown_timeout=3)
    mounted = "--unmounted" not in sys.argv
    names = [name for name in sys.argv[1:] if name != "--unmounted"]
    plans = [
        Plan.not_served(Path(folder).name, "its packages exclude each other. Correct them.")
        if data == "-"
        else Plan(
            Path(folder).name,
            [Path(folder).name, f"Owner/{Path(folder).name}"],
            Path(sys.executable),
            f"{folder}/server.py",
            Path(folder),
            Path(data),
            mounted,
            mounted,
        )
        for folder, data in zip(names[::2], names[1::2], strict=True)
    ]
    secrets = {} if settings.secrets_file is None else read_secrets_file(settings.secrets_file)
    logs = start_logging(settings)
    with listen_publicly(settings.host, settings.port) as listening:
        url = url_of(listening, settings.host)

        def ready(names: object) -> None:
            del names
            print(f"{url} ", flush=True)

        serve_plans(plans, settings, os.environ, listening, url, secrets, ready)
    logs.stop()


if __name__ == "__main__":
    main()
