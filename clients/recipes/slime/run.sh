#!/usr/bin/env bash
# Trains a model with slime on the environments of a training configuration. `bash run.sh --help` lists the options.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec python -m ors_clients.training.launch slime "${here}" "$@"
