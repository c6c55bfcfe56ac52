#!/usr/bin/env bash
# Trains a model with Miles on the environments of a training configuration. `bash run.sh --help` says how.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

usage() {
    cat <<EOF
Usage, from the root of the Miles repository: bash $(basename "$0") [OPTIONS] [-- ARGUMENTS OF train_async.py]

Model and checkpoints:
  --model NAME               Hugging Face checkpoint (default: Qwen/Qwen3-30B-A3B)
  --save DIR                 where checkpoints are written (default: checkpoints/ beside this script)
  --load DIR                 checkpoints to go on from; the latest is taken if there is one (default: as --save)
  --ref-load DIR             checkpoint of the reference model, and with megatron of the first weights: a folder
                             (default: none; with --use-kl-loss the checkpoint of --model, if the backend is fsdp, or
                             megatron with -- --megatron-to-hf-mode bridge, which then starts from it as well)
  --save-interval N          steps between checkpoints (default: 10)

Optimizer:
  --lr FLOAT                 learning rate (default: 1e-5)
  --weight-decay FLOAT       weight decay (default: 0.0)
  --adam-beta1 FLOAT         Adam's beta 1 (default: 0.9)
  --adam-beta2 FLOAT         Adam's beta 2 (default: 0.999)
  --adam-eps FLOAT           Adam's epsilon (default: 1e-8)
  --lr-decay-style STYLE     constant, cosine or linear (default: constant)
  --no-importance-sampling   do not weigh tokens by the recorded log-probabilities (default: -- --use-tis; left
                             out for -- --use-rollout-logprobs, which takes them as the old policy's)

Cluster:
  --actor-gpus N             GPUs that train, on each node (default: 4)
  --rollout-gpus N           GPUs that generate (default: 4)
  --colocate                 the GPUs that train generate as well, in turns (default: off); train.py then runs in place
                             of train_async.py, and --rollout-gpus is not used
  --num-gpus N               openreward-cookbook's name for --colocate --actor-gpus N
  --tp N                     GPUs an inference engine; with megatron also tensor parallelism (default: 4)
  --actor-nodes N            nodes that train (default: 1)
  --train-backend NAME       fsdp or megatron (default: fsdp)
  --model-args FILE          model's file in Miles' scripts/models/ (a .py), or a script that sets MODEL_ARGS;
                             megatron needs it
  --max-tokens-per-gpu N     most tokens a GPU trains on at once (default: 8192)
  --no-dynamic-batch-size    do not pack samples up to --max-tokens-per-gpu
  --no-gradient-checkpointing  keep activations: about 10 % faster, much more memory (default: computed again)

Rollouts:
  --rollout-batch-size N     prompts a batch (default: 32)
  --n-samples N              rollouts a prompt (default: 16)
  --max-response-len N       most tokens a generation (default: 4096)
  --max-total-len N          most tokens a rollout, prompt and tool outputs included (default: 8192)
  --temperature FLOAT        sampling temperature (default: 1.0)
  --num-rollout N            batches in all (default: 3000)
  --agent                    let Miles' session server keep the tokens, and only drive the conversation
  --tito-model FAMILY        with --agent: whose turns the session server writes (default: by the name of --model)

Data:
  --config FILE              training configuration (default: train_config.yaml beside this script)
  --task-data FILE           tasks that prepare_tasks.py wrote (default: tasks.jsonl beside this script)

Tracking, if WANDB_API_KEY is set or WANDB_MODE is offline:
  --wandb-project NAME       project (default: miles-openreward)
  --wandb-run NAME           name of the run, there and for uploaded rollouts (default: miles-rl-openreward-DATE;
                             uploads: openreward_run_name of the training configuration)

  --miles-path DIR            the Miles repository (default: the working folder)
  --megatron-path DIR        the Megatron-LM repository, put on PYTHONPATH (default: as installed)
  --dry-run                  print the command instead of running it
  --help                     print this

Environment variables: ORS_URL (the environments' server) and ORS_API_KEY, or for environments that OpenReward hosts
OPENREWARD_SESSION_URL and OPENREWARD_API_KEY, which goes to no other server; WANDB_API_KEY, and those of the
environments' secrets.
EOF
}

model="Qwen/Qwen3-30B-A3B"
save="${here}/checkpoints/"
load=""
ref_load=""
save_interval=10

lr=1e-5
weight_decay=0.0
adam_beta1=0.9
adam_beta2=0.999
adam_eps=1e-8
lr_decay_style=constant
importance_sampling=true

actor_gpus=4
colocate=false
repository=""
megatron_path=""
rollout_gpus=4
tp=4
actor_nodes=1
train_backend=fsdp
model_args=""
max_tokens_per_gpu=8192
dynamic_batch_size=true
gradient_checkpointing=true

rollout_batch_size=32
n_samples=16
max_response_len=4096
max_total_len=8192
temperature=1.0
num_rollout=3000
agent=false
tito_model=""

config="${here}/train_config.yaml"
task_data="${here}/tasks.jsonl"
wandb_project="miles-openreward"
wandb_run=""
dry_run=false
extra=()

fail() {
    echo "error: $*" >&2
    exit 2
}

# An option's value has the form of this expression.
check() {
    [[ "$2" =~ $3 ]] || fail "$1 is $4, not $(printf '%q' "$2")"
}

# Whether the arguments of train_async.py have this one.
has_extra() {
    local word
    for word in "${extra[@]}"; do
        if [[ "${word}" == "$1" || "${word}" == "$1="* ]]; then
            return 0
        fi
    done
    return 1
}

# What train_async.py reads for an option among its own arguments: the last value, or nothing.
extra_value() {
    local index value=""
    for ((index = 0; index < ${#extra[@]}; index++)); do
        case "${extra[index]}" in
            "$1") value="${extra[index + 1]:-}" ;;
            "$1="*) value="${extra[index]#*=}" ;;
            *) ;;
        esac
    done
    printf '%s' "${value}"
}

while [[ $# -gt 0 ]]; do
    case "$1" in
        --help | -h) usage; exit 0 ;;
        --dry-run) dry_run=true; shift; continue ;;
        --no-importance-sampling) importance_sampling=false; shift; continue ;;
        --no-dynamic-batch-size) dynamic_batch_size=false; shift; continue ;;
        --gradient-checkpointing) gradient_checkpointing=true; shift; continue ;;
        --no-gradient-checkpointing) gradient_checkpointing=false; shift; continue ;;
        --agent) agent=true; shift; continue ;;
        --colocate) colocate=true; shift; continue ;;
        --) shift; extra=("$@"); break ;;
        *) ;;
    esac
    [[ $# -ge 2 ]] || fail "$1 takes a value, or is no option; see --help"
    [[ "$2" != --* ]] || fail "$1 takes a value and is followed by the option $2, or is no option; see --help"
    case "$1" in
        --rollout-gpus) check "$1" "$2" '^(0|[1-9][0-9]*)$' "a whole number" ;; # 0 where they share those that train
        --save-interval | --actor-gpus | --num-gpus | --tp | --actor-nodes | --max-tokens-per-gpu | --rollout-batch-size | \
            --n-samples | --max-response-len | --max-total-len | --num-rollout)
            check "$1" "$2" '^[1-9][0-9]*$' "a whole number over 0"
            ;;
        --lr | --weight-decay | --adam-beta1 | --adam-beta2 | --adam-eps | --temperature)
            check "$1" "$2" '^([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][-+]?[0-9]+)?$' "a number"
            ;;
        *) ;;
    esac
    case "$1" in
        --model) model="$2" ;;
        --tito-model) tito_model="$2" ;;
        --miles-path) repository="$2" ;;
        --save) save="$2" ;;
        --load) load="$2" ;;
        --ref-load) ref_load="$2" ;;
        --save-interval) save_interval="$2" ;;
        --lr) lr="$2" ;;
        --weight-decay) weight_decay="$2" ;;
        --adam-beta1) adam_beta1="$2" ;;
        --adam-beta2) adam_beta2="$2" ;;
        --adam-eps) adam_eps="$2" ;;
        --lr-decay-style) lr_decay_style="$2" ;;
        --actor-gpus) actor_gpus="$2" ;;
        --num-gpus) actor_gpus="$2"; colocate=true ;;
        --megatron-path) megatron_path="$2" ;;
        --rollout-gpus) rollout_gpus="$2" ;;
        --tp) tp="$2" ;;
        --actor-nodes) actor_nodes="$2" ;;
        --train-backend) train_backend="$2" ;;
        --model-args) model_args="$2" ;;
        --max-tokens-per-gpu) max_tokens_per_gpu="$2" ;;
        --rollout-batch-size) rollout_batch_size="$2" ;;
        --n-samples) n_samples="$2" ;;
        --max-response-len) max_response_len="$2" ;;
        --max-total-len) max_total_len="$2" ;;
        --temperature) temperature="$2" ;;
        --num-rollout) num_rollout="$2" ;;
        --config) config="$2" ;;
        --task-data) task_data="$2" ;;
        --wandb-project) wandb_project="$2" ;;
        --wandb-run) wandb_run="$2" ;;
        *) fail "no option $1; see --help" ;;
    esac
    shift 2
done

[[ "${train_backend}" == fsdp || "${train_backend}" == megatron ]] || fail "--train-backend is fsdp or megatron"
[[ -f "${config}" ]] || fail "no training configuration at ${config}"
# The rollouts run in other processes, in other folders.
config="$(cd "$(dirname "${config}")" && pwd)/$(basename "${config}")"

[[ -f "${task_data}" ]] && task_data="$(cd "$(dirname "${task_data}")" && pwd)/$(basename "${task_data}")"
if [[ -n "${repository}" ]]; then
    cd "${repository}" || fail "--miles-path is no folder that can be entered"
fi
program=train_async.py
cluster_arguments=(--rollout-num-gpus "${rollout_gpus}")
if [[ "${colocate}" == true ]]; then
    program=train.py # train_async.py refuses GPUs that do both
    cluster_arguments=(--rollout-num-gpus "$((actor_nodes * actor_gpus))" --colocate)
fi
if [[ -n "${megatron_path}" ]]; then
    [[ -d "${megatron_path}/megatron" ]] || fail "no Megatron-LM repository at ${megatron_path}"
    megatron_path="$(cd "${megatron_path}" && pwd)"
    export PYTHONPATH="${megatron_path}${PYTHONPATH:+:${PYTHONPATH}}"
fi

backend_arguments=()
if [[ "${train_backend}" == megatron ]]; then
    [[ -f "${model_args}" ]] || fail "megatron needs --model-args: a file of Miles' scripts/models/"
    MODEL_ARGS=()
    if [[ "${model_args}" == *.py ]]; then
        # Miles' own reader: such a file imports from it.
        reader="$(dirname "${model_args}")/../../miles/utils/external_utils/model_args_utils.py"
        [[ -f "${reader}" ]] ||
            fail "${model_args} is in no scripts/models/ of a Miles repository; name one that is, or a script that" \
                "sets MODEL_ARGS"
        line="$(python "${reader}" "$(basename "${model_args}" .py)")" || fail "Miles cannot read ${model_args}"
        read -ra MODEL_ARGS <<<"${line}"
    else
        # shellcheck source=/dev/null
        source "${model_args}"
    fi
    [[ ${#MODEL_ARGS[@]} -gt 0 ]] || fail "${model_args} sets no MODEL_ARGS; take a file of Miles' scripts/models/"
    # Megatron's own default is a dropout of 0.1, under which no log-probability is the engine's.
    backend_arguments+=(
        --attention-dropout 0.0
        --hidden-dropout 0.0
        --accumulate-allreduce-grads-in-fp32
        --attention-softmax-in-fp32
        "${MODEL_ARGS[@]}"
        --tensor-model-parallel-size "${tp}"
    )
    if [[ "${tp}" -gt 1 ]]; then
        backend_arguments+=(--sequence-parallel) # mixtures of experts do not train without it
    fi
    export CUDA_DEVICE_MAX_CONNECTIONS=1
    if [[ "${gradient_checkpointing}" == true ]]; then
        backend_arguments+=(--recompute-granularity full --recompute-method uniform --recompute-num-layers 1)
    fi
elif [[ "${gradient_checkpointing}" == true ]]; then
    backend_arguments+=(--gradient-checkpointing)
fi
if [[ "${dynamic_batch_size}" == true ]]; then
    backend_arguments+=(--use-dynamic-batch-size --max-tokens-per-gpu "${max_tokens_per_gpu}")
fi

# The reference model. A KL penalty measures the distance to it, and Megatron takes its first weights from it. Where
# Miles needs one and has none, it ends with a TypeError.
hugging_face=false
if [[ "${train_backend}" == fsdp || "$(extra_value --megatron-to-hf-mode)" == bridge ]]; then
    hugging_face=true
fi
remedy="tools/convert_hf_to_torch_dist.py of Miles makes one from a Hugging Face checkpoint, and with"
remedy+=" -- --megatron-to-hf-mode bridge Miles reads that one itself (README.md, Megatron)"
from="$(extra_value --load)"
from="${from:-${load:-${save}}}"
has_weights=false
if [[ "${train_backend}" == fsdp || -f "${from}/latest_checkpointed_iteration.txt" ]]; then
    has_weights=true
fi
has_penalty=false
if has_extra --use-kl-loss || [[ ! "$(extra_value --kl-coef)" =~ ^[0.]*([eE].*)?$ ]]; then
    has_penalty=true
fi
reference="$(extra_value --ref-load)"
reference="${reference:-${ref_load}}"
reference_is_model=false
if [[ -z "${reference}" && "${has_weights}${has_penalty}" != truefalse ]]; then
    if [[ "${hugging_face}" == true ]]; then
        reference="${model}"
        reference_is_model=true
    elif [[ "${has_weights}" == true ]]; then
        fail "--use-kl-loss and --kl-coef need a reference model: --ref-load DIR, a torch_dist checkpoint; ${remedy}"
    else
        fail "megatron has nothing to start from: no checkpoint in ${from}, and no --ref-load DIR, a torch_dist" \
            "checkpoint; ${remedy}"
    fi
fi
if [[ -n "${reference}" && "${reference_is_model}" == false ]]; then
    [[ -d "${reference}" ]] || fail "no folder at ${reference}; --ref-load takes that of a checkpoint"
    if [[ "${train_backend}" == fsdp && ! -f "${reference}/config.json" ]]; then
        fail "no config.json in ${reference}; with fsdp, --ref-load takes the folder of a Hugging Face checkpoint"
    fi
fi
if [[ "${hugging_face}" == false && -f "${reference}/config.json" &&
    ! -f "${reference}/latest_checkpointed_iteration.txt" ]]; then
    fail "--ref-load ${reference} is a Hugging Face checkpoint, and megatron reads a torch_dist checkpoint; ${remedy}"
fi

tracking_arguments=()
if [[ -n "${WANDB_API_KEY:-}" || "${WANDB_MODE:-}" == offline ]]; then
    # The key itself stays in the environment: a command line can be read by everyone on the machine.
    tracking_arguments+=(
        --use-wandb
        --wandb-project "${wandb_project}"
        --wandb-group "${wandb_run:-miles-rl-openreward-$(date +%Y%m%d-%H%M%S)}"
        --disable-wandb-random-suffix
    )
fi

export TRAIN_CONFIG="${config}"
export PYTHONPATH="${here}${PYTHONPATH:+:${PYTHONPATH}}"
if [[ -n "${wandb_run}" ]]; then
    export OPENREWARD_RUN_NAME="${wandb_run}"
fi

# A batch is generated while the one before it trains: the weights that sampled it are an update older than those that
# are trained. --use-tis weighs a token by its probability under these, divided by the recorded one.
correction_arguments=()
if [[ "${importance_sampling}" == true ]] && ! has_extra --use-rollout-logprobs && ! has_extra --use-tis; then
    correction_arguments=(--use-tis)
fi

function_arguments=(
    --custom-rm-path reward.reward_func
    --dynamic-sampling-filter-path generate.keep_group
    --custom-rollout-log-function-path generate.log_rollout_data
    --custom-eval-rollout-log-function-path generate.log_eval_rollout_data
)
# The family by which Miles' session server writes what stands between two turns of the model. Its default only puts the
# texts together: with Qwen's templates every line break between turns is missing, or each second turn fails.
tito_family() {
    local name="${1,,}"
    case "${name}" in
        *qwen3-next* | *qwen3*thinking-2507*) echo qwennext ;;
        *qwen3.5*) echo qwen35 ;;
        *qwen3.[6-9]* | *qwen3-vl* | *qwen3-omni* | *qwen3-coder*) ;; # templates of their own
        *qwen3*) echo qwen3 ;;
        *glm-4.7* | *glm-5*) echo glm47 ;;
        *nemotron-3*) echo nemotron3 ;;
        *kimi-k2.5*) echo kimi25 ;;
        *kimi-k2.6*) echo kimi26 ;;
        *minimax-m2.5*) echo minimax_m25 ;;
        *minimax-m2.7*) echo minimax_m27 ;;
        *deepseek-v3.2*) echo deepseekv32 ;;
        *deepseek-v4*) echo deepseekv4 ;;
        *inkling*) echo inkling ;;
        *) ;;
    esac
}

if [[ "${agent}" == true ]]; then
    named="$(extra_value --tito-model)"
    if [[ -z "${named}" ]]; then
        tito_model="${tito_model:-$(tito_family "$(basename "${model}")")}"
        [[ -n "${tito_model}" ]] ||
            fail "--agent needs the family of ${model}: --tito-model FAMILY, one of Miles'" \
                "docs/user-guide/agentic-rollout.md (default: none of them; what it writes wrongly is not trained on)"
        function_arguments+=(--tito-model "${tito_model}")
    fi
    function_arguments+=(
        --use-session-server
        --custom-generate-function-path generate.generate_with_agent
        --custom-agent-function-path generate.run
        --max-seq-len "${max_total_len}"
    )
else
    function_arguments+=(--custom-generate-function-path generate.generate)
fi

if [[ "${dry_run}" == false ]]; then
    context_parallel="$(extra_value --context-parallel-size)"
    if [[ "${train_backend}" == fsdp && "${context_parallel:-1}" != 1 ]] &&
        grep -qs "Context parallelism is not supported for FSDP" miles/utils/arguments.py; then
        fail "--context-parallel-size needs --train-backend megatron: the FSDP backend of this Miles has none"
    fi
    [[ -f "${task_data}" ]] ||
        fail "no tasks at ${task_data}; write them with: python ${here}/prepare_tasks.py --config ${config}" \
            "--output ${task_data}"
    [[ -f "${program}" ]] || fail "no ${program} here; run this from the root of the Miles repository"
fi

reference_arguments=()
if [[ "${reference_is_model}" == true && ! -d "${reference}" ]]; then
    if [[ "${dry_run}" == true ]]; then
        echo "note: a run has the folder of ${reference}'s download in place of its name behind --ref-load" >&2
    else
        # A reference model is read from a folder only. huggingface_hub comes with transformers.
        reference="$(
            python - "${model}" <<'END'
import sys

from huggingface_hub import snapshot_download

print(snapshot_download(sys.argv[1]))
END
        )" || fail "no Hugging Face checkpoint ${model} to be the reference model; name its folder with --ref-load"
    fi
fi
if [[ -n "${reference}" && -z "$(extra_value --ref-load)" ]]; then
    reference_arguments=(--ref-load "${reference}")
fi

command=(
    python "${program}"
    --actor-num-nodes "${actor_nodes}"
    --actor-num-gpus-per-node "${actor_gpus}"
    "${cluster_arguments[@]}"
    --rollout-num-gpus-per-engine "${tp}"
    --train-backend "${train_backend}"
    "${backend_arguments[@]}"

    --hf-checkpoint "${model}"
    --save "${save}"
    --load "${load:-${save}}"
    "${reference_arguments[@]}"
    --save-interval "${save_interval}"

    --advantage-estimator grpo
    "${correction_arguments[@]}"
    --optimizer adam
    --lr "${lr}"
    --lr-decay-style "${lr_decay_style}"
    --weight-decay "${weight_decay}"
    --adam-beta1 "${adam_beta1}"
    --adam-beta2 "${adam_beta2}"
    --adam-eps "${adam_eps}"

    --prompt-data "${task_data}"
    --input-key prompt
    --label-key label
    --metadata-key metadata
    --rollout-shuffle
    "${function_arguments[@]}"
    --n-samples-per-prompt "${n_samples}"
    --rollout-batch-size "${rollout_batch_size}"
    --num-steps-per-rollout 1
    --global-batch-size "$((rollout_batch_size * n_samples))"
    --rollout-max-response-len "${max_response_len}"
    --rollout-max-context-len "${max_total_len}"
    --rollout-temperature "${temperature}"
    --num-rollout "${num_rollout}"
    --sglang-mem-fraction-static 0.8

    "${tracking_arguments[@]}"
    "${extra[@]}"
)

if [[ "${dry_run}" == true ]]; then
    printf '%q ' "${command[@]}"
    echo
    exit 0
fi
exec "${command[@]}"
