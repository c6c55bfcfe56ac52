"""``python -m ors_server``, the command up to version 0.2: names the one that takes its place."""

import sys

sys.stderr.write("Error: since 0.3.0 `python -m ors_server` is `python -m ors_cli`..\n")
sys.exit(2)
