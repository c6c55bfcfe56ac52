"""``python -m ors_clients.training.launch``: the program behind ``run.sh``."""

from ors_clients.training.launch.command import main

raise SystemExit(main())
