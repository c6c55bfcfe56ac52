"""The arguments of slime and Miles in the terms of a rollout.

Both hand every function the namespace of their command line, into which ``--custom-config-path`` merges a YAML file.
What is missing there is looked for in the environment, so that a function can be tried out with an empty namespace:

    ===================  =============================================  ==========================================
    what                 attribute of ``args``                          environment, else
    ===================  =============================================  ==========================================
    training file        ``train_config``                               ``TRAIN_CONFIG``, ``train_config.yaml``
    environments         ``ors_url``                                    the training file, ``ORS_URL``, …
    tokenizer            ``tokenizer_name_or_path``, ``hf_checkpoint``  ``HF_CHECKPOINT``
    engine               ``sglang_router_ip``, ``sglang_router_port``   ``SGLANG_ROUTER_URL``, localhost:30000
    tokens in all        ``rollout_max_context_len`` (evaluation:       the training file, 8192
                         ``eval_max_context_len``)
    tokens a generation  ``rollout_max_response_len``                   4096
    ===================  =============================================  ==========================================

Nothing here keeps state: the same arguments give the same answers.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ors_clients.errors import ConfigurationError
from ors_clients.samplers import SamplingParameters
from ors_clients.training.config import TrainingConfiguration

__all__ = [
    "max_total_tokens",
    "refuse_replay",
    "router_url",
    "sampling_parameters",
    "server_url",
    "tokenizer_name",
    "training_file",
]

_DEFAULT_TOTAL_TOKENS = 8192
_DEFAULT_RESPONSE_TOKENS = 4096
#: Where a sampling parameter is that the trainer did not hand over.
_ATTRIBUTES = {
    "max_new_tokens": "rollout_max_response_len",
    "temperature": "rollout_temperature",
    "top_p": "rollout_top_p",
    "top_k": "rollout_top_k",
    "stop": "rollout_stop",
    "stop_token_ids": "rollout_stop_token_ids",
}
_TEXT_OPTIONS = ("skip_special_tokens", "spaces_between_special_tokens", "no_stop_trim")


def _argument(args: Any, *names: str) -> Any:
    """Return the first of these attributes that is set."""
    return next((value for name in names if (value := getattr(args, name, None)) is not None), None)


def training_file(args: Any) -> str:
    """Return the path of the training configuration."""
    return str(_argument(args, "train_config") or os.environ.get("TRAIN_CONFIG") or "train_config.yaml")


def server_url(args: Any) -> str | None:
    """Return the environments' server, if the arguments name one."""
    return _argument(args, "ors_url")


def tokenizer_name(args: Any) -> str:
    """Return the checkpoint whose tokenizer the run uses. Raises ``ConfigurationError`` if none is named."""
    name = _argument(args, "tokenizer_name_or_path", "hf_checkpoint") or os.environ.get("HF_CHECKPOINT")
    if not name:
        raise ConfigurationError("No tokenizer is named", "Pass --hf-checkpoint, or set HF_CHECKPOINT")
    return str(name)


def router_url(args: Any) -> str:
    """Return the SGLang router, without a slash at the end."""
    address, port = _argument(args, "sglang_router_ip"), _argument(args, "sglang_router_port")
    if address is None and port is None:
        return os.environ.get("SGLANG_ROUTER_URL", "http://127.0.0.1:30000").rstrip("/")
    host = str(address or "127.0.0.1")
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    return f"http://{host}:{port or 30000}"


def max_total_tokens(args: Any, configuration: TrainingConfiguration, *, evaluation: bool = False) -> int:
    """Tokens of prompt and response together: the smaller of what trainer and training file say."""
    names = ("rollout_max_context_len", "rollout_max_total_len")
    trainer = _argument(args, "eval_max_context_len", *names) if evaluation else _argument(args, *names)
    limits = [int(limit) for limit in (trainer, configuration.max_total_tokens) if limit is not None]
    return min(limits, default=_DEFAULT_TOTAL_TOKENS)


def sampling_parameters(params: Mapping[str, Any], args: Any) -> SamplingParameters:
    """Return the trainer's ``sampling_params``; what SGLang alone knows of them goes to it as it is.

    How SGLang makes text of the tokens is not the trainer's to say here: calls are read in that text.
    """
    rest = {key: value for key, value in params.items() if value is not None and key not in _TEXT_OPTIONS}

    def take(key: str, default: Any) -> Any:
        given = rest.pop(key, None)
        if given is None:
            given = _argument(args, _ATTRIBUTES[key])
        return default if given is None else given

    stop = take("stop", ())
    return SamplingParameters(
        max_tokens=int(take("max_new_tokens", _DEFAULT_RESPONSE_TOKENS)),
        temperature=float(take("temperature", 1.0)),
        top_p=float(take("top_p", 1.0)),
        top_k=int(take("top_k", -1)),
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        stop_token_ids=tuple(take("stop_token_ids", ())),
        extra=rest,
    )


def refuse_replay(args: Any) -> None:
    """Raise ``ConfigurationError`` for options that need more of the engine than ids and log-probabilities.

    A sample without the routed experts of each token would fail in the trainer, hours later and elsewhere.
    """
    for name in ("use_rollout_routing_replay", "use_rollout_indexer_replay"):
        if getattr(args, name, False):
            raise ConfigurationError(
                f"--{name.replace('_', '-')} needs the routed experts of a whole rollout, which are not collected here",
                "Leave it out; with Miles, use the agent function (ors_clients.miles.run), where Miles collects them",
            )
