#!/usr/bin/env bash
# Trains Qwen3.5-2B with ROLL on the terminal tasks of an ORS server: 8 GPUs, STEP_REINFORCE.
#
#   ROLL_DIR=/path/to/ROLL bash run_openreward_endless_terminals.sh [HYDRA OVERRIDES]
#   … max_steps=100 rollout_batch_size=64
#
# ROLL_DIR        ROLL's checkout (default: the current folder)
# CONFIG_NAME     another configuration of this folder, without .yaml
# ORS_URL         the environments' server (default: http://127.0.0.1:8080)
# ORS_API_KEY     its key, if it wants one
# WANDB_API_KEY   Weights & Biases; without it: WANDB_MODE=offline
#
# For environments that OpenReward hosts: OPENREWARD_SESSION_URL (https://sessions.openreward.ai) and
# OPENREWARD_API_KEY in place of ORS_URL and ORS_API_KEY. That key goes to no other server.
set -euo pipefail

if [[ " $* " == *" --help "* || " $* " == *" -h "* ]]; then
    sed -n '2,/^[^#]/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
    exit 0
fi

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
roll="$(cd "${ROLL_DIR:-$PWD}" && pwd)"
if [[ ! -d "${roll}/roll/pipeline/agentic" ]]; then
    echo "run_openreward_endless_terminals.sh: ${roll} is no checkout of ROLL. Set ROLL_DIR to one." >&2
    exit 2
fi

# The keys are found by the workers, whose environment is this one: a configuration would be logged with them in it.
export ORS_URL="${ORS_URL:-${OPENREWARD_SESSION_URL:-http://127.0.0.1:8080}}"
[[ -n "${WANDB_API_KEY:-}" ]] || export WANDB_MODE="${WANDB_MODE:-offline}"

# One machine: NCCL over sockets, without the plugins that some images bring along and that then find no network.
# Set them before to keep what your cluster needs.
export NCCL_NET="${NCCL_NET-Socket}"
export NCCL_NET_PLUGIN="${NCCL_NET_PLUGIN-}"
export NCCL_TUNER_PLUGIN="${NCCL_TUNER_PLUGIN-}"

export PYTHONPATH="${roll}${PYTHONPATH:+:${PYTHONPATH}}"
cd "${roll}"
exec python -m ors_clients.roll.start \
    --config_path "${here}" \
    --config_name "${CONFIG_NAME:-openreward_endless_terminals_reinforce_qwen35_2b}" \
    "$@"
