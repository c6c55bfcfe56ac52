#!/usr/bin/env bash
# Train on the environments of environments.yaml with all GPUs of this machine:
#     ./run.sh                                  everything as in the two files
#     ./run.sh --learning_rate 2e-6             any key of grpo.yaml
#     ./run.sh --environments other.yaml
# The server must be running (ors-server serve echo terminal); ORS_API_KEY and the secrets come from the environment.
set -euo pipefail
cd "$(dirname "$0")"
exec accelerate launch --num_processes "${GPUS:-8}" train.py --config grpo.yaml "$@"
