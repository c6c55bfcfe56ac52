"""The process that trains: ``python -m ors_clients.learning RUN_FOLDER EVALUATIONS_FOLDER URL``.

``ors-server train`` starts it, in a Python that has TRL. The key of the server is that of ``ORS_API_KEY``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from ors_clients.errors import ClientError, InfrastructureFailure
from ors_clients.learning.plan import Plan

__all__ = ["main"]


def main() -> int:
    """Do what is left of a run; print its report, and write it to ``report.json``. Return the exit status."""
    from ors_clients.learning.report import report_lines
    from ors_clients.learning.run import Run
    from ors_clients.learning.stages import write_json

    folder, evaluations, url, upload = sys.argv[1:]
    try:
        plan = Plan.from_json(json.loads(Path(folder, "plan.json").read_bytes()))
        report = Run(plan, Path(folder), Path(evaluations), url, upload=upload == "upload").run()
        write_json(Path(folder, "report.json"), report)
    except KeyboardInterrupt:
        return 130
    except ClientError as error:
        sys.stderr.write(f"Error: {error.text}\n")
        return 1 if isinstance(error, InfrastructureFailure) else 2
    print("\n" + "\n".join(report_lines(report)), flush=True)  # noqa: T201
    return 1 if report["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
