#!/usr/bin/env bash
# Plays an ORS environment for an Atropos trainer: starts the trajectory API where none runs, then the environment.
#
#   bash run.sh [FLAGS OF ors_clients.atropos serve]
#   … --env.ors_environment math --env.group_size 16
#
# CONFIG     configuration (default: ors_environment.yaml beside this script)
# API_PORT   port of the trajectory API (default: 8000)
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
port="${API_PORT:-8000}"

# In bash alone: images for training do not always have curl.
if ! (exec 3<>"/dev/tcp/127.0.0.1/${port}") 2>/dev/null; then
    run-api --host 127.0.0.1 --port "${port}" &
    api=$!
    trap 'kill "${api}" 2>/dev/null; wait "${api}" 2>/dev/null || true' EXIT
    until (exec 3<>"/dev/tcp/127.0.0.1/${port}") 2>/dev/null; do
        kill -0 "${api}" 2>/dev/null || { echo "run.sh: run-api ended" >&2; exit 1; }
        sleep 0.5
    done
fi

python -m ors_clients.atropos serve --config "${CONFIG:-${here}/ors_environment.yaml}" \
    --env.rollout_server_url "http://127.0.0.1:${port}" "$@"
