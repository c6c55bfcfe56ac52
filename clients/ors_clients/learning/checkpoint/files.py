"""The folder of a checkpoint: one that is given, or that of the hub; and whether its model can call tools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ors_clients.client.tool_schemas import openai_tools
from ors_clients.errors import ConfigurationError
from ors_clients.learning.checkpoint.engine import INSTALL_VLLM
from ors_clients.rollouts.chat_renderer import ChatRenderer
from ors_clients.tool_calls import TOOL_CALL_FORMATS, ToolCall, find_format
from ors_clients.training.optional_imports import import_trainer_module
from ors_server.protocol import ToolSpec

__all__ = ["check_calls", "check_folder", "find_folder"]

#: What of a repository is needed: no weights in other forms.
_FILES = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]
_ASKED = "ProbeOfTheUser"
_TOOL = ToolSpec(
    name="probe_tool",
    description="Probe",
    input_schema={"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
)


def find_folder(model: str) -> Path:
    """Return the folder of a model, downloaded from the hub where it is not a folder. Raises ``ConfigurationError``."""
    if Path(model).is_absolute():
        folder = Path(model)
    else:
        hub = import_trainer_module("huggingface_hub", INSTALL_VLLM)
        try:
            folder = Path(hub.snapshot_download(model, allow_patterns=_FILES))
        except Exception as error:  # the hub's own errors, httpx's, and the disk's
            said = str(error).strip().splitlines()
            raise ConfigurationError(
                f"The Hugging Face hub does not give {model}: {said[0] if said else type(error).__name__}",
                "Give its name as the hub has it (HF_TOKEN for a gated one), or a folder.",
            ) from error
    check_folder(folder)
    return folder


def check_folder(folder: Path) -> None:
    """Raise ``ConfigurationError`` for a folder without a model."""
    if not (folder / "config.json").is_file():
        more = ": it holds an adapter, to be merged first" if (folder / "adapter_config.json").is_file() else ""
        raise ConfigurationError(
            f"{folder} has no config.json{more}", "Give a folder that save_pretrained of transformers wrote."
        )
    if not any(folder.glob("*.safetensors")):
        raise ConfigurationError(f"{folder} has no weights (*.safetensors)", "Give a folder with them.")


def check_calls(tokenizer: Any, name: str) -> ChatRenderer:
    """Return the renderer of a model's conversations. Raises ``ConfigurationError`` for one that calls no tools.

    Its chat template has to write tools and calls, in a form that is read here.
    """
    take = "Take a model that was trained to call tools, as Qwen/Qwen3-0.6B."
    if not getattr(tokenizer, "chat_template", None):
        raise ConfigurationError(f"{name} has no chat template, so it cannot call tools", take)
    renderer = ChatRenderer(tokenizer)
    if not renderer.describes_tools:
        raise ConfigurationError(f"The chat template of {name} leaves tools out, so it cannot call any", take)
    written = {"name": _TOOL.name, "arguments": {"word": "probe"}}
    conversation = [
        {"role": "user", "content": _ASKED},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "call00000", "type": "function", "function": written}],
        },
    ]
    try:
        text = str(tokenizer.apply_chat_template(conversation, tools=openai_tools([_TOOL]), tokenize=False))
    except Exception as error:  # a template raises whatever it likes: jinja's own errors and its raise_exception
        raise ConfigurationError(f"The chat template of {name} writes no calls: {error}", take) from error
    said = text.rpartition(_ASKED)[2]
    found = [call for call in find_format("auto").parse(said, [_TOOL]) if isinstance(call, ToolCall)]
    if [(one.name, dict(one.input)) for one in found] != [(written["name"], written["arguments"])]:
        raise ConfigurationError(
            f"The chat template of {name} writes a call as {said.strip()[:200]!r}, which is not read here",
            f"There are the forms {', '.join(TOOL_CALL_FORMATS)}. {take}",
        )
    return renderer
