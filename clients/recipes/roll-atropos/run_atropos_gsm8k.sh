#!/usr/bin/env bash
# Trains Qwen2.5-0.5B-Instruct with ROLL on Atropos's GSM8K environment: 2 GPUs of 24 GB, GRPO.
#
#   ROLL_DIR=/path/to/ROLL ATROPOS_DIR=/path/to/atropos bash run_atropos_gsm8k.sh [HYDRA OVERRIDES]
#
# ROLL_DIR        ROLL's checkout (default: the current folder)
# ATROPOS_DIR     Atropos's checkout, for its environments/ (the atroposlib package has none)
# CONFIG_NAME     another configuration of this folder, without .yaml
# WANDB_API_KEY   Weights & Biases; without it: WANDB_MODE=offline
set -euo pipefail

if [[ " $* " == *" --help "* || " $* " == *" -h "* ]]; then
    sed -n '2,/^[^#]/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
    exit 0
fi

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
roll="$(cd "${ROLL_DIR:-$PWD}" && pwd)"
if [[ ! -d "${roll}/roll/pipeline/agentic" ]]; then
    echo "run_atropos_gsm8k.sh: ${roll} is no checkout of ROLL. Set ROLL_DIR to one." >&2
    exit 2
fi
if [[ -z "${ATROPOS_DIR:-}" || ! -f "${ATROPOS_DIR}/environments/gsm8k_server.py" ]]; then
    echo "run_atropos_gsm8k.sh: set ATROPOS_DIR to a checkout of Atropos (it has environments/gsm8k_server.py)." >&2
    exit 2
fi
atropos="$(cd "${ATROPOS_DIR}" && pwd)"

[[ -n "${WANDB_API_KEY:-}" ]] || export WANDB_MODE="${WANDB_MODE:-offline}"
export TQDM_DISABLE="${TQDM_DISABLE:-1}"

export PYTHONPATH="${roll}:${atropos}${PYTHONPATH:+:${PYTHONPATH}}"
cd "${roll}"
exec python -m ors_clients.roll.start \
    --config_path "${here}" \
    --config_name "${CONFIG_NAME:-atropos_gsm8k_grpo_qwen25_0.5b}" \
    "$@"
