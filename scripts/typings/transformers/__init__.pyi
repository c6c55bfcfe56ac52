"""What is used of transformers: its own ``__init__`` makes pyright read 2,800 modules, a quarter of its time."""

from pathlib import Path
from typing import Any

class AutoTokenizer:
    @classmethod
    def from_pretrained(cls, name: str | Path, **settings: Any) -> Any: ...

GenerationConfig: Any
PreTrainedTokenizerFast: Any
Qwen3Config: Any
Qwen3ForCausalLM: Any
